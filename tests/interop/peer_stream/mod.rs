//! The streams of peerings between Legate and a real Consul, recorded as data: Consul's messages sent again to Legate have
//! the same effect, and the same answers.
//!
//! A recording is a list of parts, one for each change in one of the clusters: what each side sent, and what Legate shows
//! of the peering afterwards. Without a Consul, the messages of Consul in each part are sent to a Legate in which the
//! changes of Legate's side are made. If a real Consul is available, the recordings are compared with it, too;
//! `LEGATE_RECORD=1` updates them instead.

mod messages;
mod wire;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Method;
use legate_runtime::Scope;
use legate_tests::interop::Pair;
use legate_tests::wait::LIMIT;
use legate_tests::{Mesh, MeshOptions, client, eventually};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::sleep;

use self::messages::{comparable, summary, unordered};
use self::wire::{Log, Player, Side};

/// The port of gRPC without TLS.
const GRPC: u16 = 8502;
/// A recording takes what is sent until nothing was sent for this time.
const SETTLED: Duration = Duration::from_secs(2);
/// The id of the peering in the Consul of a recording.
const PEERING: &str = "5f2b4a55-8c1c-4c1b-9e42-0d6a4f0f2a10";

/// A recording.
#[derive(Debug, Serialize, Deserialize)]
struct Recording {
    parts: Vec<Part>,
}

/// What a change has led to.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Part {
    change: String,
    consul: Vec<Value>,
    legate: Vec<Value>,
    /// What Legate shows of the peering.
    shown: Value,
}

