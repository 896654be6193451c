//! Two clusters that are peered: what one exports is imported by the other, in both directions, whatever happens to the
//! stream, the peering and the servers.

use std::time::Duration;

use http::{Method, StatusCode};
use legate_model::{Node, ServiceInstance};
use legate_store::{Registration, WriteError, WriteTxn};
use legate_testkit::wait;
use serde_json::{Value, json};

use crate::http_client::{Client, Reply};
use crate::http_peering::{post, server};
use crate::running::Running;

const PATIENCE: Duration = Duration::from_secs(10);

/// Peers two clusters: `accepts` knows the other one as `dialing`, and `dials` as `accepting`.
async fn peer(accepts: &Client, dials: &Client) {
    let token = post(
        accepts,
        "/v1/peering/token",
        &json!({ "PeerName": "dialing" }),
    )
    .await
    .json();
    let establish = json!({
        "PeerName": "accepting", "PeeringToken": token["PeeringToken"],
    });
    let established = post(dials, "/v1/peering/establish", &establish).await;
    assert_eq!(established.json(), json!({}));
    for (client, name) in [(accepts, "dialing"), (dials, "accepting")] {
        state(client, name, "ACTIVE").await;
    }
}

/// Waits until a peering has a state, and returns it.
async fn state(client: &Client, name: &str, expected: &str) -> Value {
    wait::until(async || {
        let peering = client.get(&format!("/v1/peering/{name}")).await.json();
        match peering["State"] == expected {
            true => Ok(peering),
            false => Err(format!(
                "{name}: {} {}",
                peering["State"], peering["StateReason"]
            )),
        }
    })
    .await
}

async fn register(client: &Client, service: &str, id: &str, status: &str) {
    let body = json!({
        "Node": "n1", "Address": "10.0.0.1", "ID": "6a1b3c5d-0000-4000-8000-000000000001",
        "Service": { "Service": service, "ID": id, "Port": 80, "Tags": ["t"] },
        "Checks": [{ "CheckID": format!("{id}-1"), "Name": "c", "ServiceID": id, "Status": status }],
    });
    client.write("/v1/catalog/register", &body).await;
}

async fn export(client: &Client, services: &[&str], peer: &str) {
    let services: Vec<_> = services
        .iter()
        .map(|name| json!({ "Name": name, "Consumers": [{ "Peer": peer }] }))
        .collect();
    let entry = json!({ "Kind": "exported-services", "Name": "default", "Services": services });
    client.write("/v1/config", &entry).await;
}

/// Waits until an answer is as expected.
async fn eventually(client: &Client, path: &str, expected: impl Fn(&Value) -> bool) -> Value {
    wait::until(async || {
        let reply: Reply = client.get(path).await;
        let answer = match reply.status {
            StatusCode::OK => reply.json(),
            _ => return Err(reply.text().to_owned()),
        };
        match expected(&answer) {
            true => Ok(answer),
            false => Err(format!("{path}: {answer}")),
        }
    })
    .await
}

fn ids(answer: &Value) -> Vec<&str> {
    let all = answer.as_array().into_iter().flatten();
    let mut ids: Vec<_> = all
        .filter_map(|one| one["Service"]["ID"].as_str())
        .collect();
    ids.sort_unstable();
    ids
}

