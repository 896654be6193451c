//! A cluster with three servers that is peered with another one: the server that holds the stream is killed, and another
//! one has it soon.

use std::time::Duration;

use http::Method;
use legate_tests::wait::eventually_within;
use legate_tests::{Mesh, MeshOptions, client};
use serde_json::{Value, json};

use crate::{SERVERS, three};

/// The time until another server leads is at most 5 s, and a stream is dialed every 64 s at least. Both are seen in a
/// fraction of this.
const TAKEN_OVER: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_accepts_the_stream() {
    taken_over(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_dials() {
    taken_over(false).await;
}

/// Whether the cluster with three servers accepts the stream.
async fn taken_over(accepts: bool) {
    let mut many = Mesh::start(MeshOptions {
        peering: true,
        ..three()
    })
    .await;
    let one = Mesh::start(MeshOptions::default()).await;
    for (mesh, peer) in [(&many, "one"), (&one, "many")] {
        export(mesh, peer).await;
        register(mesh, "store-0").await;
    }
    match accepts {
        true => establish((&many, "many"), (&one, "one")).await,
        false => establish((&one, "one"), (&many, "many")).await,
    }
    imports(&one, "many", "store-0").await;
    imports(&many, "one", "store-0").await;

    for killed in 1..SERVERS {
        let holder = holder(&many).await;
        many.replicas().kill(holder).await;
        many.use_server((holder + 1) % SERVERS);
        let name = format!("store-{killed}");
        register(&many, &name).await;
        register(&one, &name).await;
        // In both directions, and with nothing lost that was there.
        imports(&one, "many", &name).await;
        imports(&many, "one", &name).await;
        imports(&one, "many", "store-0").await;
        assert_ne!(self::holder(&many).await, holder);
        many.replicas().start(holder).await;
    }
    many.stop().await;
    one.stop().await;
}

/// The server that holds the stream.
async fn holder(many: &Mesh) -> usize {
    let peering = many.api(Method::GET, "/v1/peering/one", None).await;
    let peering: Value = serde_json::from_str(&peering).expect("JSON");
    let server = peering["StreamStatus"]["Server"].as_str();
    let number = server.and_then(|name| name.strip_prefix("server-"));
    let number = number.and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no server holds the stream: {peering}"))
}

async fn register(mesh: &Mesh, id: &str) {
    let service = json!({"Service": "store", "ID": id, "Port": 80});
    mesh.catalog(json!({"Service": service})).await;
}

async fn export(mesh: &Mesh, peer: &str) {
    let entry = json!({
        "Kind": "exported-services", "Name": "default",
        "Services": [{"Name": "store", "Consumers": [{"Peer": peer}]}],
    });
    mesh.entry(entry).await;
}

/// Peers two clusters, each with the name by which the other one knows it.
async fn establish((accepts, accepting): (&Mesh, &str), (dials, dialing): (&Mesh, &str)) {
    let name = json!({"PeerName": dialing});
    let token = accepts
        .api(Method::POST, "/v1/peering/token", Some(name))
        .await;
    let token: Value = serde_json::from_str(&token).expect("JSON");
    let body = json!({"PeerName": accepting, "PeeringToken": token["PeeringToken"]});
    dials
        .api(Method::POST, "/v1/peering/establish", Some(body))
        .await;
}

/// Waits until an instance is imported from a peer, and the peering is active.
async fn imports(mesh: &Mesh, peer: &str, id: &str) {
    let path = format!("/v1/health/service/store?peer={peer}");
    let state = format!("/v1/peering/{peer}");
    let read = || async {
        let services = client::get(mesh.http(), &path).await.ok()?.1;
        let peering = client::get(mesh.http(), &state).await.ok()?.1;
        Some((services, peering))
    };
    let has = |read: &Option<(String, String)>| {
        read.as_ref().is_some_and(|(services, peering)| {
            services.contains(&format!("{id:?}")) && peering.contains("\"ACTIVE\"")
        })
    };
    eventually_within(TAKEN_OVER, &format!("{id} of {peer}"), read, has).await;
}
