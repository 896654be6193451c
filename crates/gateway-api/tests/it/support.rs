//! Small clusters, and what becomes of them in few words.

use legate_gateway_api::{Condition, Key, Outcome, RouteKind, Served, resolve};
use legate_routes::{
    Action, Chain, Content, Listener, PathMatch, Target, TextMatch, Tls, VirtualHost,
    WeightedBackend, covers,
};
use serde_json::{Value, json};

use crate::clusters::{CLASS, object, world};

/// A gateway with these listeners.
pub(crate) fn gateway(listeners: Value) -> Value {
    let spec = json!({"gatewayClassName": CLASS, "listeners": listeners});
    object("Gateway", "gw", spec)
}

/// A listener that routes of all namespaces may be attached to.
pub(crate) fn listener(name: &str, port: u16, protocol: &str, hostname: &str) -> Value {
    let mut listener = json!({
        "name": name, "port": port, "protocol": protocol,
        "allowedRoutes": {"namespaces": {"from": "All"}},
    });
    if !hostname.is_empty() {
        listener["hostname"] = json!(hostname);
    }
    match protocol {
        "HTTPS" => listener["tls"] = json!({"certificateRefs": [{"name": "cert"}]}),
        "TLS" => listener["tls"] = json!({"mode": "Passthrough"}),
        _ => {}
    }
    listener
}

/// A route for the gateway.
pub(crate) fn route(kind: &str, name: &str, hostnames: Value, rules: Value) -> Value {
    let mut spec = json!({
        "parentRefs": [{"name": "gw", "namespace": "infra"}],
        "rules": rules,
    });
    if hostnames != json!([]) {
        spec["hostnames"] = hostnames;
    }
    object(kind, name, spec)
}

/// A rule for a path, to one of the Services.
pub(crate) fn to(path: &str, service: &str) -> Value {
    json!({
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "backendRefs": [{"name": service, "port": 80}],
    })
}

/// What becomes of these objects.
pub(crate) fn resolved(objects: &[Value]) -> Outcome {
    resolve(&world(objects))
}

/// Conditions in few words: the type if it holds, with `!` if not, with the reason unless it is the
/// same word.
pub(crate) fn short(conditions: &[Condition]) -> String {
    let each = conditions.iter().map(|one| {
        let not = if one.holds { "" } else { "!" };
        match one.reason == one.kind {
            true => format!("{not}{}", one.kind),
            false => format!("{not}{}:{}", one.kind, one.reason),
        }
    });
    let kept = each.filter(|text| text != "!Conflicted:NoConflicts");
    kept.collect::<Vec<_>>().join(" ")
}

/// What is said of the gateway and of each of its listeners, a line for each.
pub(crate) fn of_gateway(outcome: &Outcome) -> Vec<String> {
    let verdict = &outcome.gateways[&Key::new("infra", "gw")];
    let mut lines = vec![short(&verdict.conditions)];
    lines.extend(verdict.listeners.iter().map(|listener| {
        let kinds = listener.supported_kinds.iter();
        let kinds: Vec<_> = kinds.map(|kind| kind.kind.as_str()).collect();
        format!(
            "{} [{}] {}: {}",
            listener.name,
            kinds.join(" "),
            listener.attached_routes,
            short(&listener.conditions)
        )
    }));
    lines
}

/// What is said of a route of the namespace `infra` for each parent.
pub(crate) fn of_route(outcome: &Outcome, kind: RouteKind, name: &str) -> Vec<String> {
    let (namespace, name) = name.split_once('/').unwrap_or(("infra", name));
    let id = legate_gateway_api::RouteId {
        kind,
        key: Key::new(namespace, name),
    };
    let verdict = outcome.routes.get(&id);
    let parents = verdict.into_iter().flat_map(|verdict| &verdict.parents);
    parents.map(|one| short(&one.conditions)).collect()
}

/// What the gateway serves.
pub(crate) fn served(outcome: &Outcome) -> &Served {
    &outcome.served[&Key::new("infra", "gw")]
}

fn target(target: &Target) -> String {
    match target {
        Target::Service(service) => service.to_string(),
        Target::Backend(one) => match &one.tls {
            None => format!("{}/{}:{}", one.namespace, one.name, one.port),
            Some(tls) => format!(
                "{}/{}:{} as {}",
                one.namespace, one.name, one.port, tls.server_name
            ),
        },
        Target::Answer(status) => status.to_string(),
    }
}

