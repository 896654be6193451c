//! Intentions, config entries and the CA over HTTP.

use http::StatusCode;
use legate_identity::CertificateInfo;
use legate_intentions::Action;
use serde_json::{Value, json};

use crate::http_client::start;

const EXACT: &str = "/v1/connect/intentions/exact?source=web&destination=api";
const CHECK: &str = "/v1/connect/intentions/check?source=web&destination=api";

#[tokio::test]
async fn an_intention_is_made_read_changed_and_removed() {
    let (server, client) =
        start(|config| config.default_intention_policy = Some(Action::Deny)).await;
    let allowed = async || client.get(CHECK).await.json()["Allowed"].clone();
    assert_eq!(allowed().await, false);

    let allow = json!({ "Action": "allow", "Description": "for the demo" });
    assert_eq!(client.write(EXACT, &allow).await, json!(true));
    assert_eq!(allowed().await, true);
    let read = client.get(EXACT).await;
    assert_eq!(read.json()["SourceName"], "web");
    assert_eq!(read.json()["DestinationName"], "api");
    assert_eq!(read.json()["Action"], "allow");
    assert_eq!(read.json()["Precedence"], 9);
    assert_eq!(read.json()["Description"], "for the demo");

    let index = server.store().state().index();
    client.write(EXACT, &allow).await;
    assert_eq!(server.store().state().index(), index, "identical");

    client.write(EXACT, &json!({ "Action": "deny" })).await;
    assert_eq!(allowed().await, false);
    let entry = client.get("/v1/config/service-intentions/api").await.json();
    assert_eq!(entry["Sources"][0]["Action"], "deny");

    assert_eq!(client.delete(EXACT).await.json(), json!(true));
    assert_eq!(client.get(EXACT).await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.delete(EXACT).await.json(), json!(true), "idempotent");
    assert_eq!(client.get("/v1/connect/intentions").await.json(), json!([]));
}

#[tokio::test]
async fn a_deleted_intention_can_be_waited_for() {
    let (_server, client) = start(|_| {}).await;
    let missing = client.get(EXACT).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    let path = format!("{EXACT}&wait=60s&index={}", missing.index());
    let (reply, _) = tokio::join!(
        client.get(&path),
        client.write(EXACT, &json!({ "Action": "deny" }))
    );
    assert_eq!(reply.json()["Action"], "deny");
}

#[tokio::test]
async fn intentions_are_matched_in_the_order_in_which_they_decide() {
    let (_server, client) = start(|_| {}).await;
    for (source, destination) in [("*", "*"), ("*", "api"), ("web", "api"), ("web", "*")] {
        let path = format!(
            "/v1/connect/intentions/exact?source={source}&destination=default/{destination}"
        );
        client.write(&path, &json!({ "Action": "deny" })).await;
    }
    let pairs = async |path: &str, key: &str| -> Vec<(String, String)> {
        let found = client.get(path).await.json();
        let list = if key.is_empty() { &found } else { &found[key] };
        let name = |i: &Value, field: &str| i[field].as_str().unwrap().to_owned();
        let pair = |i: &Value| (name(i, "SourceName"), name(i, "DestinationName"));
        list.as_array().unwrap().iter().map(pair).collect()
    };
    let owned = |expected: &[(&str, &str)]| -> Vec<(String, String)> {
        let pair = |(s, d): &(&str, &str)| ((*s).to_owned(), (*d).to_owned());
        expected.iter().map(pair).collect()
    };
    let all = [("web", "api"), ("*", "api"), ("web", "*"), ("*", "*")];
    let path = "/v1/connect/intentions/match?by=destination&name=api";
    assert_eq!(pairs(path, "api").await, owned(&all));
    assert_eq!(pairs("/v1/connect/intentions", "").await, owned(&all));
    let path = "/v1/connect/intentions/match?by=source&name=other";
    assert_eq!(
        pairs(path, "other").await,
        owned(&[("*", "api"), ("*", "*")])
    );
}

