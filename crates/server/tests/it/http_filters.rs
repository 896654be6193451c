//! `?filter=` on the lists of the API.

use http::StatusCode;
use serde_json::{Value, json};

use crate::http_client::{Client, start};

async fn populated(client: &Client) {
    for (node, version) in [("vm-1", "1"), ("vm-2", "2")] {
        let web = json!({
            "Node": node, "Address": "10.0.0.1", "NodeMeta": { "rack": node },
            "Service": {
                "Service": "web", "ID": node, "Port": 80, "Tags": [format!("v{version}")],
                "Meta": { "version": version },
            },
            "Check": { "CheckID": "alive", "ServiceID": node, "Status": "passing" },
        });
        client.write("/v1/catalog/register", &web).await;
    }
    let sidecar = json!({ "Node": "vm-1", "SkipNodeUpdate": true, "Service": {
        "Kind": "connect-proxy", "Service": "web-proxy", "ID": "web-proxy", "Port": 20000,
        "Proxy": { "DestinationServiceName": "web" },
    }});
    client.write("/v1/catalog/register", &sidecar).await;
    for (name, protocol) in [("web", "http"), ("db", "tcp")] {
        let defaults = json!({
            "Kind": "service-defaults", "Name": name, "Protocol": protocol,
        });
        client.write("/v1/config", &defaults).await;
        let allow = json!({ "Action": "allow" });
        let path = format!("/v1/connect/intentions/exact?source=x&destination={name}");
        client.write(&path, &allow).await;
    }
    let outside = json!({
        "Kind": "service-defaults", "Name": "outside",
        "Destination": { "Addresses": ["db.example"], "Port": 5432 },
    });
    client.write("/v1/config", &outside).await;
}

fn with(path: &str, filter: &str) -> String {
    let encoded: String = filter.bytes().map(|byte| format!("%{byte:02x}")).collect();
    format!("{path}?filter={encoded}")
}

#[tokio::test]
async fn lists_are_filtered_by_the_fields_of_their_items() {
    let (_server, client) = start(|_| {}).await;
    populated(&client).await;
    for (path, filter, key, expected) in [
        (
            "/v1/catalog/nodes",
            "Meta.rack == `vm-2`",
            "Node",
            &["vm-2"][..],
        ),
        (
            "/v1/catalog/service/web",
            "ServiceMeta.version == 1",
            "ServiceID",
            &["vm-1"],
        ),
        (
            "/v1/catalog/service/web",
            "v2 in ServiceTags",
            "ServiceID",
            &["vm-2"],
        ),
        (
            "/v1/catalog/connect/web",
            "ServicePort != 20000",
            "ServiceID",
            &[],
        ),
        (
            "/v1/health/node/vm-1",
            "Status == passing",
            "CheckID",
            &["alive"],
        ),
        ("/v1/health/node/vm-1", "Status != passing", "CheckID", &[]),
        (
            "/v1/connect/intentions",
            "DestinationName == db",
            "DestinationName",
            &["db"],
        ),
        (
            "/v1/config/service-defaults",
            "Protocol == http",
            "Name",
            &["web"],
        ),
        ("/v1/config/service-defaults", "Kind == x", "Name", &[]),
        (
            "/v1/config/service-defaults",
            "`db.example` in Destination.Addresses and Destination.Port == 5432",
            "Name",
            &["outside"],
        ),
    ] {
        let reply = client.get(&with(path, filter)).await.json();
        let found = reply.as_array().unwrap().iter();
        let found: Vec<&str> = found.map(|item| item[key].as_str().unwrap()).collect();
        assert_eq!(found, expected, "{path} {filter}");
    }
    let instances = async |path: &str, filter: &str| -> Vec<Value> {
        let reply = client.get(&with(path, filter)).await.json();
        let found = reply.as_array().unwrap().iter();
        found.map(|item| item["Service"]["ID"].clone()).collect()
    };
    let path = "/v1/health/service/web";
    let filter = "Service.Meta.version == 2 and Checks.Status == passing";
    assert_eq!(instances(path, filter).await, ["vm-2"]);
    assert_eq!(instances(path, "Node.Node matches `^vm-.$`").await.len(), 2);
    let path = "/v1/health/connect/web";
    let filter = "Service.Proxy.DestinationServiceName == web";
    assert_eq!(instances(path, filter).await, ["web-proxy"]);

    let services = with("/v1/catalog/services", "ServiceMeta.version == 2");
    assert_eq!(client.get(&services).await.json(), json!({ "web": ["v2"] }));
    let node = with("/v1/catalog/node/vm-1", "Kind == `connect-proxy`");
    let node = client.get(&node).await.json();
    let ids: Vec<&String> = node["Services"].as_object().unwrap().keys().collect();
    assert_eq!(ids, ["web-proxy"]);
}

#[tokio::test]
async fn invalid_filters_are_refused() {
    let (_server, client) = start(|_| {}).await;
    for (path, filter, part) in [
        (
            "/v1/catalog/nodes",
            "Foo == x",
            "Failed to create boolean expression evaluator: Selector \"Foo\" is not valid",
        ),
        (
            "/v1/catalog/services",
            "Node ==",
            "expected a value, not the end",
        ),
        (
            "/v1/health/service/web",
            "Service.Port == x",
            "Failed to coerce value \"x\" for selector \"Service.Port\"",
        ),
        (
            "/v1/health/node/vm-1",
            "ServiceTags == x",
            "Invalid match operator \"Equal\" for selector \"ServiceTags\"",
        ),
        (
            "/v1/config/proxy-defaults",
            "Name == x",
            "filtering not supported for config entry kind=proxy-defaults",
        ),
        (
            "/v1/config/service-defaults/web",
            "Name == x",
            "nothing to filter",
        ),
    ] {
        let reply = client.get(&with(path, filter)).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{path} {filter}");
        assert!(reply.text().contains(part), "{path}: {}", reply.text());
    }
}
