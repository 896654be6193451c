//! The same random resources, connections and changes to a real Envoy and to this proxy, and the same must happen: who
//! answers, what the access logs say, and what is counted.
//!
//! `LEGATE_L4_SEEDS=1000..1200` runs other scenarios than the usual ones.

mod generate;
mod sides;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use futures_util::{StreamExt, stream};
use legate_runtime::Scope;
use legate_testkit::network::free_port_on;
use prost::encoding::encode_varint;
use serde_json::Value;

use self::generate::{Client, Network, Scenario, Served, Step};
use self::sides::{Certificates, Side, backends};

/// An encoded `google.protobuf.Any`.
fn any(message: &str, json: &Value) -> Vec<u8> {
    let value = legate_envoy_json::decode(message, json).unwrap();
    let url = format!("type.googleapis.com/{message}");
    let mut bytes = Vec::new();
    for (key, field) in [(0x0a, url.as_bytes()), (0x12, &value)] {
        bytes.push(key);
        encode_varint(field.len() as u64, &mut bytes);
        bytes.extend(field);
    }
    bytes
}

/// The fields of a line.
const FLAGS: usize = 0;
const CLUSTER: usize = 1;
const SERVER_NAME: usize = 2;
const CHAIN: usize = 3;
const TERMINATION: usize = 4;
const TLS_FAILURE: usize = 6;

/// The lines of a connection: by the log that they are from, the fields after the caller's address.
type Lines = BTreeMap<String, Vec<String>>;

/// What became of the connections of a step.
#[derive(Debug)]
struct Seen {
    client: Client,
    label: Option<String>,
    lines: Lines,
}

/// What happened at a side.
struct Happened {
    connections: Vec<Seen>,
    counters: BTreeMap<String, u64>,
}

/// The counters that are compared.
const COUNTERS: [&str; 15] = [
    "downstream_cx_total",
    "downstream_cx_destroy",
    "downstream_cx_no_route",
    "no_filter_chain_match",
    "rbac.allowed",
    "rbac.denied",
    "limited_connections",
    "upstream_cx_total",
    "upstream_cx_destroy",
    "upstream_cx_connect_fail",
    "upstream_cx_connect_attempts_exceeded",
    "upstream_cx_none_healthy",
    "upstream_cx_overflow",
    "ssl.handshake",
    "ssl.fail_verify_no_cert",
];

async fn play(mut side: Side, scenario: &Scenario, certificates: &Certificates) -> Happened {
    let mut connections = Vec::new();
    let mut callers = Vec::new();
    for step in &scenario.steps {
        match step {
            Step::Connect(clients) => {
                let (mut open, mut names) = (Vec::new(), Vec::new());
                for client in clients {
                    let (name, connected) = side.connect(client, certificates).await;
                    connections.push(Seen {
                        client: client.clone(),
                        label: connected.label.clone(),
                        lines: Lines::new(),
                    });
                    names.push(name);
                    open.push(connected);
                }
                drop(open);
                side.logged(&names).await;
                callers.extend(names);
            }
            Step::Change(next) => side.change(next).await,
        }
    }
    let log = std::fs::read_to_string(&side.network.log).unwrap();
    for line in log.lines() {
        let (caller, line) = line.split_once('|').unwrap();
        let Some(index) = callers.iter().position(|name| name == caller) else {
            continue;
        };
        let (log, line) = line.split_once('|').unwrap();
        let line = line.split('|').map(str::to_owned).collect();
        let lines = &mut connections[index].lines;
        assert!(lines.insert(log.to_owned(), line).is_none(), "{caller}");
    }
    let counters = counters(&side, scenario.last()).await;
    Happened {
        connections,
        counters,
    }
}

