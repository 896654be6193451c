//! Namespaces and partitions over HTTP: objects in one are not visible or writable from another or without
//! naming it. Fields and status codes are those of Consul Enterprise.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use legate_model::ServiceDefinition;
use legate_server::{Definitions, Parts, Reload};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::dns::over_udp;
use crate::http_client::{Client, Reply, config, start};
use crate::running::Running;

/// A server with the namespace `team`, and the partition `west` with a namespace `team`.
async fn tenants() -> (Running, Client) {
    let (server, client) = start(|_| {}).await;
    client
        .write("/v1/namespace", &json!({"Name": "team"}))
        .await;
    client
        .write("/v1/partition", &json!({"Name": "west"}))
        .await;
    let there = json!({"Name": "team", "Partition": "west"});
    client.write("/v1/namespace", &there).await;
    (server, client)
}

fn web(address: &str, more: Value) -> Value {
    let mut body = json!({
        "Node": "n1", "Address": address,
        "Service": { "Service": "web", "Port": 80 },
        "Checks": [
            { "CheckID": "alive", "Name": "alive", "Status": "passing" },
            { "CheckID": "web", "Name": "web", "ServiceID": "web", "Status": "passing" },
        ],
    });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body
}

/// The values at a pointer in each item of a list.
fn all(list: &Value, pointer: &str) -> Vec<Value> {
    let items = list.as_array().unwrap().iter();
    items
        .map(|item| item.pointer(pointer).cloned().unwrap_or_default())
        .collect()
}

async fn refused(reply: Reply, status: StatusCode, text: &str) {
    assert_eq!(reply.status, status, "{}", reply.text());
    assert!(reply.text().contains(text), "{}", reply.text());
}

#[tokio::test]
async fn namespaces_are_made_read_changed_and_listed() {
    let (_server, client) = start(|_| {}).await;
    let path = "/v1/namespace/team-1";
    assert_eq!(client.get(path).await.status, StatusCode::NOT_FOUND);
    let policy = client
        .write(
            "/v1/namespace",
            &json!({"Name": "Team-1", "Description": "d", "Meta": {"a": "b"}}),
        )
        .await;
    assert_eq!(
        (&policy["Name"], &policy["Description"]),
        (&json!("team-1"), &json!("d"))
    );
    let reply = client.get(path).await;
    assert!(reply.index() >= policy["CreateIndex"].as_u64().unwrap());
    assert_eq!(reply.json(), policy);
    client.write(path, &json!({"Description": "other"})).await;
    let all_names = all(&client.get("/v1/namespaces").await.json(), "/Name");
    assert_eq!(all_names, ["default", "team-1"]);
    assert_eq!(client.get(path).await.json()["Description"], "other");
    let bad = StatusCode::BAD_REQUEST;
    refused(client.put(path, &json!({"Name": "x"})).await, bad, "Name").await;
    for name in ["", "a.b", "*", "-x"] {
        let made = client.put("/v1/namespace", &json!({ "Name": name })).await;
        refused(made, bad, "ame").await;
    }
    let elsewhere = json!({"Name": "x", "Partition": "nowhere"});
    let made = client.put("/v1/namespace", &elsewhere).await;
    refused(made, bad, "Partition \"nowhere\" does not exist").await;
    let gone = client.delete("/v1/namespace/default").await;
    refused(gone, bad, "cannot be deleted").await;
    let gone = client.delete("/v1/partition/default").await;
    refused(gone, bad, "cannot be deleted").await;
    let partitions = client.get("/v1/partitions").await.json();
    assert_eq!(all(&partitions, "/Name"), ["default"]);
}

