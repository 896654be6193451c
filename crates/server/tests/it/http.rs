//! The catalog, agent and health APIs, and behaviour common to all endpoints.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::http_client::{Client, start};

fn web(port: u16) -> Value {
    json!({
        "Node": "vm-1",
        "Address": "10.0.0.1",
        "NodeMeta": { "rack": "r1" },
        "Service": { "Service": "web", "ID": "web-1", "Port": port, "Tags": ["v1"] },
        "Check": { "CheckID": "web-alive", "ServiceID": "web-1", "Status": "passing" },
    })
}

#[tokio::test]
async fn a_registration_is_read_back_until_it_is_removed() {
    let (server, client) = start(|_| {}).await;
    assert_eq!(
        client.write("/v1/catalog/register", &web(8080)).await,
        json!(true)
    );

    let rows = client.get("/v1/catalog/service/web").await.json();
    assert_eq!(rows[0]["Node"], "vm-1");
    assert_eq!(rows[0]["Address"], "10.0.0.1");
    assert_eq!(rows[0]["ServiceID"], "web-1");
    assert_eq!(rows[0]["ServicePort"], 8080);
    assert_eq!(rows[0]["Datacenter"], "dc1");

    let found = client.get("/v1/health/service/web").await.json();
    assert_eq!(found[0]["Node"]["Node"], "vm-1");
    assert_eq!(found[0]["Service"]["Service"], "web");
    assert_eq!(found[0]["Checks"][0]["Status"], "passing");

    let checks = client.get("/v1/health/node/vm-1").await.json();
    assert_eq!(checks[0]["CheckID"], "web-alive");
    assert_eq!(checks[0]["ServiceID"], "web-1");
    assert_eq!(client.get("/v1/health/node/vm-2").await.json(), json!([]));

    let services = client.get("/v1/catalog/services").await.json();
    assert_eq!(services, json!({ "web": ["v1"] }));
    let nodes = client.get("/v1/catalog/nodes").await.json();
    let names: Vec<_> = nodes
        .as_array()
        .unwrap()
        .iter()
        .map(|n| &n["Node"])
        .collect();
    assert_eq!(names, ["legate", "vm-1"]);
    let node = client.get("/v1/catalog/node/vm-1").await.json();
    assert_eq!(node["Services"]["web-1"]["Port"], 8080);

    let gone = json!({ "Node": "vm-1", "ServiceID": "web-1" });
    assert_eq!(
        client.write("/v1/catalog/deregister", &gone).await,
        json!(true)
    );
    assert_eq!(client.get("/v1/health/service/web").await.json(), json!([]));
    assert_eq!(client.get("/v1/catalog/services").await.json(), json!({}));
    client
        .write("/v1/catalog/deregister", &json!({ "Node": "vm-1" }))
        .await;
    assert_eq!(
        client.get("/v1/catalog/node/vm-1").await.json(),
        Value::Null
    );
    server.stop(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn lists_can_be_narrowed() {
    let (_server, client) = start(|_| {}).await;
    client.write("/v1/catalog/register", &web(8080)).await;
    let failing = json!({
        "Node": "vm-2", "Address": "10.0.0.2",
        "Service": { "Service": "web", "ID": "web-2", "Port": 8080 },
        "Check": { "CheckID": "web-alive", "ServiceID": "web-2", "Status": "critical" },
    });
    client.write("/v1/catalog/register", &failing).await;
    let sidecar = json!({
        "Node": "vm-1", "SkipNodeUpdate": true,
        "Service": {
            "Kind": "connect-proxy", "Service": "web-sidecar-proxy", "ID": "web-1-proxy",
            "Port": 20000, "Proxy": { "DestinationServiceName": "web" },
        },
    });
    client.write("/v1/catalog/register", &sidecar).await;

    let ids = async |path: &str| -> Vec<String> {
        let found = client.get(path).await.json();
        let rows = found.as_array().unwrap().iter();
        rows.map(|row| row["Service"]["ID"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids("/v1/health/service/web").await, ["web-1", "web-2"]);
    assert_eq!(ids("/v1/health/service/WEB").await, ["web-1", "web-2"]);
    assert_eq!(ids("/v1/health/service/web?passing").await, ["web-1"]);
    assert_eq!(ids("/v1/health/service/web?passing=false").await.len(), 2);
    assert_eq!(ids("/v1/health/service/web?tag=v1").await, ["web-1"]);
    assert_eq!(ids("/v1/health/service/web?tag=v1&tag=v2").await.len(), 0);
    assert_eq!(
        ids("/v1/health/service/web?node-meta=rack:r1").await,
        ["web-1"]
    );
    assert_eq!(
        ids("/v1/health/service/web?dc=dc1&ns=default").await.len(),
        2
    );
    assert_eq!(ids("/v1/health/connect/web").await, ["web-1-proxy"]);
    let connect = client.get("/v1/catalog/connect/web").await.json();
    assert_eq!(connect[0]["ServiceProxy"]["DestinationServiceName"], "web");
    let on_rack = client
        .get("/v1/catalog/nodes?node-meta=rack:r1")
        .await
        .json();
    assert_eq!(on_rack.as_array().unwrap().len(), 1);
    let services = client
        .get("/v1/catalog/services?node-meta=rack:r1")
        .await
        .json();
    assert_eq!(services, json!({ "web": ["v1"], "web-sidecar-proxy": [] }));
}

#[tokio::test]
async fn responses_report_their_consistency() {
    let (server, client) = start(|_| {}).await;
    client.write("/v1/catalog/register", &web(8080)).await;
    let reply = client.get("/v1/health/service/web").await;
    assert_eq!(reply.index(), server.store().state().index());
    assert_eq!(reply.header("x-consul-knownleader"), "true");
    assert_eq!(reply.header("x-consul-lastcontact"), "0");
    assert_eq!(reply.header("x-consul-effective-consistency"), "leader");
    assert_eq!(reply.header("x-consul-query-backend"), "blocking-query");
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(reply.header("x-consul-results-filtered-by-acls"), "");
    let stale = client.get("/v1/health/service/web?stale").await;
    assert_eq!(stale.header("x-consul-effective-consistency"), "stale");
    assert_eq!(client.get("/v1/health/service/none").await.index(), 1);
    let pretty = client.get("/v1/catalog/services?pretty").await;
    assert_eq!(
        pretty.text(),
        "{\n    \"web\": [\n        \"v1\"\n    ]\n}\n"
    );
}

#[tokio::test]
async fn a_blocking_query_waits_for_its_own_rows() {
    let (server, client) = start(|_| {}).await;
    client.write("/v1/catalog/register", &web(8080)).await;
    let index = client.get("/v1/health/service/web").await.index();
    let path = format!("/v1/health/service/web?index={index}&wait=60s");
    let mut waiting = std::pin::pin!(client.get(&path));

    let unrelated = async {
        for port in 1..=20 {
            let mut other = web(port);
            other["Service"] = json!({ "Service": "api", "ID": "api-1", "Port": port });
            other["Check"] = Value::Null;
            client.write("/v1/catalog/register", &other).await;
        }
    };
    tokio::select! {
        reply = &mut waiting => panic!("an unrelated change ended it: {}", reply.text()),
        () = unrelated => {}
    }
    client.write("/v1/catalog/register", &web(9090)).await;
    let reply = waiting.await;
    assert_eq!(reply.index(), server.store().state().index());
    assert_eq!(reply.json()[0]["Service"]["Port"], 9090);
}

#[tokio::test]
async fn a_wait_that_times_out_returns_the_current_state() {
    let (_server, client) = start(|_| {}).await;
    client.write("/v1/catalog/register", &web(8080)).await;
    let index = client.get("/v1/health/service/web").await.index();
    let start = Instant::now();
    let path = format!("/v1/health/service/web?index={index}&wait=50ms");
    let reply = client.get(&path).await;
    assert!(start.elapsed() >= Duration::from_millis(50));
    assert_eq!(reply.index(), index);
    assert_eq!(reply.json().as_array().unwrap().len(), 1);

    let future = client
        .get("/v1/health/service/web?index=999999&wait=60s")
        .await;
    assert_eq!(
        future.index(),
        index,
        "an index of another server is answered at once"
    );
}

#[tokio::test]
async fn an_agent_registers_a_service_with_its_sidecar() {
    let (_server, client) = start(|_| {}).await;
    let service = |extra: Value| {
        json!({
            "Name": "web", "Port": 8080, "Check": extra,
            "Connect": { "SidecarService": {
                "Proxy": { "Upstreams": [{ "DestinationName": "api", "LocalBindPort": 9191 }] },
            } },
        })
    };
    let ttl = json!({ "CheckID": "beat", "TTL": "10s", "Status": "passing" });
    client
        .write("/v1/agent/service/register", &service(ttl.clone()))
        .await;
    let other = json!({ "name": "api", "port": 8081, "connect": { "sidecar_service": {} } });
    client.write("/v1/agent/service/register", &other).await;

    let sidecar = async |name: &str| {
        let found = client
            .get(&format!("/v1/health/connect/{name}"))
            .await
            .json();
        found[0]["Service"].clone()
    };
    let web = sidecar("web").await;
    assert_eq!(web["ID"], "web-sidecar-proxy");
    assert_eq!(web["Kind"], "connect-proxy");
    assert_eq!(web["Port"], 21_000);
    assert_eq!(web["Proxy"]["LocalServicePort"], 8080);
    assert_eq!(web["Proxy"]["Upstreams"][0]["DestinationName"], "api");
    assert_eq!(sidecar("api").await["Port"], 21_001);

    // The lower port is free again, but an assigned port is kept.
    client
        .write("/v1/agent/service/deregister/web", &Value::Null)
        .await;
    assert_eq!(
        sidecar("web").await,
        Value::Null,
        "the sidecar goes with its service"
    );
    client.write("/v1/agent/service/register", &other).await;
    assert_eq!(sidecar("api").await["Port"], 21_001);

    client
        .write("/v1/agent/service/register", &service(ttl))
        .await;
    let checks = async || {
        let found = client.get("/v1/health/service/web").await.json();
        let checks = found[0]["Checks"].as_array().unwrap().clone();
        checks
            .into_iter()
            .map(|c| c["CheckID"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(checks().await, ["beat"]);
    let another = service(json!({ "CheckID": "pulse", "TTL": "10s" }));
    client.write("/v1/agent/service/register", &another).await;
    assert_eq!(checks().await, ["beat", "pulse"]);
    let replacing = "/v1/agent/service/register?replace-existing-checks";
    client.write(replacing, &another).await;
    assert_eq!(checks().await, ["pulse"]);

    let unknown = client
        .put("/v1/agent/service/deregister/nobody", &Value::Null)
        .await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert!(unknown.text().contains("nobody"));
}

#[tokio::test]
async fn central_configuration_is_merged_on_request() {
    let (_server, client) = start(|_| {}).await;
    let service = json!({ "Name": "web", "Port": 80, "Connect": { "SidecarService": {} } });
    client.write("/v1/agent/service/register", &service).await;
    let defaults = json!({ "Kind": "service-defaults", "Name": "web", "Protocol": "http" });
    client.write("/v1/config", &defaults).await;
    let protocol = async |path: &str| {
        let found = client.get(path).await.json();
        found[0]["Service"]["Proxy"]["Config"]["protocol"].clone()
    };
    assert_eq!(protocol("/v1/health/connect/web").await, Value::Null);
    assert_eq!(
        protocol("/v1/health/connect/web?merge-central-config").await,
        "http"
    );
}

#[tokio::test]
async fn the_server_describes_itself() {
    let (server, client) = start(|_| {}).await;
    let own = client.get("/v1/agent/self").await.json();
    assert_eq!(own["Config"]["Datacenter"], "dc1");
    assert_eq!(own["Config"]["NodeName"], "legate");
    let port = i64::from(server.http_addr().unwrap().port());
    assert_eq!(own["DebugConfig"]["HTTPPort"], port);
    assert_eq!(own["xDS"]["Ports"], json!({ "Plaintext": -1, "TLS": -1 }));
    // What Nomad reads: it requires at least 1.8.0, and runs an Envoy of the list.
    let number = own["Config"]["Version"].as_str().unwrap();
    let parts: Vec<u32> = number
        .split('.')
        .map(|part| part.parse().unwrap())
        .collect();
    assert!(parts.len() == 3 && parts >= vec![1, 8, 0], "{number}");
    assert_eq!(own["DebugConfig"]["ConnectEnabled"], true);
    assert_eq!(own["DebugConfig"]["DNSAddrs"], json!([]));
    let tested = include_str!("../../../../docs/supervision.md");
    let envoys = own["xDS"]["SupportedProxies"]["envoy"].as_array().unwrap();
    assert!(!envoys.is_empty());
    for envoy in envoys {
        assert!(tested.contains(envoy.as_str().unwrap()), "{envoy}");
    }
    let version = client.get("/v1/agent/version").await.json();
    assert_eq!(version["HumanVersion"], number);
    let members = client.get("/v1/agent/members").await.json();
    let build = members[0]["Tags"]["build"].as_str().unwrap();
    assert!(build.starts_with(&format!("{number}:")), "{build}");

    let leader = client.get("/v1/status/leader").await.json();
    assert_eq!(leader, server.http_addr().unwrap().to_string());
    assert_eq!(client.get("/v1/status/peers").await.json(), json!([leader]));
    assert_eq!(
        client.get("/v1/catalog/datacenters").await.json(),
        json!(["dc1"])
    );

    let metrics = client.get("/v1/agent/metrics?format=prometheus").await;
    assert_eq!(metrics.status, StatusCode::OK);
    assert!(metrics.header("content-type").starts_with("text/plain"));
    let counted = r#"legate_http_requests_total{method="GET",status="200"}"#;
    assert!(metrics.text().contains(counted), "{}", metrics.text());
    let counters = client.get("/v1/agent/metrics").await.json();
    let counters = counters["Counters"].as_array().unwrap();
    let labels = json!({ "method": "GET", "status": "200" });
    let counted = |counter: &&Value| {
        counter["Name"] == "legate_http_requests_total" && counter["Labels"] == labels
    };
    let counter = counters.iter().find(counted).unwrap();
    assert!(counter["Count"].as_f64().unwrap() > 0.0, "{counter}");
    let other = client.get("/v1/agent/metrics?format=text").await;
    assert_eq!(other.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn unserved_paths_and_methods_are_errors() {
    let (_server, client) = start(|_| {}).await;
    let path = "/v1/internal/ui/metrics-proxy";
    let unserved = client.get(path).await;
    assert_eq!(unserved.status, StatusCode::NOT_IMPLEMENTED);
    assert!(unserved.text().contains(path));

    let wrong = client.delete("/v1/catalog/register").await;
    assert_eq!(wrong.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(wrong.header("allow"), "OPTIONS,PUT");
    let options = client
        .send(Method::OPTIONS, "/v1/config/mesh/mesh", "")
        .await;
    assert_eq!(options.status, StatusCode::OK);
    for method in ["GET", "DELETE"] {
        assert!(
            options.header("allow").contains(method),
            "{}",
            options.header("allow")
        );
    }
}

#[tokio::test]
async fn a_body_without_an_announced_length_is_limited_too() {
    let (_server, client) = start(|_| {}).await;
    assert_too_large(&client, true).await;
    assert_too_large(&client, false).await;
}

async fn assert_too_large(client: &Client, announced: bool) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const SIZE: usize = 512 * 1024 + 1;
    if announced {
        let body = Full::new(Bytes::from(vec![b' '; SIZE]));
        let request = Request::put("/v1/config").body(body).unwrap();
        let reply = client.exchange(request).await;
        assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(reply.text().contains("524288"), "{}", reply.text());
        return;
    }
    let mut stream = tokio::net::TcpStream::connect(client.address)
        .await
        .unwrap();
    let head = "PUT /v1/config HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("{SIZE:x}\r\n{}\r\n0\r\n\r\n", " ".repeat(SIZE));
    // The server may respond and close before it has read the whole body.
    let _ = stream.write_all(chunk.as_bytes()).await;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}
