//! Random resources, connections and changes. The same seed makes the same scenario; only the network is a parameter.

use std::sync::Arc;

use legate_l4::chains::Chains;
use legate_l4::config::{Config, Kind, Resource};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::any;

/// Callers with these names have certificates.
pub(super) const IDENTITIES: [&str; 3] = ["web", "api", "batch"];

/// An identity whose authority the proxies do not know.
pub(super) const STRANGER: usize = IDENTITIES.len();

/// Nobody listens on this port.
const CLOSED_PORT: u16 = 1;

const NAMES: [&str; 6] = [
    "a.example",
    "b.example",
    "x.a.example",
    "*.example",
    "*.a.example",
    "c0.example",
];

const REQUESTED: [&str; 7] = [
    "a.example",
    "b.example",
    "x.a.example",
    "y.x.a.example",
    "c0.example",
    "c1.example",
    "other.test",
];

/// The parameters of a side.
#[derive(Debug, Clone)]
pub(super) struct Network {
    /// All addresses begin with 127 and this.
    pub(super) octet: u8,
    /// The port of the listener.
    pub(super) port: u16,
    /// The port of the backends.
    pub(super) backends: u16,
    /// The file of the access logs.
    pub(super) log: String,
    /// The own certificate and its authority (`common_tls_context`).
    pub(super) tls: Value,
}

impl Network {
    fn address(&self, third: usize, fourth: usize) -> String {
        format!("127.{}.{third}.{fourth}", self.octet)
    }
}

/// What a host does with a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Behaviour {
    /// Says who it is.
    Answers,
    /// Nobody listens.
    Refuses,
    /// Resets the connection after the first byte.
    Resets,
}

/// Hosts of one priority. All healthy ones do the same, so that it does not matter which one is chosen.
#[derive(Debug, Clone)]
struct Group {
    healthy: usize,
    unhealthy: usize,
    behaviour: Behaviour,
}

#[derive(Debug, Clone)]
enum Hosts {
    Static(Vec<Group>),
    Discovered(Vec<Group>),
    Aggregate(Vec<usize>),
    /// The cluster does not exist.
    Missing,
}

#[derive(Debug, Clone)]
struct ClusterSpec {
    hosts: Hosts,
    max_connections: Option<u32>,
    max_pending: Option<u32>,
    panic_threshold: Option<u32>,
}

#[derive(Debug, Clone)]
enum Filter {
    /// Whether it denies, and the principals of its policies.
    Rbac(bool, Vec<Vec<Value>>),
    Limit(u32),
}

#[derive(Debug, Clone, Default)]
struct Matches {
    names: Vec<&'static str>,
    /// The own port, or another.
    port: Option<bool>,
    /// `third.fourth/length`
    prefixes: Vec<(usize, usize, u8)>,
    transport: Option<&'static str>,
    alpn: Vec<&'static str>,
}

#[derive(Debug, Clone)]
struct Chain {
    name: String,
    matches: Matches,
    /// TLS, and whether a certificate is required.
    tls: Option<bool>,
    filters: Vec<Filter>,
    /// Since which version it has these filters.
    since: u32,
    by_server_name: bool,
    cluster: usize,
    attempts: u32,
}

/// What both sides serve.
#[derive(Debug, Clone)]
pub(super) struct Served {
    clusters: Vec<ClusterSpec>,
    chains: Vec<Chain>,
    default: Option<Chain>,
    inspects: bool,
    pub(super) version: u32,
}

/// A caller.
#[derive(Debug, Clone)]
pub(super) struct Client {
    /// The last number of the address that it connects to.
    pub(super) to: u8,
    pub(super) tls: Option<ClientTls>,
}

#[derive(Debug, Clone)]
pub(super) struct ClientTls {
    pub(super) name: Option<&'static str>,
    pub(super) alpn: Vec<&'static str>,
    /// An index of [`IDENTITIES`], or [`STRANGER`].
    pub(super) identity: Option<usize>,
    /// At most TLS 1.2.
    pub(super) older: bool,
}

/// What happens.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// One after the other; all are kept until the last is there.
    Connect(Vec<Client>),
    Change(Served),
}

/// A scenario: what is served first, and what happens then.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) first: Served,
    pub(super) steps: Vec<Step>,
}