/// A change, by requests to one cluster.
struct Change {
    name: &'static str,
    side: Side,
    requests: Vec<(Method, &'static str, Value)>,
}

fn register(body: Value) -> (Method, &'static str, Value) {
    (Method::PUT, "/v1/catalog/register", body)
}

fn entry(body: Value) -> (Method, &'static str, Value) {
    (Method::PUT, "/v1/config", body)
}

/// An instance of a service with its proxy. Numbers below 10 are of one cluster, and others of the other one.
fn instance(service: &str, number: u8, status: &str) -> Vec<(Method, &'static str, Value)> {
    let node = format!("node-{number}");
    let address = format!("10.0.0.{number}");
    let id = format!("{service}-{number}");
    let check = json!({
        "CheckID": format!("{id}-check"), "Name": "a check", "Status": status, "ServiceID": id,
        "Output": "not for others",
    });
    vec![
        register(json!({
            "Node": node, "Address": address, "NodeMeta": {"rack": "r1"},
            "Service": {
                "ID": id, "Service": service, "Port": 8080, "Tags": ["v1"], "Meta": {"a": "b"},
                "Weights": {"Passing": 3, "Warning": 1},
            },
            "Check": check,
        })),
        register(json!({
            "Node": node, "Address": address, "NodeMeta": {"rack": "r1"},
            "Service": {
                "Kind": "connect-proxy", "ID": format!("{id}-proxy"),
                "Service": format!("{service}-proxy"), "Port": 21000,
                "Proxy": {"DestinationServiceName": service, "DestinationServiceID": id},
            },
        })),
    ]
}

fn gateway(number: u8) -> (Method, &'static str, Value) {
    let wan = format!("198.51.100.{number}");
    register(json!({
        "Node": format!("edge-{number}"), "Address": format!("10.0.0.{number}"),
        "Service": {
            "Kind": "mesh-gateway", "ID": "mesh-gateway", "Service": "mesh-gateway", "Port": 8443,
            "TaggedAddresses": {"wan": {"Address": wan, "Port": 443}},
        },
    }))
}

fn exports(peer: &str, services: &[&str]) -> (Method, &'static str, Value) {
    let services: Vec<_> = services
        .iter()
        .map(|name| json!({"Name": name, "Consumers": [{"Peer": peer}]}))
        .collect();
    entry(json!({"Kind": "exported-services", "Name": "default", "Services": services}))
}

fn protocol(service: &str, protocol: &str) -> (Method, &'static str, Value) {
    entry(json!({"Kind": "service-defaults", "Name": service, "Protocol": protocol}))
}

/// What each cluster has before the peering.
fn before(side: Side) -> Vec<(Method, &'static str, Value)> {
    let (service, peer, number) = match side {
        Side::Consul => ("stock", "legate", 1),
        Side::Legate => ("store", "consul", 11),
    };
    let mut all = instance(service, number, "passing");
    all.extend([
        gateway(number + 8),
        protocol(service, "http"),
        exports(peer, &[service]),
    ]);
    all
}

/// The changes, in order, after the peering is established.
fn changes() -> Vec<Change> {
    let of = |side, name, requests| Change {
        name,
        side,
        requests,
    };
    let gone = json!({"Node": "node-1"});
    let root = json!({
        "Provider": "consul", "Config": {"PrivateKeyType": "ec", "PrivateKeyBits": 384},
    });
    let delete = |path| (Method::DELETE, path, json!({}));
    vec![
        of(
            Side::Consul,
            "another instance",
            instance("stock", 2, "passing"),
        ),
        of(
            Side::Consul,
            "an instance is critical",
            instance("stock", 2, "critical"),
        ),
        of(
            Side::Consul,
            "a node is gone",
            vec![(Method::PUT, "/v1/catalog/deregister", gone)],
        ),
        of(
            Side::Consul,
            "a service without instances",
            vec![exports("legate", &["stock", "mail"])],
        ),
        of(
            Side::Consul,
            "another protocol",
            vec![protocol("stock", "tcp")],
        ),
        of(Side::Consul, "another mesh gateway", vec![gateway(10)]),
        of(
            Side::Consul,
            "another root",
            vec![(Method::PUT, "/v1/connect/ca/configuration", root)],
        ),
        of(
            Side::Legate,
            "another instance here",
            instance("store", 12, "passing"),
        ),
        of(
            Side::Legate,
            "an instance here is critical",
            instance("store", 12, "critical"),
        ),
        of(
            Side::Legate,
            "the end of the export here",
            vec![exports("consul", &["other"])],
        ),
        of(
            Side::Consul,
            "the end of an export",
            vec![exports("legate", &["mail"])],
        ),
        of(
            Side::Consul,
            "the end of the peering",
            vec![delete("/v1/peering/legate")],
        ),
    ]
}

async fn make(mesh: &Mesh, requests: Vec<(Method, &str, Value)>) {
    for (method, path, body) in requests {
        mesh.api(method, path, Some(body)).await;
    }
}

/// Makes a token in a cluster.
async fn token(mesh: &Mesh, peer: &str) -> String {
    let body = json!({"PeerName": peer});
    let answer = mesh
        .api(Method::POST, "/v1/peering/token", Some(body))
        .await;
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    answer["PeeringToken"].as_str().expect("a token").to_owned()
}

async fn establish(mesh: &Mesh, peer: &str, token: &str) {
    let body = json!({"PeerName": peer, "PeeringToken": token});
    mesh.api(Method::POST, "/v1/peering/establish", Some(body))
        .await;
}

/// What Legate shows of the peering.
async fn shown(legate: &Mesh) -> Value {
    let read = async |path: &str| {
        let answer = client::get(legate.http(), path).await;
        let (_, body) = answer.expect("the server answers");
        serde_json::from_str::<Value>(&body).unwrap_or(Value::String(body))
    };
    let peering = read("/v1/peering/consul").await;
    let mut shown = json!({
        "state": peering["State"],
        "imported": peering["StreamStatus"]["ImportedServices"],
        "exported": peering["StreamStatus"]["ExportedServices"],
    });
    for kind in ["service", "connect"] {
        for service in ["stock", "mail"] {
            let path = format!("/v1/health/{kind}/{service}?peer=consul");
            shown[kind][service] = comparable(&read(&path).await);
        }
    }
    shown
}

fn grpc(mesh: &Mesh) -> SocketAddr {
    (mesh.server(), GRPC).into()
}

fn file(legate_accepts: bool) -> PathBuf {
    let name = match legate_accepts {
        true => "legate-accepts.json",
        false => "legate-dials.json",
    };
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("interop/peer_stream")
        .join(name)
}

fn read(legate_accepts: bool) -> Recording {
    let text = std::fs::read_to_string(file(legate_accepts)).expect("the recording");
    serde_json::from_str(&text).expect("a recording")
}

/// Waits until nothing more is sent, and returns what was sent after the first messages.
async fn settled(log: &Log, skipped: usize, legate: &Mesh, change: &str) -> Part {
    let mut before = usize::MAX;
    while log.len() != before {
        before = log.len();
        sleep(SETTLED).await;
    }
    Part {
        change: change.to_owned(),
        consul: log.of(Side::Consul, skipped),
        legate: log.of(Side::Legate, skipped),
        shown: shown(legate).await,
    }
}

/// A real Consul with Legate: the parts of a recording.
async fn with_consul(pair: &Pair, legate_accepts: bool) -> Recording {
    let scope = Scope::new("stream of a peering");
    let legate = Mesh::start(MeshOptions::default()).await;
    let consul = pair.mesh(MeshOptions::default()).await;
    make(&legate, before(Side::Legate)).await;
    make(&consul, before(Side::Consul)).await;
    let log = Log::default();
    match legate_accepts {
        true => {
            let token = token(&legate, "consul").await;
            let relay = wire::relay(grpc(&legate), Side::Consul, &log, &scope).await;
            establish(&consul, "legate", &wire::redirected(&token, relay)).await;
        }
        false => {
            let token = token(&consul, "legate").await;
            let relay = wire::relay(grpc(&consul), Side::Legate, &log, &scope).await;
            establish(&legate, "consul", &wire::redirected(&token, relay)).await;
        }
    }
    // Consul may dial some seconds later.
    let exchanged = |shown: &Value| {
        shown["imported"] == json!(["stock"]) && shown["exported"] == json!(["store"])
    };
    eventually("both have imported", || shown(&legate), exchanged).await;
    let mut parts = vec![settled(&log, 0, &legate, "the peering").await];
    for change in changes() {
        let skipped = log.len();
        let mesh = match change.side {
            Side::Consul => &consul,
            Side::Legate => &legate,
        };
        make(mesh, change.requests).await;
        parts.push(settled(&log, skipped, &legate, change.name).await);
    }
    legate.stop().await;
    consul.stop().await;
    scope.stop(LIMIT).await.expect("the relay ends");
    Recording { parts }
}

async fn recorded_again(legate_accepts: bool) {
    let Some(pair) = Pair::legate_dataplane() else {
        return;
    };
    let now = with_consul(&pair, legate_accepts).await;
    if crate::recorded::set("LEGATE_RECORD") {
        let text = serde_json::to_string_pretty(&now).expect("it is JSON");
        std::fs::write(file(legate_accepts), text + "\n").expect("the recording can be written");
        return;
    }
    let compared = |part: &Part| {
        let sent = [&part.consul, &part.legate].map(|sent| unordered(summary(sent)));
        // What Consul still sends before it says that the peering has ended depends on time.
        let ends = part
            .consul
            .iter()
            .any(|sent| sent.get("terminated").is_some());
        let sent = match ends {
            true => sent.map(|sent| sent["others"].clone()),
            false => sent,
        };
        (part.change.clone(), sent, comparable(&part.shown))
    };
    let known = read(legate_accepts);
    for (known, now) in known.parts.iter().zip(&now.parts) {
        assert_eq!(compared(known), compared(now), "record it again");
    }
    assert_eq!(known.parts.len(), now.parts.len(), "record it again");
}

/// How what Legate sends and shows differs from a part.
async fn difference(part: &Part, log: &Log, skipped: usize, legate: &Mesh) -> Result<(), String> {
    let now = (summary(&log.of(Side::Legate, skipped)), shown(legate).await);
    let known = (summary(&part.legate), comparable(&part.shown));
    match now == known {
        true => Ok(()),
        false => Err(format!(
            "{}:\nrecorded: {:#}\n{:#}\nnow: {:#}\n{:#}",
            part.change, known.0, known.1, now.0, now.1
        )),
    }
}

async fn replay(legate_accepts: bool) {
    let recording = read(legate_accepts);
    let scope = Scope::new("stream of a peering");
    let legate = Mesh::start(MeshOptions::default()).await;
    make(&legate, before(Side::Legate)).await;
    let log = Log::default();
    let player = match legate_accepts {
        true => {
            let token = token(&legate, "consul").await;
            Player::dial(grpc(&legate), &token, &log, &scope).await
        }
        false => {
            let dial = async |address: SocketAddr| {
                let token = wire::token_for(address, PEERING);
                establish(&legate, "consul", &token).await;
            };
            Player::accept(dial, PEERING, &log, &scope).await
        }
    };
    let changes = changes();
    let names = changes.iter().map(|change| change.name);
    let recorded = recording.parts.iter().map(|part| part.change.as_str());
    assert!(
        recorded.eq(["the peering"].into_iter().chain(names)),
        "record it again"
    );
    let mut changes = changes.into_iter();
    let mut skipped = 0;
    for part in &recording.parts {
        player.send(&part.consul).await;
        let compare = || difference(part, &log, skipped, &legate);
        eventually(&part.change, compare, Result::is_ok)
            .await
            .expect("it was accepted");
        skipped = log.len();
        if let Some(change) = changes.next()
            && change.side == Side::Legate
        {
            make(&legate, change.requests).await;
        }
    }
    drop(player);
    legate.stop().await;
    scope.stop(LIMIT).await.expect("the player ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consul_that_dials_is_as_recorded() {
    recorded_again(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consul_that_accepts_is_as_recorded() {
    recorded_again(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_consul_that_dials_sent_has_the_same_effect() {
    replay(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_consul_that_accepts_sent_has_the_same_effect() {
    replay(false).await;
}