#[tokio::test]
async fn a_namespace_gives_policies_to_its_tokens_and_takes_rights_to_change() {
    let (_server, client) = start(deny_by_default).await;
    let manager = client.with_token(MANAGEMENT);
    let policy = json!({"Name": "p", "Rules": "operator = \"read\""});
    let made = manager.write("/v1/acl/policy", &policy).await;
    let with = |name: &str| json!({"Name": "team", "ACLs": {"PolicyDefaults": [{ "Name": name }]}});
    let missing = manager.put("/v1/namespace", &with("none")).await;
    refused(
        missing,
        StatusCode::BAD_REQUEST,
        "No such ACL policy with name",
    )
    .await;
    let namespace = manager.write("/v1/namespace", &with("p")).await;
    let link = json!({"ID": made["ID"], "Name": "p"});
    assert_eq!(namespace["ACLs"]["PolicyDefaults"], json!([link]));
    assert_eq!(namespace["ACLs"]["RoleDefaults"], json!([]));

    let token = json!({"Policies": [{"Name": "p"}]});
    let token = manager.write("/v1/acl/token", &token).await;
    let reader = client.with_token(token["SecretID"].as_str().unwrap());
    assert_eq!(reader.get("/v1/namespace/team").await.json(), namespace);
    for path in ["/v1/namespace", "/v1/partition"] {
        let written = reader.put(path, &json!({"Name": "x"})).await;
        refused(written, StatusCode::FORBIDDEN, "operator:write").await;
        let gone = reader.delete(&format!("{path}/x")).await;
        refused(gone, StatusCode::FORBIDDEN, "operator:write").await;
    }
    let unseen = client.get("/v1/namespace/team").await;
    assert_eq!(unseen.status, StatusCode::FORBIDDEN);
    assert_eq!(client.get("/v1/namespaces").await.json(), json!([]));
    let path = format!("/v1/acl/policy/{}", made["ID"].as_str().unwrap());
    manager.delete(&path).await;
    let left = manager.get("/v1/namespace/team").await.json();
    assert_eq!(left["ACLs"]["PolicyDefaults"], json!([]));
}

#[tokio::test]
async fn the_catalog_of_each_tenant_is_its_own() {
    let (_server, client) = tenants().await;
    client
        .write("/v1/catalog/register", &web("10.0.0.1", json!({})))
        .await;
    let of_team = web(
        "10.0.0.1",
        json!({"Service": {"Service": "web", "Port": 81, "Namespace": "team"}}),
    );
    client.write("/v1/catalog/register", &of_team).await;
    client
        .write(
            "/v1/catalog/register?partition=west&ns=team",
            &web("10.0.0.2", json!({})),
        )
        .await;
    let health = async |query: &str| {
        let path = format!("/v1/health/service/web{query}");
        client.get(&path).await.json()
    };
    let own = health("").await;
    assert_eq!(all(&own, "/Service/Port"), [80]);
    assert_eq!(all(&own, "/Service/Namespace"), [Value::Null]);
    assert_eq!(all(&own, "/Node/Partition"), [Value::Null]);
    let of_team = health("?ns=team").await;
    assert_eq!(all(&of_team, "/Service/Port"), [81]);
    assert_eq!(all(&of_team, "/Service/Namespace"), ["team"]);
    // Node checks have no namespace.
    assert_eq!(all(&of_team[0]["Checks"], "/CheckID"), ["alive", "web"]);
    assert_eq!(all(&health("?ns=*").await, "/Service/Port"), [80, 81]);
    let west = health("?partition=west&ns=team").await;
    assert_eq!(all(&west, "/Node/Address"), ["10.0.0.2"]);
    assert_eq!(all(&west, "/Node/Partition"), ["west"]);
    assert_eq!(health("?partition=west").await, json!([]));
    assert_eq!(health("?ns=nowhere").await, json!([]));
    let nodes = client.get("/v1/catalog/nodes?partition=west").await.json();
    assert_eq!(all(&nodes, "/Node"), ["n1"]);
    let listed = client.get("/v1/catalog/service/web?ns=team").await.json();
    assert_eq!(all(&listed, "/Namespace"), ["team"]);
    let checks = client.get("/v1/health/node/n1?ns=*").await.json();
    assert_eq!(all(&checks, "/CheckID"), ["alive", "web", "web"]);

    let bad = StatusCode::BAD_REQUEST;
    let body = web("10.0.0.1", json!({}));
    let lost = client.put("/v1/catalog/register?ns=nowhere", &body).await;
    refused(lost, bad, "Namespace \"nowhere\" does not exist").await;
    let torn = json!({"Node": "n1", "Partition": "west"});
    let torn = client
        .put("/v1/catalog/deregister?partition=default", &torn)
        .await;
    refused(
        torn,
        bad,
        "\"west\" in the body and \"default\" in ?partition=",
    )
    .await;

    // Deregistering a node removes its instances in all namespaces of its partition, and no others.
    client
        .write("/v1/catalog/deregister", &json!({"Node": "n1"}))
        .await;
    assert_eq!(health("?ns=*").await, json!([]));
    assert_eq!(
        all(&health("?partition=west&ns=team").await, "/Node/Node"),
        ["n1"]
    );
}

