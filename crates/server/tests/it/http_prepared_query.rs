//! Prepared queries over HTTP. Expected values are Consul 1.21's, except for requests that are rejected here by
//! name.

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use legate_model::{CheckServiceNode, Tenancy};
use legate_store::{Unavailable, WriteTxn};
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_acl_policies::{policy, token};
use crate::http_client::{Client, Reply, start};
use crate::running::Running;

const QUERY: &str = "/v1/query";
const NOBODY: &str = "/v1/query/6c5bb4e6-96c1-4e59-9a0c-a0cf3b0dae9d";

async fn post(client: &Client, query: &Value) -> Reply {
    client.send(Method::POST, QUERY, &query.to_string()).await
}

/// Creates a query and returns its path.
async fn create(client: &Client, query: &Value) -> String {
    let made = post(client, query).await.json();
    format!("{QUERY}/{}", made["ID"].as_str().unwrap())
}

async fn register(client: &Client, node: &str, service: &Value, status: &str) {
    let id = format!("{node}-{}", service["Service"].as_str().unwrap());
    let mut service = service.clone();
    service["ID"] = json!(id);
    let body = json!({
        "Node": node, "Address": format!("10.0.0.{}", node.len()), "NodeMeta": { "name": node },
        "Service": service, "Check": { "CheckID": id, "ServiceID": id, "Status": status },
    });
    client.write("/v1/catalog/register", &body).await;
}

/// The nodes in a query's result, in order.
async fn nodes(client: &Client, path: &str) -> Vec<String> {
    let answer = client.get(path).await.json();
    let nodes = answer["Nodes"].as_array().unwrap().iter();
    let name = |one: &Value| one["Node"]["Node"].as_str().unwrap().to_owned();
    nodes.map(name).collect()
}

async fn sorted(client: &Client, path: &str) -> Vec<String> {
    let mut found = nodes(client, path).await;
    found.sort();
    found
}

#[tokio::test]
async fn a_query_is_made_read_changed_and_removed() {
    let (_server, client) = start(|_| {}).await;
    let empty = client.get(QUERY).await;
    assert_eq!((empty.text(), empty.index()), ("[]", 1));
    let path = create(
        &client,
        &json!({ "Name": "q", "Service": { "Service": "web" } }),
    )
    .await;
    let id = path.strip_prefix("/v1/query/").unwrap();
    let read = client.get(&path).await;
    let index = read.index();
    let mut expected = json!({
        "ID": id, "Name": "q", "Session": "", "Token": "",
        "Template": { "Type": "", "Regexp": "", "RemoveEmptyTags": false },
        "Service": {
            "Service": "web", "SamenessGroup": "",
            "Failover": { "NearestN": 0, "Datacenters": null, "Targets": null },
            "OnlyPassing": false, "IgnoreCheckIDs": null, "Near": "", "Tags": null,
            "NodeMeta": null, "ServiceMeta": null, "Connect": false, "Peer": "",
        },
        "DNS": { "TTL": "" }, "CreateIndex": index, "ModifyIndex": index,
    });
    assert_eq!(read.json(), json!([expected]));
    assert_eq!(client.get(QUERY).await.json(), json!([expected]));
    let explained = client.get("/v1/query/Q/explain").await.json();
    let about = json!({
        "Query": expected, "Index": 1, "LastContact": 0, "KnownLeader": true,
        "ConsistencyLevel": "leader", "NotModified": false, "Backend": 0,
        "ResultsFilteredByACLs": false,
    });
    assert_eq!(explained, about);

    // The id in the path takes precedence. A list supports blocking queries.
    let waits = format!("{QUERY}?index={index}");
    let waits = client.get(&waits);
    let change = json!({ "ID": "x", "Name": "q2", "Service": { "Service": "api" } });
    let (waited, changed) = tokio::join!(waits, client.put(&path, &change));
    assert_eq!((changed.status, changed.text()), (StatusCode::OK, ""));
    expected["Name"] = json!("q2");
    expected["Service"]["Service"] = json!("api");
    let read = client.get(&path).await;
    expected["ModifyIndex"] = json!(read.index());
    assert_eq!(read.json(), json!([expected]));
    assert_eq!(waited.json(), json!([expected]));
    assert_eq!(
        client.get("/v1/query/q/execute").await.status,
        StatusCode::NOT_FOUND
    );

    let removed = client.delete(&path).await;
    assert_eq!((removed.status, removed.text()), (StatusCode::OK, ""));
    let gone = client.get(&path).await;
    assert_eq!(
        (gone.status, gone.text()),
        (StatusCode::NOT_FOUND, "Query not found")
    );
}

