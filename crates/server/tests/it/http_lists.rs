//! Behaviour common to all lists of the API, and lists outside the catalog.

use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::{Client, start};

/// Registers three nodes with an instance of `web` each, at these distances in seconds.
async fn populated(client: &Client) {
    for (node, at) in [("n1", 0.03), ("n2", 0.01), ("n3", 0.02)] {
        let web = json!({
            "Node": node, "Address": "10.0.0.1", "NodeMeta": { "name": node },
            "Service": { "Service": "web", "ID": node, "Port": 80, "Tags": ["v1"],
                "Locality": { "Region": "r", "Zone": "z" } },
            "Checks": [
                { "CheckID": "web", "ServiceID": node, "Status": "passing",
                  "Definition": { "HTTP": "http://x", "Interval": "10s", "Timeout": "1m" } },
                { "CheckID": "disk", "Status": "warning" },
            ],
        });
        client.write("/v1/catalog/register", &web).await;
        let mut place = vec![at];
        place.resize(8, 0.0);
        let coordinate = json!({ "Node": node, "Coord": {
            "Vec": place, "Error": 1.5, "Adjustment": 0, "Height": 0,
        }});
        client.write("/v1/coordinate/update", &coordinate).await;
    }
}

fn column(list: &Value, pointer: &str) -> Vec<String> {
    let rows = list.as_array().unwrap().iter();
    rows.map(|row| row.pointer(pointer).unwrap().as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn near_puts_the_nearest_first() {
    let (_server, client) = start(|config| config.node_name = "n2".to_owned()).await;
    populated(&client).await;
    for (path, node) in [
        ("/v1/catalog/nodes?", "/Node"),
        ("/v1/catalog/service/web?", "/Node"),
        ("/v1/health/service/web?", "/Node/Node"),
        ("/v1/health/checks/web?", "/Node"),
    ] {
        let order = async |near: &str| {
            let list = client.get(&format!("{path}{near}")).await.json();
            column(&list, node)
        };
        assert_eq!(order("").await, ["n1", "n2", "n3"], "{path}");
        assert_eq!(order("near=n1").await, ["n1", "n3", "n2"], "{path}");
        assert_eq!(order("near=_agent").await, ["n2", "n3", "n1"], "{path}");
        let nowhere = order("near=nowhere").await;
        assert_eq!(nowhere, ["n1", "n2", "n3"], "{path}");
    }
    // Nodes without a coordinate come last.
    let lost = json!({ "Node": "a", "Address": "10.0.0.1" });
    client.write("/v1/catalog/register", &lost).await;
    let nodes = client.get("/v1/catalog/nodes?near=n3").await.json();
    assert_eq!(column(&nodes, "/Node"), ["n3", "n1", "n2", "a"]);

    let query = json!({ "Name": "q", "Service": { "Service": "web" } }).to_string();
    let made = client.send(Method::POST, "/v1/query", &query).await;
    assert_eq!(made.status, StatusCode::OK);
    let found = client.get("/v1/query/q/execute?near=n1").await.json();
    assert_eq!(column(&found["Nodes"], "/Node/Node"), ["n1", "n3", "n2"]);
}

#[tokio::test]
async fn coordinates_require_node_read() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    populated(&management).await;
    let all = management.get("/v1/coordinate/nodes").await.json();
    assert_eq!(column(&all, "/Node"), ["n1", "n2", "n3"]);
    assert_eq!(all[0]["Coord"]["Vec"][0], 0.03);
    assert_eq!(all[0]["Segment"], "");
    let none = management.get("/v1/coordinate/nodes?segment=x").await;
    assert_eq!(none.json(), json!([]));
    let servers = management.get("/v1/coordinate/datacenters").await.json();
    assert_eq!(servers[0]["Datacenter"], "dc1");
    assert_eq!(servers[0]["Coordinates"][0]["Node"], "legate");
    let unknown = management.get("/v1/coordinate/node/none").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);

    let identity = json!({ "NodeIdentities": [{ "NodeName": "n1", "Datacenter": "dc1" }] });
    let made = management.write("/v1/acl/token", &identity).await;
    let own = management.with_token(made["SecretID"].as_str().unwrap());
    let seen = own.get("/v1/coordinate/nodes").await;
    assert_eq!(column(&seen.json(), "/Node"), ["n1"]);
    assert_eq!(seen.header("x-consul-results-filtered-by-acls"), "true");
    let hidden = own.get("/v1/coordinate/node/n2").await;
    assert_eq!(hidden.status, StatusCode::FORBIDDEN);
    let foreign = own
        .put("/v1/coordinate/update", &json!({ "Node": "n2" }))
        .await;
    assert_eq!(foreign.status, StatusCode::FORBIDDEN);
    let short = json!({ "Node": "n1", "Coord": { "Vec": [1] } });
    let refused = own.put("/v1/coordinate/update", &short).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("incompatible coordinate"));
}