const WEB: &str = "/v1/health/service/web?peer=dialing";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_exported_is_imported_in_both_directions_and_goes_with_the_export() {
    let ((_one, dc1), (_two, dc2)) = (server("dc1").await, server("dc2").await);
    register(&dc2, "web", "web-1", "passing").await;
    register(&dc1, "db", "db-1", "passing").await;
    export(&dc2, &["web"], "accepting").await;
    peer(&dc1, &dc2).await;
    export(&dc1, &["db"], "dialing").await;

    let web = eventually(&dc1, WEB, |web| ids(web) == ["web-1"]).await;
    assert_eq!(web[0]["Node"]["PeerName"], "dialing");
    assert_eq!(web[0]["Service"]["PeerName"], "dialing");
    assert_eq!(web[0]["Service"]["Tags"], json!(["t"]));
    assert_eq!(web[0]["Checks"][0]["CheckID"], "web-1:overall-check");
    eventually(&dc2, "/v1/health/service/db?peer=accepting", |db| {
        ids(db) == ["db-1"]
    })
    .await;
    // It is not a service of this cluster.
    assert_eq!(dc1.get("/v1/health/service/web").await.json(), json!([]));
    let names = dc1.get("/v1/catalog/services").await.json();
    assert_eq!(names.get("web"), None, "{names}");

    // A change of its health, another instance, and one less.
    register(&dc2, "web", "web-1", "critical").await;
    eventually(&dc1, WEB, |web| web[0]["Checks"][0]["Status"] == "critical").await;
    register(&dc2, "web", "web-2", "passing").await;
    eventually(&dc1, WEB, |web| ids(web) == ["web-1", "web-2"]).await;
    let gone = json!({ "Node": "n1", "ServiceID": "web-1" });
    dc2.write("/v1/catalog/deregister", &gone).await;
    eventually(&dc1, WEB, |web| ids(web) == ["web-2"]).await;
    let peering = eventually(&dc1, "/v1/peering/dialing", |peering| {
        peering["StreamStatus"]["ImportedServices"] == json!(["web"])
            && peering["StreamStatus"]["ExportedServices"] == json!(["db"])
    })
    .await;
    assert_eq!(peering["Remote"]["Datacenter"], "dc2");

    // The end of the export.
    export(&dc2, &["other"], "accepting").await;
    eventually(&dc1, WEB, |web| ids(web).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_has_the_stream_again_and_keeps_what_was_imported() {
    let ((one, dc1), (_two, dc2)) = (server("dc1").await, server("dc2").await);
    register(&dc2, "web", "web-1", "passing").await;
    export(&dc2, &["web"], "accepting").await;
    peer(&dc1, &dc2).await;
    eventually(&dc1, WEB, |web| ids(web) == ["web-1"]).await;
    let config = one.config().clone();
    let kept = one.stop_and_keep(PATIENCE).await;
    state(&dc2, "accepting", "FAILING").await;
    register(&dc2, "web", "web-2", "passing").await;
    let one = kept.start(config).await;
    let dc1 = Client::of(&one);
    assert_eq!(ids(&dc1.get(WEB).await.json()), ["web-1"]);
    eventually(&dc1, WEB, |web| ids(web) == ["web-1", "web-2"]).await;
    state(&dc2, "accepting", "ACTIVE").await;
}

async fn delete(client: &Client, name: &str) {
    let deleted = client.delete(&format!("/v1/peering/{name}")).await;
    assert_eq!(deleted.status, StatusCode::OK);
}

async fn is_gone(client: &Client, name: &str) {
    wait::until(async || {
        let reply = client.get(&format!("/v1/peering/{name}")).await;
        match reply.status {
            StatusCode::NOT_FOUND => Ok(()),
            _ => Err(reply.text().to_owned()),
        }
    })
    .await;
}

/// Two peered clusters of which the first one imports `web`.
async fn peered() -> [(Running, Client); 2] {
    let ((one, dc1), (two, dc2)) = (server("dc1").await, server("dc2").await);
    register(&dc2, "web", "web-1", "passing").await;
    export(&dc2, &["web"], "accepting").await;
    peer(&dc1, &dc2).await;
    eventually(&dc1, WEB, |web| ids(web) == ["web-1"]).await;
    [(one, dc1), (two, dc2)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peering_is_deleted_on_either_side_first() {
    for acceptor_first in [true, false] {
        let [(_one, dc1), (_two, dc2)] = peered().await;
        let mut sides = [(&dc1, "dialing"), (&dc2, "accepting")];
        if !acceptor_first {
            sides.reverse();
        }
        let [(first, its_peer), (second, other_peer)] = sides;
        delete(first, its_peer).await;
        is_gone(first, its_peer).await;
        let peering = state(second, other_peer, "TERMINATED").await;
        let reason = peering["StateReason"].as_str().unwrap();
        assert!(reason.contains("has deleted it"), "{reason}");
        // What was imported goes on both sides, and everything can be done again.
        eventually(&dc1, WEB, |web| ids(web).is_empty()).await;
        delete(second, other_peer).await;
        is_gone(second, other_peer).await;
        peer(&dc1, &dc2).await;
        eventually(&dc1, WEB, |web| ids(web) == ["web-1"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_token_does_not_end_a_stream_and_can_be_used_again() {
    let [(_one, dc1), (_two, dc2)] = peered().await;
    let id = dc1.get("/v1/peering/dialing").await.json()["ID"].clone();
    let token = post(&dc1, "/v1/peering/token", &json!({ "PeerName": "dialing" })).await;
    let peering = state(&dc1, "dialing", "ACTIVE").await;
    assert_eq!(peering["ID"], id);
    let establish = json!({
        "PeerName": "accepting", "PeeringToken": token.json()["PeeringToken"],
    });
    let again = post(&dc2, "/v1/peering/establish", &establish).await;
    assert_eq!(again.json(), json!({}));
    register(&dc2, "web", "web-2", "passing").await;
    eventually(&dc1, WEB, |web| ids(web) == ["web-1", "web-2"]).await;
    // The secret of a token is used once.
    let used = post(&dc2, "/v1/peering/establish", &establish).await;
    assert_eq!(used.status, StatusCode::FORBIDDEN, "{}", used.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_writes_rows_of_a_peer_but_its_stream() {
    let [(_one, dc1), _two] = peered().await;
    let of_peer = json!({
        "Node": "n1", "Address": "10.9.9.9", "PeerName": "dialing",
        "Service": { "Service": "web", "ID": "web-1", "PeerName": "dialing" },
    });
    let body = of_peer.to_string();
    let refused = dc1.send(Method::PUT, "/v1/catalog/register", &body).await;
    assert_eq!(
        refused.status,
        StatusCode::BAD_REQUEST,
        "{}",
        refused.text()
    );
    let web = dc1.get(WEB).await.json();
    assert_ne!(web[0]["Node"]["Address"], "10.9.9.9");
    // The node of the same name is another one.
    let own = json!({ "Node": "n1", "Address": "10.9.9.9" });
    dc1.write("/v1/catalog/register", &own).await;
    dc1.write("/v1/catalog/deregister", &json!({ "Node": "n1" }))
        .await;
    assert_eq!(ids(&dc1.get(WEB).await.json()), ["web-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_established_with_another_cluster_has_nothing_of_the_first_one() {
    const OF_PEER: &str = "/v1/health/service/db?peer=accepting";
    let ((_one, dc1), (_two, dc2)) = (server("dc1").await, server("dc2").await);
    register(&dc1, "db", "db-1", "passing").await;
    export(&dc1, &["db"], "dialing").await;
    peer(&dc1, &dc2).await;
    eventually(&dc2, OF_PEER, |db| ids(db) == ["db-1"]).await;
    let (_three, dc3) = server("dc3").await;
    register(&dc3, "db", "db-3", "passing").await;
    export(&dc3, &["db"], "dialing").await;
    peer(&dc3, &dc2).await;
    eventually(&dc2, OF_PEER, |db| ids(db) == ["db-3"]).await;
    let peering = state(&dc2, "accepting", "ACTIVE").await;
    assert_eq!(peering["Remote"]["Datacenter"], "dc3");
    // The first cluster has lost its stream, and nothing that it does concerns this one any more.
    state(&dc1, "dialing", "FAILING").await;
    delete(&dc1, "dialing").await;
    is_gone(&dc1, "dialing").await;
    assert_eq!(ids(&dc2.get(OF_PEER).await.json()), ["db-3"]);
    state(&dc2, "accepting", "ACTIVE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_instances_are_imported_and_removed_in_steps() {
    let [(_one, dc1), (two, dc2)] = peered().await;
    let many: Vec<_> = (0..1_500).map(|number| format!("many-{number}")).collect();
    let write = move |txn: &mut WriteTxn| {
        for id in &many {
            let registered = txn.register(Registration {
                node: Node {
                    node: id.clone(),
                    address: "10.0.0.1".to_owned(),
                    ..Node::default()
                },
                service: Some(ServiceInstance {
                    service: "many".to_owned(),
                    id: id.clone(),
                    ..ServiceInstance::default()
                }),
                checks: Vec::new(),
                skip_node_update: false,
            });
            registered.expect("it is valid");
        }
        Ok::<_, WriteError>(())
    };
    two.store().write(write).await.unwrap();
    export(&dc2, &["web", "many"], "accepting").await;
    let of_peer = "/v1/health/service/many?peer=dialing";
    eventually(&dc1, of_peer, |many| ids(many).len() == 1_500).await;
    export(&dc2, &["web"], "accepting").await;
    eventually(&dc1, of_peer, |many| ids(many).is_empty()).await;
    let nodes = "/v1/catalog/nodes?peer=dialing";
    eventually(&dc1, nodes, |nodes| {
        nodes.as_array().is_some_and(|nodes| nodes.len() == 1)
    })
    .await;
    state(&dc1, "dialing", "ACTIVE").await;
}