#[tokio::test]
async fn errors_have_consuls_statuses_and_texts() {
    let (_server, client) = start(|_| {}).await;
    let path = create(
        &client,
        &json!({ "Name": "q", "Service": { "Service": "web" } }),
    )
    .await;
    let id = path.strip_prefix("/v1/query/").unwrap();
    let web = json!({ "Service": "web" });
    for (query, expected) in [
        (
            json!({ "Name": "Q", "Service": web }),
            "name 'Q' aliases an existing query name",
        ),
        (
            json!({ "Name": id, "Service": web }),
            "aliases an existing query ID",
        ),
        (json!({ "Service": web }), "Must be bound to a session"),
        (
            json!({ "ID": "x", "Name": "r", "Service": web }),
            "ID must be empty when creating a new prepared query",
        ),
        (
            json!({ "Name": "t", "Template": { "Type": "x" }, "Service": web }),
            "failed compiling template: Bad Template.Type 'x'",
        ),
        (
            json!({ "Name": "r", "Service": { "Service": "web", "Failover": {
                "Targets": [{ "Peer": "p", "Datacenter": "dc2" }],
            } } }),
            "Service.Failover.Targets[0].Peer: it cannot be used together with Datacenter",
        ),
    ] {
        let reply = post(&client, &query).await;
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR, "{query}");
        assert!(reply.text().contains(expected), "{}", reply.text());
    }
    let unknown = post(
        &client,
        &json!({ "Name": "r", "Service": web, "Unknown": 1 }),
    )
    .await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
    let web = json!({ "Name": "r", "Service": web });
    // A missing query is reported before validation errors.
    let wrong = json!({ "Name": "r", "Service": {} });
    for reply in [
        client.put(NOBODY, &web).await,
        client.put(NOBODY, &wrong).await,
        client.delete(NOBODY).await,
    ] {
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
        let text = "Cannot modify non-existent prepared query: \
                    '6c5bb4e6-96c1-4e59-9a0c-a0cf3b0dae9d'";
        assert_eq!(reply.text(), text);
    }
}