#[tokio::test]
async fn checks_are_listed_by_service_and_by_state() {
    let (_server, client) = start(|_| {}).await;
    populated(&client).await;
    let ids = async |path: &str| {
        let list = client.get(path).await.json();
        let nodes = column(&list, "/Node");
        let ids = column(&list, "/CheckID");
        let both = nodes.iter().zip(&ids);
        both.map(|(node, id)| format!("{node}/{id}"))
            .collect::<Vec<_>>()
    };
    let of_web = ["n1/web", "n2/web", "n3/web"];
    assert_eq!(ids("/v1/health/checks/web").await, of_web);
    assert_eq!(ids("/v1/health/state/passing").await, of_web);
    assert_eq!(ids("/v1/health/state/any").await.len(), 6);
    assert_eq!(ids("/v1/health/state/critical").await.len(), 0);
    for list in ["checks/web", "state/passing"] {
        let path = format!("/v1/health/{list}?node-meta=name:n2");
        assert_eq!(ids(&path).await, ["n2/web"]);
        let path = format!("/v1/health/{list}?filter=Node==n3");
        assert_eq!(ids(&path).await, ["n3/web"]);
    }

    // Check definitions are shown as written.
    let checks = client.get("/v1/health/checks/web").await.json();
    let shown = json!({ "HTTP": "http://x", "Interval": "10s", "Timeout": "1m0s" });
    assert_eq!(checks[0]["Definition"], shown);
    assert_eq!(checks[0]["Type"], "http");

    // A list supports blocking queries.
    let index = client.get("/v1/health/state/critical").await.index();
    let path = format!("/v1/health/state/critical?index={index}&wait=60s");
    let failing = json!({ "Node": "n1", "SkipNodeUpdate": true,
        "Check": { "CheckID": "disk", "Status": "critical" } });
    let (news, _) = tokio::join!(
        client.get(&path),
        client.write("/v1/catalog/register", &failing)
    );
    assert_eq!(column(&news.json(), "/CheckID"), ["disk"]);
}

#[tokio::test]
async fn services_of_a_node_and_of_a_gateway_are_listed() {
    let (_server, client) = start(|_| {}).await;
    populated(&client).await;
    let found = client.get("/v1/catalog/node-services/n1").await.json();
    assert_eq!(found["Node"]["Node"], "n1");
    assert_eq!(column(&found["Services"], "/ID"), ["n1"]);
    let none = client
        .get("/v1/catalog/node-services/n1?filter=Port==1")
        .await;
    assert_eq!(none.json()["Services"], json!([]));
    let unknown = client.get("/v1/catalog/node-services/none").await.json();
    assert_eq!(unknown, json!({ "Node": null, "Services": null }));

    let listed = client.get("/v1/catalog/service/web").await.json();
    assert_eq!(listed[0]["ServiceLocality"]["Region"], "r");

    let gateway = json!({ "Kind": "terminating-gateway", "Name": "egress", "Services": [
        { "Name": "db", "SNI": "db.example" }, { "Name": "*", "CAFile": "ca.pem" },
    ]});
    client.write("/v1/config", &gateway).await;
    let services = client
        .get("/v1/catalog/gateway-services/egress")
        .await
        .json();
    let names = column(&services, "/Service/Name");
    assert_eq!(names, ["db", "web"]);
    assert_eq!(services[0]["SNI"], "db.example");
    assert_eq!(services[1]["FromWildcard"], true);
    assert_eq!(services[1]["CAFile"], "ca.pem");
    assert_eq!(services[1]["Gateway"]["Name"], "egress");
    let none = client.get("/v1/catalog/gateway-services/none").await;
    assert_eq!(none.json(), json!([]));
}