#[tokio::test]
async fn keys_sessions_and_transactions_stay_in_their_namespace() {
    let (_server, client) = tenants().await;
    let put = async |path: &str, value: &str| {
        let reply = client.send_bytes(path, value.as_bytes()).await;
        assert_eq!(reply.text(), "true", "{path}");
    };
    put("/v1/kv/a", "1").await;
    put("/v1/kv/a?ns=team", "2").await;
    put("/v1/kv/b?ns=team&partition=west", "3").await;
    let raw = async |query: &str| client.get(&format!("/v1/kv/a?raw{query}")).await.body;
    assert_eq!(
        (raw("").await, raw("&ns=team").await),
        ("1".into(), "2".into())
    );
    // The query takes precedence over the header, which most clients send with every request.
    let with_header = |path: &str| {
        let request = Request::get(path).header("X-Consul-Namespace", "team");
        client.exchange(request.body(Full::default()).unwrap())
    };
    assert_eq!(with_header("/v1/kv/a?raw").await.body, "2");
    assert_eq!(with_header("/v1/kv/a?raw&ns=default").await.body, "1");
    let found = client.get("/v1/kv/?recurse&ns=*").await.json();
    assert_eq!(all(&found, "/Namespace"), [Value::Null, json!("team")]);
    let lost = client.send_bytes("/v1/kv/a?ns=nowhere", b"x").await;
    refused(lost, StatusCode::BAD_REQUEST, "does not exist").await;

    let made = client
        .write("/v1/session/create", &json!({"Namespace": "team"}))
        .await;
    let session = made["ID"].as_str().unwrap();
    let lock = client
        .send_bytes(&format!("/v1/kv/lock?acquire={session}"), b"")
        .await;
    refused(lock, StatusCode::INTERNAL_SERVER_ERROR, "invalid session").await;
    put(&format!("/v1/kv/lock?ns=team&acquire={session}"), "").await;
    assert_eq!(client.get("/v1/session/list").await.json(), json!([]));
    let listed = client.get("/v1/session/list?ns=*").await.json();
    assert_eq!(all(&listed, "/Namespace"), ["team"]);

    let operation = |verb: &str, namespace: &str| json!({"KV": {"Verb": verb, "Key": "a", "Value": "eA==", "Namespace": namespace}});
    let operations = json!([
        operation("set", "team"),
        operation("get", ""),
        operation("get", "team")
    ]);
    let done = client.write("/v1/txn", &operations).await;
    let values = all(&done["Results"], "/KV/Value");
    assert_eq!(values, [Value::Null, json!("MQ=="), json!("eA==")]);
    assert_eq!(raw("&ns=team").await, "x");

    // Nodes are visible from all namespaces.
    let node = client.get("/v1/agent/self").await.json()["Config"]["NodeName"].clone();
    client
        .write("/v1/catalog/deregister", &json!({ "Node": node }))
        .await;
    assert_eq!(client.get("/v1/session/list?ns=*").await.json(), json!([]));
}

