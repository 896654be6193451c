//! `/v1/internal/ui`: the catalog as used by dashboards.

use http::StatusCode;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::{Client, start};

/// `web` has an explicit upstream `api`; the proxy of `api` is transparent.
async fn populated(client: &Client) {
    for (service, mode) in [("web", "direct"), ("api", "transparent")] {
        let upstreams = match service {
            "web" => json!([{ "DestinationName": "api", "LocalBindPort": 9191 }]),
            _ => json!([]),
        };
        let instance = json!({ "Node": "n1", "Address": "10.0.0.1",
            "Service": { "Service": service, "Port": 80, "Meta": { "external-source": "k8s" } },
            "Check": { "CheckID": service, "Name": "alive", "ServiceID": service,
                       "Status": "passing" } });
        client.write("/v1/catalog/register", &instance).await;
        let proxy = json!({ "Node": "n1", "Address": "10.0.0.1", "Service": {
            "Kind": "connect-proxy", "Service": format!("{service}-proxy"), "Port": 20000,
            "Proxy": { "DestinationServiceName": service, "Mode": mode, "Upstreams": upstreams },
        }, "Check": { "CheckID": format!("{service}-proxy"), "Name": "listening",
            "ServiceID": format!("{service}-proxy"), "Status": "warning" } });
        client.write("/v1/catalog/register", &proxy).await;
    }
    let deny = json!({ "Action": "deny" });
    let path = "/v1/connect/intentions/exact?source=api&destination=web";
    client.write(path, &deny).await;
}

