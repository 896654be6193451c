//! `/v1/event`: firing, listing and blocking queries.

use http::{Method, StatusCode};
use serde_json::json;

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::start;

#[tokio::test]
async fn a_fired_event_is_listed_and_wakes_blocking_queries() {
    let (_server, client) = start(|_| {}).await;
    let none = client.get("/v1/event/list").await;
    assert_eq!((none.json(), none.index()), (json!([]), 1));

    let waiting = client.get("/v1/event/list?index=1&wait=60s");
    let fired = client.send(Method::PUT, "/v1/event/fire/deploy", "now");
    let (news, fired) = tokio::join!(waiting, fired);
    let fired = fired.json();
    assert_eq!(fired["Name"], "deploy");
    assert_eq!(fired["Payload"], "bm93");
    assert_eq!(fired["Version"], 1);
    assert_eq!(news.json()[0]["ID"], fired["ID"]);
    assert_eq!(news.json()[0]["LTime"], 1);

    // Clients can compute the index from the last event's id.
    let id = fired["ID"].as_str().unwrap().replace('-', "");
    let half = |text: &str| u64::from_str_radix(text, 16).unwrap();
    assert_eq!(news.index(), half(&id[..16]) ^ half(&id[16..]));

    client
        .send(Method::PUT, "/v1/event/fire/other", "")
        .await
        .json();
    let all = client.get("/v1/event/list").await.json();
    assert_eq!(all.as_array().unwrap().len(), 2);
    assert_eq!(all[1]["Payload"], json!(null));
    let named = client.get("/v1/event/list?name=deploy").await;
    assert_eq!(named.json().as_array().unwrap().len(), 1);
    // Another event does not end this query; its timeout does.
    let path = format!(
        "/v1/event/list?name=deploy&index={}&wait=50ms",
        named.index()
    );
    assert_eq!(client.get(&path).await.json(), named.json());
}

#[tokio::test]
async fn events_reach_only_their_audience() {
    let (_server, client) = start(|_| {}).await;
    let web = json!({ "Name": "web", "Tags": ["v1"] });
    client.write("/v1/agent/service/register", &web).await;
    for (query, kept) in [
        ("node=^legate$", true),
        ("node=other", false),
        ("service=web&tag=v1", true),
        ("service=web&tag=v2", false),
        ("service=api", false),
    ] {
        let before = client.get("/v1/event/list").await.json();
        let path = format!("/v1/event/fire/e?{query}");
        client.send(Method::PUT, &path, "").await.json();
        let after = client.get("/v1/event/list").await.json();
        assert_eq!(after != before, kept, "{query}");
    }
    let large = "x".repeat(513);
    for (path, body, text) in [
        (
            "/v1/event/fire/e?tag=x",
            "",
            "Cannot provide tag filter without service filter",
        ),
        ("/v1/event/fire/e?node=(", "", "Invalid node filter"),
        (
            "/v1/event/fire/e",
            large.as_str(),
            "user event exceeds configured limit of 512 bytes",
        ),
    ] {
        let reply = client.send(Method::PUT, path, body).await;
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR, "{path}");
        assert!(reply.text().starts_with(text), "{}", reply.text());
    }
}

#[tokio::test]
async fn events_require_their_own_permission() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let rules = "event \"deploy\" { policy = \"write\" }\nevent \"seen\" { policy = \"read\" }";
    let policy = json!({ "Name": "p", "Rules": rules });
    management.write("/v1/acl/policy", &policy).await;
    let token = json!({ "Policies": [{ "Name": "p" }] });
    let made = management.write("/v1/acl/token", &token).await;
    let token = management.with_token(made["SecretID"].as_str().unwrap());
    for name in ["deploy", "seen", "secret"] {
        let path = format!("/v1/event/fire/{name}");
        management.send(Method::PUT, &path, "").await.json();
        let own = token.send(Method::PUT, &path, "").await.status;
        let expected = match name {
            "deploy" => StatusCode::OK,
            _ => StatusCode::FORBIDDEN,
        };
        assert_eq!(own, expected, "{name}");
    }
    let seen = token.get("/v1/event/list").await;
    let names = seen.json();
    let names = names
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["Name"].clone());
    assert_eq!(names.collect::<Vec<_>>(), ["deploy", "deploy", "seen"]);
    assert_eq!(seen.header("x-consul-results-filtered-by-acls"), "true");
}
