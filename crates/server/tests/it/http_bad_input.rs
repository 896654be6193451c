//! Rejected requests and their error texts. Rejected requests change nothing.

use http::{Method, StatusCode};
use serde_json::json;

use crate::http_client::{Client, start};

struct Bad {
    method: Method,
    path: &'static str,
    body: String,
    status: StatusCode,
    /// A part of the error text.
    says: &'static str,
}

fn put(path: &'static str, body: impl ToString, says: &'static str) -> Bad {
    Bad {
        method: Method::PUT,
        path,
        body: body.to_string(),
        status: StatusCode::BAD_REQUEST,
        says,
    }
}

fn get(path: &'static str, says: &'static str) -> Bad {
    Bad {
        method: Method::GET,
        ..put(path, "", says)
    }
}

const CATALOG: &str = "/v1/catalog/register";
const AGENT: &str = "/v1/agent/service/register";
const CONFIG: &str = "/v1/config";
const EXACT: &str = "/v1/connect/intentions/exact?source=web&destination=api";

fn catalog_registrations() -> Vec<Bad> {
    let with = |service: serde_json::Value| json!({ "Node": "n", "Address": "10.0.0.1", "Service": service });
    let proxy = |proxy: serde_json::Value| {
        with(json!({ "Service": "p", "Kind": "connect-proxy", "Port": 1, "Proxy": proxy }))
    };
    vec![
        put(CATALOG, "", "body is empty"),
        put(CATALOG, "{", "decoding failed"),
        put(CATALOG, "[]", "decoding failed"),
        put(CATALOG, r#"{"Node": 7}"#, "Node"),
        put(
            CATALOG,
            r#"{"Node": "n", "Address": "10.0.0.1", "Service": {"Service": "web", "Port": 99999}}"#,
            "Port",
        ),
        put(CATALOG, json!({ "Address": "10.0.0.1" }), "Node"),
        put(CATALOG, json!({ "Node": "n" }), "Address"),
        put(
            CATALOG,
            json!({ "Node": "a/b", "Address": "10.0.0.1" }),
            "Node",
        ),
        put(
            CATALOG,
            json!({ "Node": "n", "ID": "7", "Address": "10.0.0.1" }),
            "ID",
        ),
        put(
            CATALOG,
            json!({ "Node": "n", "Address": "10.0.0.1", "Check": { "Name": "c", "ServiceID": "absent" } }),
            "\"absent\"",
        ),
        put(CATALOG, with(json!({ "ID": "x", "Port": 1 })), "Service"),
        put(CATALOG, proxy(json!({})), "DestinationServiceName"),
        put(
            CATALOG,
            proxy(json!({ "DestinationServiceName": "*" })),
            "DestinationServiceName",
        ),
        put(
            CATALOG,
            with(
                json!({ "Service": "p", "Kind": "connect-proxy", "Proxy": { "DestinationServiceName": "web" } }),
            ),
            "Port",
        ),
        put(
            CATALOG,
            proxy(json!({ "DestinationServiceName": "web", "Upstreams": [
                { "DestinationName": "api", "LocalBindPort": 1 },
                { "DestinationName": "api", "LocalBindPort": 2 },
            ] })),
            "Upstreams[1]",
        ),
        put("/v1/catalog/deregister", json!({}), "Node"),
    ]
}

fn agent_registrations() -> Vec<Bad> {
    vec![
        put(AGENT, "{]", "decoding failed"),
        put(AGENT, json!({ "Port": 1 }), "Missing service name"),
        put(AGENT, json!({ "Name": "we/b" }), "Name"),
        put(
            AGENT,
            json!({ "Name": "web", "Address": "0.0.0.0" }),
            "0.0.0.0",
        ),
        put(
            AGENT,
            json!({ "Name": "p", "Kind": "connect-proxy", "Port": 1 }),
            "DestinationServiceName",
        ),
        put(
            AGENT,
            json!({ "Name": "web", "Check": { "Name": "c" } }),
            "TTL",
        ),
        put(
            AGENT,
            json!({ "Name": "web", "Connect": { "SidecarService": { "ID": "mine" } } }),
            "SidecarService",
        ),
        put(
            "/v1/agent/service/register?replace-existing-checks=maybe",
            json!({ "Name": "web" }),
            "maybe",
        ),
    ]
}

fn settings() -> Vec<Bad> {
    let defaults = |more: serde_json::Value| {
        let mut entry = json!({ "Kind": "service-defaults", "Name": "web" });
        entry
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        entry
    };
    vec![
        put(CONFIG, "{\"Kind\":", "decoding failed"),
        put(CONFIG, json!({ "Name": "web" }), "Kind"),
        put(
            CONFIG,
            json!({ "Kind": "nonsense", "Name": "web" }),
            "service-defaults",
        ),
        put(CONFIG, defaults(json!({ "Protocal": "http" })), "Protocal"),
        put(CONFIG, defaults(json!({ "Protocol": "smtp" })), "smtp"),
        put(
            CONFIG,
            json!({ "Kind": "proxy-defaults", "Name": "mine" }),
            "global",
        ),
        put(
            CONFIG,
            json!({ "Kind": "service-intentions", "Name": "api" }),
            "Sources",
        ),
        put("/v1/config?cas=x", defaults(json!({})), "cas"),
        put(
            CONFIG,
            json!({ "Kind": "service-intentions", "Name": "api", "Sources": [
                { "Name": "web", "Permissions": [{ "Action": "allow", "HTTP": { "PathExact": "/" } }] },
            ] }),
            "service \"api\" has protocol \"tcp\", which is incompatible with L7 intentions permissions",
        ),
        put(EXACT, "", "body is empty"),
        put(EXACT, json!({}), "Action"),
        put(EXACT, json!({ "Action": "maybe" }), "Action"),
        put(
            EXACT,
            json!({ "Action": "allow", "DestinationName": "db" }),
            "contradicts",
        ),
        put(
            EXACT,
            json!({ "Action": "allow", "Meta": { "a": "b" } }),
            "Meta",
        ),
        put(
            "/v1/connect/intentions/exact?source=web",
            json!({ "Action": "allow" }),
            "destination",
        ),
        put(
            "/v1/connect/intentions/exact?source=peer:east/web&destination=api",
            json!({ "Action": "allow" }),
            "peer",
        ),
        put(
            "/v1/connect/intentions/exact?source=*/web&destination=api",
            json!({ "Action": "allow" }),
            "wildcard namespace",
        ),
        put(
            "/v1/connect/intentions/exact?source=%ff&destination=api",
            json!({ "Action": "allow" }),
            "not UTF-8",
        ),
        put(
            "/v1/connect/intentions/exact?source=w*b&destination=api",
            json!({ "Action": "allow" }),
            "SourceName",
        ),
    ]
}

fn reads() -> Vec<Bad> {
    let failing = |status, bad| Bad { status, ..bad };
    let internal = StatusCode::INTERNAL_SERVER_ERROR;
    vec![
        get("/v1/health/service/web?index=x", "Invalid index"),
        get("/v1/health/service/web?wait=soon", "Invalid wait time"),
        get("/v1/health/service/web?stale&consistent", "consistent"),
        get("/v1/health/service/web?cached&consistent", "consistent"),
        get("/v1/health/service/web?passing=maybe", "passing"),
        get("/v1/health/service/web?filter=x", "expected =="),
        get("/v1/kv/a?peer=east", "peer"),
        get("/v1/catalog/services?peer=east", "peer"),
        get("/v1/health/service/web?ns=no.name", "ns"),
        get("/v1/health/service/web?tag=%ff", "not UTF-8"),
        get("/v1/health/service/web?%ff=1", "not UTF-8"),
        failing(internal, get("/v1/health/service/web?dc=dc9", "dc9")),
        failing(internal, get("/v1/config/nonsense", "nonsense")),
        failing(
            StatusCode::NOT_FOUND,
            get("/v1/config/service-defaults/web", "Config entry not found"),
        ),
        failing(StatusCode::NOT_FOUND, get(EXACT, "Intention not found")),
        get("/v1/connect/intentions/match?by=destination", "name"),
        get("/v1/connect/intentions/match?by=both&name=x", "both"),
        get("/v1/connect/intentions/check?source=web", "destination"),
        failing(
            StatusCode::UNAUTHORIZED,
            get("/v1/acl/tokens", "ACL support disabled"),
        ),
    ]
}

async fn assert_refused(client: &Client, bad: Bad) {
    let reply = client.send(bad.method.clone(), bad.path, &bad.body).await;
    let shown = format!("{} {} {}: {}", bad.method, bad.path, bad.body, reply.text());
    assert_eq!(reply.status, bad.status, "{shown}");
    assert!(reply.text().contains(bad.says), "{shown}");
    assert!(
        reply.header("content-type").starts_with("text/plain"),
        "{shown}"
    );
}

#[tokio::test]
async fn bad_input_is_named_and_changes_nothing() {
    let (server, client) = start(|_| {}).await;
    let before = server.store().state().index();
    let all = [
        catalog_registrations(),
        agent_registrations(),
        settings(),
        reads(),
    ];
    for bad in all.into_iter().flatten() {
        let what = format!("{} {} {}", bad.method, bad.path, bad.body);
        assert_refused(&client, bad).await;
        assert_eq!(server.store().state().index(), before, "{what}");
    }
}
