//! What a gateway serves as config entries, for Consul's servers. Pure.
//!
//! The resolver leaves nothing that entries cannot say, except answers: requests for a rule that cannot be
//! served go to a service without instances. Every entry names the gateway that it belongs to, and has
//! the digest of what was written, because the servers return more than that.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use legate_gateway_api::Served;
use legate_model::duration::GoDuration;
use legate_model::{HeaderModifiers, ServiceName, WILDCARD};
use legate_routes::{
    Action, Certificate, Content, Listener, Match, PathMatch, Rewrite, Rule, Target, TextMatch,
    Tls, ValueMatch, VirtualHost, WeightedBackend, covers,
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::cluster::Cluster;
use super::infrastructure::GatewayMeta;
use super::rows::{generations, pairs};
use crate::config::entry::SOURCE;

pub(super) const CERTIFICATE: &str = "inline-certificate";
pub(super) const GATEWAY: &str = "api-gateway";
pub(super) const HTTP_ROUTE: &str = "http-route";
pub(super) const TCP_ROUTE: &str = "tcp-route";
/// The kinds of entries, each after those that it refers to.
pub(super) const KINDS: [&str; 4] = [CERTIFICATE, GATEWAY, HTTP_ROUTE, TCP_ROUTE];

/// Meta keys: the cluster whose entry it is, the gateway's name in the mesh, the digest, the port of a
/// route, and the beginning of those with generations.
pub(super) const OWNER: &str = "legate-cluster";
pub(super) const OF_GATEWAY: &str = "legate-gateway";
pub(super) const DIGEST: &str = "legate-digest";
pub(super) const PORT: &str = "legate-port";
pub(super) const GENERATION: &str = "legate-generation-";

/// The service without instances. Its requests are answered with 503.
const NO_INSTANCES: &str = "legate-unserved";

/// The kind, by its place in [`KINDS`], and the name of an entry.
pub(super) type EntryId = (usize, String);

/// The entries of a gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Entries(BTreeMap<EntryId, Entry>);

#[derive(Clone, PartialEq)]
struct Entry {
    digest: String,
    /// Contains the key of a certificate.
    body: Value,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = &mut f.debug_struct("Entry");
        entry.field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// A request for entries.
#[derive(Clone, PartialEq)]
pub(super) enum Request {
    /// Writes this one.
    Put(Value),
    /// Removes the one of this kind and name.
    Delete(&'static str, String),
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, kind, name) = match self {
            Self::Put(body) => ("Put", body["Kind"].as_str(), body["Name"].as_str()),
            Self::Delete(kind, name) => ("Delete", Some(*kind), Some(name.as_str())),
        };
        write!(f, "{what}({kind:?}, {name:?})")
    }
}

impl Request {
    /// Whether it is about the gateway itself.
    pub(super) fn is_of_gateway(&self) -> bool {
        match self {
            Self::Put(body) => body["Kind"] == GATEWAY,
            Self::Delete(kind, _) => *kind == GATEWAY,
        }
    }
}

impl Entries {
    /// The entries of a gateway; none for one that serves nothing.
    pub(super) fn of(
        cluster: &Cluster,
        (owner, gateway): (&str, &GatewayMeta),
        served: Option<&Served>,
    ) -> Self {
        let mut all = Self::default();
        let listeners = served.map_or(&[][..], |served| &served.listeners[..]);
        if listeners.is_empty() {
            return all;
        }
        let service = gateway.service();
        let meta = BTreeMap::from([
            (SOURCE.to_owned(), "kubernetes".to_owned()),
            (OWNER.to_owned(), owner.to_owned()),
            (OF_GATEWAY.to_owned(), service.clone()),
        ]);
        for (secret, pair) in pairs(cluster, listeners) {
            let body = json!({
                "Name": certificate_name(&service, &secret),
                "Certificate": pair.certificate,
                "PrivateKey": pair.key.expose(),
            });
            all.add(CERTIFICATE, body, meta.clone());
        }
        let written: Vec<_> = listeners
            .iter()
            .map(|one| listener(&service, one))
            .collect();
        let generations = generations(cluster, gateway);
        let generations = generations
            .iter()
            .map(|(uid, number)| (format!("{GENERATION}{uid}"), number.to_string()));
        all.add(
            GATEWAY,
            json!({"Name": service, "Listeners": written}),
            meta.clone().into_iter().chain(generations).collect(),
        );
        for listener in listeners {
            let mut meta = meta.clone();
            meta.insert(PORT.to_owned(), listener.port.to_string());
            for (kind, route) in routes(&service, listener) {
                all.add(kind, route, meta.clone());
            }
        }
        all
    }

    fn add(&mut self, kind: &'static str, mut body: Value, mut meta: BTreeMap<String, String>) {
        body["Kind"] = json!(kind);
        body["Meta"] = json!(meta);
        let digest = digest(&body.to_string());
        meta.insert(DIGEST.to_owned(), digest.clone());
        body["Meta"] = json!(meta);
        let name = body["Name"].as_str().unwrap_or_default().to_owned();
        let at = KINDS
            .iter()
            .position(|one| *one == kind)
            .unwrap_or_default();
        self.0.insert((at, name), Entry { digest, body });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The digests of the entries.
    pub(super) fn digests(&self) -> BTreeMap<EntryId, String> {
        let entries = self.0.iter();
        entries
            .map(|(id, entry)| (id.clone(), entry.digest.clone()))
            .collect()
    }

    /// The requests after which the servers have these entries of a gateway instead of those with these
    /// digests.
    pub(super) fn requests(&self, known: &BTreeMap<EntryId, String>) -> Vec<Request> {
        let changed = self.0.iter();
        let changed = changed.filter(|(id, entry)| known.get(*id) != Some(&entry.digest));
        let changed: Vec<_> = changed.map(|(_, entry)| entry.body.clone()).collect();
        let needs_service = changed.iter().any(|body| leads_to(body, NO_INSTANCES));
        let without_instances = needs_service.then(|| {
            json!({
                "Kind": "service-defaults", "Name": NO_INSTANCES, "Protocol": "http",
                "Meta": {SOURCE: "kubernetes"},
            })
        });
        let gone = known.keys().rev().filter(|id| !self.0.contains_key(*id));
        let gone = gone.map(|(kind, name)| Request::Delete(KINDS[*kind], name.clone()));
        let changed = without_instances.into_iter().chain(changed);
        changed.map(Request::Put).chain(gone).collect()
    }
}

fn digest(text: &str) -> String {
    let mut digest = String::new();
    for byte in &Sha256::digest(text)[..16] {
        // Writing to a String cannot fail.
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}

fn leads_to(route: &Value, service: &str) -> bool {
    let rules = route["Rules"].as_array().into_iter().flatten();
    let services = rules.filter_map(|rule| rule["Services"].as_array());
    services.flatten().any(|one| one["Name"] == service)
}

/// The entry's name of a secret, which is `kubernetes/`, its namespace, a slash and its name.
fn certificate_name(service: &str, secret: &str) -> String {
    let secret = secret.split_once('/').map_or(secret, |(_, own)| own);
    format!("{service}.{}", secret.replace('/', "."))
}

fn listener_name(port: u16) -> String {
    format!("port-{port}")
}

fn listener(service: &str, listener: &Listener) -> Value {
    let mut entry = json!({"Name": listener_name(listener.port), "Port": listener.port});
    let content = content(listener);
    entry["Protocol"] = json!(match content {
        Some(Content::Http(_)) => "http",
        Some(Content::Tcp(_)) | None => "tcp",
    });
    if let Some(Content::Http(hosts)) = content
        && let Some(host) = widest(hosts).filter(|host| *host != WILDCARD)
    {
        entry["Hostname"] = json!(host);
    }
    if let Some(Tls::Terminated(tls)) = listener.chains.first().map(|chain| &chain.tls) {
        let secrets = tls.certificates.iter().filter_map(|one| match one {
            Certificate::Secret(name) => Some(name),
            Certificate::OfGateway => None,
        });
        let names = secrets
            .map(|name| json!({"Kind": CERTIFICATE, "Name": certificate_name(service, name)}));
        entry["TLS"] = json!({"Certificates": names.collect::<Vec<_>>()});
    }
    entry
}

/// What is behind a listener, which is the only one of its port.
fn content(listener: &Listener) -> Option<&Content> {
    let chain = listener.chains.first()?;
    listener.contents.get(chain.content)
}

/// The host of the listener, which covers all others.
fn widest(hosts: &[VirtualHost]) -> Option<&str> {
    let domains = || hosts.iter().flat_map(|host| &host.domains);
    let covers_all = |one: &&String| domains().all(|other| covers(one, other));
    domains().find(covers_all).map(String::as_str)
}

/// The routes of a listener, with their kinds: one for each host, so that their names do not depend on other
/// hosts.
fn routes(service: &str, listener: &Listener) -> Vec<(&'static str, Value)> {
    let name = format!("{service}-{}", listener.port);
    let section = listener_name(listener.port);
    let parent = json!({"Kind": GATEWAY, "Name": service, "SectionName": section});
    match content(listener) {
        None => Vec::new(),
        Some(Content::Tcp(backends)) => {
            let targets = backends.iter().map(|backend| &backend.target);
            let services = targets.filter_map(|target| match target {
                Target::Service(service) => Some(named(service)),
                Target::Backend(_) | Target::Answer(_) => None,
            });
            let services: Vec<_> = services.collect();
            // Without a route the port is closed.
            let route = (!services.is_empty())
                .then(|| json!({"Name": name, "Parents": [parent], "Services": services}));
            route.map(|route| (TCP_ROUTE, route)).into_iter().collect()
        }
        Some(Content::Http(hosts)) => {
            let widest = widest(hosts);
            let mut routes = Vec::new();
            for host in hosts.iter().filter(|host| !host.rules.is_empty()) {
                let rules = rules(&host.rules);
                for domain in &host.domains {
                    let mut route = json!({"Name": name, "Parents": [parent], "Rules": rules});
                    if Some(domain.as_str()) != widest {
                        route["Name"] = json!(format!("{name}-{domain}"));
                        route["Hostnames"] = json!([domain]);
                    }
                    routes.push((HTTP_ROUTE, route));
                }
            }
            routes
        }
    }
}

/// A condition, which Consul compares with others by the length of the path, then by the numbers of headers and
/// of parameters, whatever their order in the entry is.
struct Condition<'a> {
    path_kind: &'static str,
    path: String,
    /// What the matched part of the path is replaced with.
    replacement: Option<String>,
    headers: Vec<Value>,
    rule: &'a Rule,
}

fn rules(rules: &[Rule]) -> Vec<Value> {
    let mut conditions: Vec<_> = rules.iter().flat_map(conditions).collect();
    keep_order(&mut conditions);
    conditions.iter().map(rule).collect()
}

/// Adds conditions that always hold, so that those with paths of the same length are tried in this order.
/// Conditions with paths of different lengths are in Consul's order, or no request fulfils both.
fn keep_order(conditions: &mut [Condition<'_>]) {
    let mut later = BTreeMap::<usize, (usize, usize)>::new();
    for one in conditions.iter_mut().rev() {
        let query = one.rule.matched.query.len();
        let next = later.get(&one.path.len()).copied().unwrap_or_default();
        while (one.headers.len(), query) < next {
            one.headers
                .push(json!({"Match": "present", "Name": ":method"}));
        }
        later.insert(one.path.len(), (one.headers.len(), query));
    }
}

/// The conditions of a rule. Consul knows beginnings of paths letter by letter only.
fn conditions(rule: &Rule) -> Vec<Condition<'_>> {
    let condition = |path_kind, path: String, replacement| Condition {
        path_kind,
        path,
        replacement,
        headers: rule.matched.headers.iter().map(value).collect(),
        rule,
    };
    let written = match &rule.rewrite {
        Some(Rewrite::Matched(text) | Rewrite::Segments(text) | Rewrite::Whole(text)) => Some(text),
        None => None,
    };
    // An empty text would be no change.
    let whole = written.map(|text| match text.as_str() {
        "" => "/".to_owned(),
        text => text.to_owned(),
    });
    let beginning = written.map(|text| format!("{}/", text.trim_end_matches('/')));
    match &rule.matched.path {
        PathMatch::Exact(path) => vec![condition("exact", path.clone(), whole)],
        PathMatch::Regex(path) => vec![condition("regex", path.clone(), whole)],
        PathMatch::Prefix(path) => vec![condition("prefix", path.clone(), beginning)],
        PathMatch::Segments(path) => vec![
            condition("exact", path.clone(), whole),
            condition("prefix", format!("{path}/"), beginning),
        ],
    }
}

fn rule(condition: &Condition<'_>) -> Value {
    let Condition {
        path_kind, path, ..
    } = condition;
    let rule = condition.rule;
    let Match { method, query, .. } = &rule.matched;
    let mut filters = filters(&rule.request);
    if let Some(path) = &condition.replacement {
        filters.insert("URLRewrite".to_owned(), json!({"Path": path}));
    }
    if let Some(time) = rule.timeouts.request {
        // Zero is no change there, and less than zero no limit.
        let text = match time.is_zero() {
            true => "-1s".to_owned(),
            false => GoDuration::from(time).to_string(),
        };
        filters.insert("TimeoutFilter".to_owned(), json!({"RequestTimeout": text}));
    }
    if let Some(retry) = &rule.retry {
        let retry = json!({
            "NumRetries": retry.count.unwrap_or_default(),
            "RetryOnStatusCodes": retry.statuses,
            "RetryOnConnectFailure": retry.on_connect_failure,
        });
        filters.insert("RetryFilter".to_owned(), retry);
    }
    let services: Vec<_> = match &rule.action {
        Action::Forward(backends) => backends.iter().map(backend).collect(),
        Action::Redirect(_) | Action::Answer(_) => vec![json!({"Name": NO_INSTANCES})],
    };
    let mut matched = json!({
        "Path": {"Match": path_kind, "Value": path},
        "Headers": condition.headers,
        "Query": query.iter().map(value).collect::<Vec<_>>(),
    });
    if let Some(method) = method {
        matched["Method"] = json!(method);
    }
    json!({
        "Matches": [matched],
        "Filters": filters,
        "ResponseFilters": self::filters(&rule.response),
        "Services": services,
    })
}

fn filters(headers: &HeaderModifiers) -> Map<String, Value> {
    let mut filters = Map::new();
    if *headers != HeaderModifiers::default() {
        filters.insert("Headers".to_owned(), json!([headers]));
    }
    filters
}

fn backend(backend: &WeightedBackend) -> Value {
    let mut service = match &backend.target {
        Target::Service(service) => named(service),
        Target::Backend(_) | Target::Answer(_) => json!({"Name": NO_INSTANCES}),
    };
    service["Weight"] = json!(backend.weight);
    service["Filters"] = json!(filters(&backend.request));
    service["ResponseFilters"] = json!(filters(&backend.response));
    service
}

fn named(service: &ServiceName) -> Value {
    let mut named = json!({"Name": &*service.name});
    for (field, tenancy) in [
        ("Namespace", service.tenancy.shown_namespace()),
        ("Partition", service.tenancy.shown_partition()),
    ] {
        if !tenancy.is_empty() {
            named[field] = json!(tenancy);
        }
    }
    named
}

fn value(condition: &ValueMatch) -> Value {
    let (kind, value) = match &condition.value {
        TextMatch::Present => ("present", ""),
        TextMatch::Exact(value) => ("exact", value.as_str()),
        TextMatch::Prefix(value) => ("prefix", value.as_str()),
        TextMatch::Suffix(value) => ("suffix", value.as_str()),
        TextMatch::Regex(value) => ("regex", value.as_str()),
    };
    json!({"Match": kind, "Name": condition.name, "Value": value})
}

#[cfg(test)]
mod tests;
