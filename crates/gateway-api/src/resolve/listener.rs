//! One listener: what it asks for, and what of that can be served.

use std::collections::BTreeSet;

use legate_model::WILDCARD;
use legate_routes::{Clients, is_host};

use super::clients;
use super::lookup::{Lookup, Referrer};
use crate::condition::Problem;
use crate::kind::{Protocol, RouteKind};
use crate::object::{Key, Object};
use crate::outcome::RouteId;
use crate::types::{GROUP, Gateway, Listener};

/// Whose listener it is. Gateways come before their ListenerSets, in the order of precedence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    Gateway,
    /// The ListenerSet at this index.
    Set(usize),
}

/// A listener, with what was found out about it.
pub(super) struct ListenerPlan<'a> {
    pub(super) owner: Owner,
    /// The namespace of its object.
    pub(super) namespace: &'a str,
    pub(super) spec: &'a Listener,
    /// `None` for one that nobody here understands.
    pub(super) protocol: Option<Protocol>,
    /// The hosts that it serves, in lower case; `*` for all.
    pub(super) host: String,
    /// The kinds of routes that it can have.
    pub(super) kinds: Vec<RouteKind>,
    /// Why it is not accepted.
    pub(super) refused: Option<Problem>,
    /// The conflict with another listener, because of which it is not accepted either.
    pub(super) conflict: Option<Problem>,
    /// Why not all that it refers to can be used.
    pub(super) unresolved: Option<Problem>,
    /// What it presents to clients.
    pub(super) certificates: Vec<Key>,
    /// How it verifies clients.
    pub(super) clients: Option<Clients>,
    /// The routes that are attached.
    pub(super) attached: BTreeSet<RouteId>,
}

impl ListenerPlan<'_> {
    /// Whether its host is one: Envoy refuses all of a port for one that is not.
    pub(super) fn has_host(&self) -> bool {
        self.host == WILDCARD || is_host(&self.host)
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.refused.is_none() && self.conflict.is_none()
    }

    /// Whether it is served: a listener for nothing is not, and none without its certificates.
    pub(super) fn is_served(&self) -> bool {
        let has_certificates =
            !self.protocol.is_some_and(Protocol::presents) || !self.certificates.is_empty();
        self.is_accepted() && !self.kinds.is_empty() && has_certificates
    }

    pub(super) fn refuse(&mut self, reason: &'static str, message: String) {
        if self.refused.is_none() {
            self.refused = Some(Problem::new(reason, message));
        }
    }

    fn unresolved(&mut self, problem: Problem) {
        if self.unresolved.is_none() {
            self.unresolved = Some(problem);
        }
    }
}

/// The listeners of a Gateway or of a ListenerSet.
pub(super) fn plans<'a, T>(
    lookup: &Lookup<'_>,
    gateway: &Object<Gateway>,
    (owner, object): (Owner, &'a Object<T>),
    listeners: &'a [Listener],
) -> Vec<ListenerPlan<'a>> {
    let elsewhere = object.unserved_outside("listeners");
    let elsewhere = elsewhere.or(gateway.unserved_outside("listeners"));
    let each = listeners.iter().enumerate().map(|(index, spec)| {
        let mut plan = ListenerPlan {
            owner,
            namespace: &object.meta.namespace,
            spec,
            protocol: None,
            host: host(spec),
            kinds: Vec::new(),
            refused: None,
            conflict: None,
            unresolved: None,
            certificates: Vec::new(),
            clients: None,
            attached: BTreeSet::new(),
        };
        let own = object.unserved_in(&format!("listeners[{index}]"));
        // A field of the whole object concerns each of its listeners.
        if let Some(path) = own.or(elsewhere) {
            plan.refuse(UNSUPPORTED, format!("spec.{path} is not served"));
        }
        set_protocol(&mut plan);
        set_kinds(&mut plan);
        set_certificates(lookup, &mut plan);
        set_clients(lookup, gateway, &mut plan);
        plan
    });
    each.collect()
}

const UNSUPPORTED: &str = "UnsupportedValue";

fn host(spec: &Listener) -> String {
    match spec.hostname.as_deref().unwrap_or_default() {
        "" => WILDCARD.to_owned(),
        name => name.to_lowercase(),
    }
}

