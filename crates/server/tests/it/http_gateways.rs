//! The services of a gateway over HTTP: the list of the catalog, and the views of the web UI.

use http::StatusCode;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_acl_policies::token;
use crate::http_client::{Client, start};

/// `plain` is outside the mesh, `web` is in it and has protocol http, and `maps` is a destination.
/// `egress` is a terminating gateway, and `front` an ingress gateway.
async fn populated(client: &Client) {
    let place = json!({ "Addresses": ["maps.example.com"], "Port": 443 });
    for entry in [
        json!({ "Kind": "service-defaults", "Name": "maps", "Destination": place }),
        json!({ "Kind": "service-defaults", "Name": "web", "Protocol": "http" }),
        json!({ "Kind": "terminating-gateway", "Name": "egress", "Services": [
            { "Name": "plain", "CAFile": "ca.pem", "SNI": "plain.example" },
            { "Name": "later" }, { "Name": "*", "DisableAutoHostRewrite": true },
        ]}),
        json!({ "Kind": "ingress-gateway", "Name": "front", "Listeners": [
            { "Port": 8080, "Protocol": "http", "Services": [{ "Name": "*" }] },
            { "Port": 8081, "Protocol": "http", "Services": [
                { "Name": "web", "Hosts": ["www.example.com"] }] },
        ]}),
    ] {
        client.write("/v1/config", &entry).await;
    }
    for (node, service) in [
        (
            "n1",
            json!({ "Service": "plain", "Port": 1, "Tags": ["v1"] }),
        ),
        ("n2", json!({ "Service": "plain", "Port": 1 })),
        (
            "n1",
            json!({ "Service": "web", "Port": 2, "Connect": { "Native": true } }),
        ),
        (
            "n1",
            json!({ "Service": "egress", "Port": 3, "Kind": "terminating-gateway" }),
        ),
        (
            "n1",
            json!({ "Service": "front", "Port": 4, "Kind": "ingress-gateway" }),
        ),
    ] {
        let instance = json!({ "Node": node, "Address": "10.0.0.1", "Service": service });
        client.write("/v1/catalog/register", &instance).await;
    }
}

fn column(list: &Value, pointer: &str) -> Vec<Value> {
    let rows = list.as_array().unwrap().iter();
    rows.map(|row| row.pointer(pointer).cloned().unwrap_or_default())
        .collect()
}

async fn services(client: &Client, gateway: &str) -> Value {
    let path = format!("/v1/catalog/gateway-services/{gateway}");
    client.get(&path).await.json()
}

#[tokio::test]
async fn services_are_listed_with_what_they_stand_for() {
    let (_server, client) = start(|_| {}).await;
    populated(&client).await;
    let egress = services(&client, "egress").await;
    assert_eq!(
        column(&egress, "/Service/Name"),
        [json!("later"), json!("maps"), json!("plain")]
    );
    assert_eq!(
        column(&egress, "/ServiceKind"),
        [Value::Null, json!("destination"), json!("service")]
    );
    assert_eq!(
        column(&egress, "/FromWildcard"),
        [Value::Null, json!(true), Value::Null]
    );
    // A service that the entry names has nothing from `*`.
    assert_eq!(
        column(&egress, "/AutoHostRewrite"),
        [json!(true), Value::Null, json!(true)]
    );
    assert_eq!(egress[2]["SNI"], "plain.example");
    let front = services(&client, "front").await;
    assert_eq!(
        column(&front, "/Port"),
        [json!(8080), json!(8081)],
        "{front}"
    );
    assert_eq!(front[1]["Hosts"], json!(["www.example.com"]));
    // Its routes name the services of an API gateway.
    let gateway = json!({ "Kind": "api-gateway", "Name": "api", "Listeners": [
        { "Name": "http", "Port": 80, "Protocol": "http" }] });
    client.write("/v1/config", &gateway).await;
    assert_eq!(services(&client, "api").await, json!([]));
}

#[tokio::test]
async fn a_waiting_list_follows_the_catalog() {
    let (_server, client) = start(|_| {}).await;
    populated(&client).await;
    let path = "/v1/catalog/gateway-services/egress";
    let index = client.get(path).await.index();
    let path = format!("{path}?index={index}&wait=60s");
    let later = json!({ "Node": "n1", "Address": "10.0.0.1",
        "Service": { "Service": "later", "Port": 5 } });
    let (found, _) = tokio::join!(
        client.get(&path),
        client.write("/v1/catalog/register", &later)
    );
    assert_eq!(found.json()[0]["ServiceKind"], "service");
}