async fn counters(side: &Side, last: &Served) -> BTreeMap<String, u64> {
    let page = side.admin.get("/stats").await.unwrap();
    let page = String::from_utf8(page.to_vec()).unwrap();
    let mut counters = BTreeMap::new();
    let mut prefixes = last.prefixes();
    prefixes.extend(["listener.l.", "cluster.c"].map(str::to_owned));
    for (name, value) in page.lines().filter_map(|line| line.split_once(": ")) {
        let is_compared = COUNTERS.iter().any(|counter| name.ends_with(counter))
            && prefixes
                .iter()
                .any(|prefix| name.starts_with(prefix.as_str()))
            && !name.contains(".worker_")
            // Without TLS, they are gone some time after the last connection with TLS.
            && (last.has_tls() || !name.contains(".ssl."));
        if !is_compared {
            continue;
        }
        let mut value: u64 = value.parse().unwrap();
        if name == "listener.l.downstream_cx_total" || name == "listener.l.downstream_cx_destroy" {
            value -= side.probes;
        }
        if value > 0 {
            counters.insert(name.to_owned(), value);
        }
    }
    counters
}

/// The differences between the two sides.
fn differences(envoy: &Happened, own: &Happened, aggregates: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for (index, (theirs, ours)) in envoy.connections.iter().zip(&own.connections).enumerate() {
        if !theirs.agrees(ours) {
            all.push(format!(
                "connection {index}, {:?}:\n  Envoy    {:?} {:?}\n  built-in {:?} {:?}",
                theirs.client, theirs.label, theirs.lines, ours.label, ours.lines
            ));
        }
    }
    let excused = Excused::new(envoy, own, aggregates);
    let names = envoy.counters.keys().chain(own.counters.keys());
    for name in names.collect::<BTreeSet<_>>() {
        let of = |side: &Happened| side.counters.get(name).copied().unwrap_or_default();
        let (theirs, ours) = (of(envoy), of(own));
        if theirs != ours && !excused.covers(name, theirs, ours) {
            all.push(format!("{name}: Envoy {theirs}, built-in {ours}"));
        }
    }
    all
}

impl Seen {
    fn field(&self, field: usize) -> &str {
        let line = self.lines.get("L").or(self.lines.get("T"));
        line.and_then(|line| line.get(field))
            .map_or("-", String::as_str)
    }

    /// Whether rules have denied it.
    fn is_denied(&self) -> bool {
        self.field(TERMINATION).starts_with("rbac_access_denied")
    }

    /// A word for what has happened.
    fn outcome(&self) -> &str {
        match self.field(FLAGS) {
            _ if self.label.is_some() => "answered",
            _ if self.is_denied() => "denied",
            _ if self.field(TLS_FAILURE) != "-" => "no TLS",
            "-" => "closed",
            flags => flags,
        }
    }

    /// Whether the built-in proxy closes it before it looks for a host.
    fn is_closed_early(&self) -> bool {
        self.is_denied() || self.field(TLS_FAILURE) != "-"
    }

    /// The fields without the last: Envoy also has an error of TLS there if its inspector has found no TLS.
    fn compared(&self) -> BTreeMap<&str, &[String]> {
        let lines = self.lines.iter();
        lines
            .map(|(log, line)| (log.as_str(), &line[..TLS_FAILURE]))
            .collect()
    }

    /// Whether the same has happened to this connection of Envoy as to that of the built-in proxy.
    fn agrees(&self, ours: &Seen) -> bool {
        // What happens in TLS cannot be compared if Envoy has closed the connection before.
        if !ours.is_closed_early() {
            return self.label == ours.label && self.compared() == ours.compared();
        }
        // On purpose, a denied caller never reaches the application. Envoy connects first, before the handshake, and
        // asks the rules at the first byte, unless it could not connect.
        let same = |field| self.field(field) == ours.field(field);
        let failed = self.field(FLAGS) != "-" && !self.is_denied();
        self.label.is_none()
            && ours.label.is_none()
            && same(SERVER_NAME)
            && same(CHAIN)
            && (same(TERMINATION) || failed)
    }
}

/// Counters that differ because Envoy connects before it asks the rules.
struct Excused {
    /// To which clusters denied callers were connected.
    clusters: BTreeSet<String>,
    /// How many connections of a chain have failed before the rules were asked.
    unasked: BTreeMap<String, u64>,
    /// How many the built-in proxy has closed before it has looked for a host.
    early: u64,
}

