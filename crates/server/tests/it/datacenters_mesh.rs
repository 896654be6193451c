//! Proxies of one datacenter that call services of another one.

use std::net::SocketAddr;
use std::time::Duration;

use legate_api::type_url::ENDPOINT;
use legate_server::ServerConfig;
use legate_testkit::certs::TestCa;
use legate_testkit::wait;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::datacenters::{join, of_datacenter};
use crate::grpc_xds::{Ads, first, named, names};
use crate::http_client::{Client, start};
use crate::running::Running;

const PATIENCE: Duration = Duration::from_secs(20);

async fn in_mesh(ca: &TestCa, datacenter: &'static str) -> (Running, Client) {
    let settings = of_datacenter(ca, datacenter);
    let with_grpc = |config: &mut ServerConfig| {
        settings(config);
        config.grpc = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.update_coalesce = Duration::from_millis(10);
    };
    start(with_grpc).await
}

/// Registers the proxy of an instance of `api` in dc2.
async fn register_api(client: &Client, id: &str, wan: &str) {
    let service = json!({
        "Kind": "connect-proxy", "ID": id, "Service": "api-proxy", "Address": "10.2.0.9",
        "Port": 20_001, "Proxy": {"DestinationServiceName": "api"},
        "TaggedAddresses": {"wan": {"Address": wan, "Port": 443}},
    });
    let node = json!({"Node": "far", "Address": "10.2.0.1", "Service": service});
    client.write("/v1/catalog/register", &node).await;
}

/// Registers the sidecar of `web` in dc1, with the upstream `api` in each of these datacenters.
async fn register_web(client: &Client, datacenters: &[&str]) {
    let upstream = |(datacenter, port): (&&str, u16)| json!({"DestinationName": "api", "Datacenter": datacenter, "LocalBindPort": port});
    let upstreams = datacenters.iter().zip(9000..).map(upstream);
    let service = json!({
        "Kind": "connect-proxy", "ID": "web-1-sidecar-proxy", "Service": "web-sidecar-proxy",
        "Port": 20_000, "Proxy": {
            "DestinationServiceName": "web", "Upstreams": upstreams.collect::<Vec<_>>(),
        },
    });
    let node = json!({"Node": "vm-1", "Address": "10.0.0.1", "Service": service});
    client.write("/v1/catalog/register", &node).await;
}

/// The endpoints of a cluster in the next response with them, as bytes.
async fn endpoints(ads: &mut Ads, cluster: &str) -> String {
    let next = async {
        loop {
            let response = ads.accept().await;
            let mut all = response.resources.iter();
            if let Some(one) = all.find(|one| one.name.starts_with(cluster)) {
                return String::from_utf8_lossy(&one.resource).into_owned();
            }
        }
    };
    timeout(PATIENCE, next).await.expect("endpoints in time")
}

