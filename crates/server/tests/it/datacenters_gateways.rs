//! The mesh gateways of all datacenters, which each datacenter says of itself and the primary stores.

use http::{Method, StatusCode};
use legate_server::{Parts, PrimaryGateways, Server, ServerConfig};
use legate_store::Store;
use legate_testkit::certs::TestCa;
use serde_json::{Value, json};

use crate::datacenters::{PATIENCE, join, of_datacenter};
use crate::datacenters_replication::{ROOT, primary, secondary, until};
use crate::http_client::{Client, Reply, config, start};
use crate::running::Running;

const STATES: &str = "/v1/internal/federation-states";
const OF_DC2: &str = "/v1/internal/federation-state/dc2";

async fn register(client: &Client, name: &str) {
    let service = json!({
        "Kind": "mesh-gateway", "ID": name, "Service": name, "Port": 8443,
        "Meta": {"consul-wan-federation": "1"},
        "TaggedAddresses": {"wan": {"Address": "203.0.113.1", "Port": 443}},
    });
    let check = json!({"CheckID": name, "ServiceID": name, "Status": "passing", "Output": "a"});
    let node =
        json!({"Node": "gateways", "Address": "10.2.0.1", "Service": service, "Check": check});
    client.write("/v1/catalog/register", &node).await;
}

fn names(reply: &Reply) -> Vec<String> {
    if reply.status == StatusCode::NOT_FOUND {
        return Vec::new();
    }
    let state = reply.json();
    let gateways = state["State"]["MeshGateways"].as_array();
    let name = |gateway: &Value| gateway["Service"]["ID"].as_str().unwrap().to_owned();
    gateways.into_iter().flatten().map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_of_each_datacenter_are_known_in_all() {
    let ca = TestCa::new();
    let (one, client) = start(primary(&ca)).await;
    let (two, other) = start(secondary(&ca, ROOT)).await;
    let nobody = client.clone();
    let (client, other) = (client.with_token(ROOT), other.with_token(ROOT));
    assert_eq!(client.get(STATES).await.json(), json!([]));
    assert_eq!(client.get(OF_DC2).await.status, StatusCode::NOT_FOUND);
    let nameless = client.get("/v1/internal/federation-state/").await;
    assert_eq!(nameless.text(), "Missing datacenter name");

    join(&client, &two).await;
    let is_known = |reply: &Reply| reply.status == StatusCode::OK;
    until(&other, "/v1/acl/token/self", is_known).await;
    register(&other, "g1").await;
    until(&client, OF_DC2, |reply| names(reply) == ["g1"]).await;
    let here = until(&other, OF_DC2, |reply| names(reply) == ["g1"]).await;
    let there = client.get(OF_DC2).await;
    let index = |reply: &Reply, field: &str| reply.json()["State"][field].clone();
    assert_eq!(
        index(&here, "PrimaryModifyIndex"),
        index(&there, "ModifyIndex")
    );
    let gateway = &here.json()["State"]["MeshGateways"][0];
    assert_eq!(gateway["Service"]["TaggedAddresses"]["wan"]["Port"], 443);

    // A blocking query wakes.
    register(&client, "own").await;
    until(&other, STATES, |reply| {
        reply.json().as_array().map(Vec::len) == Some(2)
    })
    .await;
    let before = client.get(OF_DC2).await;
    let waiting = format!("{OF_DC2}?index={}&wait=60s", before.index());
    let (woken, ()) = tokio::join!(client.get(&waiting), register(&other, "g2"));
    assert_eq!(names(&woken), ["g1", "g2"]);
    let ordered = client.get(STATES).await.json();
    let datacenter = |at: usize| ordered[at]["Datacenter"].clone();
    assert_eq!([datacenter(0), datacenter(1)], ["dc1", "dc2"]);

    let gateways = "/v1/internal/federation-states/mesh-gateways";
    let all = client.get(gateways).await.json();
    assert_eq!(all["dc2"].as_array().map(Vec::len), Some(2));
    for path in [STATES, OF_DC2] {
        assert_eq!(nobody.get(path).await.status, StatusCode::FORBIDDEN);
    }
    assert_eq!(nobody.get(gateways).await.json(), json!({}));

    let gone = |id: &str| json!({"Node": "gateways", "ServiceID": id});
    for id in ["g1", "g2"] {
        other.write("/v1/catalog/deregister", &gone(id)).await;
    }
    until(&other, OF_DC2, |reply| names(reply).is_empty()).await;
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_behind_gateways_are_not_joined_by_their_address() {
    let ca = TestCa::new();
    let behind = |name: &'static str, node: &'static str| {
        let of_datacenter = of_datacenter(&ca, "dc1");
        let certificate = ca.agent(&["server.dc1.consul", name]);
        move |config: &mut ServerConfig| {
            of_datacenter(config);
            config.node_name = node.to_owned();
            if let Some(wan) = &mut config.wan {
                wan.files.certificate = certificate.cert;
                wan.files.key = certificate.key;
                wan.through_gateways = Some(PrimaryGateways::default());
            }
        }
    };
    let (one, client) = start(behind("a.server.dc1.consul", "a")).await;
    let joined = client.send(Method::PUT, "/v1/agent/join/127.0.0.1?wan=1", "");
    let refused = joined.await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    let expected = "WAN join is disabled when wan federation via mesh gateways is enabled";
    assert!(refused.text().starts_with(expected), "{}", refused.text());
    one.stop(PATIENCE).await.unwrap();

    for (name, node, reason) in [
        (
            "a.server.dc1.consul",
            "b",
            "has no name b.server.dc1.consul",
        ),
        ("a.b.server.dc1.consul", "a.b", "letters, digits and - only"),
    ] {
        let mut config = config();
        behind(name, node)(&mut config);
        let error = Server::start(config, Parts::default()).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_one_datacenter_know_each_other() {
    let ca = TestCa::new();
    let store = Store::new();
    let member = |node: &'static str| {
        let of_datacenter = of_datacenter(&ca, "dc1");
        move |config: &mut ServerConfig| {
            of_datacenter(config);
            config.node_name = node.to_owned();
            config.agent.registers_itself = true;
        }
    };
    let shares = || Parts {
        store: Some(store.clone()),
        ..Parts::default()
    };
    let one = Running::start(config(), member("a"), shares()).await;
    let one = one.unwrap();
    let two = Running::start(config(), member("b"), shares()).await;
    let two = two.unwrap();
    for (server, other) in [(&one, "b.dc1"), (&two, "a.dc1")] {
        let client = Client::of(server);
        let knows = |reply: &Reply| reply.text().contains(other);
        until(&client, "/v1/agent/members?wan=1", knows).await;
    }
    let port = one.servers_addr().unwrap().port();
    let registered = Client::of(&one).get("/v1/catalog/service/consul").await;
    assert_eq!(registered.json()[0]["ServicePort"], json!(port));
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}
