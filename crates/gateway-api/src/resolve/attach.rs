//! Which routes are attached to which listeners, and to which ports of Services.

use std::collections::{BTreeMap, BTreeSet};

use legate_routes::covers;

use super::gateway::GatewayPlan;
use super::listener::{ListenerPlan, Owner};
use super::lookup::Lookup;
use super::route::Route;
use super::{consul, frontend};
use crate::condition::Problem;
use crate::kind::RouteKind;
use crate::object::Key;
use crate::types::{GROUP, ParentReference};

/// What became of a route's reference to a gateway of this controller, or to a Service.
pub(super) struct Attachment<'a> {
    pub(super) parent: &'a ParentReference,
    pub(super) to: AttachedTo,
}

/// What a route is attached to, or why it is not.
pub(super) enum AttachedTo {
    /// The listeners of a gateway, all by their indexes. At least one listener.
    Gateway(usize, Result<Vec<usize>, Problem>),
    /// The ports of a Service. At least one.
    Service(Key, Result<Vec<u16>, Problem>),
}

impl Attachment<'_> {
    /// The listeners, each with its gateway.
    pub(super) fn listeners(&self) -> impl Iterator<Item = (usize, usize)> {
        let (gateway, listeners) = match &self.to {
            AttachedTo::Gateway(gateway, Ok(listeners)) => (*gateway, &listeners[..]),
            AttachedTo::Gateway(..) | AttachedTo::Service(..) => (0, &[][..]),
        };
        listeners.iter().map(move |listener| (gateway, *listener))
    }

    /// Why it is attached to nothing.
    pub(super) fn refused(&self) -> Option<&Problem> {
        match &self.to {
            AttachedTo::Gateway(_, listeners) => listeners.as_ref().err(),
            AttachedTo::Service(_, ports) => ports.as_ref().err(),
        }
    }
}

pub(super) const NO_PARENT: &str = "NoMatchingParent";
const NOT_ALLOWED: &str = "NotAllowedByListeners";

/// Finds for each route, the oldest first, what becomes of its references. References to gateways of
/// other controllers, and to what does not exist, are not there: nobody here knows whose they are.
pub(super) fn attach<'a>(
    lookup: &Lookup<'_>,
    gateways: &[GatewayPlan<'_>],
    routes: &[Route<'a>],
) -> Vec<Vec<Attachment<'a>>> {
    let mut parents = BTreeMap::new();
    for (at, gateway) in gateways.iter().enumerate() {
        parents.insert(("Gateway", gateway.object.meta.key()), (at, Owner::Gateway));
        for (index, set) in gateway.sets.iter().enumerate() {
            parents.insert(
                ("ListenerSet", set.object.meta.key()),
                (at, Owner::Set(index)),
            );
        }
    }
    let mut requests = Requests::default();
    let attached = routes.iter().map(|route| {
        let mut found = Vec::new();
        for parent in route.parents {
            let group = parent.group.as_deref().unwrap_or(GROUP);
            let kind = parent.kind.as_deref().unwrap_or("Gateway");
            let namespace = parent.namespace.as_ref();
            let key = Key::new(namespace.unwrap_or(&route.meta.namespace), &parent.name);
            if (group, kind) == ("", "Service") {
                let ports = frontend::ports(lookup.world, &key, (route, parent));
                let to = AttachedTo::Service(key, ports);
                found.push(Attachment { parent, to });
                continue;
            }
            let known = parents.get(&(kind, key)).filter(|_| group == GROUP);
            let Some((gateway, owner)) = known else {
                continue;
            };
            let plan = &gateways[*gateway];
            let listeners = match consul::refused_route(lookup.world, route) {
                None => listeners(lookup, plan, *owner, (route, parent)),
                Some(problem) => Err(problem),
            };
            let listeners = listeners.and_then(|all| requests.take(*gateway, plan, route, all));
            let to = AttachedTo::Gateway(*gateway, listeners);
            found.push(Attachment { parent, to });
        }
        found
    });
    let mut attached: Vec<_> = attached.collect();
    frontend::separate_kinds(routes, &mut attached);
    attached
}

