//! What is in front of a gateway: the PROXY protocol, `X-Forwarded-For`, and HTTP/3.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::Request;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::API;

const PORT: u16 = 8000;

const CALLER: ServiceSpec = ServiceSpec {
    service: "web",
    instance: "web",
    protocol: "http",
    upstreams: &["raw"],
};

/// A gateway with these settings, whose requests reach `api`.
struct Scene {
    mesh: Mesh,
    sidecar: Sidecar,
    gateway: Sidecar,
    address: SocketAddr,
}

impl Scene {
    async fn start(config: Value, tls: Value) -> Self {
        Self::start_at(|_| config, tls).await
    }

    /// With settings that have the address of the gateway.
    async fn start_at(config: impl FnOnce(IpAddr) -> Value, tls: Value) -> Self {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        let config = config(mesh.application("edge").ip());
        mesh.intend("edge", "*", "allow").await;
        let sidecar = mesh.add(&API).await;
        mesh.entry(json!({
            "Kind": "ingress-gateway", "Name": "edge", "TLS": tls, "Listeners": [{
                "Port": PORT, "Protocol": "http", "Services": [{"Name": "api", "Hosts": ["api.test"]}],
            }],
        }))
        .await;
        let proxy = json!({"Config": config});
        let gateway = mesh.add_gateway("ingress-gateway", "edge", proxy).await;
        let address = (gateway.address, PORT).into();
        Self {
            mesh,
            sidecar,
            gateway,
            address,
        }
    }

    async fn stop(mut self) {
        for sidecar in [&mut self.gateway, &mut self.sidecar] {
            assert!(sidecar.stop().await.success(), "{}", sidecar.log());
        }
        self.mesh.stop().await;
    }
}

/// What the application sees of a request.
#[derive(Debug, PartialEq)]
struct Seen {
    forwarded_for: Value,
    /// The address that the gateway takes for that of the client.
    client: Value,
}