impl Scenario {
    pub(super) fn new(seed: u64) -> Scenario {
        let rng = &mut StdRng::seed_from_u64(seed);
        let first = valid(rng, Served::random);
        let mut current = first.clone();
        let mut steps = Vec::new();
        for _ in 0..rng.random_range(3..=5) {
            for _ in 0..rng.random_range(6..=9) {
                let client = Client::random(rng);
                let count = if rng.random_ratio(1, 8) { 3 } else { 1 };
                steps.push(Step::Connect(vec![client; count]));
            }
            current = valid(rng, |rng| current.changed(rng));
            steps.push(Step::Change(current.clone()));
        }
        for _ in 0..8 {
            steps.push(Step::Connect(vec![Client::random(rng)]));
        }
        Scenario { first, steps }
    }

    /// What is served at the end.
    pub(super) fn last(&self) -> &Served {
        let changes = self.steps.iter().rev().find_map(|step| match step {
            Step::Change(next) => Some(next),
            Step::Connect(_) => None,
        });
        changes.unwrap_or(&self.first)
    }
}

/// Makes a configuration whose chains do not contradict one another.
fn valid(rng: &mut StdRng, mut make: impl FnMut(&mut StdRng) -> Served) -> Served {
    let network = Network {
        octet: 0,
        port: 2,
        backends: 3,
        log: "/log".to_owned(),
        tls: json!({ "tls_certificates": [{
            "certificate_chain": { "inline_string": "c" }, "private_key": { "inline_string": "k" },
        }] }),
    };
    loop {
        let made = make(rng);
        let body = any(
            "envoy.config.listener.v3.Listener",
            &made.listener(&network),
        );
        let resource = Resource {
            name: "l".into(),
            version: String::new(),
            body: body.into(),
        };
        let config = Config::default().apply(Kind::Listener, &[resource], &[]);
        let config = match config {
            Ok(config) => config,
            // Two chains with the same rules.
            Err(rejection) if rejection.needs_envoy.is_none() => continue,
            Err(rejection) => panic!("{}", rejection.message),
        };
        let listener = Arc::clone(config.listeners().next().unwrap());
        if Chains::new(&listener).is_ok() && !made.panics_at_random() {
            return made;
        }
    }
}

fn some<T: Clone>(rng: &mut StdRng, from: &[T]) -> T {
    from.choose(rng).unwrap().clone()
}

fn maybe<T>(rng: &mut StdRng, percent: u32, make: impl FnOnce(&mut StdRng) -> T) -> Option<T> {
    rng.random_ratio(percent, 100).then(|| make(rng))
}

impl Client {
    fn random(rng: &mut StdRng) -> Client {
        Client {
            to: rng.random_range(1..=3),
            tls: maybe(rng, 75, |rng| ClientTls {
                name: maybe(rng, 85, |rng| some(rng, &REQUESTED)),
                alpn: some(
                    rng,
                    &[vec![], vec![], vec!["h2"], vec!["x", "h2"], vec!["y"]],
                ),
                identity: maybe(rng, 85, |rng| match rng.random_ratio(1, 12) {
                    true => STRANGER,
                    false => rng.random_range(0..IDENTITIES.len()),
                }),
                older: rng.random_ratio(1, 4),
            }),
        }
    }
}

fn groups(rng: &mut StdRng) -> Vec<Group> {
    let count = some(rng, &[1, 1, 2, 2, 3]);
    let mut groups: Vec<Group> = (0..count)
        .map(|_| {
            // Shares of a priority between 0 and 100 % are a matter of chance, so there are none.
            let numbers = [
                (1, 0),
                (2, 0),
                (3, 0),
                (3, 1),
                (3, 1),
                (0, 1),
                (0, 2),
                (0, 0),
            ];
            let (healthy, unhealthy) = some(rng, &numbers);
            let behaviours = [
                Behaviour::Answers,
                Behaviour::Answers,
                Behaviour::Answers,
                Behaviour::Answers,
                Behaviour::Refuses,
                Behaviour::Resets,
            ];
            Group {
                healthy,
                unhealthy,
                behaviour: some(rng, &behaviours),
            }
        })
        .collect();
    // Without a healthy host, all priorities are used by chance.
    if groups.iter().all(|group| group.healthy == 0) {
        groups.truncate(1);
    }
    groups
}