#[tokio::test]
async fn the_agent_runs_services_of_every_namespace() {
    let (_server, client) = tenants().await;
    let definition = |port: u16| json!({"Name": "web", "Port": port, "Check": {"TTL": "1h"}});
    client
        .write("/v1/agent/service/register", &definition(80))
        .await;
    client
        .write("/v1/agent/service/register?ns=team", &definition(81))
        .await;
    let ports = async |query: &str| {
        let found = client
            .get(&format!("/v1/agent/services{query}"))
            .await
            .json();
        found["web"]["Port"].clone()
    };
    assert_eq!(
        (ports("").await, ports("?ns=team").await),
        (json!(80), json!(81))
    );
    client
        .write("/v1/agent/check/pass/service:web?ns=team", &json!({}))
        .await;
    let status = async |query: &str| {
        let found = client.get(&format!("/v1/agent/checks{query}")).await.json();
        found["service:web"]["Status"].clone()
    };
    assert_eq!(
        (status("").await, status("?ns=team").await),
        (json!("critical"), json!("passing"))
    );
    let there = client
        .put("/v1/agent/service/register?partition=west", &definition(82))
        .await;
    let text = "request targets partition \"west\" which does not match agent partition";
    refused(there, StatusCode::BAD_REQUEST, text).await;
    for path in ["services?partition=west", "checks?ns=*"] {
        let refused = client.get(&format!("/v1/agent/{path}")).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}");
    }
    client
        .write("/v1/agent/service/deregister/web", &json!({}))
        .await;
    assert_eq!(
        (ports("").await, ports("?ns=team").await),
        (Value::Null, json!(81))
    );
}

#[tokio::test]
async fn files_of_an_agent_define_services_of_namespaces() {
    let now: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let files = Arc::clone(&now);
    let defined = move || {
        let web = |namespace: &&str| ServiceDefinition {
            name: "web".to_owned(),
            namespace: namespace.parse().unwrap(),
            ..ServiceDefinition::default()
        };
        let services = files.lock().unwrap().iter().map(web).collect();
        Ok(Definitions {
            services,
            ..Definitions::default()
        })
    };
    let parts = Parts {
        reload: Some(Reload::new(defined)),
        ..Parts::default()
    };
    let server = Running::start(config(), |_| {}, parts).await.unwrap();
    let client = Client::of(&server);
    let found = async || {
        let found = client.get("/v1/health/service/web?ns=*").await.json();
        all(&found, "/Service/Namespace")
    };
    *now.lock().unwrap() = vec!["", "team"];
    let refused = client.put("/v1/agent/reload", &Value::Null).await;
    assert!(refused.text().contains("Namespace \"team\" does not exist"));
    assert_eq!(found().await, Vec::<Value>::new());
    client
        .write("/v1/namespace", &json!({"Name": "team"}))
        .await;
    client.write("/v1/agent/reload", &Value::Null).await;
    assert_eq!(found().await, [Value::Null, json!("team")]);
    *now.lock().unwrap() = vec!["team"];
    client.write("/v1/agent/reload", &Value::Null).await;
    assert_eq!(found().await, ["team"]);
}

