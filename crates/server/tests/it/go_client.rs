//! Replays requests of Consul's Go client: calls of `github.com/hashicorp/consul/api` v1.32.1 as recorded,
//! including the zero values of unset fields.

use http::{Method, StatusCode};
use legate_model::Secret;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http_client::start;

const MANAGEMENT: &str = "11111111-2222-3333-4444-555555555555";

/// A recorded call.
#[derive(Deserialize)]
struct Call {
    step: String,
    method: String,
    path: String,
    body: Option<Value>,
}

#[tokio::test]
async fn every_call_of_the_go_client_succeeds() {
    let (_server, client) = start(|config| {
        config.acl.enabled = true;
        config.acl.initial_management = Some(Secret::new(MANAGEMENT));
    })
    .await;
    let client = client.with_token(MANAGEMENT);
    let calls: Vec<Call> = serde_json::from_str(include_str!("../data/go_client.json")).unwrap();
    assert!(!calls.is_empty());
    for call in &calls {
        let method = Method::from_bytes(call.method.as_bytes()).unwrap();
        let body = call.body.as_ref().map_or(String::new(), Value::to_string);
        let reply = client.send(method, &call.path, &body).await;
        assert_eq!(
            reply.status,
            StatusCode::OK,
            "{}: {} {} {body}: {}",
            call.step,
            call.method,
            call.path,
            reply.text()
        );
        if call.step == "health service" {
            let weights = &reply.json()[0]["Service"]["Weights"];
            assert_eq!(weights, &json!({ "Passing": 1, "Warning": 1 }));
        }
        // Go's client can only decode this field as a number of nanoseconds.
        if call.step == "config get service-defaults api" {
            let check = &reply.json()["UpstreamConfig"]["Defaults"]["PassiveHealthCheck"];
            assert_eq!(check["Interval"], 10_000_000_000_u64);
        }
    }
}
