//! `/v1/peering`: tokens, what is refused, and the state of peerings. For what peered clusters exchange, see `peering`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode};
use legate_testkit::wait;
use serde_json::{Value, json};

use crate::http_client::{Client, Reply, start};
use crate::running::Running;

/// A server that can be peered.
pub(crate) async fn server(datacenter: &str) -> (Running, Client) {
    start(|config| {
        config.datacenter = datacenter.to_owned();
        config.grpc_tls = Some(([127, 0, 0, 1], 0).into());
    })
    .await
}

pub(crate) async fn post(client: &Client, path: &str, body: &Value) -> Reply {
    client.send(Method::POST, path, &body.to_string()).await
}

async fn token(client: &Client, body: &Value) -> (String, Value) {
    let reply = post(client, "/v1/peering/token", body).await;
    let token = reply.json()["PeeringToken"].as_str().unwrap().to_owned();
    let read = STANDARD.decode(&token).unwrap();
    (token, serde_json::from_slice(&read).unwrap())
}

#[tokio::test]
async fn a_token_introduces_one_cluster_to_another() {
    let ((_one, dc1), (_two, dc2)) = (server("dc1").await, server("dc2").await);
    let request = json!({ "PeerName": "east", "Meta": { "foo": "bar" } });
    let (text, said) = token(&dc1, &request).await;
    assert_eq!(said["ManualServerAddresses"], json!(null));
    let address = said["ServerAddresses"][0].as_str().unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{said}");
    let name = said["ServerName"].as_str().unwrap();
    assert!(name.starts_with("server.dc1.peering."), "{name}");
    assert!(said["CA"][0].as_str().unwrap().ends_with("-----\n"));

    let waiting = dc1.get("/v1/peering/east").await;
    assert!(waiting.index() > 0);
    let waiting = waiting.json();
    assert_eq!(waiting["ID"], said["PeerID"]);
    assert_eq!(
        (&waiting["State"], &waiting["Meta"]),
        (&json!("PENDING"), &json!({ "foo": "bar" }))
    );
    let reason = waiting["StateReason"].as_str().unwrap();
    assert_eq!(reason, "no cluster has connected with the token yet");
    assert_eq!(dc1.get("/v1/peerings").await.json(), json!([waiting]));
    // The secret is in the token only.
    let secret = said["EstablishmentSecret"].as_str().unwrap();
    assert!(!waiting.to_string().contains(secret));

    let establish = json!({ "PeerName": "west", "PeeringToken": text });
    let reply = post(&dc2, "/v1/peering/establish", &establish).await;
    assert_eq!(reply.json(), json!({}));
    let known = dc2.get("/v1/peering/west").await.json();
    assert_ne!(known["State"], "PENDING");
    assert_eq!(known["PeerID"], said["PeerID"]);
    assert_eq!(known["PeerServerName"], said["ServerName"]);
    assert_eq!(known["PeerServerAddresses"], said["ServerAddresses"]);
    assert_eq!(
        known["Remote"],
        json!({ "Partition": "", "Datacenter": "dc1" })
    );

    let gone = dc1.delete("/v1/peering/east").await;
    assert_eq!((gone.status, gone.text()), (StatusCode::OK, ""));
    let gone = wait::until(async || {
        let reply = dc1.get("/v1/peering/east").await;
        match reply.status {
            StatusCode::NOT_FOUND => Ok(reply),
            _ => Err(reply.text().to_owned()),
        }
    });
    assert_eq!(gone.await.text(), "Peering not found for \"east\"");
    // The secret of a token is used once.
    let again = post(&dc2, ESTABLISH, &establish).await;
    assert_eq!(again.status, StatusCode::FORBIDDEN, "{}", again.text());
    assert!(
        again
            .text()
            .starts_with("a new peering token must be generated: "),
        "{}",
        again.text()
    );
}

#[tokio::test]
async fn another_token_has_another_secret_for_the_same_peering() {
    let (_server, client) = server("dc1").await;
    let request = json!({ "PeerName": "east" });
    let (_, first) = token(&client, &request).await;
    let (_, second) = token(&client, &request).await;
    assert_eq!(first["PeerID"], second["PeerID"]);
    assert_ne!(first["EstablishmentSecret"], second["EstablishmentSecret"]);
}

const ESTABLISH: &str = "/v1/peering/establish";

fn with(name: &str, token: &str) -> Value {
    json!({ "PeerName": name, "PeeringToken": token })
}

async fn refused(client: &Client, path: &str, body: &Value, says: &str) {
    let reply = post(client, path, body).await;
    assert!(!reply.status.is_success(), "{body}");
    assert!(reply.text().contains(says), "{body}: {}", reply.text());
}

#[tokio::test]
async fn an_incomplete_token_is_refused() {
    let ((_one, dc1), (_two, dc2)) = (server("dc1").await, server("dc2").await);
    let (_, said) = token(&dc2, &json!({ "PeerName": "east" })).await;
    for (field, value, says) in [
        (
            "ServerAddresses",
            json!([]),
            "peering token server addresses value is empty",
        ),
        (
            "ServerAddresses",
            json!(["x"]),
            "x is not a valid peering server address",
        ),
        (
            "ServerName",
            json!(""),
            "peering token server name value is empty",
        ),
        ("PeerID", json!(""), "peering token peer ID value is empty"),
        ("CA", json!(["x"]), "peering token invalid CA"),
    ] {
        let mut token = said.clone();
        token[field] = value;
        let token = STANDARD.encode(token.to_string());
        refused(&dc1, ESTABLISH, &with("a", &token), says).await;
    }
}

#[tokio::test]
async fn invalid_peerings_are_refused() {
    let ((_one, dc1), (_two, dc2)) = (server("dc1").await, server("dc2").await);
    let (own, _) = token(&dc1, &json!({ "PeerName": "east" })).await;
    let (other, _) = token(&dc2, &json!({ "PeerName": "east" })).await;
    for (path, body, says) in [
        (
            "/v1/peering/token",
            json!({}),
            "PeerName is required in the payload",
        ),
        (
            "/v1/peering/token",
            json!({ "PeerName": "East" }),
            "a valid peering name must consist of lower case alphanumeric characters",
        ),
        (
            "/v1/peering/token",
            json!({ "PeerName": "a", "ServerExternalAddresses": ["x"] }),
            "x is not a valid peering server address",
        ),
        (
            ESTABLISH,
            json!({ "PeerName": "a" }),
            "PeeringToken is required in the payload",
        ),
        (ESTABLISH, with("a", "%"), "failed to decode token"),
        (
            ESTABLISH,
            with("a", &own),
            "cannot create a peering within the same cluster",
        ),
        (
            ESTABLISH,
            with("east", &other),
            "there is an existing peering expecting to be dialed",
        ),
    ] {
        refused(&dc1, path, &body, says).await;
    }
    let reply = post(&dc1, ESTABLISH, &with("west", &other)).await;
    assert_eq!(reply.json(), json!({}));
    let again = json!({ "PeerName": "west" });
    let says = "there is already an established peering";
    refused(&dc1, "/v1/peering/token", &again, says).await;
    let nameless = dc1.get("/v1/peering/").await;
    assert_eq!(nameless.status, StatusCode::BAD_REQUEST);
    assert_eq!(nameless.text(), "Must specify a name to fetch.");
}