impl ClusterSpec {
    fn random(rng: &mut StdRng, index: usize) -> ClusterSpec {
        let hosts = match rng.random_range(0..10) {
            0..4 => Hosts::Discovered(groups(rng)),
            4..8 => Hosts::Static(groups(rng)),
            8 if index >= 2 => Hosts::Aggregate(vec![0, 1]),
            8 => Hosts::Static(groups(rng)),
            _ if index >= 2 => Hosts::Missing,
            _ => Hosts::Discovered(groups(rng)),
        };
        ClusterSpec {
            hosts,
            max_connections: maybe(rng, 25, |rng| some(rng, &[0, 1, 1, 2, 2])),
            max_pending: maybe(rng, 5, |_| 0),
            panic_threshold: maybe(rng, 50, |_| 0),
        }
    }

    /// Whether another priority or member may be tried after the first.
    fn has_spare(&self) -> bool {
        match &self.hosts {
            Hosts::Static(groups) | Hosts::Discovered(groups) => groups.len() > 1,
            Hosts::Aggregate(_) => true,
            Hosts::Missing => false,
        }
    }

    fn groups(&self) -> Option<&[Group]> {
        match &self.hosts {
            Hosts::Static(groups) | Hosts::Discovered(groups) => Some(groups),
            _ => None,
        }
    }
}

/// The name of a cluster. The name is also a server name.
fn cluster_name(index: usize) -> String {
    format!("c{index}.example")
}

fn assignment(name: &str, index: usize, groups: &[Group], network: &Network) -> Value {
    let localities = groups.iter().enumerate().map(|(priority, group)| {
        let hosts = (0..group.healthy + group.unhealthy).map(|host| {
            let healthy = host < group.healthy;
            let last = 20 * priority + if healthy { host } else { host + 10 } + 1;
            let third = match group.behaviour {
                Behaviour::Resets => 30 + index,
                _ => 10 + index,
            };
            let port = match group.behaviour {
                Behaviour::Refuses => CLOSED_PORT,
                _ => network.backends,
            };
            json!({
                "endpoint": { "address": socket(&network.address(third, last), port) },
                "health_status": if healthy { "HEALTHY" } else { "UNHEALTHY" },
            })
        });
        json!({ "priority": priority, "lb_endpoints": hosts.collect::<Vec<_>>() })
    });
    json!({ "cluster_name": name, "endpoints": localities.collect::<Vec<_>>() })
}

fn socket(address: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": address, "port_value": port } })
}

/// What the backend at an address of this kind does, and its label.
pub(super) fn backend(octets: [u8; 4]) -> (Behaviour, String) {
    let [_, _, third, fourth] = octets;
    let (behaviour, cluster) = match third {
        9 => return (Behaviour::Answers, format!("version {fourth}")),
        10..30 => (Behaviour::Answers, third - 10),
        _ => (Behaviour::Resets, third - 30),
    };
    let (priority, host) = (fourth / 20, fourth % 20);
    let health = if host > 10 { "unhealthy" } else { "healthy" };
    (
        behaviour,
        format!("cluster {cluster} priority {priority} {health}"),
    )
}

fn principal(rng: &mut StdRng, depth: u32) -> Value {
    let uri = |regex: String| json!({ "authenticated": { "principal_name": { "safe_regex": { "regex": regex } } } });
    let one = |rng: &mut StdRng| match rng.random_range(0..4) {
        0 => uri(r"^spiffe://test\.consul/ns/default/dc/[^/]+/svc/[^/]+$".to_owned()),
        1 => uri(r"^spiffe://(?:test\.consul|other\.consul)/.*$".to_owned()),
        _ => {
            let name = some(rng, &IDENTITIES);
            uri(format!(
                "^spiffe://test.consul/ns/default/dc/[^/]+/svc/{name}$"
            ))
        }
    };
    match rng.random_range(0..8) {
        0 => json!({ "any": true }),
        1 | 2 if depth < 3 => json!({ "and_ids": { "ids": [
            one(rng), { "not_id": principal(rng, depth + 1) },
        ] } }),
        3 if depth < 3 => json!({ "or_ids": { "ids": [one(rng), principal(rng, depth + 1)] } }),
        4 if depth < 3 => json!({ "not_id": principal(rng, depth + 1) }),
        _ => one(rng),
    }
}

