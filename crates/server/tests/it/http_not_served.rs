//! No field is ignored silently: fields without effect are named in the response to the write, and
//! security-relevant ones are rejected.

use http::StatusCode;
use serde_json::{Value, json};

use crate::http_client::{Client, start};

const HEADER: &str = "x-legate-not-served";
const CATALOG: &str = "/v1/catalog/register";

fn sidecar(proxy: Value) -> Value {
    let mut whole = json!({ "DestinationServiceName": "web", "LocalServicePort": 8080 });
    let more = proxy.as_object().unwrap().clone();
    whole.as_object_mut().unwrap().extend(more);
    json!({
        "Node": "n1", "Address": "10.0.0.1",
        "Service": {
            "Kind": "connect-proxy", "Service": "web-proxy", "Port": 20000, "Proxy": whole,
        },
    })
}

async fn reported(client: &Client, path: &str, body: &Value) -> String {
    let reply = client.put(path, body).await;
    assert_eq!(reply.status, StatusCode::OK, "{body}: {}", reply.text());
    reply.header(HEADER).to_owned()
}

#[tokio::test]
async fn fields_without_effect_are_named_in_the_response() {
    let (_server, client) = start(|_| {}).await;
    let plain = reported(&client, CATALOG, &sidecar(json!({}))).await;
    assert_eq!(plain, "");
    let many = sidecar(json!({
        "Mode": "transparent",
        "Config": { "envoy_telemetry_collector_bind_socket_dir": "/run", "bind_port": 1, "mühle": 1 },
        "MeshGateway": { "Mode": "local" },
    }));
    let many = reported(&client, CATALOG, &many).await;
    let mut named: Vec<_> = many.split(", ").collect();
    named.sort_unstable();
    assert_eq!(
        named,
        [
            "Service.Proxy.Config.envoy_telemetry_collector_bind_socket_dir",
            "Service.Proxy.Config.m?hle",
        ]
    );
    let agent = json!({ "Name": "web", "Check": { "TTL": "10s", "ProxyHTTP": "x" } });
    let agent = reported(&client, "/v1/agent/service/register", &agent).await;
    assert_eq!(agent, "Check.ProxyHTTP");
    let entry = json!({
        "Kind": "service-defaults", "Name": "web",
        "EnvoyExtensions": [{
            "Name": "builtin/lua", "Arguments": { "Script": "x", "Listener": "inbound" },
            "EnvoyVersion": ">= 1.30", "Required": true,
        }],
    });
    let entry = reported(&client, "/v1/config", &entry).await;
    assert_eq!(entry, "EnvoyExtensions[0].EnvoyVersion");
    // Extensions in config entries replace those of a registration.
    let own = json!({ "EnvoyExtensions": [{ "Name": "builtin/lua" }] });
    let own = reported(&client, CATALOG, &sidecar(own)).await;
    assert_eq!(own, "Service.Proxy.EnvoyExtensions");
    // The response's head stays small, however many fields the client sends.
    let keys: serde_json::Map<_, _> = (0..5000).map(|i| (format!("k{i}"), json!(1))).collect();
    let keys = reported(&client, CATALOG, &sidecar(json!({ "Config": keys }))).await;
    assert!(keys.len() < 1100 && keys.ends_with("..."), "{keys}");
    let long = json!({ "Config": { "k".repeat(100_000): 1 } });
    let long = reported(&client, CATALOG, &sidecar(long)).await;
    assert!(long.len() < 1100, "{}", long.len());
}

fn patch_of_nothing() -> Value {
    json!({ "Name": "builtin/property-override", "Arguments": { "Patches": [{
        "ResourceFilter": { "ResourceType": "cluster", "TrafficDirection": "inbound" },
        "Op": "add", "Path": "/nmae", "Value": "x",
    }] } })
}

