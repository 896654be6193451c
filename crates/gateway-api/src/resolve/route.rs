//! Routes of all kinds, in what they have in common.

use std::collections::BTreeSet;

use legate_model::{ServiceName, Tenancy, WILDCARD};
use legate_routes::{covers, is_host};

use crate::condition::Problem;
use crate::kind::RouteKind;
use crate::object::{Key, Meta, Object};
use crate::outcome::RouteId;
use crate::types::{GrpcRoute, HttpRoute, ParentReference, PlainRule};
use crate::world::World;

/// A route.
pub(super) struct Route<'a> {
    pub(super) id: RouteId,
    pub(super) meta: &'a Meta,
    pub(super) parents: &'a [ParentReference],
    /// Its hosts in lower case; `*` if it names none.
    pub(super) hosts: Vec<String>,
    pub(super) spec: Spec<'a>,
    /// Why none of its rules can be served.
    pub(super) unserved: Option<String>,
}

/// What is particular to a kind.
#[derive(Clone, Copy)]
pub(super) enum Spec<'a> {
    Http(&'a Object<HttpRoute>),
    Grpc(&'a Object<GrpcRoute>),
    /// Of the other kinds, which have rules without conditions.
    Plain(&'a [PlainRule], RulePaths<'a>),
}

/// The fields without a meaning of a route, by rule.
#[derive(Clone, Copy)]
pub(super) struct RulePaths<'a>(&'a [String]);

impl<'a> RulePaths<'a> {
    /// The first such field of a rule.
    pub(super) fn of_rule(self, index: usize) -> Option<&'a str> {
        let prefix = format!("rules[{index}]");
        let mut paths = self.0.iter();
        let found = paths.find(|path| path.starts_with(&prefix));
        found.map(String::as_str)
    }
}

/// All routes, the oldest first.
pub(super) fn routes(world: &World) -> Vec<Route<'_>> {
    let mut routes = Vec::new();
    routes.extend(world.http_routes.iter().map(|object| {
        let names = (&object.spec.parent_refs[..], &object.spec.hostnames[..]);
        route(RouteKind::Http, object, names, Spec::Http(object))
    }));
    routes.extend(world.grpc_routes.iter().map(|object| {
        let names = (&object.spec.parent_refs[..], &object.spec.hostnames[..]);
        route(RouteKind::Grpc, object, names, Spec::Grpc(object))
    }));
    routes.extend(world.tls_routes.iter().map(|object| {
        let names = (&object.spec.parent_refs[..], &object.spec.hostnames[..]);
        let spec = Spec::Plain(&object.spec.rules, RulePaths(&object.unserved));
        route(RouteKind::Tls, object, names, spec)
    }));
    for (kind, objects) in [
        (RouteKind::Tcp, &world.tcp_routes),
        (RouteKind::Udp, &world.udp_routes),
    ] {
        routes.extend(objects.iter().map(|object| {
            let names = (&object.spec.parent_refs[..], &[][..]);
            let spec = Spec::Plain(&object.spec.rules, RulePaths(&object.unserved));
            route(kind, object, names, spec)
        }));
    }
    routes.sort_by(|a, b| (a.meta.age(), a.id.kind).cmp(&(b.meta.age(), b.id.kind)));
    routes
}

fn route<'a, T>(
    kind: RouteKind,
    object: &'a Object<T>,
    (parents, hosts): (&'a [ParentReference], &'a [String]),
    spec: Spec<'a>,
) -> Route<'a> {
    let broken = object.broken.as_ref();
    let broken = broken.map(|error| format!("spec cannot be read: {error}"));
    let elsewhere = object.unserved_outside("rules");
    let elsewhere = || elsewhere.map(|path| format!("spec.{path} is not served"));
    let mut odd = hosts.iter().filter(|host| !is_host(host));
    let odd = odd
        .next()
        .map(|host| format!("spec.hostnames: {host:?} is not a host"));
    let lower = hosts.iter().filter(|host| is_host(host));
    let mut lower: Vec<_> = lower.map(|host| host.to_lowercase()).collect();
    if hosts.is_empty() {
        lower.push(WILDCARD.to_owned());
    }
    Route {
        id: RouteId {
            kind,
            key: object.meta.key(),
        },
        meta: &object.meta,
        parents,
        hosts: lower,
        spec,
        unserved: broken.or_else(elsewhere).or(odd),
    }
}

impl Route<'_> {
    /// Its name where rules say which route they are of.
    pub(super) fn name(&self) -> ServiceName {
        name(&self.id.key)
    }

    /// The hosts that it has in common with a listener.
    pub(super) fn hosts_at(&self, listener: &str) -> BTreeSet<String> {
        let common = self.hosts.iter().filter_map(|own| {
            if covers(listener, own) {
                Some(own.clone())
            } else {
                covers(own, listener).then(|| listener.to_owned())
            }
        });
        common.collect()
    }
}

/// The name of an object where rules say what they are of.
pub(super) fn name(key: &Key) -> ServiceName {
    let tenancy = Tenancy {
        namespace: key.namespace.as_str().into(),
        ..Tenancy::default()
    };
    ServiceName::new(&tenancy, &key.name)
}

/// Orders hosts: a name is more specific than a wildcard, and a longer wildcard than a shorter one.
pub(super) fn specificity(host: &str) -> (bool, usize) {
    (!host.starts_with('*'), host.len())
}

/// What is said of a route apart from where it is attached.
#[derive(Default)]
pub(super) struct RouteReport {
    /// Why not all that it refers to can be used.
    pub(super) unresolved: Option<Problem>,
    /// What of its rules is not served, one for each.
    pub(super) unserved: Vec<String>,
    /// Whether a rule is left that is served.
    pub(super) is_served: bool,
}

impl RouteReport {
    pub(super) fn unresolved(&mut self, problem: Problem) {
        if self.unresolved.is_none() {
            self.unresolved = Some(problem);
        }
    }
}