fn filters(rng: &mut StdRng) -> Vec<Filter> {
    let mut filters = Vec::new();
    if rng.random_ratio(1, 6) {
        filters.push(Filter::Limit(some(rng, &[1, 2, 2])));
    }
    for _ in 0..some(rng, &[0, 0, 0, 1, 1, 2]) {
        let denies = rng.random_ratio(1, 2);
        // Rules that allow without a policy allow nobody.
        let least = u32::from(!denies && rng.random_ratio(9, 10));
        let policies = (0..rng.random_range(least..=2)).map(|_| {
            let count = rng.random_range(1..=2);
            (0..count).map(|_| principal(rng, 0)).collect()
        });
        let policies = policies.collect();
        filters.push(Filter::Rbac(denies, policies));
    }
    filters
}

impl Chain {
    fn random(rng: &mut StdRng, name: String, clusters: &[ClusterSpec]) -> Chain {
        let matches = Matches {
            names: match rng.random_range(0..5) {
                0..3 => Vec::new(),
                3 => vec![NAMES[0], NAMES[4]],
                _ => vec![some(rng, &NAMES)],
            },
            port: maybe(rng, 15, |rng| rng.random_ratio(2, 3)),
            prefixes: some(
                rng,
                &[
                    vec![],
                    vec![],
                    vec![(1, 1, 32)],
                    vec![(1, 0, 24)],
                    vec![(0, 0, 8), (1, 2, 32)],
                    vec![(1, 2, 31)],
                ],
            ),
            transport: some(rng, &[None, None, None, Some("tls"), Some("raw_buffer")]),
            alpn: some(
                rng,
                &[vec![], vec![], vec![], vec![], vec!["h2"], vec!["x", "y"]],
            ),
        };
        let cluster = rng.random_range(0..clusters.len());
        let by_server_name = rng.random_ratio(1, 10);
        // On purpose, a host that was tried is avoided while there are others, also in other priorities: Envoy asks
        // the first priority again.
        let spare = by_server_name || clusters.iter().any(ClusterSpec::has_spare);
        Chain {
            name,
            tls: match matches.transport {
                Some("raw_buffer") => None,
                _ => maybe(rng, 65, |rng| rng.random_ratio(3, 4)),
            },
            matches,
            filters: filters(rng),
            since: 1,
            by_server_name,
            cluster,
            attempts: if spare { 1 } else { rng.random_range(1..=3) },
        }
    }

    fn filters(&self, network: &Network) -> Vec<Value> {
        let mut all = Vec::new();
        for (index, filter) in self.filters.iter().enumerate() {
            let prefix = format!("{}_{}_{index}", self.name, self.since);
            all.push(match filter {
                Filter::Limit(max) => typed(
                    "connection_limit.v3.ConnectionLimit",
                    json!({ "stat_prefix": prefix, "max_connections": max }),
                ),
                Filter::Rbac(denies, policies) => {
                    let policies = policies.iter().enumerate();
                    let policies: serde_json::Map<_, _> = policies
                        .map(|(index, principals)| {
                            let policy = json!({
                                "permissions": [{ "any": true }], "principals": principals,
                            });
                            (format!("policy{index}"), policy)
                        })
                        .collect();
                    let action = if *denies { "DENY" } else { "ALLOW" };
                    let rules = json!({ "action": action, "policies": policies });
                    let fields = json!({ "stat_prefix": format!("{prefix}."), "rules": rules });
                    typed("rbac.v3.RBAC", fields)
                }
            });
        }
        if self.by_server_name {
            all.push(typed("sni_cluster.v3.SniCluster", json!({})));
        }
        all.push(typed(
            "tcp_proxy.v3.TcpProxy",
            json!({
                "stat_prefix": self.name,
                "cluster": cluster_name(self.cluster),
                "max_connect_attempts": self.attempts,
                "access_log": [log("T", network)],
            }),
        ));
        all
    }

    fn json(&self, network: &Network) -> Value {
        let mut matches = json!({});
        let own = &self.matches;
        if !own.names.is_empty() {
            matches["server_names"] = json!(own.names);
        }
        if let Some(same) = own.port {
            matches["destination_port"] = json!(if same { network.port } else { CLOSED_PORT });
        }
        let prefixes = own.prefixes.iter().map(|(third, fourth, length)| {
            json!({ "address_prefix": network.address(*third, *fourth), "prefix_len": length })
        });
        matches["prefix_ranges"] = prefixes.collect();
        if let Some(transport) = own.transport {
            matches["transport_protocol"] = transport.into();
        }
        matches["application_protocols"] = json!(own.alpn);
        let mut chain = json!({
            "name": self.name, "filter_chain_match": matches, "filters": self.filters(network),
        });
        if let Some(required) = self.tls {
            chain["transport_socket"] = json!({ "name": "tls", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": network.tls,
                "require_client_certificate": required,
            } });
        }
        chain
    }
}