#[tokio::test]
async fn a_query_ends_with_its_session() {
    let (_server, client) = start(|_| {}).await;
    client
        .write(
            "/v1/catalog/register",
            &json!({"Node": "vm-1", "Address": "10.0.0.1"}),
        )
        .await;
    let session = client
        .write("/v1/session/create", &json!({"Node": "vm-1"}))
        .await;
    let session = session["ID"].as_str().unwrap();
    let web = json!({ "Service": "web" });
    let bound = |name: &str| json!({ "Name": name, "Session": session, "Service": web });
    let unnamed = [
        create(&client, &bound("")).await,
        create(&client, &bound("")).await,
    ];
    let named = create(&client, &bound("q")).await;
    let stays = create(&client, &json!({ "Name": "stays", "Service": web })).await;
    assert_eq!(client.get(&named).await.json()[0]["Session"], session);
    client
        .write(&format!("/v1/session/destroy/{session}"), &json!({}))
        .await;
    for path in unnamed.iter().chain([&named]) {
        assert_eq!(client.get(path).await.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(client.get(&stays).await.status, StatusCode::OK);
    let late = post(&client, &bound("late")).await;
    let expected = format!("invalid session {session:?}");
    assert!(late.text().contains(&expected), "{}", late.text());
}

#[tokio::test]
async fn wrong_requests_have_consuls_statuses() {
    let (_server, client) = start(|_| {}).await;
    let path = create(
        &client,
        &json!({ "Name": "q", "Service": { "Service": "web" } }),
    )
    .await;
    for (method, path, status, expected) in [
        (Method::GET, NOBODY, 404, "Query not found"),
        (
            Method::GET,
            "/v1/query/q",
            500,
            "UUID must be 36 characters",
        ),
        (
            Method::DELETE,
            "/v1/query/q",
            500,
            "UUID must be 36 characters",
        ),
        (Method::PUT, &path, 500, "Must be bound to a session"),
        (
            Method::GET,
            "/v1/query/nope/execute",
            404,
            "Query not found",
        ),
        (
            Method::GET,
            "/v1/query/nope/explain",
            404,
            "Query not found",
        ),
        (
            Method::GET,
            "/v1/query/q/execute?limit=x",
            500,
            "Bad limit: ",
        ),
        (
            Method::GET,
            "/v1/query/q/execute?connect=x",
            500,
            "Error parsing 'connect' value",
        ),
        (
            Method::GET,
            "/v1/query/q/execute?dc=dc7",
            500,
            "No path to datacenter",
        ),
        (Method::PUT, "/v1/query/q/execute", 405, "Only GET"),
        (Method::DELETE, "/v1/query/q/explain", 405, "Only GET"),
        (Method::POST, "/v1/query/q", 405, "not allowed"),
    ] {
        let reply = client.send(method.clone(), path, "").await;
        assert_eq!(
            reply.status.as_u16(),
            status,
            "{method} {path}: {}",
            reply.text()
        );
        assert!(
            reply.text().contains(expected),
            "{method} {path}: {}",
            reply.text()
        );
    }
    let far = json!({ "Name": "far", "Service": {
        "Service": "web", "Failover": { "NearestN": 2, "Datacenters": ["dc9"] },
    } });
    let accepted = post(&client, &far).await;
    assert_eq!(accepted.status, StatusCode::OK, "{}", accepted.text());
    let fields = "Service.Failover.Datacenters, Service.Failover.NearestN";
    assert_eq!(accepted.header("x-legate-not-served"), fields);
}

#[tokio::test]
async fn a_filter_is_refused() {
    let (_server, client) = start(|_| {}).await;
    let query = json!({ "Name": "q", "Service": { "Service": "web" } });
    let path = create(&client, &query).await;
    for path in [&path, "/v1/query/q/execute", "/v1/query/q/explain"] {
        let reply = client.get(&format!("{path}?filter=Node.Node==a")).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{path}");
        let text = reply.text();
        assert!(text.contains("Invalid query parameter ?filter"), "{text}");
    }
}

#[tokio::test]
async fn a_query_finds_the_instances_that_it_selects() {
    let (_server, client) = start(|_| {}).await;
    let version = |tag: &str| json!({ "Service": "web", "Port": 80, "Tags": [tag] });
    register(&client, "a", &version("V1"), "passing").await;
    register(&client, "bb", &version("v1"), "warning").await;
    register(&client, "ccc", &version("v2"), "passing").await;
    register(&client, "dddd", &version("v1"), "critical").await;
    let proxy = json!({
        "Service": "web-proxy", "Kind": "connect-proxy", "Port": 90, "Tags": ["v1"],
        "Proxy": { "DestinationServiceName": "web" },
    });
    register(&client, "a", &proxy, "passing").await;
    for (name, fields, expected) in [
        ("all", json!({}), vec!["a", "bb", "ccc"]),
        ("passing", json!({ "OnlyPassing": true }), vec!["a", "ccc"]),
        (
            "ignore",
            json!({ "IgnoreCheckIDs": ["dddd-web"] }),
            vec!["a", "bb", "ccc", "dddd"],
        ),
        ("tag", json!({ "Tags": ["v1"] }), vec!["a", "bb"]),
        ("other", json!({ "Tags": ["!v1"] }), vec!["ccc"]),
        ("meta", json!({ "NodeMeta": { "name": "bb" } }), vec!["bb"]),
        ("none", json!({ "ServiceMeta": { "x": "" } }), vec![]),
        (
            "connect",
            json!({ "Connect": true, "Tags": ["v1"] }),
            vec!["a"],
        ),
        (
            "far",
            json!({ "Tags": ["v9"], "Failover": { "NearestN": 3 } }),
            vec![],
        ),
    ] {
        let mut service = fields;
        service["Service"] = json!("web");
        create(&client, &json!({ "Name": name, "Service": service })).await;
        let path = format!("/v1/query/{name}/execute");
        assert_eq!(sorted(&client, &path).await, expected, "{name}");
    }
    let forced = client
        .get("/v1/query/all/execute?connect=true")
        .await
        .json();
    assert_eq!(forced["Nodes"][0]["Service"]["Service"], "web-proxy");
    assert_eq!(forced["Nodes"].as_array().unwrap().len(), 1);
    assert_eq!(
        nodes(&client, "/v1/query/all/execute?limit=2").await.len(),
        2
    );
    for all in ["0", "-1", ""] {
        let path = format!("/v1/query/all/execute?limit={all}");
        assert_eq!(nodes(&client, &path).await.len(), 3);
    }
}

#[tokio::test]
async fn the_near_node_comes_first() {
    let (_server, client) = start(|config| config.node_name = "bb".to_owned()).await;
    for node in ["a", "bb", "ccc", "dddd", "eeeee"] {
        register(&client, node, &json!({ "Service": "web" }), "passing").await;
    }
    for (name, near) in [
        ("plain", ""),
        ("near", "CCC"),
        ("agent", "_agent"),
        ("ip", "_ip"),
    ] {
        let query = json!({ "Name": name, "Service": { "Service": "web", "Near": near } });
        create(&client, &query).await;
    }
    for (path, expected) in [
        ("near/execute", "ccc"),
        ("agent/execute", "bb"),
        ("plain/execute?near=dddd", "dddd"),
        ("near/execute?near=_agent&limit=1", "bb"),
    ] {
        let found = nodes(&client, &format!("/v1/query/{path}")).await;
        assert_eq!(found[0], expected, "{path}");
    }
    for path in ["/v1/query/ip/execute", "/v1/query/plain/execute?near=_ip"] {
        let request = Request::get(path).header("x-forwarded-for", "10.0.0.5, 10.0.0.1");
        let reply = client.exchange(request.body(Full::<Bytes>::default()).unwrap());
        assert_eq!(reply.await.json()["Nodes"][0]["Node"]["Node"], "eeeee");
    }
    let own = json!({ "Node": "here", "Address": "127.0.0.1", "Service": { "Service": "web" } });
    client.write("/v1/catalog/register", &own).await;
    assert_eq!(nodes(&client, "/v1/query/ip/execute").await[0], "here");
    // An unknown node leaves the order unchanged, and a query does not block.
    let found = nodes(&client, "/v1/query/plain/execute?near=nope&index=100").await;
    assert_eq!(found.len(), 6);
}

#[tokio::test]
async fn the_document_of_an_execution_is_consuls() {
    let (_server, client) = start(|_| {}).await;
    register(
        &client,
        "n",
        &json!({ "Service": "web", "Port": 80 }),
        "passing",
    )
    .await;
    let query = json!({ "Name": "q", "DNS": { "TTL": "10s" }, "Service": { "Service": "web" } });
    create(&client, &query).await;
    let reply = client.get("/v1/query/q/execute?stale").await;
    assert_eq!(reply.index(), 1);
    let health = client.get("/v1/health/service/web").await.json();
    let expected = json!({
        "Service": "web", "Nodes": health, "DNS": { "TTL": "10s" }, "Datacenter": "dc1",
        "PeerName": "", "Failovers": 0, "Index": 1, "LastContact": 0, "KnownLeader": true,
        "ConsistencyLevel": "stale", "NotModified": false, "Backend": 0,
        "ResultsFilteredByACLs": false,
    });
    assert_eq!(reply.json(), expected);
}

#[tokio::test]
async fn query_templates_match_by_prefix() {
    let (_server, client) = start(|_| {}).await;
    let version = |tag: &str| json!({ "Service": "web", "Tags": [tag] });
    register(&client, "a", &version("v1"), "passing").await;
    register(&client, "bb", &version("v2"), "passing").await;
    let template = json!({
        "Name": "geo-",
        "Template": { "Type": "name_prefix_match", "Regexp": "^geo-(.*?)-([^-]+?)$" },
        "Service": { "Service": "${match(1)}", "Tags": ["${match(2)}"] },
    });
    let path = create(&client, &template).await;
    let every = json!({
        "Template": { "Type": "name_prefix_match" }, "Service": { "Service": "${name.full}" },
    });
    create(&client, &every).await;
    let again = post(&client, &every).await;
    assert_eq!(
        again.text(),
        "a query template with an empty name already exists"
    );
    assert_eq!(sorted(&client, "/v1/query/geo-web-v1/execute").await, ["a"]);
    assert_eq!(
        sorted(&client, "/v1/query/geo-web-v3/execute").await,
        [""; 0]
    );
    assert_eq!(sorted(&client, "/v1/query/web/execute").await, ["a", "bb"]);
    let explained = client.get("/v1/query/geo-web-v2/explain").await.json();
    assert_eq!(explained["Query"]["Name"], "geo-");
    assert_eq!(explained["Query"]["Service"]["Service"], "web");
    assert_eq!(explained["Query"]["Service"]["Tags"], json!(["v2"]));
    // Names may contain slashes.
    let explained = client.get("/v1/query/a/b%2F%C3%BC/explain").await.json();
    assert_eq!(explained["Query"]["Service"]["Service"], "a/b/\u{fc}");
    let by_id = client.get(&format!("{path}/execute")).await;
    assert_eq!(by_id.status, StatusCode::INTERNAL_SERVER_ERROR);
    let text = "prepared query templates can only be resolved up by name, not by ID";
    assert_eq!(by_id.text(), text);
}

#[tokio::test]
async fn permissions_apply_to_the_name() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let web = json!({ "Service": "web" });
    let q = json!({ "Name": "q", "Token": MANAGEMENT, "Service": web });
    let path = create(&management, &q).await;
    create(&management, &json!({ "Name": "other", "Service": web })).await;
    let with = |name: &'static str, rules: &'static str| {
        let management = management.clone();
        async move {
            policy(&management, name, rules).await;
            token(&management, json!({ "Policies": [{ "Name": name }] }))
                .await
                .1
        }
    };
    let reader = with("read", "query \"q\" { policy = \"read\" }").await;
    let listed = reader.get(QUERY).await;
    assert_eq!(listed.header("x-consul-results-filtered-by-acls"), "true");
    let listed = listed.json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(listed[0]["Token"], "<hidden>");
    assert_eq!(reader.get(&path).await.json()[0]["Token"], "<hidden>");
    let explained = reader.get("/v1/query/q/explain").await.json();
    assert_eq!(explained["Query"]["Token"], "<hidden>");
    assert_eq!(management.get(&path).await.json()[0]["Token"], MANAGEMENT);
    let hidden = management.put(&path, &listed[0]).await;
    assert!(
        hidden.text().contains("redacted token"),
        "{}",
        hidden.text()
    );

    // Both the current and the new name require permission.
    let writer = with("write", "query_prefix \"z\" { policy = \"write\" }").await;
    let z = json!({ "Name": "z", "Service": web });
    for (reply, right) in [
        (
            reader.get("/v1/query/other/explain").await,
            "'query:read' on \"other\"",
        ),
        (reader.put(&path, &q).await, "'query:write' on \"q\""),
        (reader.delete(&path).await, "'query:write' on \"q\""),
        (post(&reader, &z).await, "'query:write' on \"z\""),
        (writer.put(&path, &z).await, "'query:write' on \"q\""),
        (writer.get(&path).await, "'query:read' on \"q\""),
        (post(&client, &z).await, "'query:write' on \"z\""),
    ] {
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "{}", reply.text());
        assert!(reply.text().contains(right), "{}", reply.text());
    }
    let own = create(&writer, &z).await;
    assert_eq!(writer.put(&own, &z).await.status, StatusCode::OK);
    assert_eq!(writer.delete(&own).await.status, StatusCode::OK);
}

