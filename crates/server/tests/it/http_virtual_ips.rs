//! Virtual IPs of services over HTTP and DNS. Expected values are Consul's.

use http::StatusCode;

use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::dns::{over_udp, question};
use crate::http_client::{Client, start};
use crate::running::Running;

const REGISTER: &str = "/v1/catalog/register";
const DEREGISTER: &str = "/v1/catalog/deregister";

fn service(service: &Value) -> Value {
    json!({ "Node": "n1", "Address": "10.0.0.1", "Service": service })
}

fn native(name: &str, port: u16) -> Value {
    service(&json!({ "Service": name, "Port": port, "Connect": { "Native": true } }))
}

async fn with_dns() -> (Running, Client) {
    start(|config| config.dns = Some("127.0.0.1:0".parse().unwrap())).await
}

/// The addresses of a name below `virtual.consul`.
async fn resolved(server: &Running, name: &str) -> Vec<String> {
    let request = question(&format!("{name}.virtual.consul."), None);
    let reply = over_udp(server.dns_addr().unwrap(), &request).await;
    assert_eq!(reply.metadata.response_code.to_string(), "No Error");
    reply
        .answers
        .iter()
        .map(|one| one.data.to_string())
        .collect()
}

#[tokio::test]
async fn a_sidecar_shows_the_virtual_ip_of_its_service() {
    let (server, client) = with_dns().await;
    let web = json!({ "Name": "web", "Port": 8080, "Connect": { "SidecarService": {} } });
    let registered = client.put("/v1/agent/service/register", &web).await;
    assert_eq!(registered.status, StatusCode::OK, "{}", registered.text());
    let tagged = json!({ "consul-virtual": { "Address": "240.0.0.1", "Port": 21000 } });

    let id = "web-sidecar-proxy";
    let rows = client
        .get(&format!("/v1/catalog/service/{id}"))
        .await
        .json();
    assert_eq!(rows[0]["ServiceTaggedAddresses"], tagged);
    let rows = client.get("/v1/catalog/connect/web").await.json();
    assert_eq!(rows[0]["ServiceTaggedAddresses"], tagged);
    for path in [
        "/v1/health/service/web-sidecar-proxy",
        "/v1/health/connect/web",
    ] {
        let rows = client.get(path).await.json();
        assert_eq!(rows[0]["Service"]["TaggedAddresses"], tagged, "{path}");
    }
    let node = client.get("/v1/catalog/node/legate").await.json();
    assert_eq!(node["Services"][id]["TaggedAddresses"], tagged);
    assert_eq!(node["Services"]["web"]["TaggedAddresses"], Value::Null);
    let rows = client.get("/v1/catalog/service/web").await.json();
    assert_eq!(rows[0]["ServiceTaggedAddresses"], Value::Null);

    assert_eq!(resolved(&server, "web").await, ["240.0.0.1"]);
    assert_eq!(resolved(&server, id).await, [""; 0]);

    // Registering an instance back as read changes nothing but concurrent check results.
    let modified = || {
        let state = server.store().state();
        let read = state.read();
        let index = |id| {
            read.instance("legate", id)
                .map(|one| one.service.modify_index)
        };
        ["web", id].map(index)
    };
    let before = modified();
    client.put("/v1/agent/service/register", &web).await;
    assert!(before.iter().all(Option::is_some));
    assert_eq!(modified(), before);
}

#[tokio::test]
async fn an_address_is_given_back_with_the_last_that_needs_it() {
    let (server, client) = with_dns().await;
    for (port, name) in [(1, "a"), (2, "b"), (3, "c")] {
        client.write(REGISTER, &native(name, port)).await;
    }
    let entry = json!({ "Kind": "service-defaults", "Name": "d", "Protocol": "http" });
    client.write("/v1/config", &entry).await;
    let allow = json!({ "Action": "allow" });
    let exact = "/v1/connect/intentions/exact?source=a&destination=b";
    client.write(exact, &allow).await;
    for (name, expected) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        let expected = format!("240.0.0.{expected}");
        assert_eq!(resolved(&server, name).await, [expected], "{name}");
    }

    for name in ["a", "b"] {
        let gone = json!({ "Node": "n1", "ServiceID": name });
        client.write(DEREGISTER, &gone).await;
    }
    assert_eq!(resolved(&server, "a").await, [""; 0]);
    assert_eq!(resolved(&server, "b").await, ["240.0.0.2"], "an intention");
    assert_eq!(client.delete(exact).await.json(), json!(true));
    assert_eq!(resolved(&server, "b").await, [""; 0]);
    for (name, expected) in [("e", 1), ("f", 2), ("g", 5)] {
        client.write(REGISTER, &native(name, 9)).await;
        let expected = format!("240.0.0.{expected}");
        assert_eq!(resolved(&server, name).await, [expected], "{name}");
    }
}

#[tokio::test]
async fn addresses_are_assigned_by_hand() {
    let (_server, client) = start(|_| {}).await;
    for (port, name) in [(1, "a"), (2, "b")] {
        client.write(REGISTER, &native(name, port)).await;
    }
    let assign = async |service: &str, addresses: Value| {
        let body = json!({ "Service": service, "ManualVIPs": addresses });
        client.put("/v1/internal/service-virtual-ip", &body).await
    };
    let answer = async |service: &str, addresses: Value| assign(service, addresses).await.json();
    let found = json!({ "Found": true, "UnassignedFrom": null });
    let unknown = json!({ "Found": false, "UnassignedFrom": null });
    assert_eq!(answer("nobody", json!(["10.96.0.5"])).await, unknown);
    let addresses = json!(["10.96.0.5", "10.96.0.6", "10.96.0.5"]);
    assert_eq!(answer("a", addresses).await, found);
    assert_eq!(answer("A", json!(["10.96.0.6", "10.96.0.5"])).await, found);
    let moved = json!([{ "ServiceName": { "Name": "a" }, "Peer": "" }]);
    assert_eq!(
        answer("b", json!(["10.96.0.6"])).await,
        json!({ "Found": true, "UnassignedFrom": moved })
    );
    assert_eq!(answer("b", Value::Null).await, found);

    for (addresses, reason) in [
        (json!(["::1"]), "is not a valid IPv4 address"),
        (json!(vec!["10.0.0.1"; 9]), "at most"),
    ] {
        let refused = assign("a", addresses).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.text().contains(reason), "{}", refused.text());
    }
    let elsewhere = json!({ "Service": "a", "Datacenter": "dc9" });
    let path = "/v1/internal/service-virtual-ip";
    let refused = client.put(path, &elsewhere).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn virtual_ips_require_service_read() {
    let (server, mut client) = start(|config| {
        deny_by_default(config);
        config.dns = Some("127.0.0.1:0".parse().unwrap());
    })
    .await;
    client.token = MANAGEMENT.to_owned();
    client.write(REGISTER, &native("a", 1)).await;
    assert_eq!(resolved(&server, "a").await, [""; 0]);
}

#[tokio::test]
async fn assigning_virtual_ips_requires_mesh_write() {
    let (_server, mut client) = start(deny_by_default).await;
    let body = json!({ "Service": "a", "ManualVIPs": ["10.96.0.5"] });
    let path = "/v1/internal/service-virtual-ip";
    let refused = client.put(path, &body).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.text().contains("mesh:write"), "{}", refused.text());
    client.token = MANAGEMENT.to_owned();
    assert_eq!(client.put(path, &body).await.status, StatusCode::OK);
}
