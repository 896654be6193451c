//! `/v1/agent`: services and checks of the server's own node, and their permissions.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::{Client, start};

/// Two instances of one service, one of another, and a node check.
async fn register(client: &Client) {
    for (id, name, status) in [
        ("web-1", "web", "passing"),
        ("web-2", "web", "warning"),
        ("db", "db", "passing"),
    ] {
        let check = json!({ "CheckID": format!("{id}-ttl"), "TTL": "1h", "Status": status });
        let service = json!({ "ID": id, "Name": name, "Port": 1, "Check": check });
        client.write("/v1/agent/service/register", &service).await;
    }
    let check = json!({ "CheckID": "disk", "Name": "disk", "TTL": "1h", "Status": "passing" });
    client.write("/v1/agent/check/register", &check).await;
}

/// A client with read permission on the service `web`.
async fn web_reader(management: &Client) -> (Client, String) {
    let policy = json!({ "Name": "web", "Rules": "service \"web\" { policy = \"read\" }" });
    management.write("/v1/acl/policy", &policy).await;
    let token = json!({ "Policies": [{ "Name": "web" }] });
    let token = management.write("/v1/acl/token", &token).await;
    let id = token["AccessorID"].as_str().unwrap().to_owned();
    let reader = management.with_token(token["SecretID"].as_str().unwrap());
    (reader, id)
}

fn keys(value: &Value) -> Vec<&String> {
    value.as_object().unwrap().keys().collect()
}

#[tokio::test]
async fn lists_report_filtering_by_acls() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    register(&management).await;
    let (reader, _) = web_reader(&management).await;
    for (path, kept) in [
        ("/v1/agent/services", 2),
        ("/v1/agent/checks", 2),
        ("/v1/agent/members", 0),
        // Items removed by the filter do not count as filtered by ACLs.
        ("/v1/agent/services?filter=ID==none", 0),
    ] {
        let header = "x-consul-results-filtered-by-acls";
        let some = reader.get(path).await;
        let length = match some.json() {
            Value::Array(list) => list.len(),
            map => keys(&map).len(),
        };
        assert_eq!((length, some.header(header)), (kept, "true"), "{path}");
        assert_eq!(management.get(path).await.header(header), "", "{path}");
        // Requests without a token do not get the header.
        assert_eq!(client.get(path).await.header(header), "", "{path}");
    }
    let one = management.get("/v1/agent/members?filter=Status==1").await;
    assert_eq!(one.json().as_array().unwrap().len(), 1);
    let none = management.get("/v1/agent/members?filter=Name==x").await;
    assert_eq!(none.json(), json!([]));
}

#[tokio::test]
async fn a_service_is_not_shown_to_a_token_that_was_deleted_during_the_wait() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    register(&management).await;
    let (reader, id) = web_reader(&management).await;
    let service = reader.get("/v1/agent/service/web-1").await.json();
    let hash = service["ContentHash"].as_str().unwrap();
    let same = format!("/v1/agent/service/web-1?hash={hash}&wait=1s");
    let token = format!("/v1/acl/token/{id}");
    let (reply, deleted) = tokio::join!(reader.get(&same), management.delete(&token));
    assert_eq!(deleted.status, StatusCode::OK);
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{}", reply.text());
}

/// As in Consul: node checks count for each of the node's instances.
#[tokio::test]
async fn health_counts_the_checks_of_the_node_for_every_instance() {
    let (_server, client) = start(|_| {}).await;
    register(&client).await;
    let path = "/v1/agent/health/service/name/web";
    let reply = client.get(path).await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(reply.header("x-consul-reason"), "warning");
    let all: Value = serde_json::from_slice(&reply.body).unwrap();
    for (instance, checks, status) in [
        (0, ["disk", "web-1-ttl"], "passing"),
        (1, ["disk", "web-2-ttl"], "warning"),
    ] {
        let list = all[instance]["Checks"].as_array().unwrap();
        let ids: Vec<_> = list.iter().map(|check| &check["CheckID"]).collect();
        assert_eq!(ids, checks);
        assert_eq!(all[instance]["AggregatedStatus"], status);
    }
    for (path, accept) in [
        (format!("{path}?format=text"), "*/*"),
        (path.to_owned(), "text/plain; q=1"),
    ] {
        let request = Request::get(path).header("accept", accept);
        let request = request.body(Full::new(Bytes::new())).unwrap();
        assert_eq!(client.exchange(request).await.text(), "warning", "{accept}");
    }
}

#[tokio::test]
async fn deregistration_removes_the_sidecar_and_ignores_case() {
    let (_server, client) = start(|_| {}).await;
    let web = json!({ "Name": "web", "Port": 1, "Connect": { "SidecarService": {} } });
    client.write("/v1/agent/service/register", &web).await;
    let gone = "/v1/agent/service/deregister/WEB";
    client.write(gone, &Value::Null).await;
    assert_eq!(client.get("/v1/agent/services").await.json(), json!({}));
}