#[tokio::test]
async fn results_are_filtered_by_the_token() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    register(&management, "n", &json!({ "Service": "web" }), "passing").await;
    let rules = "service \"web\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }";
    policy(&management, "web", rules).await;
    let (made, reader) = token(&management, json!({ "Policies": [{ "Name": "web" }] })).await;
    let web = json!({ "Service": "web" });
    create(&management, &json!({ "Name": "plain", "Service": web })).await;
    let secret = &made["SecretID"];
    let with_token = json!({ "Name": "own", "Token": secret, "Service": web });
    create(&management, &with_token).await;
    let (_, nobody) = token(&management, json!({})).await;
    let unknown = client.with_token("d1a5b3a4-6c1f-4f5e-9d52-8f4f5c0a3a0e");
    let proxy = json!({
        "Service": "proxy", "Kind": "connect-proxy", "Port": 90,
        "Proxy": { "DestinationServiceName": "web" },
    });
    register(&management, "n", &proxy, "passing").await;
    let mesh = json!({ "Name": "mesh", "Service": { "Service": "web", "Connect": true } });
    create(&management, &mesh).await;
    let rules = "service \"proxy\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }";
    policy(&management, "proxy", rules).await;
    let (_, proxies) = token(&management, json!({ "Policies": [{ "Name": "proxy" }] })).await;
    for (who, path, expected, filtered) in [
        (&reader, "plain", 1, false),
        (&nobody, "plain", 0, true),
        (&client, "plain", 0, false),
        // Permission on the proxies does not include the service behind them.
        (&proxies, "mesh", 0, true),
        // All callers see what the query's own token permits.
        (&nobody, "own", 1, false),
        (&client, "own", 1, false),
        (&unknown, "own", 1, false),
    ] {
        let answer = who.get(&format!("/v1/query/{path}/execute")).await.json();
        assert_eq!(
            answer["Nodes"].as_array().unwrap().len(),
            expected,
            "{path}"
        );
        assert_eq!(answer["ResultsFilteredByACLs"], filtered, "{path}");
    }
    let refused = unknown.get("/v1/query/plain/execute").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text());
    let accessor = made["AccessorID"].as_str().unwrap();
    management
        .delete(&format!("/v1/acl/token/{accessor}"))
        .await;
    let gone = client.get("/v1/query/own/execute").await;
    assert_eq!(gone.status, StatusCode::FORBIDDEN, "{}", gone.text());
}