#[tokio::test]
async fn the_catalog_is_shown_in_numbers() {
    let (_server, client) = start(|_| {}).await;
    populated(&client).await;
    let services = client.get("/v1/internal/ui/services").await.json();
    let web = &services[2];
    assert_eq!(web["Name"], "web");
    assert_eq!(web["InstanceCount"], 1);
    assert_eq!(
        (&web["ChecksPassing"], &web["ChecksWarning"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(web["ConnectedWithProxy"], true);
    assert_eq!(web["ExternalSources"], json!(["k8s"]));
    assert_eq!(web["Tags"], json!(null));
    assert_eq!(web["TransparentProxy"], false);
    assert_eq!(services[0]["TransparentProxy"], true);
    assert_eq!(services[1]["Kind"], "connect-proxy");
    let filtered = client.get("/v1/internal/ui/services?filter=Service.Service==api");
    assert_eq!(filtered.await.json().as_array().unwrap().len(), 1);

    let nodes = client
        .get("/v1/internal/ui/nodes?filter=Node==n1")
        .await
        .json();
    assert_eq!(nodes[0]["Services"].as_array().unwrap().len(), 4);
    assert_eq!(nodes[0]["Checks"].as_array().unwrap().len(), 4);
    let node = client.get("/v1/internal/ui/node/n1").await.json();
    assert_eq!(node, nodes[0]);
    let none = client.get("/v1/internal/ui/node/none").await;
    assert_eq!(none.status, StatusCode::NOT_FOUND);

    let overview = client.get("/v1/internal/ui/catalog-overview").await.json();
    assert_eq!(overview["Nodes"][0]["Total"], 2);
    let checks = json!({ "Name": "alive", "Total": 2, "Passing": 2, "Warning": 0, "Critical": 0 });
    assert_eq!(overview["Checks"][0], checks);
    assert_eq!(overview["Services"][1]["Warning"], 1, "{overview}");
}

#[tokio::test]
async fn neighbours_come_from_proxies_and_intentions() {
    let (_server, client) = start(|_| {}).await;
    populated(&client).await;
    let topology = async |service: &str| {
        let path = format!("/v1/internal/ui/service-topology/{service}?kind=");
        client.get(&path).await.json()
    };
    let web = topology("web").await;
    assert_eq!(web["Protocol"], "tcp");
    assert_eq!(web["TransparentProxy"], false);
    assert_eq!(web["Upstreams"][0]["Name"], "api");
    assert_eq!(web["Upstreams"][0]["Source"], "proxy-registration");
    assert_eq!(web["Upstreams"][0]["Intention"]["Allowed"], true);
    // No intention permits `api` to call it.
    assert_eq!(web["Downstreams"], json!([]));
    let api = topology("api").await;
    assert_eq!(api["TransparentProxy"], true);
    assert_eq!(api["Downstreams"][0]["Name"], "web");
    assert_eq!(api["Upstreams"], json!([]));

    let allow = json!({ "Action": "allow" });
    let path = "/v1/connect/intentions/exact?source=api&destination=web";
    client.write(path, &allow).await;
    let api = topology("api").await;
    assert_eq!(api["Upstreams"][0]["Name"], "web");
    assert_eq!(api["Upstreams"][0]["Source"], "specific-intention");
    let missing = client.get("/v1/internal/ui/service-topology/web").await;
    assert_eq!(missing.status, StatusCode::BAD_REQUEST);
    assert_eq!(missing.text(), "Missing service kind");
}

#[tokio::test]
async fn neighbours_may_be_of_other_namespaces() {
    let (_server, client) = start(|_| {}).await;
    populated(&client).await;
    client
        .write("/v1/namespace", &json!({ "Name": "team" }))
        .await;
    let shop = json!({ "Node": "n2", "Address": "10.0.0.2", "Service": { "Service": "shop" } });
    let proxy = json!({ "Node": "n2", "Address": "10.0.0.2", "Service": {
        "Kind": "connect-proxy", "Service": "shop-proxy", "Port": 20000,
        "Proxy": { "DestinationServiceName": "shop", "Upstreams": [
            { "DestinationName": "api", "DestinationNamespace": "default", "LocalBindPort": 9191 },
        ] },
    } });
    for instance in [&shop, &proxy] {
        client.write("/v1/catalog/register?ns=team", instance).await;
    }
    let topology = async |path: &str| {
        let path = format!("/v1/internal/ui/service-topology/{path}");
        client.get(&path).await.json()
    };
    let of_shop = topology("shop?kind=&ns=team").await;
    assert_eq!(of_shop["Upstreams"][0]["Name"], "api");
    assert_eq!(of_shop["Upstreams"][0].get("Namespace"), None);
    let of_api = topology("api?kind=").await;
    let callers = of_api["Downstreams"].as_array().unwrap();
    assert_eq!(callers.len(), 2, "{of_api}");
    assert_eq!(
        (&callers[1]["Name"], &callers[1]["Namespace"]),
        (&json!("shop"), &json!("team"))
    );
    // The proxy is transparent, and intentions permit this destination.
    assert_eq!(of_api["Upstreams"][0]["Namespace"], "team", "{of_api}");
}

#[tokio::test]
async fn a_service_is_connected_with_the_gateways_that_are_there() {
    let (_server, client) = start(|_| {}).await;
    populated(&client).await;
    let entry = json!({ "Kind": "ingress-gateway", "Name": "edge", "Listeners": [
        { "Port": 8080, "Protocol": "tcp", "Services": [{ "Name": "api" }] },
        { "Port": 8081, "Protocol": "http", "Services": [{ "Name": "*" }] },
    ] });
    client.write("/v1/config", &entry).await;
    let connected = async || {
        let services = client.get("/v1/internal/ui/services").await.json();
        let services = services.as_array().unwrap().clone();
        let connected = services
            .iter()
            .filter(|one| one["ConnectedWithGateway"] == true);
        let names: Vec<Value> = connected.map(|one| one["Name"].clone()).collect();
        (names, services)
    };
    assert_eq!(connected().await.0, Vec::<Value>::new());
    let gateway = json!({ "Node": "n1", "Address": "10.0.0.1", "Service": {
        "Kind": "ingress-gateway", "Service": "edge", "Port": 8080,
    } });
    client.write("/v1/catalog/register", &gateway).await;
    // `*` includes services with the listener's protocol, and there are none.
    let (names, services) = connected().await;
    assert_eq!(names, ["api"]);
    let edge = services.iter().find(|one| one["Name"] == "edge").unwrap();
    assert_eq!(
        edge["GatewayConfig"],
        json!({ "AssociatedServiceCount": 1 })
    );
    let behind = client.get("/v1/catalog/gateway-services/edge").await.json();
    assert_eq!(behind.as_array().unwrap().len(), 1, "{behind}");
}

#[tokio::test]
async fn only_readable_rows_are_shown() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    populated(&management).await;
    let own = json!({ "ServiceIdentities": [{ "ServiceName": "web" }] });
    let made = management.write("/v1/acl/token", &own).await;
    let web = management.with_token(made["SecretID"].as_str().unwrap());
    // A service identity may read all services and nodes.
    let seen = web.get("/v1/internal/ui/services").await.json();
    assert_eq!(seen.as_array().unwrap().len(), 4);
    let overview = web.get("/v1/internal/ui/catalog-overview").await;
    assert_eq!(overview.status, StatusCode::FORBIDDEN);
    for path in ["/v1/internal/ui/services", "/v1/internal/ui/nodes"] {
        assert_eq!(client.get(path).await.json(), json!([]), "{path}");
    }
    let topology = client
        .get("/v1/internal/ui/service-topology/web?kind=")
        .await;
    assert_eq!(topology.status, StatusCode::FORBIDDEN);
}
