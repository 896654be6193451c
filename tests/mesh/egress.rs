//! Services outside the mesh behind a gateway, and services in the mesh on the same port. The gateway is
//! simulated by a service's sidecar, whose certificate identifies it as the destination.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use legate_tests::{Mesh, MeshOptions, ServiceSpec, captured, eventually};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::captured_traffic::{answered, refused, resolve};

const fn http(service: &'static str) -> ServiceSpec {
    ServiceSpec {
        service,
        instance: service,
        protocol: "http",
        upstreams: &[],
    }
}

/// The same port as that of the virtual IPs: Envoy matches the port first.
const PORT: u16 = 80;

/// The timeout of a response.
const LIMIT: Duration = Duration::from_secs(3);

/// An address that does not exist in this network.
const SITE: [u8; 4] = [10, 96, 0, 77];

#[test]
fn destinations_are_reached_through_their_gateways() {
    captured::run("egress::in_a_network_of_its_own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test that makes its network"]
async fn in_a_network_of_its_own() {
    if captured::is_here() {
        scenario().await;
    }
}

/// Any address works: the server behind the gateway receives the TLS handshake and rejects it as an invalid HTTP
/// request.
async fn by_server_name(address: SocketAddr) {
    let said = |name: &'static str| async move {
        let mut stream = captured::connect(address).await.ok()?;
        stream.write_all(&hello(name)).await.ok()?;
        let mut answer = [0; 12];
        let read = timeout(LIMIT, stream.read_exact(&mut answer)).await;
        read.ok()?.ok()?;
        Some(String::from_utf8_lossy(&answer).into_owned())
    };
    // Until now the sidecar treated it as an HTTP request.
    let other = || said("other.example");
    let answer = eventually("other names lead nowhere", other, Option::is_none).await;
    assert_eq!(answer, None);
    let answer = said("site.example").await;
    assert_eq!(answer.as_deref(), Some("HTTP/1.1 400"));
}

/// A TLS ClientHello.
fn hello(name: &'static str) -> Vec<u8> {
    let config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = name.try_into().expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("a vector takes all");
    bytes
}

async fn scenario() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let specs = [http("api"), http("site"), http("web")];
    for spec in &specs {
        mesh.register(spec).await;
    }
    let transparent = json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http", "Mode": "transparent"});
    mesh.entry(transparent).await;
    let mut sidecars = Vec::new();
    for spec in &specs {
        let flags = mesh.flags(spec.instance);
        let mut sidecar = mesh.sidecar(spec.instance, &flags);
        sidecar.ready().await;
        sidecars.push(sidecar);
    }
    mesh.intend("web", "*", "allow").await;
    let api = resolve(&mesh, "api").await;
    assert_eq!((api.port(), answered(api).await.as_str()), (PORT, "api"));
    let site = SocketAddr::from((SITE, PORT));
    refused(site).await;

    let known_as = |protocol: &str, address: &str| {
        json!({
            "Kind": "service-defaults", "Name": "site", "Protocol": protocol,
            "Destination": {"Addresses": [address], "Port": PORT},
        })
    };
    let destination = |protocol: &str| known_as(protocol, &site.ip().to_string());
    mesh.entry(destination("tcp")).await;
    refused(site).await;
    let gateway = mesh.public("site");
    mesh.catalog(json!({"Service": {
        "Kind": "terminating-gateway", "ID": "gateway", "Service": "gateway",
        "Address": gateway.ip(), "Port": gateway.port(),
    }}))
    .await;
    mesh.entry(json!({
        "Kind": "terminating-gateway", "Name": "gateway", "Services": [{"Name": "site"}],
    }))
    .await;
    for protocol in ["tcp", "http"] {
        mesh.entry(destination(protocol)).await;
        assert_eq!(answered(site).await, "site", "{protocol}");
        assert_eq!(answered(api).await, "api", "{protocol}: on the same port");
    }
    mesh.entry(known_as("tcp", "Site.example")).await;
    by_server_name(site).await;
    assert_eq!(answered(api).await, "api", "without TLS on that port");
    mesh.intend("web", "*", "deny").await;
    refused(site).await;

    for mut sidecar in sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}