/// An instance of a peer on a node, and the sidecar that represents it, both with this status.
fn imported(node: &str, status: &str) -> [CheckServiceNode; 2] {
    let of = |id: &str, service: Value| {
        let mut service = service;
        service["ID"] = json!(id);
        let document = json!({
            "Node": { "Node": node, "Address": "10.9.0.1", "Datacenter": "far" },
            "Service": service,
            "Checks": [{
                "Node": node, "CheckID": id, "Name": "overall-check", "ServiceID": id, "Status": status,
            }],
        });
        serde_json::from_value(document).unwrap()
    };
    let sidecar = json!({
        "Kind": "connect-proxy", "Service": "web-sidecar-proxy", "Port": 8443,
        "Proxy": { "DestinationServiceName": "web" },
    });
    let web = json!({ "Service": "web", "Port": 81, "Address": "10.9.0.2" });
    [of("web", web), of("web-sidecar-proxy", sidecar)]
}

/// Writes that a peer exports `web` from these nodes.
async fn import(server: &Running, peer: &str, nodes: &[(&str, &str)]) {
    let of_peer = Tenancy::default().of_peer(peer);
    let both: Vec<_> = nodes
        .iter()
        .map(|(node, status)| imported(node, status))
        .collect();
    let write = move |txn: &mut WriteTxn| -> Result<_, Unavailable> {
        txn.in_tenancy(&of_peer, |txn| {
            for (at, service) in [(0, "web"), (1, "web-sidecar-proxy")] {
                let all: Vec<_> = both.iter().map(|both| both[at].clone()).collect();
                txn.put_imported(service, &all).unwrap();
            }
        });
        Ok(())
    };
    server.store().write(write).await.unwrap();
}