#[tokio::test]
async fn ingress_gateways_are_found_by_their_services() {
    let (_server, client) = start(|_| {}).await;
    let gateway = json!({ "Node": "n1", "Address": "10.0.0.1", "Service": {
        "Kind": "ingress-gateway", "Service": "front", "Port": 8443,
    }});
    client.write("/v1/catalog/register", &gateway).await;
    let none = client.get("/v1/health/ingress/web").await;
    assert_eq!(none.json(), json!([]));
    let path = format!("/v1/health/ingress/web?index={}&wait=60s", none.index());
    let entry = json!({ "Kind": "ingress-gateway", "Name": "front", "Listeners": [
        { "Port": 9999, "Services": [{ "Name": "web" }] },
        { "Port": 8888, "Protocol": "tcp", "Services": [{ "Name": "api" }] },
    ]});
    let (found, _) = tokio::join!(client.get(&path), client.write("/v1/config", &entry));
    assert_eq!(column(&found.json(), "/Service/Service"), ["front"]);
    let services = client
        .get("/v1/catalog/gateway-services/front")
        .await
        .json();
    assert_eq!(column(&services, "/Service/Name"), ["api", "web"]);
    assert_eq!(column(&services, "/Protocol"), ["tcp", "tcp"]);
    assert_eq!(services[0]["Port"], 8888);
    assert_eq!(services[0]["GatewayKind"], "ingress-gateway");
}

#[tokio::test]
async fn wildcard_gateways_include_reachable_services_only() {
    let (_server, client) = start(|_| {}).await;
    for service in [
        json!({ "Service": "plain", "Port": 1 }),
        json!({ "Service": "meshed", "Port": 2, "Connect": { "Native": true } }),
        json!({ "Service": "front", "Port": 3, "Kind": "ingress-gateway" }),
        json!({ "Service": "egress", "Port": 4, "Kind": "terminating-gateway" }),
    ] {
        let instance = json!({ "Node": "n1", "Address": "10.0.0.1", "Service": service });
        client.write("/v1/catalog/register", &instance).await;
    }
    let place = json!({ "Addresses": ["maps.example.com"], "Port": 443 });
    for entry in [
        json!({ "Kind": "service-defaults", "Name": "maps", "Destination": place }),
        json!({ "Kind": "service-defaults", "Name": "meshed", "Protocol": "http" }),
        json!({ "Kind": "terminating-gateway", "Name": "egress", "Services": [{ "Name": "*" }] }),
        json!({ "Kind": "ingress-gateway", "Name": "front", "Listeners": [
            { "Port": 80, "Protocol": "http", "Services": [{ "Name": "*" }] },
        ]}),
    ] {
        client.write("/v1/config", &entry).await;
    }
    for (gateway, behind) in [
        // Services in the mesh with the protocol of the port.
        ("front", &["meshed"][..]),
        ("egress", &["maps", "plain"]),
    ] {
        let path = format!("/v1/catalog/gateway-services/{gateway}");
        let found = client.get(&path).await.json();
        assert_eq!(column(&found, "/Service/Name"), behind, "{gateway}");
    }
    for (path, gateways) in [
        ("connect/plain", &["egress"][..]),
        ("connect/maps", &["egress"]),
        ("connect/meshed", &["meshed"]),
        ("connect/nobody", &[]),
        ("ingress/plain", &[]),
        ("ingress/maps", &["front"]),
        ("ingress/meshed", &["front"]),
        ("ingress/nobody", &[]),
    ] {
        let found = client.get(&format!("/v1/health/{path}")).await.json();
        assert_eq!(column(&found, "/Service/Service"), gateways, "{path}");
    }
    let found = client.get("/v1/catalog/connect/maps").await.json();
    assert_eq!(column(&found, "/ServiceName"), ["egress"]);
}

#[tokio::test]
async fn a_gateway_exposes_services_of_other_namespaces() {
    let (_server, client) = start(|_| {}).await;
    client
        .write("/v1/namespace", &json!({ "Name": "team" }))
        .await;
    let gateway = json!({ "Node": "n1", "Address": "10.0.0.1",
        "Service": { "Service": "front", "Port": 3, "Kind": "ingress-gateway" } });
    client.write("/v1/catalog/register", &gateway).await;
    let entry = json!({ "Kind": "ingress-gateway", "Name": "front", "Listeners": [
        { "Port": 80, "Services": [{ "Name": "web", "Namespace": "team" }] },
    ]});
    client.write("/v1/config", &entry).await;
    let found = client.get("/v1/health/ingress/web?ns=team").await.json();
    assert_eq!(column(&found, "/Service/Service"), ["front"]);
    let none = client.get("/v1/health/ingress/web").await.json();
    assert_eq!(none, json!([]));
}