#[tokio::test]
async fn a_prepared_query_uses_its_own_tenancy() {
    let (_server, client) = tenants().await;
    client
        .write(
            "/v1/catalog/register?ns=team&partition=west",
            &web("10.0.0.9", json!({})),
        )
        .await;
    let service = json!({"Service": "web", "Namespace": "team", "Partition": "west"});
    let query = json!({"Name": "web", "Service": service});
    let made = client
        .send(Method::POST, "/v1/query", &query.to_string())
        .await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.text());
    let found = client.get("/v1/query/web/execute").await.json();
    assert_eq!(all(&found["Nodes"], "/Node/Address"), ["10.0.0.9"]);
    assert_eq!(found["Namespace"], "team");

    // Without instances in the namespace, the targets are tried in order.
    let targets = json!([
        {"Namespace": "team"},
        {"Namespace": "team", "Partition": "west"},
        {"Namespace": "default"},
    ]);
    let service = json!({"Service": "web", "Failover": {"Targets": targets}});
    let query = json!({"Name": "fails-over", "Service": service});
    let made = client
        .send(Method::POST, "/v1/query", &query.to_string())
        .await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.text());
    let found = client.get("/v1/query/fails-over/execute").await.json();
    assert_eq!(all(&found["Nodes"], "/Node/Address"), ["10.0.0.9"]);
    assert_eq!(
        (&found["Namespace"], &found["Failovers"]),
        (&json!("team"), &json!(2))
    );
    let every = json!({"Name": "every", "Service": {
        "Service": "web", "Failover": {"Targets": [{"Partition": "*"}]},
    }});
    let every = every.to_string();
    let reply = client.send(Method::POST, "/v1/query", &every).await;
    let text = "Targets[0].Partition";
    refused(reply, StatusCode::INTERNAL_SERVER_ERROR, text).await;
}

#[tokio::test]
async fn an_address_has_a_name_whichever_namespace_it_is_of() {
    let (server, client) = start(|config| config.dns = Some("127.0.0.1:0".parse().unwrap())).await;
    client
        .write("/v1/namespace", &json!({"Name": "team"}))
        .await;
    let mut instance = web("10.0.0.9", json!({}));
    instance["Service"]["Address"] = json!("10.0.0.7");
    client
        .write("/v1/catalog/register?ns=team", &instance)
        .await;
    let name = Name::from_ascii("7.0.0.10.in-addr.arpa.").unwrap();
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(name, RecordType::PTR));
    let address = server.dns_addr().unwrap();
    let reply = over_udp(address, &message.to_vec().unwrap()).await;
    let names: Vec<_> = reply
        .answers
        .iter()
        .map(|one| one.data.to_string())
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].starts_with("web.service.team."), "{names:?}");
}

#[tokio::test]
async fn all_rows_of_a_deleted_tenant_are_removed() {
    let (_server, client) = tenants().await;
    // Queries and these intentions have no namespace.
    let session = client.write("/v1/session/create?ns=team", &json!({})).await;
    let query = json!({"Name": "q", "Session": session["ID"], "Service": {"Service": "web"}});
    let made = client
        .send(Method::POST, "/v1/query?ns=team", &query.to_string())
        .await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.text());
    let entry = json!({
        "Kind": "service-intentions", "Name": "*", "Namespace": "*", "Partition": "west",
        "Sources": [{"Name": "*", "Action": "allow"}],
    });
    client.write("/v1/config", &entry).await;
    let intentions = "/v1/connect/intentions?ns=*&partition=west";
    let before = client.get(intentions).await.json();
    assert_eq!(all(&before, "/DestinationNS"), ["*"]);
    for path in ["/v1/namespace/team", "/v1/partition/west"] {
        assert_eq!(client.delete(path).await.status, StatusCode::OK);
    }
    // Few enough rows that the first step deletes all of them.
    client
        .write("/v1/partition", &json!({"Name": "west"}))
        .await;
    assert_eq!(client.get(intentions).await.json(), json!([]));
    assert_eq!(client.get("/v1/query").await.json(), json!([]));
}

