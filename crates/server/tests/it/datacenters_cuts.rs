//! Two datacenters whose connections break all the time, also within messages, while both write: no acknowledged write
//! is lost or made twice, and in the end both have the same rows.
//!
//! The moments are random; the seed is printed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use legate_server::ServerConfig;
use legate_store::{Since, Store};
use legate_testkit::certs::TestCa;
use legate_testkit::network::{Cuttable, free_port_on};
use legate_testkit::wait;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::datacenters::PATIENCE;
use crate::datacenters_replication::{ROOT, primary, secondary, until};
use crate::http_client::{Client, Reply, start};
use crate::running::Running;

const CUTS: u32 = 200;
/// The longest time without a cut, mostly, and for which nobody can connect.
const LONGEST: Duration = Duration::from_millis(100);
/// The longest time without a cut, sometimes: a server is not dialled for a second after nobody could connect to it.
const CALM: Duration = Duration::from_secs(2);
/// The largest number of bytes until a cut within a message, and of those of a row.
const BYTES: usize = 150_000;
const OWN: [u8; 4] = [127, 0, 0, 1];
/// Where the relays are, by which servers of the other datacenter connect.
const RELAY: [u8; 4] = [127, 0, 0, 2];

/// A server that others reach through a relay only.
async fn behind_relay(settings: impl FnOnce(&mut ServerConfig)) -> (Running, Client, Cuttable) {
    let port = free_port_on(&[OWN.into(), RELAY.into()]);
    let (server, client) = start(|config| {
        settings(config);
        let wan = config.wan.as_mut().unwrap();
        wan.listen = SocketAddr::from((OWN, port));
        wan.advertise = RELAY.into();
    })
    .await;
    let relay = Cuttable::start_at((RELAY, port).into(), (OWN, port).into()).await;
    (server, client.with_token(ROOT), relay)
}

/// Cuts one relay or both, at once or within a message, and for a while or only for open connections.
async fn cut(relays: &[Cuttable; 2], dice: &mut StdRng) {
    let pause = |dice: &mut StdRng, longest| sleep(dice.random_range(Duration::ZERO..longest));
    let which = match dice.random_range(0..4) {
        0 => &relays[..1],
        1 => &relays[1..],
        _ => &relays[..],
    };
    let calm = if dice.random_bool(0.1) { CALM } else { LONGEST };
    pause(dice, calm).await;
    match dice.random_range(0..6) {
        0 => {
            for relay in which {
                relay.cut().await;
            }
            pause(dice, LONGEST).await;
        }
        1 | 2 => {
            let bytes = dice.random_range(0..BYTES);
            which.iter().for_each(|relay| relay.cut_after(bytes));
            pause(dice, LONGEST).await;
        }
        _ => {}
    }
    for relay in which {
        relay.cut().await;
        relay.restore().await;
    }
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq)]
enum Outcome {
    Done(Value),
    /// The primary has not received it.
    NotSent,
    /// It may have been done.
    Unknown,
}

async fn send(client: &Client, method: Method, path: &str, body: &Value) -> Outcome {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("x-consul-token", &client.token);
    let request = request.body(Full::new(Bytes::from(body.to_string())));
    // The answer of the primary is passed on as it comes, so it may end too early.
    let Ok(reply) = client.try_exchange(request.unwrap()).await else {
        return Outcome::Unknown;
    };
    if reply.status == StatusCode::OK {
        let value = serde_json::from_slice(&reply.body);
        return Outcome::Done(value.unwrap_or_default());
    }
    let text = reply.text();
    assert_eq!(
        reply.status,
        StatusCode::INTERNAL_SERVER_ERROR,
        "{path}: {text}"
    );
    if text.starts_with("No path to datacenter \"dc1\"") {
        return Outcome::NotSent;
    }
    let expected = "it is not known whether it has acted on the request";
    assert!(text.contains(expected), "{path}: {text}");
    Outcome::Unknown
}