fn typed(message: &str, mut fields: Value) -> Value {
    let url = format!("type.googleapis.com/envoy.extensions.filters.network.{message}");
    fields["@type"] = url.into();
    json!({ "name": message, "typed_config": fields })
}

/// A log whose lines begin with `which`.
fn log(which: &str, network: &Network) -> Value {
    let format = format!(
        "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%|{which}|%RESPONSE_FLAGS%|%UPSTREAM_CLUSTER%|%REQUESTED_SERVER_NAME%|\
         %FILTER_CHAIN_NAME%|%CONNECTION_TERMINATION_DETAILS%|%RESPONSE_CODE_DETAILS%|\
         %DOWNSTREAM_TRANSPORT_FAILURE_REASON%\n"
    );
    json!({ "name": "log", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
        "path": network.log,
        "log_format": { "text_format_source": { "inline_string": format } },
    } })
}

impl Served {
    fn random(rng: &mut StdRng) -> Served {
        let clusters: Vec<ClusterSpec> = (0..rng.random_range(2..=5))
            .map(|index| ClusterSpec::random(rng, index))
            .collect();
        let chains = (0..rng.random_range(1..=5))
            .map(|index| Chain::random(rng, format!("chain{index}"), &clusters))
            .collect();
        let default = maybe(rng, 70, |rng| {
            Chain::random(rng, "default".to_owned(), &clusters)
        });
        Served {
            default: default.map(|chain| Chain {
                matches: Matches::default(),
                ..chain
            }),
            clusters,
            chains,
            inspects: rng.random_ratio(9, 10),
            version: 1,
        }
    }

    /// The next version, with one change.
    fn changed(&self, rng: &mut StdRng) -> Served {
        let mut next = self.clone();
        next.version += 1;
        let chain = rng.random_range(0..next.chains.len());
        match rng.random_range(0..5) {
            0 if next.chains.len() > 1 => {
                next.chains.remove(chain);
            }
            1 => {
                let name = format!("chain{chain}v{}", next.version);
                next.chains[chain] = Chain::random(rng, name, &next.clusters);
            }
            2 | 3 => {
                let cluster = rng.random_range(0..next.clusters.len());
                let groups = groups(rng);
                // More priorities need the limit of attempts that chains got by the clusters.
                let spare = next.clusters.iter().any(ClusterSpec::has_spare);
                let mut groups = groups;
                if !spare {
                    groups.truncate(1);
                }
                match &mut next.clusters[cluster].hosts {
                    Hosts::Static(hosts) | Hosts::Discovered(hosts) => *hosts = groups,
                    other => *other = Hosts::Missing,
                }
            }
            _ => {
                next.chains[chain].filters = filters(rng);
                next.chains[chain].since = next.version;
            }
        }
        next
    }

    /// Whether there is an aggregate without a healthy host, which uses all its hosts at random.
    fn panics_at_random(&self) -> bool {
        let has_aggregate = self
            .clusters
            .iter()
            .any(|spec| matches!(spec.hosts, Hosts::Aggregate(_)));
        let mut groups = self.clusters.iter().take(2).filter_map(ClusterSpec::groups);
        has_aggregate && !groups.any(|groups| groups.iter().any(|group| group.healthy > 0))
    }

    /// What the names of counters of a chain begin with, for chains and filters that there are.
    pub(super) fn prefixes(&self) -> Vec<String> {
        let mut all = Vec::new();
        for chain in self.chains.iter().chain(&self.default) {
            all.push(format!("tcp.{}.", chain.name));
            all.push(format!("{}_{}_", chain.name, chain.since));
            all.push(format!("connection_limit.{}_{}_", chain.name, chain.since));
        }
        all
    }

    /// The names of clusters that consist of the first two.
    pub(super) fn aggregates(&self) -> Vec<String> {
        let clusters = self.clusters.iter().enumerate();
        let aggregates = clusters.filter(|(_, spec)| matches!(spec.hosts, Hosts::Aggregate(_)));
        aggregates.map(|(index, _)| cluster_name(index)).collect()
    }