#[tokio::test]
async fn references_to_a_deleted_tenant_block_no_writes() {
    let (_server, client) = tenants().await;
    let protocol = |service: &str, namespace: &str| json!({"Kind": "service-defaults", "Name": service, "Namespace": namespace, "Protocol": "http"});
    client.write("/v1/config", &protocol("web", "team")).await;
    let service = json!({"Name": "web", "Namespace": "team"});
    let gateway = json!({
        "Kind": "ingress-gateway", "Name": "in",
        "Listeners": [{"Port": 80, "Protocol": "http", "Services": [service]}],
    });
    client.write("/v1/config", &gateway).await;
    client.write("/v1/config", &protocol("api", "")).await;
    let reply = client.delete("/v1/namespace/team").await;
    assert_eq!(reply.status, StatusCode::OK);
    // The gateway's listener no longer matches the service. Unrelated writes still succeed.
    let other = json!({"Kind": "service-defaults", "Name": "api", "Protocol": "grpc"});
    client.write("/v1/config", &other).await;
    let defaults = json!({"Kind": "proxy-defaults", "Name": "global", "Partition": "west"});
    client.write("/v1/config", &defaults).await;
    let again = client.put("/v1/config", &gateway).await;
    refused(again, StatusCode::BAD_REQUEST, "does not match").await;
}

#[tokio::test]
async fn a_deleted_tenant_is_removed_with_its_contents() {
    let (server, client) = tenants().await;
    let proxy = json!({
        "Kind": "connect-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": {"DestinationServiceName": "web"},
    });
    for (path, count) in [("?ns=team", 3000), ("?ns=team&partition=west", 1)] {
        let register = format!("/v1/catalog/register{path}");
        client
            .write(
                &register,
                &web("10.0.0.1", json!({ "Service": proxy, "Checks": [] })),
            )
            .await;
        for batch in 0..count / 100 + 1 {
            let one =
                |i: u32| json!({"KV": {"Verb": "set", "Key": format!("{batch}/{i}"), "Value": ""}});
            let operations: Vec<Value> = (0..100).map(one).collect();
            client
                .write(&format!("/v1/txn{path}"), &json!(operations))
                .await;
        }
    }
    let before = client.get("/v1/namespaces").await;
    for path in [
        "/v1/namespace/team",
        "/v1/partition/west",
        "/v1/namespace/none",
    ] {
        let reply = client.delete(path).await;
        assert_eq!((reply.status, reply.text()), (StatusCode::OK, ""), "{path}");
    }
    // The rest is deleted in steps; meanwhile the namespace is shown, and writes to it are rejected.
    let shown = client.get("/v1/namespace/team").await;
    if shown.status == StatusCode::OK {
        assert!(shown.json()["DeletedAt"].is_string());
    }
    let late = client.send_bytes("/v1/kv/late?ns=team", b"x").await;
    assert_eq!(late.status, StatusCode::BAD_REQUEST, "{}", late.text());
    let limit = Instant::now() + Duration::from_secs(60);
    let mut index = before.index();
    loop {
        let answer = client
            .get(&format!("/v1/namespaces?index={index}&wait=5s"))
            .await;
        index = answer.index();
        let partitions = client.get("/v1/partitions").await.json();
        if all(&answer.json(), "/Name") == ["default"] && all(&partitions, "/Name") == ["default"] {
            break;
        }
        assert!(Instant::now() < limit, "{}", answer.text());
        sleep(Duration::from_millis(10)).await;
    }
    // The node belongs to the partition and stays. No data of the namespace is left, even if one of the same
    // name is created.
    client
        .write("/v1/namespace", &json!({"Name": "team"}))
        .await;
    let gone = client.get("/v1/kv/?keys&ns=team").await;
    assert_eq!(gone.status, StatusCode::OK);
    assert_eq!(gone.json(), json!([]));
    assert_eq!(
        client.get("/v1/health/connect/web?ns=team").await.json(),
        json!([])
    );
    let nodes = client.get("/v1/catalog/nodes").await.json();
    assert!(all(&nodes, "/Node").contains(&json!("n1")));
    assert_eq!(
        client.get("/v1/catalog/nodes?partition=west").await.json(),
        json!([])
    );
    let state = server.store().state();
    assert!(state.read().services_with_virtual_ips().is_empty());
}
