//! What is refused because the servers are Consul's: their config entries cannot say it.
//!
//! A rule whose action they do not have is an answer, as every rule that cannot be served. What they
//! would match or order differently is not attached at all.

use legate_routes::{Action, PathMatch, Rewrite, Rule, WeightedBackend};

use super::listener::ListenerPlan;
use super::route::{Route, Spec};
use crate::condition::{Problem, UNSUPPORTED};
use crate::kind::{Protocol, RouteKind};
use crate::types::HttpRoute;
use crate::world::{Servers, World};

/// How every reason ends.
const SERVERS: &str = "is not served with Consul's servers";

/// Refuses what listeners cannot have. They are in the order of precedence.
pub(super) fn refuse_listeners(world: &World, plans: &mut [ListenerPlan<'_>]) {
    if world.servers != Servers::Consul {
        return;
    }
    let mut ports = Vec::new();
    for plan in plans {
        let what = match plan.protocol {
            Some(Protocol::TlsTerminated | Protocol::TlsPassedThrough | Protocol::Udp) => {
                format!("the protocol {}", plan.spec.protocol)
            }
            _ if plan.clients.is_some() => "tls.frontend: the verification of clients".to_owned(),
            _ => String::new(),
        };
        if !what.is_empty() {
            plan.refuse(UNSUPPORTED, format!("{what} {SERVERS}"));
        } else if plan.is_accepted() {
            if ports.contains(&plan.spec.port) {
                let message = format!("port: a second listener on a port {SERVERS}");
                plan.conflict = Some(Problem::new(UNSUPPORTED, message));
            }
            ports.push(plan.spec.port);
        }
    }
}

/// Why a route is attached to no gateway.
pub(super) fn refused_route(world: &World, route: &Route<'_>) -> Option<Problem> {
    if world.servers != Servers::Consul {
        return None;
    }
    let what = match (route.id.kind, route.spec) {
        (RouteKind::Http, Spec::Http(object)) => conditions(route, &object.spec)?,
        (RouteKind::Tcp, Spec::Plain(rules, _)) => {
            let backends = rules.iter().map(|rule| rule.backend_refs.len());
            (backends.sum::<usize>() > 1).then(|| "backendRefs: more than one".to_owned())?
        }
        (kind, _) => format!("a {kind}"),
    };
    Some(Problem::new(UNSUPPORTED, format!("{what} {SERVERS}")))
}

/// What a route asks of requests and cannot be said.
fn conditions(route: &Route<'_>, spec: &HttpRoute) -> Option<String> {
    let mut hosts = route.hosts.iter();
    if let Some(host) = hosts.find(|host| host.starts_with("*.")) {
        return Some(format!(
            "hostnames: {host} in a route and not in a listener"
        ));
    }
    let matches = spec.rules.iter().flat_map(|rule| &rule.matches);
    let mut paths = matches.filter_map(|one| one.path.as_ref()?.r#type.as_deref());
    // Consul tries expressions in the order of their lengths.
    let is_expression = paths.any(|kind| kind == "RegularExpression");
    is_expression.then(|| "matches.path.type: RegularExpression".to_owned())
}

/// What a rule asks for and cannot be said, whatever its conditions are.
pub(super) fn unserved(world: &World, rule: &Rule) -> Result<(), String> {
    if world.servers != Servers::Consul {
        return Ok(());
    }
    let backends = match &rule.action {
        Action::Forward(backends) => &backends[..],
        Action::Redirect(_) | Action::Answer(_) => &[],
    };
    let divided = backends.len() > 1;
    let changes = |backend: &WeightedBackend| backend.response != Default::default();
    let retry = rule.retry.as_ref();
    let pause = retry.is_some_and(|retry| retry.pause.is_some());
    let once = retry.is_some_and(|retry| retry.count == Some(0));
    let found = [
        (
            matches!(rule.action, Action::Redirect(_)),
            "filters.requestRedirect",
        ),
        (!rule.mirrors.is_empty(), "filters.requestMirror"),
        (rule.cors.is_some(), "filters.cors"),
        (rule.host_rewrite.is_some(), "filters.urlRewrite.hostname"),
        (
            divided && backends.iter().any(changes),
            "backendRefs.filters.responseHeaderModifier of one of several",
        ),
        (rule.timeouts.one_try.is_some(), "timeouts.backendRequest"),
        (pause, "retry.backoff"),
        (once, "retry.attempts: 0"),
    ];
    let found = found.into_iter().find(|(is_asked, _)| *is_asked);
    found.map_or(Ok(()), |(_, what)| Err(format!("{what} {SERVERS}")))
}

/// Whether the whole path cannot be replaced under a condition: what Consul replaces is what the
/// condition has matched.
pub(super) fn replaces_more(world: &World, rule: &Rule, path: &PathMatch) -> Option<String> {
    let is_whole = matches!(rule.rewrite, Some(Rewrite::Whole(_)));
    let refused = world.servers == Servers::Consul && is_whole;
    let refused = refused && !matches!(path, PathMatch::Exact(_));
    refused.then(|| format!("replaceFullPath without a condition on the whole path {SERVERS}"))
}
