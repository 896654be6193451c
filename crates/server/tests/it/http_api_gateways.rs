//! What is read about API gateways: the status of gateways and routes, and what is bound. Each situation was
//! recorded with a real Consul; the conditions of an entry and the references in a list have no order there.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use legate_identity::{Authority, RootRequest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http_client::{Client, start};

/// What Consul says about entries.
const CONSULS: &str = include_str!("api_gateways/as_consul.json");

/// Where Consul differs, each with the reason. `UPDATE_GOLDEN=1` writes what is read here.
const OWN: &str = include_str!("api_gateways/own.json");

/// Entries, and what is read after they were written.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Situation {
    about: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    entries: Vec<Value>,
    conditions: BTreeMap<String, Vec<String>>,
    bound: BTreeMap<String, Binding>,
}

#[derive(Debug, Default, PartialEq, Deserialize, Serialize)]
struct Binding {
    listeners: BTreeMap<String, Listener>,
    services: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Default, PartialEq, Deserialize, Serialize)]
struct Listener {
    routes: Vec<String>,
    certificates: Vec<String>,
}

pub(crate) fn pair() -> (String, String) {
    pair_from(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000))
}

/// A certificate that is valid for an hour from this time, and its key.
pub(crate) fn pair_from(now: SystemTime) -> (String, String) {
    let root = Authority::generate_root(RootRequest {
        common_name: "host.example".to_owned(),
        uri: "spiffe://example.consul".to_owned(),
        serial: 1,
        now,
        ttl: Duration::from_secs(3600),
    });
    let root = root.unwrap();
    (root.cert_pem().to_owned(), root.key_pem())
}

fn reference(value: &Value) -> String {
    let parts = ["Kind", "Name", "SectionName"].map(|field| value[field].as_str().unwrap());
    parts.join(" ").trim_end().to_owned()
}

fn references(value: &Value) -> Vec<String> {
    let mut all: Vec<_> = value
        .as_array()
        .into_iter()
        .flatten()
        .map(reference)
        .collect();
    all.sort();
    all
}

fn condition(value: &Value) -> String {
    let text = |field: &str| value[field].as_str().unwrap();
    let about = match reference(&value["Resource"]).trim() {
        "" => String::new(),
        about => format!(" of {about}"),
    };
    let [kind, status, reason] = ["Type", "Status", "Reason"].map(text);
    format!("{kind}={status} {reason}{about}: {}", text("Message"))
}

async fn conditions(client: &Client) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for kind in ["api-gateway", "http-route", "tcp-route"] {
        for entry in client
            .get(&format!("/v1/config/{kind}"))
            .await
            .json()
            .as_array()
            .unwrap()
        {
            let said = entry["Status"]["Conditions"]
                .as_array()
                .into_iter()
                .flatten();
            let mut said: Vec<_> = said.map(condition).collect();
            said.sort();
            let name = entry["Name"].as_str().unwrap();
            let path = format!("/v1/config/{kind}/{name}");
            assert_eq!(client.get(&path).await.json(), *entry);
            found.insert(format!("{kind} {name}"), said);
        }
    }
    found
}

async fn bound(client: &Client) -> BTreeMap<String, Binding> {
    let all = client.get("/v1/config/bound-api-gateway").await.json();
    let entries = all.as_array().unwrap().iter().map(|entry| {
        let name = entry["Name"].as_str().unwrap().to_owned();
        let mut binding = Binding::default();
        for listener in entry["Listeners"].as_array().into_iter().flatten() {
            let name = listener["Name"].as_str().unwrap().to_owned();
            let [routes, certificates] =
                ["Routes", "Certificates"].map(|field| references(&listener[field]));
            binding.listeners.insert(
                name,
                Listener {
                    routes,
                    certificates,
                },
            );
        }
        for (service, routes) in entry["Services"].as_object().into_iter().flatten() {
            binding.services.insert(service.clone(), references(routes));
        }
        (name, binding)
    });
    entries.collect()
}

/// What is read after the entries of a situation were written.
async fn read(situation: &Situation) -> (BTreeMap<String, Vec<String>>, BTreeMap<String, Binding>) {
    let (_server, client) = start(|_| {}).await;
    let (certificate, key) = pair();
    for entry in &situation.entries {
        let mut entry = entry.clone();
        if entry["Kind"] == "inline-certificate" {
            entry["Certificate"] = json!(certificate);
            entry["PrivateKey"] = json!(key);
        }
        assert_eq!(client.write("/v1/config", &entry).await, true);
    }
    (conditions(&client).await, bound(&client).await)
}

async fn check(situation: &Situation) {
    let (conditions, bound) = read(situation).await;
    let about = &situation.about;
    assert_eq!(conditions, situation.conditions, "{about}");
    assert_eq!(bound, situation.bound, "{about}");
}

#[tokio::test]
async fn gateways_and_routes_have_consuls_status() {
    let situations: Vec<Situation> = serde_json::from_str(CONSULS).unwrap();
    assert!(situations.len() >= 20);
    for situation in &situations {
        check(situation).await;
    }
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "the environment says whether to compare or to write"
)]
async fn where_the_status_differs_from_consuls_there_is_a_reason() {
    let mut situations: Vec<Situation> = serde_json::from_str(OWN).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        for situation in &mut situations {
            (situation.conditions, situation.bound) = read(situation).await;
        }
        let folder = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/it/api_gateways/own.json"
        );
        let text = serde_json::to_string_pretty(&situations).unwrap();
        std::fs::write(folder, text + "\n").unwrap();
    }
    for situation in &situations {
        assert_ne!(situation.reason, "", "{}", situation.about);
        check(situation).await;
    }
}

#[tokio::test]
async fn a_waiting_reader_of_a_status_learns_of_every_change_of_it() {
    let (_server, client) = start(|_| {}).await;
    let gateway = json!({ "Kind": "api-gateway", "Name": "api", "Listeners": [
        { "Name": "one", "Port": 8080, "Protocol": "http" },
    ] });
    let defaults = json!({ "Kind": "service-defaults", "Name": "web", "Protocol": "http" });
    let route = json!({
        "Kind": "http-route", "Name": "r", "Parents": [{ "Name": "api" }],
        "Rules": [{ "Services": [{ "Name": "web" }] }],
    });
    client.write("/v1/config", &gateway).await;
    client.write("/v1/config", &route).await;
    let paths = [
        "/v1/config/bound-api-gateway/api",
        "/v1/config/http-route/r",
    ];
    let waiting = async |change: &dyn Fn(Client) -> std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        let mut before = Vec::new();
        for path in paths {
            before.push(client.get(path).await);
        }
        let asked = paths.iter().zip(&before).map(|(path, before)| {
            let path = format!("{path}?index={}&wait=20s", before.index());
            let client = client.clone();
            async move { client.get(&path).await }
        });
        let (answers, ()) = tokio::join!(join_all(asked), change(client.clone()));
        for (after, before) in answers.into_iter().zip(before) {
            assert!(after.index() > before.index());
            assert_ne!(after.json(), before.json());
        }
    };
    // A change of a service, of which none of the entries knows.
    waiting(&|client| {
        let defaults = defaults.clone();
        Box::pin(async move { drop(client.write("/v1/config", &defaults).await) })
    })
    .await;
    waiting(&|client| {
        Box::pin(async move { drop(client.delete("/v1/config/service-defaults/web").await) })
    })
    .await;
}