#[tokio::test]
async fn queries_find_what_is_imported_from_peers() {
    let (server, client) = start(|_| {}).await;
    import(&server, "alpha", &[("a", "passing"), ("bb", "critical")]).await;
    import(&server, "beta", &[("ccc", "passing")]).await;
    let targets = json!({ "Targets": [
        { "Namespace": "default" }, { "Peer": "none" }, { "Peer": "Alpha" }, { "Peer": "beta" },
    ] });
    let service = json!({ "Service": "web", "Failover": targets });
    create(&client, &json!({ "Name": "q", "Service": service })).await;
    let reply = client.get("/v1/query/q/execute").await.json();
    assert_eq!(reply["Nodes"][0]["Node"]["Node"], "a");
    assert_eq!(reply["Nodes"].as_array().unwrap().len(), 1);
    assert_eq!(reply["Nodes"][0]["Service"]["PeerName"], "alpha");
    let place = [&reply["PeerName"], &reply["Datacenter"]];
    assert_eq!(place, ["Alpha", ""]);
    assert_eq!(reply["Failovers"], 3);
    let forced = client.get("/v1/query/q/execute?connect=true").await.json();
    assert_eq!(
        forced["Nodes"][0]["Service"]["Service"],
        "web-sidecar-proxy"
    );
    // What is here comes first.
    register(&client, "dddd", &json!({ "Service": "web" }), "passing").await;
    let reply = client.get("/v1/query/q/execute").await.json();
    assert_eq!(reply["Nodes"][0]["Node"]["Node"], "dddd");
    assert_eq!([&reply["PeerName"], &reply["Datacenter"]], ["", "dc1"]);
    let of_beta = json!({ "Name": "b", "Service": { "Service": "web", "Peer": "beta" } });
    create(&client, &of_beta).await;
    let reply = client.get("/v1/query/b/execute").await.json();
    assert_eq!(reply["Nodes"][0]["Node"]["Node"], "ccc");
    assert_eq!([&reply["PeerName"], &reply["Datacenter"]], ["beta", ""]);
    assert_eq!(reply["Failovers"], 0);
}

#[tokio::test]
async fn what_is_imported_can_be_read_by_services() {
    let (server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    import(&server, "alpha", &[("a", "passing")]).await;
    let of_peer = json!({ "Name": "q", "Service": { "Service": "web", "Peer": "alpha" } });
    create(&management, &of_peer).await;
    for (name, rules, expected) in [
        ("writer", "service \"other\" { policy = \"write\" }", 1),
        (
            "name",
            "service \"web\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }",
            0,
        ),
        (
            "all",
            "service_prefix \"\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }",
            1,
        ),
    ] {
        policy(&management, name, rules).await;
        let (_, client) = token(&management, json!({ "Policies": [{ "Name": name }] })).await;
        let found = nodes(&client, "/v1/query/q/execute").await;
        assert_eq!(found.len(), expected, "{name}");
    }
}