fn listeners(
    lookup: &Lookup<'_>,
    plan: &GatewayPlan<'_>,
    owner: Owner,
    (route, parent): (&Route<'_>, &ParentReference),
) -> Result<Vec<usize>, Problem> {
    if let Owner::Set(index) = owner
        && plan.sets[index].refused.is_some()
    {
        let message = "the ListenerSet adds no listeners to its Gateway";
        return Err(Problem::new(NO_PARENT, message));
    }
    let all = plan.listeners.iter().enumerate();
    let named: Vec<_> = all
        .filter(|(_, one)| one.owner == owner)
        .filter(|(_, one)| {
            parent
                .section_name
                .as_ref()
                .is_none_or(|name| *name == one.spec.name)
        })
        .filter(|(_, one)| parent.port.is_none_or(|port| port == one.spec.port))
        .collect();
    if named.is_empty() {
        let message = "there is no listener with this sectionName and port";
        return Err(Problem::new(NO_PARENT, message));
    }
    let mut allowed = named;
    allowed.retain(|(_, one)| is_allowed(lookup, one, route));
    if allowed.is_empty() {
        let message = format!(
            "no listener lets a {} of the namespace {} be attached",
            route.id.kind, route.meta.namespace
        );
        return Err(Problem::new(NOT_ALLOWED, message));
    }
    allowed.retain(|(_, one)| !route.hosts_at(&one.host).is_empty());
    if allowed.is_empty() {
        let message = "no listener has a host in common with the route";
        return Err(Problem::new("NoMatchingListenerHostname", message));
    }
    Ok(allowed.into_iter().map(|(at, _)| at).collect())
}

fn is_allowed(lookup: &Lookup<'_>, listener: &ListenerPlan<'_>, route: &Route<'_>) -> bool {
    let allowed = listener.spec.allowed_routes.as_ref();
    let namespaces = allowed.and_then(|allowed| allowed.namespaces.as_ref());
    let pair = (listener.namespace, &*route.meta.namespace);
    listener.kinds.contains(&route.id.kind) && lookup.selects(namespaces, "Same", pair)
}

/// The kinds of routes that have the requests for hosts of listeners. HTTPRoutes and GRPCRoutes do
/// not share a host: the oldest route decides.
#[derive(Default)]
struct Requests(BTreeMap<(usize, usize), Vec<Taken>>);

/// The hosts of a route at a listener.
struct Taken {
    kind: RouteKind,
    hosts: BTreeSet<String>,
}

impl Requests {
    /// Takes the hosts of a route at listeners, and leaves out listeners where others have them.
    fn take(
        &mut self,
        gateway: usize,
        plan: &GatewayPlan<'_>,
        route: &Route<'_>,
        mut listeners: Vec<usize>,
    ) -> Result<Vec<usize>, Problem> {
        let kind = route.id.kind;
        if !matches!(kind, RouteKind::Http | RouteKind::Grpc) {
            return Ok(listeners);
        }
        let hosts_at = |listener: usize| route.hosts_at(&plan.listeners[listener].host);
        listeners.retain(|listener| {
            let own = hosts_at(*listener);
            let mut others = self.0.get(&(gateway, *listener)).into_iter().flatten();
            !others.any(|other| other.kind != kind && overlap(&own, &other.hosts))
        });
        if listeners.is_empty() {
            let message = "an older HTTPRoute or GRPCRoute has a host in common with the route";
            return Err(Problem::new(NOT_ALLOWED, message));
        }
        for listener in &listeners {
            let taken = self.0.entry((gateway, *listener)).or_default();
            let hosts = hosts_at(*listener);
            taken.push(Taken { kind, hosts });
        }
        Ok(listeners)
    }
}

fn overlap(own: &BTreeSet<String>, others: &BTreeSet<String>) -> bool {
    let common = |a: &String, b: &String| covers(a, b) || covers(b, a);
    own.iter()
        .any(|own| others.iter().any(|other| common(own, other)))
}