/// The kinds of rows. The name of each is unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Entry,
    Intention,
    Policy,
    /// Of which a second one would be made by a repeated write.
    Token,
}

const KINDS: [Kind; 4] = [Kind::Entry, Kind::Intention, Kind::Policy, Kind::Token];

impl Kind {
    async fn create(self, client: &Client, name: &str, bytes: usize) -> Outcome {
        let (path, body) = match self {
            Self::Entry => (
                "/v1/config".to_owned(),
                json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"}),
            ),
            Self::Intention => (intention(name), json!({"Action": "allow"})),
            Self::Policy => (
                "/v1/acl/policy".to_owned(),
                json!({"Name": name, "Description": "x".repeat(bytes)}),
            ),
            Self::Token => (
                "/v1/acl/token".to_owned(),
                json!({"Description": name, "Policies": [{"Name": "global-management"}]}),
            ),
        };
        send(client, Method::PUT, &path, &body).await
    }

    /// `made`: the answer when it was made.
    async fn delete(self, client: &Client, name: &str, made: &Value) -> Outcome {
        let id = |field: &str| made[field].as_str().unwrap().to_owned();
        let path = match self {
            Self::Entry => format!("/v1/config/service-defaults/{name}"),
            Self::Intention => intention(name),
            Self::Policy => format!("/v1/acl/policy/{}", id("ID")),
            Self::Token => format!("/v1/acl/token/{}", id("AccessorID")),
        };
        send(client, Method::DELETE, &path, &Value::Null).await
    }

    /// How many there are by name.
    async fn count(self, client: &Client) -> BTreeMap<String, usize> {
        let (path, field) = match self {
            Self::Entry => ("/v1/config/service-defaults", "Name"),
            Self::Intention => ("/v1/connect/intentions", "SourceName"),
            Self::Policy => ("/v1/acl/policies", "Name"),
            Self::Token => ("/v1/acl/tokens", "Description"),
        };
        let mut count = BTreeMap::new();
        for row in client.get(path).await.json().as_array().unwrap() {
            *count
                .entry(row[field].as_str().unwrap().to_owned())
                .or_default() += 1;
        }
        count
    }
}

fn intention(source: &str) -> String {
    format!("/v1/connect/intentions/exact?source={source}&destination=db")
}

/// What was written, and what became of it.
#[derive(Default)]
struct Ledger {
    /// Those that must be there, with the answer.
    there: BTreeMap<(Kind, String), Value>,
    /// Those that must not be there.
    gone: BTreeSet<(Kind, String)>,
    unknown: BTreeSet<(Kind, String)>,
    /// The increments of the counter that were done, and those that may have been.
    counted: (u64, u64),
}

impl Ledger {
    /// One write of each kind, and the removal of one row of it.
    async fn write(&mut self, client: &Client, dice: &mut StdRng, name: &str) {
        for kind in KINDS {
            let bytes = match dice.random_bool(0.3) {
                true => dice.random_range(0..BYTES),
                false => 0,
            };
            let row = (kind, name.to_owned());
            match kind.create(client, name, bytes).await {
                Outcome::Done(made) => drop(self.there.insert(row, made)),
                Outcome::NotSent => drop(self.gone.insert(row)),
                Outcome::Unknown => drop(self.unknown.insert(row)),
            }
            if dice.random_bool(0.6) {
                continue;
            }
            let of_kind = self.there.iter().filter(|((other, _), _)| *other == kind);
            let Some((row, made)) = of_kind.choose(dice) else {
                continue;
            };
            let (row, made) = (row.clone(), made.clone());
            let removed = kind.delete(client, &row.1, &made).await;
            if removed != Outcome::NotSent {
                self.there.remove(&row);
            }
            match removed {
                Outcome::Done(_) => drop(self.gone.insert(row)),
                Outcome::NotSent => {}
                Outcome::Unknown => drop(self.unknown.insert(row)),
            }
        }
    }

