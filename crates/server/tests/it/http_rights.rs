//! Required permissions are the same as Consul's.

use http::StatusCode;
use serde_json::json;

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::{Client, start};

async fn token(management: &Client, body: serde_json::Value) -> Client {
    let made = management.write("/v1/acl/token", &body).await;
    management.with_token(made["SecretID"].as_str().unwrap())
}

#[tokio::test]
async fn proxies_of_a_service_require_service_read() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let proxy = json!({ "Node": "n1", "Address": "10.0.0.1", "Service": {
        "Kind": "connect-proxy", "Service": "web-proxy", "Port": 21000,
        "Proxy": { "DestinationServiceName": "web" },
    }});
    management.write("/v1/catalog/register", &proxy).await;
    for (services, seen) in [
        ("service \"web-proxy\" { policy = \"read\" }", None),
        ("service \"web\" { policy = \"read\" }", Some(0)),
        ("service_prefix \"web\" { policy = \"read\" }", Some(1)),
    ] {
        let name = format!("p{}", services.len());
        let rules = format!("{services}\nnode_prefix \"\" {{ policy = \"read\" }}");
        let policy = json!({ "Name": name, "Rules": rules });
        management.write("/v1/acl/policy", &policy).await;
        let reader = token(&management, json!({ "Policies": [{ "Name": name }] })).await;
        let found = reader.get("/v1/catalog/connect/web").await.json();
        assert_eq!(
            found.as_array().unwrap().len(),
            seen.unwrap_or(0),
            "{services}"
        );
        // As in Consul, these report the missing permission.
        for path in ["/v1/health/connect/web", "/v1/health/ingress/web"] {
            let reply = reader.get(path).await;
            let expected = match seen {
                None => StatusCode::FORBIDDEN,
                Some(_) => StatusCode::OK,
            };
            assert_eq!(reply.status, expected, "{services} {path}");
        }
        if let Some(seen) = seen {
            let found = reader.get("/v1/health/connect/web").await.json();
            assert_eq!(found.as_array().unwrap().len(), seen, "{services}");
        }
    }
}

#[tokio::test]
async fn a_service_registers_again_on_a_node_that_stays_as_it_is() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let node = json!({
        "Node": "n1", "Address": "10.0.0.1", "NodeMeta": { "a": "b" },
        "Service": { "Service": "web", "Port": 1 },
        "Checks": [
            { "CheckID": "web", "ServiceID": "web", "Status": "passing" },
            { "CheckID": "node", "Status": "passing" },
        ],
    });
    management.write("/v1/catalog/register", &node).await;
    let other = json!({
        "Node": "n1", "Address": "10.0.0.1", "NodeMeta": { "a": "b" },
        "Service": { "Service": "api", "Port": 1 },
        "Check": { "CheckID": "api", "ServiceID": "api", "Status": "passing" },
    });
    management.write("/v1/catalog/register", &other).await;
    let own = json!({ "ServiceIdentities": [{ "ServiceName": "web" }] });
    let web = token(&management, own).await;

    let mut again = node.clone();
    again["Node"] = json!("N1");
    again["Service"]["Port"] = json!(2);
    again["Checks"] = json!([{ "CheckID": "web", "ServiceID": "web", "Status": "warning" }]);
    web.write("/v1/catalog/register", &again).await;
    let found = web.get("/v1/catalog/service/web").await.json();
    assert_eq!(found[0]["ServicePort"], 2);
    let skipping = json!({
        "Node": "n1", "SkipNodeUpdate": true, "Service": { "Service": "web", "Port": 3 },
    });
    web.write("/v1/catalog/register", &skipping).await;

    let with = |key: &str, value: serde_json::Value| {
        let mut body = again.clone();
        body[key] = value;
        body
    };
    let on_check = |id: &str, service: &str| {
        let check = json!({ "CheckID": id, "ServiceID": service, "Status": "critical" });
        with("Checks", json!([check]))
    };
    for (body, right) in [
        (with("Node", json!("n2")), "node:write"),
        (with("Address", json!("10.0.0.2")), "node:write"),
        (with("NodeMeta", json!({})), "node:write"),
        (
            with("TaggedAddresses", json!({ "lan": "10.0.0.9" })),
            "node:write",
        ),
        (
            with("ID", json!("b7a9b1b0-0000-4000-8000-000000000001")),
            "node:write",
        ),
        (on_check("other", ""), "node:write"),
        (on_check("node", "web"), "node:write"),
        (on_check("api", "web"), "service:write"),
        (on_check("new", "api"), "service:write"),
        (
            with("Service", json!({ "Service": "api", "Port": 1 })),
            "service:write",
        ),
    ] {
        let reply = web.put("/v1/catalog/register", &body).await;
        assert_eq!(
            reply.status,
            StatusCode::FORBIDDEN,
            "{body}: {}",
            reply.text()
        );
        assert!(reply.text().contains(right), "{body}: {}", reply.text());
    }
}