#[tokio::test]
async fn central_settings_are_merged_into_every_list_of_instances() {
    let (_server, client) = start(|_| {}).await;
    let defaults = json!({
        "Kind": "proxy-defaults", "Name": "global", "Config": { "protocol": "http" },
    });
    client.write("/v1/config", &defaults).await;
    let proxy = json!({ "Node": "n1", "Address": "10.0.0.1", "Service": {
        "Kind": "connect-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": { "DestinationServiceName": "web" },
    }});
    client.write("/v1/catalog/register", &proxy).await;
    for (path, pointer) in [
        ("/v1/catalog/connect/web", "/0/ServiceProxy/Config/protocol"),
        (
            "/v1/catalog/service/web-proxy",
            "/0/ServiceProxy/Config/protocol",
        ),
        ("/v1/health/connect/web", "/0/Service/Proxy/Config/protocol"),
        (
            "/v1/catalog/node-services/n1",
            "/Services/0/Proxy/Config/protocol",
        ),
    ] {
        let plain = client.get(path).await.json();
        assert_eq!(plain.pointer(pointer), None, "{path}");
        let merged = client.get(&format!("{path}?merge-central-config")).await;
        assert_eq!(
            merged.json().pointer(pointer),
            Some(&json!("http")),
            "{path}"
        );
    }
}

#[tokio::test]
async fn conflicting_parameters_are_refused_with_consuls_texts() {
    let (_server, client) = start(|_| {}).await;
    for (query, status, text) in [
        (
            "stale&consistent",
            StatusCode::BAD_REQUEST,
            "Cannot specify ?stale with ?consistent, conflicting semantics.",
        ),
        (
            "max_stale=1s&consistent",
            StatusCode::BAD_REQUEST,
            "Cannot specify ?stale with ?consistent, conflicting semantics.",
        ),
        (
            "cached&consistent",
            StatusCode::BAD_REQUEST,
            "Cannot specify ?cached with ?consistent, conflicting semantics.",
        ),
        (
            "max_stale=x",
            StatusCode::BAD_REQUEST,
            "Invalid max_stale value \"x\"",
        ),
        ("wait=x", StatusCode::BAD_REQUEST, "Invalid wait time"),
        ("index=x", StatusCode::BAD_REQUEST, "Invalid index"),
        (
            "dc=dc2",
            StatusCode::INTERNAL_SERVER_ERROR,
            "No path to datacenter",
        ),
        (
            "datacenter=dc2",
            StatusCode::INTERNAL_SERVER_ERROR,
            "No path to datacenter",
        ),
    ] {
        for list in [
            "/v1/catalog/nodes",
            "/v1/health/service/web",
            "/v1/health/state/any",
        ] {
            let reply = client.get(&format!("{list}?{query}")).await;
            assert_eq!(reply.status, status, "{list} {query}");
            assert!(reply.text().starts_with(text), "{list}: {}", reply.text());
        }
    }
    for query in ["leader", "max_stale=10s", "cached", "stale"] {
        let reply = client.get(&format!("/v1/catalog/nodes?{query}")).await;
        assert_eq!(reply.status, StatusCode::OK, "{query}");
    }
}

async fn with_header(
    client: &Client,
    path: &str,
    name: &str,
    value: &str,
) -> crate::http_client::Reply {
    let request = Request::get(path).header(name, value);
    client
        .exchange(request.body(Full::default()).unwrap())
        .await
}

#[tokio::test]
async fn cached_reads_are_always_hits() {
    let (_server, client) = start(|_| {}).await;
    for path in [
        "/v1/catalog/services",
        "/v1/catalog/datacenters",
        "/v1/health/service/web",
    ] {
        let cached = format!("{path}?cached");
        let reply = client.get(&cached).await;
        assert_eq!((reply.header("x-cache"), reply.header("age")), ("HIT", "0"));
        let anew = with_header(&client, &cached, "cache-control", "max-age=0").await;
        assert_eq!((anew.header("x-cache"), anew.header("age")), ("MISS", ""));
        assert_eq!(client.get(path).await.header("x-cache"), "");
    }
    let wrong = with_header(&client, "/v1/catalog/nodes", "cache-control", "max-age=x").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    assert_eq!(wrong.text(), "Invalid Cache-Control header.");
}

#[tokio::test]
async fn large_responses_are_compressed_if_accepted() {
    let (_server, client) = start(|_| {}).await;
    let small = with_header(&client, "/v1/catalog/nodes", "accept-encoding", "gzip").await;
    assert_eq!(small.header("content-encoding"), "");
    populated(&client).await;
    let plain = client.get("/v1/health/service/web").await;
    assert_eq!(plain.header("content-encoding"), "");
    let path = "/v1/health/service/web";
    let packed = with_header(&client, path, "accept-encoding", "gzip").await;
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert!(
        packed.body.len() < plain.body.len() / 2,
        "{}",
        packed.body.len()
    );
    assert_eq!(
        packed.header("x-consul-index"),
        plain.header("x-consul-index")
    );
}