    /// Adds one to the counter, if it is still as the secondary has it.
    async fn increment(&mut self, other: &Client) {
        let (index, count) = counter(&other.get(COUNTER).await);
        let path = format!("/v1/config?cas={index}");
        match send(other, Method::PUT, &path, &counting(count + 1)).await {
            Outcome::Done(done) => self.counted.0 += u64::from(done == json!(true)),
            Outcome::NotSent => {}
            Outcome::Unknown => self.counted.1 += 1,
        }
    }

    /// What became of the writes. Some through the secondary were done.
    fn summary(&self) -> String {
        let through = |(_, name): &&(Kind, String)| name.starts_with("two");
        let done = self.there.keys().filter(through).count();
        assert!(done > 0 && self.counted.0 > 0);
        format!(
            "there {}, of them through the secondary {done}; gone {}, unknown {}, counted {:?}",
            self.there.len(),
            self.gone.len(),
            self.unknown.len(),
            self.counted
        )
    }

    async fn check(&self, client: &Client) {
        for kind in KINDS {
            let count = kind.count(client).await;
            let of = |(other, name): &(Kind, String)| {
                (*other == kind).then(|| count.get(name).copied().unwrap_or_default())
            };
            for row in self.there.keys() {
                assert!(of(row).is_none_or(|count| count == 1), "{row:?}");
            }
            for row in &self.gone {
                assert!(of(row).is_none_or(|count| count == 0), "{row:?}");
            }
            for row in &self.unknown {
                assert!(of(row).is_none_or(|count| count <= 1), "{row:?}");
            }
        }
        let (_, count) = counter(&client.get(COUNTER).await);
        let (done, unknown) = self.counted;
        assert!(
            (done..=done + unknown).contains(&count),
            "{count} {done} {unknown}"
        );
    }
}

const COUNTER: &str = "/v1/config/service-defaults/counter";

fn counting(count: u64) -> Value {
    json!({"Kind": "service-defaults", "Name": "counter", "Meta": {"count": count.to_string()}})
}

/// The index of the counter, and its value.
fn counter(reply: &Reply) -> (u64, u64) {
    let entry = reply.json();
    let count = entry["Meta"]["count"].as_str().unwrap().parse();
    (entry["ModifyIndex"].as_u64().unwrap(), count.unwrap())
}

/// Registers a gateway, changes one, or removes one.
async fn change_gateway(client: &Client, dice: &mut StdRng) {
    let id = format!("gateway-{}", dice.random_range(0..4));
    let mut node = json!({"Node": "gateways", "Address": "10.2.0.1"});
    if dice.random_bool(0.3) {
        node["ServiceID"] = json!(id);
        client.write("/v1/catalog/deregister", &node).await;
        return;
    }
    node["Service"] = json!({
        "Kind": "mesh-gateway", "ID": id, "Service": "gateway", "Port": dice.random_range(1..60_000),
    });
    client.write("/v1/catalog/register", &node).await;
}

/// The gateways in a federation state or the catalog.
fn gateways(list: &Value) -> BTreeSet<(String, u64)> {
    let list = list.as_array().into_iter().flatten();
    let gateway = |one: &Value| {
        let service = &one["Service"];
        let id = service["ID"].as_str().unwrap().to_owned();
        (id, service["Port"].as_u64().unwrap())
    };
    list.map(gateway).collect()
}

/// The federation states without the indexes of the store.
async fn states(client: &Client) -> Value {
    let mut states = client.get("/v1/internal/federation-states").await.json();
    for state in states.as_array_mut().unwrap() {
        for index in ["CreateIndex", "ModifyIndex"] {
            state.as_object_mut().unwrap().remove(index);
        }
    }
    states
}