#[tokio::test]
async fn server_internals_require_agent_read() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let node = json!({ "NodeIdentities": [{ "NodeName": "legate", "Datacenter": "dc1" }] });
    let node = token(&management, node).await;
    let service = json!({ "ServiceIdentities": [{ "ServiceName": "web" }] });
    let service = token(&management, service).await;
    for path in ["/v1/agent/self", "/v1/agent/metrics"] {
        for caller in [&node, &service, &client] {
            let reply = caller.get(path).await;
            assert_eq!(reply.status, StatusCode::FORBIDDEN, "{path}");
            assert!(reply.text().contains("agent:read"), "{}", reply.text());
        }
        assert_eq!(management.get(path).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn services_on_nodes_that_may_not_be_seen_are_not_listed() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    for (node, service) in [("mine", "web"), ("other", "api")] {
        let body = json!({
            "Node": node, "Address": "10.0.0.1", "Service": { "Service": service, "Port": 1 },
        });
        management.write("/v1/catalog/register", &body).await;
    }
    let identity = json!({ "NodeIdentities": [{ "NodeName": "mine", "Datacenter": "dc1" }] });
    let node = token(&management, identity).await;
    let reply = node.get("/v1/catalog/services").await;
    assert_eq!(reply.json(), json!({ "web": [] }));
    assert_eq!(reply.header("x-consul-results-filtered-by-acls"), "true");
    let all = management.get("/v1/catalog/services").await;
    assert_eq!(all.json(), json!({ "api": [], "web": [] }));
    assert_eq!(all.header("x-consul-results-filtered-by-acls"), "");
}

#[tokio::test]
async fn node_checks_require_read_on_the_node_and_the_services() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    for service in ["web", "api"] {
        let body = json!({
            "Node": "n1", "Address": "10.0.0.1", "Service": { "Service": service, "Port": 1 },
            "Checks": [
                { "CheckID": service, "ServiceID": service, "Status": "passing" },
                { "CheckID": "node", "Status": "passing" },
            ],
        });
        management.write("/v1/catalog/register", &body).await;
    }
    let ids = |reply: &crate::http_client::Reply| {
        let checks = reply.json();
        let ids = checks.as_array().unwrap().iter();
        ids.map(|check| check["CheckID"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let path = "/v1/health/node/n1";
    assert_eq!(ids(&management.get(path).await), ["api", "node", "web"]);
    let identity = json!({ "NodeIdentities": [{ "NodeName": "n2", "Datacenter": "dc1" }] });
    let other = token(&management, identity).await.get(path).await;
    assert_eq!(ids(&other), Vec::<String>::new());
    assert_eq!(other.header("x-consul-results-filtered-by-acls"), "true");
}

#[tokio::test]
async fn a_tokens_identity_is_immutable() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let made = json!({ "ServiceIdentities": [{ "ServiceName": "web" }] });
    let made = management.write("/v1/acl/token", &made).await;
    let path = format!("/v1/acl/token/{}", made["AccessorID"].as_str().unwrap());
    for (field, value) in [
        ("Local", json!(true)),
        ("AuthMethod", json!("m")),
        ("ExpirationTTL", json!("1h")),
        ("ExpirationTime", json!("2030-01-01T00:00:00Z")),
    ] {
        let reply = management.put(&path, &json!({ field: value })).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{field}");
        assert!(reply.text().contains(field), "{}", reply.text());
    }
    // An object can be written back as read.
    management.write(&path, &made).await;
}

#[tokio::test]
async fn agent_data_requires_permissions() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let put = async |client: &Client, path: &str, body: serde_json::Value| {
        client.put(path, &body).await.status
    };
    for name in ["web", "db"] {
        let service = json!({ "Name": name, "Port": 1, "Check": { "TTL": "1h" } });
        let register = "/v1/agent/service/register";
        assert_eq!(put(&management, register, service).await, StatusCode::OK);
    }
    let of_node = json!({ "Name": "disk", "TTL": "1h" });
    let register = "/v1/agent/check/register";
    assert_eq!(
        put(&management, register, of_node.clone()).await,
        StatusCode::OK
    );

    let own = json!({ "ServiceIdentities": [{ "ServiceName": "web" }] });
    let web = token(&management, own).await;
    let keys = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    // A service identity may read all services and nodes, and write its own service.
    for (path, status) in [
        ("/v1/agent/check/pass/service:web", StatusCode::OK),
        ("/v1/agent/check/pass/service:db", StatusCode::FORBIDDEN),
        ("/v1/agent/check/fail/disk", StatusCode::FORBIDDEN),
        (
            "/v1/agent/check/deregister/service:db",
            StatusCode::FORBIDDEN,
        ),
        ("/v1/agent/service/deregister/db", StatusCode::FORBIDDEN),
    ] {
        assert_eq!(put(&web, path, json!({})).await, status, "{path}");
    }
    let update = json!({ "Status": "passing" });
    let path = "/v1/agent/check/update/service:db";
    assert_eq!(put(&web, path, update).await, StatusCode::FORBIDDEN);
    assert_eq!(put(&web, register, of_node).await, StatusCode::FORBIDDEN);
    let of_db = json!({ "Name": "x", "ServiceID": "db", "TTL": "1h" });
    assert_eq!(put(&web, register, of_db).await, StatusCode::FORBIDDEN);

    let stranger = token(&management, json!({})).await;
    for path in ["/v1/agent/services", "/v1/agent/checks"] {
        assert_eq!(keys(&stranger.get(path).await.json()), [""; 0], "{path}");
    }
    assert_eq!(stranger.get("/v1/agent/members").await.json(), json!([]));
    for path in ["/v1/agent/service/web", "/v1/agent/health/service/id/web"] {
        assert_eq!(
            stranger.get(path).await.status,
            StatusCode::FORBIDDEN,
            "{path}"
        );
    }
    let by_name = "/v1/agent/health/service/name/web";
    assert_eq!(stranger.get(by_name).await.status, StatusCode::FORBIDDEN);

    let filtered = management
        .get("/v1/agent/services?filter=Service==%22db%22")
        .await;
    assert_eq!(keys(&filtered.json()), ["db"]);
    let filtered = management
        .get("/v1/agent/checks?filter=ServiceName==%22web%22")
        .await;
    assert_eq!(keys(&filtered.json()), ["service:web"]);
}

#[tokio::test]
async fn gateway_links_require_service_read_and_mesh_write() {
    const EGRESS: &str = "/v1/config/terminating-gateway/egress";
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let links = json!({
        "Kind": "terminating-gateway", "Name": "egress",
        "Services": [{ "Name": "db", "SNI": "db.example" }],
    });
    let answer = management.put("/v1/config", &links).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let shown = management.get(EGRESS).await.json();
    assert_eq!(shown["Services"], links["Services"]);
    for (rules, reads, writes) in [
        ("service \"egress\" { policy = \"read\" }", true, false),
        ("service \"egress\" { policy = \"write\" }", true, false),
        ("service \"db\" { policy = \"write\" }", false, false),
        ("mesh = \"read\"", false, false),
        ("mesh = \"write\"", false, true),
    ] {
        let name = format!("p{}", rules.len());
        let policy = json!({ "Name": name, "Rules": rules });
        management.write("/v1/acl/policy", &policy).await;
        let caller = token(&management, json!({ "Policies": [{ "Name": name }] })).await;
        let status = |allowed| match allowed {
            true => StatusCode::OK,
            false => StatusCode::FORBIDDEN,
        };
        assert_eq!(caller.get(EGRESS).await.status, status(reads), "{rules}");
        let written = caller.put("/v1/config", &links).await;
        assert_eq!(written.status, status(writes), "{rules}");
    }
}

#[tokio::test]
async fn the_agent_and_the_catalog_require_the_same_permissions() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let service = |id: &str, name: &str| json!({ "ID": id, "Name": name, "Port": 1 });
    let api = service("taken", "api");
    management.write("/v1/agent/service/register", &api).await;
    let check = json!({ "Name": "of the node", "TTL": "10m" });
    management.write("/v1/agent/check/register", &check).await;
    let own = json!({ "ServiceIdentities": [{ "ServiceName": "web" }] });
    let web = token(&management, own).await;

    let with_check = |check: &str| {
        let mut body = service("w", "web");
        body["Check"] = json!({ "CheckID": check, "TTL": "10m" });
        body
    };
    let proxy = |destination: &str| {
        let mut body = service("p", "web-sidecar-proxy");
        body["Kind"] = json!("connect-proxy");
        body["Proxy"] = json!({ "DestinationServiceName": destination });
        body
    };
    for (body, allowed) in [
        (service("w", "web"), true),
        (service("w", "other"), false),
        (service("taken", "web"), false),
        (with_check("mine"), true),
        (with_check("of the node"), false),
        (with_check("service:taken"), true),
        (proxy("web"), true),
        (proxy("api"), false),
    ] {
        let mut instance = body.clone();
        let fields = instance.as_object_mut().unwrap();
        let name = fields.remove("Name").unwrap();
        fields.insert("Service".to_owned(), name);
        let check = fields.remove("Check");
        let mut registration = json!({
            "Node": "legate", "SkipNodeUpdate": true, "Service": instance,
        });
        if let Some(check) = check {
            let (id, service) = (&check["CheckID"], &body["ID"]);
            registration["Check"] = json!({ "CheckID": id, "ServiceID": service });
        }
        let expected = match allowed {
            true => StatusCode::OK,
            false => StatusCode::FORBIDDEN,
        };
        for (path, body) in [
            ("/v1/agent/service/register", &body),
            ("/v1/catalog/register", &registration),
        ] {
            let reply = web.put(path, body).await;
            assert_eq!(reply.status, expected, "{path} {body}: {}", reply.text());
        }
    }
}