/// What the application sees of a request with this `X-Forwarded-For`, on a connection that begins
/// with this text; `None` without an answer of it.
async fn seen(server: SocketAddr, begins: &str, forwarded: Option<&str>) -> Option<Seen> {
    let mut stream = TcpStream::connect(server).await.ok()?;
    stream.write_all(begins.as_bytes()).await.ok()?;
    let mut request = Request::get("/").header("host", "api.test");
    if let Some(value) = forwarded {
        request = request.header("x-forwarded-for", value);
    }
    let (_, body) = client::get_on(stream, request).await.ok()?;
    let body: Value = serde_json::from_str(&body).ok()?;
    let header = |name: &str| body["headers"][name].clone();
    Some(Seen {
        forwarded_for: header("x-forwarded-for"),
        client: header("x-envoy-external-address"),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_of_the_client_is_that_in_the_header_of_the_proxy_protocol() {
    let config = json!({
        "envoy_gateway_proxy_protocol": true, "envoy_gateway_xff_num_trusted_hops": 0,
    });
    let scene = Scene::start(config, json!({})).await;
    let header = "PROXY TCP4 192.0.2.7 192.0.2.1 40000 443\r\n";
    let ask = || seen(scene.address, header, Some("192.0.2.66"));
    let answer = eventually("the application answers", ask, Option::is_some).await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.forwarded_for, "192.0.2.66,192.0.2.7");
    assert_eq!(answer.client, "192.0.2.7");
    // Nobody gets in without it.
    assert_eq!(seen(scene.address, "", None).await, None);
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_of_the_client_is_what_the_first_trusted_proxy_wrote() {
    let config = json!({"envoy_gateway_xff_num_trusted_hops": 1});
    let scene = Scene::start(config, json!({})).await;
    let ask = || seen(scene.address, "", Some("192.0.2.66,192.0.2.7"));
    let answer = eventually("the application answers", ask, Option::is_some).await;
    let answer = answer.expect("an answer");
    // The gateway adds the address of the connection; its own if that is of the same machine.
    let all = answer.forwarded_for.as_str().expect("a header");
    assert!(all.starts_with("192.0.2.66,192.0.2.7,"), "{all}");
    assert_eq!(answer.client, "192.0.2.7");
    scene.stop().await;
}

/// The port of a listener that sends requests to the gateway by HTTP/3.
const BY_HTTP3: u16 = 9001;

/// Settings for HTTP/3, and for an HTTP/3 client in the same Envoy.
fn with_client(address: IpAddr) -> Value {
    let socket = |port: u16| json!({"socket_address": {"address": address, "port_value": port}});
    let of = |name: &str| format!("type.googleapis.com/envoy.extensions.{name}");
    let cluster = json!({
        "name": "by_http3", "type": "STATIC", "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "by_http3", "endpoints": [{
            "lb_endpoints": [{"endpoint": {"address": socket(PORT)}}],
        }]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": of("upstreams.http.v3.HttpProtocolOptions"),
                "explicit_http_config": {"http3_protocol_options": {}},
            },
        },
        "transport_socket": {
            "name": "envoy.transport_sockets.quic",
            "typed_config": {
                "@type": of("transport_sockets.quic.v3.QuicUpstreamTransport"),
                "upstream_tls_context": {"sni": "api.test"},
            },
        },
    });
    let route = json!({"match": {"prefix": "/"}, "route": {"cluster": "by_http3"}});
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": of("filters.http.router.v3.Router")},
    });
    let manager = json!({
        "@type": of("filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "by_http3", "http_filters": [router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    });
    let filter = json!({
        "name": "envoy.filters.network.http_connection_manager", "typed_config": manager,
    });
    let listener = json!({
        "name": "by_http3", "address": socket(BY_HTTP3), "filter_chains": [{"filters": [filter]}],
    });
    json!({
        "envoy_gateway_http3_ports": [PORT],
        "envoy_extra_static_clusters_json": cluster.to_string(),
        "envoy_extra_static_listeners_json": listener.to_string(),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_with_tls_serves_http3_and_says_so() {
    let scene = Scene::start_at(with_client, json!({"Enabled": true})).await;
    let by_http3 = (scene.address.ip(), BY_HTTP3).into();
    let ask = || seen(by_http3, "", None);
    eventually("an answer by HTTP/3", ask, Option::is_some).await;
    let requests = scene
        .gateway
        .stat("http.ingress_upstream_8000.downstream_rq_http3_total");
    assert_ne!(requests.await, 0);
    let ask = || async {
        let mut stream = crate::api_gateways::connect(scene.address, "api.test").await?;
        let request = "GET / HTTP/1.1\r\nhost: api.test\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        // The end of the stream may be unclean.
        let _ = stream.read_to_end(&mut answer).await;
        Some(String::from_utf8_lossy(&answer).into_owned())
    };
    let is = |answer: &Option<String>| {
        let answer = answer.as_deref().unwrap_or_default();
        answer.starts_with("HTTP/1.1 200") && answer.contains("alt-svc: h3=\":8000\"; ma=86400")
    };
    eventually("answers name HTTP/3", ask, is).await;
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_outside_gets_the_header_of_the_proxy_protocol() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let address = mesh.application("raw");
    let listener = TcpListener::bind(address)
        .await
        .expect("the address is free");
    mesh.entry(json!({"Kind": "service-defaults", "Name": "raw", "Protocol": "tcp"}))
        .await;
    let instance = json!({
        "ID": "raw", "Service": "raw", "Address": address.ip(), "Port": address.port(),
    });
    mesh.catalog(json!({"Service": instance})).await;
    mesh.entry(json!({
        "Kind": "terminating-gateway", "Name": "egress", "Services": [{"Name": "raw"}],
    }))
    .await;
    mesh.intend("web", "raw", "allow").await;
    let config = json!({"Config": {"envoy_gateway_send_proxy_protocol": {"raw": "v1"}}});
    let mut gateway = mesh
        .add_gateway("terminating-gateway", "egress", config)
        .await;
    let mut caller = mesh.add(&CALLER).await;
    let upstream = mesh.upstream("web", 0);
    let begins = || async {
        let mut stream = TcpStream::connect(upstream).await.ok()?;
        stream.write_all(b"hello\n").await.ok()?;
        let accepted = timeout(Duration::from_secs(1), listener.accept()).await;
        let (mut server, _) = accepted.ok()?.ok()?;
        let mut text = vec![0; 64];
        let read = timeout(Duration::from_secs(1), server.read(&mut text)).await;
        text.truncate(read.ok()?.ok()?);
        String::from_utf8(text).ok()
    };
    let is = |text: &Option<String>| {
        let text = text.as_deref().unwrap_or_default();
        text.starts_with("PROXY TCP4 127.")
    };
    eventually("the header arrives", begins, is).await;
    for sidecar in [&mut caller, &mut gateway] {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}
