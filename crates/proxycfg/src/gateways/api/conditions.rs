//! What is said about gateways and routes, in Consul's words.

use legate_model::{Condition, ConfigKind, ResourceReference, ServiceName};
use legate_store::ReadTxn;

use super::binding::{Binding, binding};
use super::listener::Unresolved;
use super::route::{self, Route, RouteId, Unusable};

const ACCEPTED: &str = "Accepted";
const RESOLVED_REFS: &str = "ResolvedRefs";
const CONFLICTED: &str = "Conflicted";
const BOUND: &str = "Bound";

/// About a gateway: of each listener whether everything exists that it refers to, of the whole
/// gateway whether routes can be bound to it, and of each listener whether its routes conflict.
pub(super) fn of_gateway(gateway: &ServiceName, binding: &Binding) -> Vec<Condition> {
    let about = |condition: Condition, listener: &str| {
        condition.about(ResourceReference {
            section_name: listener.to_owned(),
            ..ResourceReference::to(ConfigKind::ApiGateway, gateway)
        })
    };
    let listeners = binding.listeners.iter();
    let resolved =
        listeners.map(|one| about(references(one.references.unresolved.as_ref()), &one.name));
    let mut conditions: Vec<_> = resolved.collect();
    conditions.push(accepted(binding));
    let conflicts = binding.listeners.iter().map(|one| {
        let condition = match one.is_conflicted() {
            true => Condition::new(
                CONFLICTED,
                true,
                "RouteConflict",
                "TCP-based listeners currently only support binding a single route",
            ),
            false => Condition::new(
                CONFLICTED,
                false,
                "NoConflict",
                "listener has no route conflicts",
            ),
        };
        about(condition, &one.name)
    });
    conditions.extend(conflicts);
    conditions
}

fn references(unresolved: Option<&Unresolved>) -> Condition {
    let missing = |reason, message: &str| Condition::new(RESOLVED_REFS, false, reason, message);
    match unresolved {
        None => Condition::new(RESOLVED_REFS, true, RESOLVED_REFS, "resolved refs"),
        Some(Unresolved::Certificate(name)) => missing(
            "InvalidCertificateRef",
            &format!("certificate {name:?} not found"),
        ),
        Some(Unresolved::JwtProvider(name)) => missing(
            "InvalidJWTProviderRef",
            &format!("JWT provider {name:?} not found"),
        ),
    }
}

fn accepted(binding: &Binding) -> Condition {
    let lacks = |is: fn(&Unresolved) -> bool| {
        let mut listeners = binding.listeners.iter();
        listeners.any(|one| one.references.unresolved.as_ref().is_some_and(is))
    };
    if lacks(|one| matches!(one, Unresolved::JwtProvider(_))) {
        let message = "gateway references invalid JWT Providers";
        Condition::new(ACCEPTED, false, "InvalidJWTProviders", message)
    } else if lacks(|one| matches!(one, Unresolved::Certificate(_))) {
        let message = "gateway references invalid certificates";
        Condition::new(ACCEPTED, false, "InvalidCertificates", message)
    } else {
        Condition::new(ACCEPTED, true, ACCEPTED, "gateway is valid")
    }
}

/// About a route: whether it can be used, and of each of its parents whether it is bound to it.
pub(super) fn of_route(
    txn: &ReadTxn<'_>,
    id: &RouteId,
    route: &Route<'_>,
    datacenter: &str,
) -> Vec<Condition> {
    let usable = route::usable(txn, id, datacenter);
    let mut conditions = vec![match &*usable {
        Ok(()) => Condition::new(ACCEPTED, true, ACCEPTED, "route is valid"),
        Err(Unusable::NoServices) => Condition::new(
            ACCEPTED,
            false,
            "NoUpstreamServicesTargeted",
            "route must target at least one upstream service",
        ),
        Err(Unusable::Chain(reason)) => {
            Condition::new(ACCEPTED, false, "InvalidDiscoveryChain", reason)
        }
    }];
    for parent in route.parents() {
        let gateway = parent.resolve(&id.name.tenancy);
        let binding = binding(txn, &gateway, datacenter);
        conditions.push(bound(&binding, id, &parent.section_name).about(parent.clone()));
    }
    conditions
}

fn bound(binding: &Option<Binding>, id: &RouteId, section: &str) -> Condition {
    let attempts = binding.iter().flat_map(|binding| &binding.attempts);
    let mut attempts = attempts.filter(|one| one.route == *id && one.section == section);
    match attempts.next().map(|attempt| &attempt.error) {
        None => Condition::new(BOUND, false, "GatewayNotFound", "gateway was not found"),
        Some(None) => Condition::new(BOUND, true, BOUND, "successfully bound route"),
        Some(Some(reason)) => Condition::new(BOUND, false, "FailedToBind", reason),
    }
}