impl Excused {
    fn new(envoy: &Happened, own: &Happened, aggregates: &[String]) -> Excused {
        let (mut clusters, mut unasked, mut early) = (BTreeSet::new(), BTreeMap::new(), 0);
        for (one, ours) in envoy.connections.iter().zip(&own.connections) {
            if ours.is_closed_early() {
                early += 1;
                let name = one.field(CLUSTER);
                clusters.insert(format!("cluster.{name}."));
                if aggregates.iter().any(|aggregate| aggregate == name) {
                    clusters.extend(["cluster.c0.", "cluster.c1."].map(str::to_owned));
                }
            }
            if one.field(FLAGS) != "-" {
                *unasked.entry(one.field(CHAIN).to_owned()).or_default() += 1;
            }
        }
        Excused {
            clusters,
            unasked,
            early,
        }
    }

    fn covers(&self, name: &str, theirs: u64, ours: u64) -> bool {
        let mut clusters = self.clusters.iter();
        if clusters.any(|cluster| name.starts_with(cluster)) {
            return true;
        }
        let chain = name.split_once('_').filter(|_| name.contains(".rbac."));
        if name.ends_with(".downstream_cx_no_route") {
            return ours <= theirs && theirs <= ours + self.early;
        }
        if name == "listener.l.ssl.handshake" || name == "listener.l.ssl.fail_verify_no_cert" {
            let unasked: u64 = self.unasked.values().sum();
            return theirs <= ours && ours <= theirs + unasked;
        }
        let unasked = chain.and_then(|(chain, _)| self.unasked.get(chain));
        unasked.is_some_and(|unasked| theirs <= ours && ours <= theirs + unasked)
    }
}

/// Plays a scenario at both sides.
async fn compare(seed: u64, octets: [u8; 2], certificates: &Certificates, backends: u16) -> String {
    let scenario = Scenario::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let network = |octet: u8, folder: &Path| Network {
        octet,
        port: free_port_on(&[std::net::Ipv4Addr::UNSPECIFIED.into()]),
        backends,
        log: folder.join("log").to_str().unwrap().to_owned(),
        tls: certificates.own.clone(),
    };
    let folders = octets.map(|octet| folder.path().join(octet.to_string()));
    for folder in &folders {
        std::fs::create_dir(folder).unwrap();
    }
    let envoy = async {
        let network = network(octets[0], &folders[0]);
        let side = Side::envoy(network, &folders[0], &scenario.first).await;
        play(side, &scenario, certificates).await
    };
    let own = async {
        let side = Side::built_in(network(octets[1], &folders[1]), &scenario.first).await;
        play(side, &scenario, certificates).await
    };
    let (envoy, own) = tokio::join!(envoy, own);
    let mut outcomes: BTreeMap<&str, u32> = BTreeMap::new();
    for one in &own.connections {
        *outcomes.entry(one.outcome()).or_default() += 1;
    }
    println!("seed {seed}: {outcomes:?}");
    let differences = differences(&envoy, &own, &scenario.first.aggregates());
    match differences.is_empty() {
        true => String::new(),
        false => format!("seed {seed}:\n{}\n", differences.join("\n")),
    }
}

/// The seeds: 20 of them, unless the environment says otherwise.
fn seeds() -> std::ops::Range<u64> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the environment selects more scenarios"
    )]
    let Ok(wanted) = std::env::var("LEGATE_L4_SEEDS") else {
        return 0..20;
    };
    let bounds = wanted
        .split_once("..")
        .expect("LEGATE_L4_SEEDS is FROM..TO");
    bounds.0.parse().unwrap()..bounds.1.parse().unwrap()
}

#[tokio::test]
async fn the_same_happens_with_envoy() {
    let scope = Scope::new("test");
    let backends = backends(&scope.spawner()).await;
    let certificates = Certificates::new();
    let scenarios = stream::iter(seeds()).map(|seed| {
        let octets = if seed % 2 == 0 { [80, 81] } else { [82, 83] };
        compare(seed, octets, &certificates, backends)
    });
    // Two at a time, which have networks of their own.
    let different: String = scenarios.buffered(2).collect().await;
    assert!(different.is_empty(), "\n{different}");
}