/// Backends in few words.
pub(crate) fn backends(all: &[WeightedBackend]) -> String {
    let each = all.iter().map(|one| match one.weight {
        1 => target(&one.target),
        weight => format!("{weight}*{}", target(&one.target)),
    });
    each.collect::<Vec<_>>().join(" ")
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) port: u16,
    pub(crate) server_name: &'a str,
    pub(crate) host: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
}

/// A request in plain text.
pub(crate) fn get<'a>(host: &'a str, path: &'a str) -> Asked<'a> {
    Asked {
        port: 80,
        server_name: "",
        host,
        path,
        headers: &[],
    }
}

/// The chain for a server name: the one with the most specific name.
fn chain<'a>(chains: &'a [Chain], server_name: &str) -> Option<&'a Chain> {
    let rank = |chain: &Chain| {
        let names = chain.server_names.iter();
        let fitting = names.filter(|name| covers(name, server_name));
        fitting
            .map(|name| (!name.starts_with('*'), name.len()))
            .max()
    };
    let by_name = chains
        .iter()
        .filter(|one| rank(one).is_some())
        .max_by_key(|one| rank(one));
    by_name.or_else(|| chains.iter().find(|one| one.server_names.is_empty()))
}

fn host<'a>(hosts: &'a [VirtualHost], name: &str) -> Option<&'a VirtualHost> {
    let domains = hosts
        .iter()
        .flat_map(|host| host.domains.iter().map(move |one| (one, host)));
    let fitting = domains.filter(|(domain, _)| covers(domain, name));
    let best = fitting.max_by_key(|(domain, _)| (!domain.starts_with('*'), domain.len()));
    best.map(|(_, host)| host)
}

/// What happens to a request.
pub(crate) enum Met<'a> {
    /// It gets no further than here.
    Words(String),
    /// One of these gets it, and whether TLS ends here.
    Backends(&'a [WeightedBackend], bool),
}

impl<'a> Met<'a> {
    /// What `listeners` do with a request.
    pub(crate) fn new(listeners: &'a [Listener], asked: Asked<'_>) -> Self {
        let words = |text: &str| Self::Words(text.to_owned());
        let Some(listener) = listeners.iter().find(|one| one.port == asked.port) else {
            return words("refused");
        };
        let Some(chain) = chain(&listener.chains, asked.server_name) else {
            return words("closed");
        };
        let hosts = match &listener.contents[chain.content] {
            Content::Tcp(all) if all.is_empty() => return words("closed"),
            Content::Tcp(all) => {
                return Self::Backends(all, matches!(chain.tls, Tls::Terminated(_)));
            }
            Content::Http(hosts) => hosts,
        };
        let Some(host) = host(hosts, asked.host) else {
            return words("404");
        };
        let rule = host.rules.iter().find(|rule| fits(rule, asked));
        match rule.map(|rule| &rule.action) {
            None => Self::Words(host.otherwise.to_string()),
            Some(Action::Answer(status)) => Self::Words(status.to_string()),
            Some(Action::Redirect(redirect)) => Self::Words(format!("{redirect:?}")),
            Some(Action::Forward(all)) => Self::Backends(all, false),
        }
    }
}

fn fits(rule: &legate_routes::Rule, asked: Asked<'_>) -> bool {
    let path = match &rule.matched.path {
        PathMatch::Exact(path) => asked.path == path,
        PathMatch::Prefix(path) => asked.path.starts_with(path.as_str()),
        PathMatch::Segments(path) => {
            let rest = asked.path.strip_prefix(path.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        PathMatch::Regex(regex) => panic!("{regex}"),
    };
    let headers = rule.matched.headers.iter().all(|wanted| {
        let mut given = asked.headers.iter();
        given.any(|(name, value)| {
            wanted.name == *name && wanted.value == TextMatch::Exact((*value).to_owned())
        })
    });
    path && headers
}

/// What happens to a request, in few words.
pub(crate) fn ask(outcome: &Outcome, asked: Asked<'_>) -> String {
    match Met::new(&served(outcome).listeners, asked) {
        Met::Words(words) => words,
        Met::Backends(all, true) => format!("ended {}", backends(all)),
        Met::Backends(all, false) => backends(all),
    }
}
