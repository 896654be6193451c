//! Settings of proxies that are nested so deeply that no dataplane could decode them are refused, however they arrive.

use http::StatusCode;
use legate_model::json::{MAX_NESTING, UnknownFields, from_value};
use legate_model::{ConfigEntry, ServiceDefinition};
use legate_server::Parts;
use serde_json::{Value, json};

use crate::http_client::{config, start};
use crate::running::Running;

/// A `Config` with this many levels.
fn nested(levels: usize) -> Value {
    let inner = (1..levels).fold(json!(1), |inner, _| json!({ "a": inner }));
    json!({ "deep": inner })
}

#[tokio::test]
async fn every_request_with_such_settings_is_refused() {
    let (_server, client) = start(|_| {}).await;
    let proxy = |levels| {
        json!({
            "Kind": "connect-proxy", "Name": "web-proxy", "Port": 20000,
            "Proxy": { "DestinationServiceName": "web", "Config": nested(levels) },
        })
    };
    let of_catalog = |levels| {
        let mut service = proxy(levels);
        service["Service"] = service["Name"].clone();
        service.as_object_mut().unwrap().remove("Name");
        service
    };
    let requests = |levels| {
        [
            (
                "/v1/config",
                json!({ "Kind": "proxy-defaults", "Name": "global", "Config": nested(levels) }),
            ),
            ("/v1/agent/service/register", proxy(levels)),
            (
                "/v1/agent/service/register",
                json!({ "Name": "web", "Port": 1, "Connect": { "SidecarService": { "Proxy": {
                    "Upstreams": [{ "DestinationName": "api", "LocalBindPort": 1, "Config": nested(levels) }],
                }}}}),
            ),
            (
                "/v1/catalog/register",
                json!({ "Node": "n", "Address": "10.0.0.1", "Service": of_catalog(levels) }),
            ),
            (
                "/v1/txn",
                json!([{ "Service": { "Verb": "set", "Node": "legate", "Service": of_catalog(levels) }}]),
            ),
        ]
    };
    for (path, body) in requests(MAX_NESTING) {
        let reply = client.put(path, &body).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.text());
    }
    for levels in [MAX_NESTING + 1, 40] {
        for (path, body) in requests(levels) {
            let reply = client.put(path, &body).await;
            assert_ne!(reply.status, StatusCode::OK, "{path}");
            assert!(
                reply.text().contains("nested more than 32 levels"),
                "{path}: {}",
                reply.text()
            );
        }
    }
}

#[tokio::test]
async fn files_with_such_settings_are_refused() {
    let definition: ServiceDefinition = from_value(
        json!({ "Name": "web", "Port": 1, "Connect": { "SidecarService": { "Proxy": { "Config": nested(40) }}}}),
        UnknownFields::Refuse,
    )
    .unwrap();
    let entry = json!({ "Kind": "proxy-defaults", "Name": "global", "Config": nested(40) });
    let entry: ConfigEntry = from_value(entry, UnknownFields::Refuse).unwrap();
    for of_service in [true, false] {
        let (definition, entry) = (definition.clone(), entry.clone());
        let change = move |config: &mut legate_server::ServerConfig| match of_service {
            true => config.agent.services = vec![definition],
            false => config.agent.config_entries = vec![entry],
        };
        let error = Running::start(config(), change, Parts::default())
            .await
            .err()
            .unwrap();
        assert!(
            error.to_string().contains("nested more than 32 levels"),
            "{error}"
        );
    }
}