async fn status(client: &Client, datacenter: &str) -> Value {
    let status = client.get("/v1/internal/legate/status").await.json();
    let all = status["Datacenters"].as_array().unwrap().clone();
    let named = all.into_iter().find(|one| one["Name"] == datacenter);
    named.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_gets_the_instances_of_another_datacenter() {
    let ca = TestCa::new();
    let (one, client) = in_mesh(&ca, "dc1").await;
    let (two, other) = in_mesh(&ca, "dc2").await;
    join(&client, &two).await;
    register_api(&other, "api-1", "192.0.2.1").await;
    // The one that does not exist does not hold back the other.
    register_web(&client, &["dc2", "dc9"]).await;

    let mut ads = Ads::open(&one, "").await.unwrap();
    ads.send(first(ENDPOINT)).await;
    let response = ads.accept().await;
    assert_eq!(names(&response).len(), 2, "{response:?}");
    let [far, nowhere] = ["dc2", "dc9"].map(|datacenter| {
        let start = format!("api.default.{datacenter}.");
        let mut all = response.resources.iter();
        let body = all
            .find(|one| one.name.starts_with(&start))
            .unwrap()
            .resource
            .clone();
        String::from_utf8_lossy(&body).into_owned()
    });
    assert!(
        far.contains("192.0.2.1") && !far.contains("10.2.0"),
        "{far}"
    );
    assert!(!nowhere.contains("192.0.2.1"));

    // A change there arrives.
    register_api(&other, "api-2", "192.0.2.2").await;
    let changed = endpoints(&mut ads, "api.default.dc2.").await;
    assert!(changed.contains("192.0.2.1") && changed.contains("192.0.2.2"));
    let dc2 = status(&client, "dc2").await;
    assert_eq!((&dc2["Ranges"], &dc2["Oldest"]), (&json!(1), &json!(0.0)));
    let dc9 = status(&client, "dc9").await;
    let error = dc9["RangeError"].as_str().unwrap();
    assert!(
        error.contains("knows no server of that datacenter"),
        "{dc9}"
    );
    assert_eq!(dc9["Ranges"], 0, "it takes no place");

    // The endpoints stay while the datacenter is away.
    two.stop(PATIENCE).await.unwrap();
    wait::until(async || {
        let dc2 = status(&client, "dc2").await;
        match dc2["RangeError"].is_null() {
            true => Err(dc2.to_string()),
            false => Ok(()),
        }
    })
    .await;
    register_web(&client, &["dc2"]).await;
    let mut again = Ads::open(&one, "").await.unwrap();
    again.send(first(ENDPOINT)).await;
    let kept = endpoints(&mut again, "api.default.dc2.").await;
    assert!(kept.contains("192.0.2.1") && kept.contains("192.0.2.2"));

    drop((ads, again));
    one.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_gets_what_a_prepared_query_of_another_datacenter_finds() {
    let ca = TestCa::new();
    let (one, client) = in_mesh(&ca, "dc1").await;
    let (two, other) = in_mesh(&ca, "dc2").await;
    join(&client, &two).await;
    let query = json!({
        "Name": "geo", "Service": {"Service": "api", "Failover": {"Datacenters": ["dc1"]}},
    });
    let query = query.to_string();
    let created = other.send(http::Method::POST, "/v1/query", &query);
    assert_eq!(created.await.status, http::StatusCode::OK);
    register_api(&other, "api-1", "192.0.2.1").await;
    let service = json!({
        "Kind": "connect-proxy", "ID": "web-1-sidecar-proxy", "Service": "web-sidecar-proxy",
        "Port": 20_000, "Proxy": {"DestinationServiceName": "web", "Upstreams": [{
            "DestinationType": "prepared_query", "DestinationName": "geo", "Datacenter": "dc2",
            "LocalBindPort": 9000,
        }]},
    });
    let node = json!({"Node": "vm-1", "Address": "10.0.0.1", "Service": service});
    client.write("/v1/catalog/register", &node).await;

    let mut ads = Ads::open(&one, "").await.unwrap();
    ads.send(first(ENDPOINT)).await;
    let cluster = "geo.default.dc2.query.";
    let found = endpoints(&mut ads, cluster).await;
    assert!(
        found.contains("192.0.2.1") && !found.contains("10.2.0"),
        "{found}"
    );
    register_api(&other, "api-2", "192.0.2.2").await;
    let found = endpoints(&mut ads, cluster).await;
    assert!(found.contains("192.0.2.1") && found.contains("192.0.2.2"));
    // It fails over to the datacenter of the caller, where an instance is reached at its own address.
    let here = json!({
        "Kind": "connect-proxy", "ID": "api-3", "Service": "api-proxy", "Address": "10.1.0.9",
        "Port": 20_001, "Proxy": {"DestinationServiceName": "api"},
        "TaggedAddresses": {"wan": {"Address": "192.0.2.3", "Port": 443}},
    });
    let here = json!({"Node": "near", "Address": "10.1.0.1", "Service": here});
    client.write("/v1/catalog/register", &here).await;
    other
        .write("/v1/catalog/deregister", &json!({"Node": "far"}))
        .await;
    let found = endpoints(&mut ads, cluster).await;
    assert!(
        found.contains("10.1.0.9") && !found.contains("192.0.2."),
        "{found}"
    );
    // The owner notices when that changes, and when its own instances are back.
    client
        .write("/v1/catalog/deregister", &json!({"Node": "near"}))
        .await;
    assert!(!endpoints(&mut ads, cluster).await.contains("10.1.0.9"));
    register_api(&other, "api-1", "192.0.2.1").await;
    assert!(endpoints(&mut ads, cluster).await.contains("192.0.2.1"));
    drop(ads);
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_servers_may_ask_for_ranges() {
    let ca = TestCa::new();
    let (one, client) = in_mesh(&ca, "dc1").await;
    let path = "/v1/internal/legate/servers/range";
    let asked = client.send(http::Method::POST, path, r#"{"service":"api"}"#);
    assert_eq!(asked.await.status, http::StatusCode::FORBIDDEN);
    one.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mesh_gateway_leads_to_the_gateways_of_another_datacenter() {
    let ca = TestCa::new();
    let (one, client) = in_mesh(&ca, "dc1").await;
    let (two, other) = in_mesh(&ca, "dc2").await;
    join(&client, &two).await;
    let gateway = |id: &str, wan: &str| {
        json!({"Node": "vm-1", "Address": "10.0.0.1", "Service": {
            "Kind": "mesh-gateway", "ID": id, "Service": "gateway", "Port": 8443,
            "TaggedAddresses": {"wan": {"Address": wan, "Port": 443}},
        }})
    };
    client
        .write(
            "/v1/catalog/register",
            &gateway("web-1-sidecar-proxy", "192.0.2.1"),
        )
        .await;
    let mut ads = Ads::open(&one, "").await.unwrap();
    ads.send(first(ENDPOINT)).await;
    ads.send(named(ENDPOINT, &[])).await;
    other
        .write("/v1/catalog/register", &gateway("g", "192.0.2.2"))
        .await;
    let found = endpoints(&mut ads, "dc2.internal.").await;
    assert!(found.contains("192.0.2.2"), "{found}");
    drop(ads);
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}