    /// Whether a chain terminates TLS.
    pub(super) fn has_tls(&self) -> bool {
        let mut chains = self.chains.iter().chain(&self.default);
        chains.any(|chain| chain.tls.is_some())
    }

    /// The label of the backend that is reached at the last address, from this version on.
    pub(super) fn label(&self) -> String {
        format!("version {}", self.version)
    }

    /// A chain for one address, which shows which version is served. It changes nothing for other addresses.
    fn probe(&self, network: &Network) -> Value {
        let mut matches = json!({
            "prefix_ranges": [{ "address_prefix": network.address(1, 250), "prefix_len": 32 }],
        });
        let mut chains = self.chains.iter();
        if chains.any(|chain| chain.matches.port == Some(true)) {
            matches["destination_port"] = network.port.into();
        }
        let fields = json!({ "stat_prefix": "probe", "cluster": format!("probe{}", self.version) });
        json!({
            "name": "probe",
            "filter_chain_match": matches,
            "filters": [typed("tcp_proxy.v3.TcpProxy", fields)],
        })
    }

    pub(super) fn listener(&self, network: &Network) -> Value {
        let mut chains: Vec<Value> = self.chains.iter().map(|one| one.json(network)).collect();
        chains.push(self.probe(network));
        let mut listener = json!({
            "name": "l",
            "stat_prefix": "l",
            "address": socket("0.0.0.0", network.port),
            "filter_chains": chains,
            "access_log": [log("L", network)],
        });
        if let Some(default) = &self.default {
            listener["default_filter_chain"] = default.json(network);
        }
        if self.inspects {
            listener["listener_filters"] = json!([{ "name": "tls_inspector", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
            } }]);
        }
        listener
    }

    pub(super) fn clusters(&self, network: &Network) -> Vec<Value> {
        let mut all = Vec::new();
        for (index, spec) in self.clusters.iter().enumerate() {
            let name = cluster_name(index);
            let mut cluster = json!({
                "name": name,
                "connect_timeout": "5s",
                // Changes are seen in the order in which they are made.
                "common_lb_config": { "update_merge_window": "0s" },
            });
            if let Some(percent) = spec.panic_threshold {
                cluster["common_lb_config"]["healthy_panic_threshold"] =
                    json!({ "value": percent });
            }
            let mut limits = json!({});
            if let Some(max) = spec.max_connections {
                limits["max_connections"] = max.into();
            }
            if let Some(max) = spec.max_pending {
                limits["max_pending_requests"] = max.into();
            }
            cluster["circuit_breakers"] = json!({ "thresholds": [limits] });
            match &spec.hosts {
                Hosts::Missing => continue,
                Hosts::Static(groups) => {
                    cluster["type"] = "STATIC".into();
                    cluster["load_assignment"] = assignment(&name, index, groups, network);
                }
                Hosts::Discovered(_) => {
                    cluster["type"] = "EDS".into();
                    cluster["eds_cluster_config"] =
                        json!({ "eds_config": { "ads": {}, "resource_api_version": "V3" } });
                }
                Hosts::Aggregate(members) => {
                    cluster["lb_policy"] = "CLUSTER_PROVIDED".into();
                    let members: Vec<_> = members.iter().copied().map(cluster_name).collect();
                    cluster["cluster_type"] = json!({ "name": "aggregate", "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig",
                        "clusters": members,
                    } });
                }
            }
            all.push(cluster);
        }
        for version in [self.version - 1, self.version] {
            let host = json!({ "endpoint": {
                "address": socket(&network.address(9, version as usize), network.backends),
            } });
            let name = format!("probe{version}");
            all.push(json!({
                "name": name,
                "type": "STATIC",
                "connect_timeout": "5s",
                "load_assignment": {
                    "cluster_name": name, "endpoints": [{ "lb_endpoints": [host] }],
                },
            }));
        }
        all
    }

    /// The endpoints of clusters that discover them.
    pub(super) fn endpoints(&self, network: &Network) -> Vec<Value> {
        let clusters = self.clusters.iter().enumerate();
        let discovered = clusters.filter_map(|(index, spec)| {
            let name = cluster_name(index);
            let groups = spec.groups()?;
            matches!(spec.hosts, Hosts::Discovered(_))
                .then(|| assignment(&name, index, groups, network))
        });
        discovered.collect()
    }
}