#[tokio::test]
async fn the_instances_of_a_gateway_s_services_are_summarized() {
    let (_server, client) = start(|_| {}).await;
    populated(&client).await;
    let path = "/v1/internal/ui/gateway-services-nodes";
    let egress = client.get(&format!("{path}/egress")).await.json();
    assert_eq!(
        column(&egress, "/Name"),
        [json!("later"), json!("maps"), json!("plain")]
    );
    assert_eq!(
        column(&egress, "/InstanceCount"),
        [json!(0), json!(0), json!(2)]
    );
    assert_eq!(egress[2]["Nodes"], json!(["n1", "n2"]));
    assert_eq!(egress[2]["GatewayConfig"], json!({}));
    let front = client.get(&format!("{path}/front")).await.json();
    let addresses = ["web.ingress.dc1.consul:8080", "www.example.com:8081"];
    assert_eq!(column(&front, "/Name"), [json!("web")]);
    assert_eq!(front[0]["InstanceCount"], 1);
    assert_eq!(front[0]["GatewayConfig"]["Addresses"], json!(addresses));
    let none = client.get(&format!("{path}/nobody")).await.json();
    assert_eq!(none, json!([]));
    let nameless = client.get(&format!("{path}/")).await;
    assert_eq!(nameless.status, StatusCode::BAD_REQUEST);
    assert_eq!(nameless.text(), "Missing gateway name");
}

#[tokio::test]
async fn the_intentions_for_a_gateway_s_services_are_listed_once() {
    let (_server, client) = start(|_| {}).await;
    populated(&client).await;
    for (destination, source) in [
        ("plain", "api"),
        ("*", "*"),
        ("web", "api"),
        ("other", "api"),
    ] {
        let allow = json!({ "Action": "allow" });
        let pair = format!("source={source}&destination={destination}");
        client
            .write(&format!("/v1/connect/intentions/exact?{pair}"), &allow)
            .await;
    }
    let path = "/v1/internal/ui/gateway-intentions";
    let egress = client.get(&format!("{path}/egress")).await.json();
    assert_eq!(
        column(&egress, "/DestinationName"),
        [json!("*"), json!("plain")]
    );
    let front = client.get(&format!("{path}/front")).await.json();
    assert_eq!(
        column(&front, "/DestinationName"),
        [json!("web"), json!("*")]
    );
    let none = client.get(&format!("{path}/nobody")).await.json();
    assert_eq!(none, json!([]));
}

#[tokio::test]
async fn tokens_see_the_services_that_they_may_read() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    populated(&management).await;
    let allow = json!({ "Action": "allow" });
    let path = "/v1/connect/intentions/exact?source=api&destination=plain";
    management.write(path, &allow).await;
    let holder = async |name: &str, rules: &str| {
        let policy = json!({ "Name": name, "Rules": rules });
        management.write("/v1/acl/policy", &policy).await;
        let body = json!({ "Policies": [{ "Name": name }] });
        token(&management, body).await.1
    };
    let all = holder(
        "all",
        "service_prefix \"\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }",
    )
    .await;
    let some = holder(
        "some",
        "service \"egress\" { policy = \"read\" } service \"later\" { policy = \"read\" } \
         service \"plain\" { policy = \"read\" } node \"n1\" { policy = \"read\" }",
    )
    .await;
    let few = holder("few", "service \"plain\" { policy = \"read\" }").await;
    let paths = [
        "/v1/catalog/gateway-services/egress",
        "/v1/internal/ui/gateway-services-nodes/egress",
        "/v1/internal/ui/gateway-intentions/egress",
    ];
    for path in paths {
        let refused = few.get(path).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
    }
    let counts = async |client: &Client| {
        let mut counts = Vec::new();
        for path in paths {
            let reply = client.get(path).await;
            let marked = reply.header("x-consul-results-filtered-by-acls") == "true";
            counts.push((reply.json().as_array().unwrap().len(), marked));
        }
        counts
    };
    assert_eq!(counts(&all).await, [(3, false), (3, false), (1, false)]);
    assert_eq!(counts(&some).await, [(2, true), (2, true), (1, false)]);
    let listed = some.get(paths[1]).await.json();
    assert_eq!(listed[1]["Nodes"], json!(["n1"]));
}