/// The replicated rows of a datacenter by table and name, without the indexes of its store.
fn rows(store: &Store) -> BTreeMap<String, Value> {
    let state = store.state();
    let all = state.read().replication(&Since::default(), true).unwrap();
    let row = |row: &legate_store::ReplicatedRow| {
        let mut row = serde_json::to_value(row).unwrap();
        let name = format!("{} {}", row["table"], row["names"]);
        remove_indexes(&mut row["row"]);
        (name, row["row"].take())
    };
    all.rows.iter().map(row).collect()
}

fn remove_indexes(row: &mut Value) {
    match row {
        Value::Object(fields) => {
            fields.retain(|name, _| !["CreateIndex", "ModifyIndex"].contains(&name.as_str()));
            fields.values_mut().for_each(remove_indexes);
        }
        Value::Array(all) => all.iter_mut().for_each(remove_indexes),
        _ => {}
    }
}

/// Waits until the rows of both are the same.
async fn until_equal(one: &Store, two: &Store) {
    wait::until(async || {
        let (one, two) = (rows(one), rows(two));
        let names = one.keys().chain(two.keys());
        let different = names.filter(|name| one.get(*name) != two.get(*name));
        let different: BTreeSet<_> = different.collect();
        match different.first() {
            None => Ok(()),
            Some(first) => Err(format!(
                "{} rows differ: {first} is {:?} and {:?}",
                different.len(),
                one.get(*first),
                two.get(*first)
            )),
        }
    })
    .await;
}

/// Waits until what both know of the gateways of a datacenter is its catalog.
async fn until_known(all: [&Client; 2]) {
    for (of, datacenter) in all.into_iter().zip(["dc1", "dc2"]) {
        let own = of.get("/v1/health/service/gateway").await.json();
        let own = gateways(&own);
        for client in all {
            let path = format!("/v1/internal/federation-state/{datacenter}");
            let known = |reply: &Reply| match reply.status {
                StatusCode::OK => gateways(&reply.json()["State"]["MeshGateways"]) == own,
                _ => own.is_empty(),
            };
            until(client, &path, known).await;
        }
    }
    wait::until(async || {
        let (one, two) = (states(all[0]).await, states(all[1]).await);
        match one == two {
            true => Ok(()),
            false => Err(format!("{one:#} is not {two:#}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_lose_and_repeat_nothing() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let ca = TestCa::new();
    let (one, client, to_one) = behind_relay(primary(&ca)).await;
    let (two, other, to_two) = behind_relay(secondary(&ca, ROOT)).await;
    let path = format!("/v1/agent/join/{}?wan=1", to_two.address());
    let joined = client.send(Method::PUT, &path, "").await;
    assert_eq!(joined.status, StatusCode::OK, "{}", joined.text());
    let arrived = |reply: &Reply| reply.status == StatusCode::OK;
    until(&other, "/v1/acl/token/self", arrived).await;
    other.write("/v1/config", &counting(0)).await;
    until(&other, COUNTER, arrived).await;

    let (relays, goes_on) = ([to_one, to_two], Cell::new(true));
    let mut cuts = StdRng::seed_from_u64(dice.random());
    let cutting = async {
        for _ in 0..CUTS {
            cut(&relays, &mut cuts).await;
        }
        goes_on.set(false);
    };
    let mut ledger = Ledger::default();
    let writing = async {
        for round in 0.. {
            if !goes_on.get() {
                break;
            }
            let name = |datacenter: &str| format!("{datacenter}-{round}");
            ledger.write(&client, &mut dice, &name("one")).await;
            ledger.write(&other, &mut dice, &name("two")).await;
            ledger.increment(&other).await;
            for client in [&client, &other] {
                change_gateway(client, &mut dice).await;
            }
        }
    };
    tokio::join!(cutting, writing);
    println!("{}", ledger.summary());

    until_equal(one.store(), two.store()).await;
    until_known([&client, &other]).await;
    for client in [&client, &other] {
        ledger.check(client).await;
    }
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}