fn set_protocol(plan: &mut ListenerPlan<'_>) {
    let tls = plan.spec.tls.as_ref();
    let mode = tls.map(|tls| tls.mode.as_deref().unwrap_or("Terminate"));
    plan.protocol = match (plan.spec.protocol.as_str(), mode) {
        ("HTTP", None) => Some(Protocol::Http),
        ("HTTPS", Some("Terminate")) => Some(Protocol::Https),
        ("TLS", Some("Terminate")) => Some(Protocol::TlsTerminated),
        ("TLS", Some("Passthrough")) => Some(Protocol::TlsPassedThrough),
        ("TCP", None) => Some(Protocol::Tcp),
        ("UDP", None) => Some(Protocol::Udp),
        ("HTTP" | "HTTPS" | "TLS" | "TCP" | "UDP", mode) => {
            let message = format!(
                "tls.mode is {}, which {} cannot have",
                mode.unwrap_or("unset"),
                plan.spec.protocol
            );
            plan.refuse(UNSUPPORTED, message);
            None
        }
        (other, _) => {
            // More important than what else is wrong with it.
            let message = format!("the protocol {other:?} is not HTTP, HTTPS, TLS, TCP or UDP");
            plan.refused = Some(Problem::new("UnsupportedProtocol", message));
            None
        }
    };
    if plan.spec.port == 0 {
        plan.refuse(UNSUPPORTED, "port: 0 is not a port".to_owned());
    }
    if !plan.has_host() {
        let message = format!("hostname {:?} is not a host name", plan.host);
        plan.refuse(UNSUPPORTED, message);
    }
}

fn set_kinds(plan: &mut ListenerPlan<'_>) {
    let Some(protocol) = plan.protocol else {
        return;
    };
    let possible = protocol.kinds();
    let allowed = plan.spec.allowed_routes.as_ref();
    let written = allowed.map_or(&[][..], |allowed| &allowed.kinds[..]);
    if written.is_empty() {
        plan.kinds = possible.to_vec();
    }
    for kind in written {
        let is_own = kind.group.as_deref().is_none_or(|group| group == GROUP);
        let found = possible.iter().find(|one| one.as_str() == kind.kind);
        match found.filter(|_| is_own) {
            Some(found) if plan.kinds.contains(found) => {}
            Some(found) => plan.kinds.push(*found),
            None => {
                let message = format!(
                    "{} cannot be attached to a listener of the protocol {}",
                    kind.kind, plan.spec.protocol
                );
                plan.unresolved(Problem::new("InvalidRouteKinds", message));
            }
        }
    }
    let from = allowed.and_then(|allowed| allowed.namespaces.as_ref()?.from.as_deref());
    if let Some(other) = from.filter(|from| !["All", "Same", "Selector"].contains(from)) {
        let message = format!("allowedRoutes.namespaces.from: {other:?} is not served");
        plan.refuse(UNSUPPORTED, message);
    }
}

fn set_certificates(lookup: &Lookup<'_>, plan: &mut ListenerPlan<'_>) {
    const INVALID: &str = "InvalidCertificateRef";
    if !plan.protocol.is_some_and(Protocol::presents) {
        return;
    }
    let written = plan.spec.tls.as_ref();
    let written = written.map_or(&[][..], |tls| &tls.certificate_refs[..]);
    if written.is_empty() {
        plan.unresolved(Problem::new(INVALID, "tls.certificateRefs is empty"));
    }
    let from = Referrer {
        group: GROUP,
        kind: match plan.owner {
            Owner::Gateway => "Gateway",
            Owner::Set(_) => "ListenerSet",
        },
        namespace: plan.namespace,
    };
    for reference in written {
        match lookup.certificate(from, reference, INVALID) {
            Ok(key) if plan.certificates.contains(&key) => {}
            Ok(key) => plan.certificates.push(key),
            Err(problem) => plan.unresolved(problem),
        }
    }
}

/// How clients are verified is up to the Gateway, also for the listeners of its ListenerSets.
fn set_clients(lookup: &Lookup<'_>, gateway: &Object<Gateway>, plan: &mut ListenerPlan<'_>) {
    if !plan.protocol.is_some_and(Protocol::presents) {
        return;
    }
    let found = clients::of_port(lookup, gateway, plan.spec.port);
    plan.clients = found.clients;
    if let Some(problem) = found.unresolved {
        plan.unresolved(problem);
    }
    if let Some(problem) = found.refused {
        plan.refuse(problem.reason, problem.message);
    }
}