/// Writes, and their error texts.
fn refused() -> Vec<(&'static str, Value, &'static str)> {
    let upstream = |more: Value| {
        let mut one = json!({ "DestinationName": "api", "LocalBindPort": 1 });
        let more = more.as_object().unwrap().clone();
        one.as_object_mut().unwrap().extend(more);
        sidecar(json!({ "Upstreams": [one] }))
    };
    let defaults = |more: Value| {
        let mut entry = json!({ "Kind": "service-defaults", "Name": "web" });
        let more = more.as_object().unwrap().clone();
        entry.as_object_mut().unwrap().extend(more);
        entry
    };
    let extension = |extension: Value| defaults(json!({ "EnvoyExtensions": [extension] }));
    vec![
        (
            CATALOG,
            upstream(json!({ "DestinationType": "nonsense" })),
            "DestinationType",
        ),
        (
            "/v1/config",
            defaults(json!({ "MutualTLSMode": "permissive" })),
            "cannot set MutualTLSMode=permissive because AllowEnablingPermissiveMutualTLS=false",
        ),
        (
            "/v1/config",
            extension(json!({ "Name": "mine" })),
            "EnvoyExtensions[0].Name: name \"mine\" is not a built-in extension",
        ),
        (
            "/v1/config",
            extension(json!({ "Name": "builtin/aws/lambda", "Arguments": { "ARN": "x" } })),
            "builtin/aws/lambda is not served",
        ),
        (
            "/v1/config",
            extension(json!({ "Name": "builtin/lua", "Arguments": { "Listener": "inbound" } })),
            "EnvoyExtensions[0].Arguments.Script: missing Script value",
        ),
        (
            "/v1/config",
            extension(patch_of_nothing()),
            "EnvoyExtensions[0].Arguments.Patches[0].Path: no match for field 'nmae'",
        ),
        (
            "/v1/acl/token",
            json!({ "Roles": [{ "Name": "r" }] }),
            "No such ACL role with name \"r\"",
        ),
        (
            "/v1/acl/token",
            json!({ "TemplatedPolicies": [{ "TemplateName": "builtin/service" }] }),
            "TemplatedPolicies[0].TemplateVariables.name",
        ),
        ("/v1/acl/token", json!({ "AuthMethod": "m" }), "AuthMethod"),
        (
            "/v1/acl/token",
            json!({ "ExpirationTime": "2020-01-01T00:00:00Z" }),
            "ExpirationTime",
        ),
    ]
}

#[tokio::test]
async fn security_fields_and_missing_targets_are_refused() {
    let (server, client) = start(|config| config.acl.enabled = true).await;
    let management = client.put("/v1/acl/bootstrap", &json!({})).await.json();
    let client = client.with_token(management["SecretID"].as_str().unwrap());
    let before = server.store().state().index();
    for (path, body, says) in refused() {
        let reply = client.put(path, &body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{path} {body}");
        assert!(reply.text().contains(says), "{body}: {}", reply.text());
    }
    assert_eq!(server.store().state().index(), before);
}

/// As in Consul, whose decoders reject unknown fields.
#[tokio::test]
async fn unknown_fields_are_refused_by_every_write() {
    let (_server, client) = start(|config| config.acl.enabled = true).await;
    for (method, path) in [
        (http::Method::PUT, CATALOG),
        (http::Method::PUT, "/v1/catalog/deregister"),
        (http::Method::PUT, "/v1/agent/service/register"),
        (
            http::Method::PUT,
            "/v1/connect/intentions/exact?source=a&destination=b",
        ),
        (http::Method::PUT, "/v1/acl/bootstrap"),
        (http::Method::POST, "/v1/acl/login"),
    ] {
        let reply = client.send(method, path, r#"{"Nonsense": 1}"#).await;
        assert_eq!(
            reply.status,
            StatusCode::BAD_REQUEST,
            "{path}: {}",
            reply.text()
        );
        assert!(
            reply.text().contains("invalid config key \"Nonsense\""),
            "{}",
            reply.text()
        );
    }
    let made = client.put("/v1/acl/bootstrap", &json!({})).await.json();
    let client = client.with_token(made["SecretID"].as_str().unwrap());
    let token = format!("/v1/acl/token/{}", made["AccessorID"].as_str().unwrap());
    for path in [
        "/v1/acl/token",
        &token,
        "/v1/acl/auth-method",
        "/v1/acl/binding-rule",
        "/v1/config",
    ] {
        let body = json!({ "Nonsense": 1, "Kind": "mesh" });
        let reply = client.put(path, &body).await;
        assert_eq!(
            reply.status,
            StatusCode::BAD_REQUEST,
            "{path}: {}",
            reply.text()
        );
        assert!(
            reply.text().contains("invalid config key \"Nonsense\""),
            "{}",
            reply.text()
        );
    }
}