#[tokio::test]
async fn permissions_and_protocol_are_kept_consistent() {
    let (server, client) = start(|_| {}).await;
    let defaults =
        |protocol: &str| json!({ "Kind": "service-defaults", "Name": "api", "Protocol": protocol });
    client.write("/v1/config", &defaults("http")).await;
    let permissions = json!({ "Permissions": [
        { "Action": "allow", "HTTP": { "PathPrefix": "/public", "Methods": ["GET"] } },
    ] });
    client.write(EXACT, &permissions).await;
    let read = client.get(EXACT).await.json();
    assert_eq!(read["Permissions"][0]["HTTP"]["PathPrefix"], "/public");
    assert_eq!(
        client.get(CHECK).await.json()["Allowed"],
        false,
        "permissions count as deny"
    );

    let index = server.store().state().index();
    let downgrade = client.put("/v1/config", &defaults("tcp")).await;
    assert_eq!(downgrade.status, StatusCode::BAD_REQUEST);
    assert!(
        downgrade.text().contains("service-intentions"),
        "{}",
        downgrade.text()
    );
    let removal = client.delete("/v1/config/service-defaults/api").await;
    assert_eq!(removal.status, StatusCode::BAD_REQUEST);
    assert_eq!(server.store().state().index(), index);

    let global =
        json!({ "Kind": "proxy-defaults", "Name": "global", "Config": { "protocol": "http" } });
    client.write("/v1/config", &global).await;
    let removal = client.delete("/v1/config/service-defaults/api").await;
    assert_eq!(removal.status, StatusCode::OK, "the default is http too");
    let removal = client.delete("/v1/config/proxy-defaults/global").await;
    assert_eq!(removal.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn config_entries_support_compare_and_set() {
    let (_server, client) = start(|_| {}).await;
    let entry =
        |protocol: &str| json!({ "kind": "service-defaults", "name": "web", "protocol": protocol });
    assert_eq!(
        client.write("/v1/config?cas=7", &entry("http")).await,
        json!(false)
    );
    assert_eq!(
        client.write("/v1/config?cas=0", &entry("http")).await,
        json!(true)
    );
    assert_eq!(
        client.write("/v1/config?cas=0", &entry("grpc")).await,
        json!(false)
    );
    let read = client.get("/v1/config/service-defaults/web").await.json();
    assert_eq!(read["Kind"], "service-defaults");
    assert_eq!(read["Protocol"], "http");
    let index = read["ModifyIndex"].as_u64().unwrap();
    let path = format!("/v1/config?cas={index}");
    assert_eq!(client.write(&path, &entry("grpc")).await, json!(true));
    assert_eq!(client.write(&path, &entry("tcp")).await, json!(false));

    let list = client.get("/v1/config/service-defaults").await.json();
    assert_eq!(list.as_array().unwrap().len(), 1);
    let late = format!("/v1/config/service-defaults/web?cas={index}");
    assert_eq!(client.delete(&late).await.json(), json!(false));
    assert_eq!(
        client
            .delete("/v1/config/service-defaults/web")
            .await
            .json(),
        json!({})
    );
    let gone = client.get("/v1/config/service-defaults/web").await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    assert_eq!(
        client.get("/v1/config/service-defaults").await.json(),
        json!([])
    );
}

#[tokio::test]
async fn the_roots_verify_certificates_of_the_ca() {
    let (server, client) = start(|_| {}).await;
    let roots = client.get("/v1/connect/ca/roots").await.json();
    let active = &roots["Roots"][0];
    assert_eq!(active["ID"], roots["ActiveRootID"]);
    assert_eq!(active["Active"], true);
    assert_eq!(roots["TrustDomain"], server.ca().trust_domain().to_string());

    let pem = client.get("/v1/connect/ca/roots?pem=true").await;
    assert_eq!(
        pem.header("content-type"),
        "application/pem-certificate-chain"
    );
    let root = CertificateInfo::from_pem(pem.text()).unwrap();
    assert!(root.is_ca);
    assert_eq!(root.id, active["ID"].as_str().unwrap());

    let agent = client.get("/v1/agent/connect/ca/roots").await;
    assert_eq!(agent.json(), roots);
    assert_eq!(agent.header("x-cache"), "MISS");
}

/// As in Consul: status 500 for reads, 400 for writes.
#[tokio::test]
async fn a_kind_that_does_not_exist_is_an_error() {
    let (_server, client) = start(|_| {}).await;
    let says = "invalid config entry kind: nonsense";
    for path in ["/v1/config/nonsense", "/v1/config/nonsense/x"] {
        let unknown = client.get(path).await;
        assert_eq!(unknown.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(unknown.text().contains(says), "{}", unknown.text());
    }
    let unknown = client.delete("/v1/config/nonsense/x").await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
    let entry = json!({ "Kind": "nonsense", "Name": "x" });
    let unknown = client.put("/v1/config", &entry).await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
    assert!(unknown.text().contains(says), "{}", unknown.text());
}

/// As in Consul: invalid entries are an error, an index mismatch is `false`, and conflicts with other entries
/// are checked last.
#[tokio::test]
async fn a_late_compare_and_set_is_false_before_entries_are_compared() {
    let (_server, client) = start(|_| {}).await;
    let permissions = json!({
        "Kind": "service-intentions", "Name": "db", "Sources": [
            { "Name": "web", "Permissions": [{ "Action": "allow", "HTTP": { "PathExact": "/" } }] },
        ],
    });
    let late = client.put("/v1/config?cas=77", &permissions).await;
    assert_eq!(late.json(), json!(false));
    let fresh = client.put("/v1/config?cas=0", &permissions).await;
    assert_eq!(fresh.status, StatusCode::BAD_REQUEST);
    let wrong = json!({ "Kind": "service-defaults", "Name": "db", "Protocol": "smtp" });
    let wrong = client.put("/v1/config?cas=77", &wrong).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);

    let http = json!({ "Kind": "service-defaults", "Name": "db", "Protocol": "http" });
    client.write("/v1/config", &http).await;
    client.write("/v1/config", &permissions).await;
    let path = "/v1/config/service-defaults/db";
    let late = client.delete(&format!("{path}?cas=77")).await;
    assert_eq!(late.json(), json!(false));
    assert_eq!(client.delete(path).await.status, StatusCode::BAD_REQUEST);
}
