//! Mesh gateways: TLS connections reach the service of their server name (SNI), without being
//! decrypted on the way.

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_tests::{Mesh, MeshOptions, ServiceSpec, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::chains::resolver;

const DB: ServiceSpec = ServiceSpec {
    service: "db",
    instance: "db",
    protocol: "tcp",
    upstreams: &[],
};
const CACHE: ServiceSpec = ServiceSpec {
    service: "cache",
    instance: "cache",
    protocol: "tcp",
    upstreams: &[],
};

/// Connects over TLS with the certificate of a service.
pub(crate) async fn connect(
    mesh: &Mesh,
    gateway: SocketAddr,
    caller: &str,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let path = format!("/v1/agent/connect/ca/leaf/{caller}");
    let leaf: Value =
        serde_json::from_str(&mesh.api(Method::GET, &path, None).await).expect("JSON");
    let file = |name: &str, field: &str| {
        let file = mesh.file(&format!("{caller}.{name}"));
        std::fs::write(&file, leaf[field].as_str().expect("PEM")).expect("a file");
        file
    };
    let tls = ClientTls {
        client_cert: Some((file("crt", "CertPEM"), file("key", "PrivateKeyPEM"))),
        // Its certificate has no host name; what it answers tells which service it is.
        insecure_skip_verify: true,
        ..ClientTls::default()
    };
    let connector = TlsConnector::from(client_config(&tls).expect("a configuration"));
    let name = server_name(name).expect("a name");
    let stream = TcpStream::connect(gateway).await?;
    connector.connect(name, stream).await
}

/// Sends a line over TLS with the certificate of a service, and returns the answer; empty if there
/// is none.
async fn line(mesh: &Mesh, gateway: SocketAddr, caller: &str, name: &str) -> String {
    let exchange = async {
        let mut stream = connect(mesh, gateway, caller, name).await?;
        stream.write_all(b"hello\n").await?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = timeout(Duration::from_secs(5), exchange).await;
    answer.ok().and_then(Result::ok).unwrap_or_default()
}

/// The server names of services in the mesh.
pub(crate) async fn server_names(mesh: &Mesh) -> impl Fn(&str) -> String + use<> {
    let roots = mesh.api(Method::GET, "/v1/connect/ca/roots", None).await;
    let roots: Value = serde_json::from_str(&roots).expect("JSON");
    let domain = roots["TrustDomain"].as_str().expect("a trust domain");
    let domain = domain.to_owned();
    move |service: &str| format!("{service}.default.dc1.internal.{domain}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_reach_the_service_of_their_server_name() {
    for kind in ["envoy", "builtin"] {
        by_server_name(kind).await;
    }
}

/// All proxies are of this kind.
async fn by_server_name(kind: &'static str) {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.use_proxy(kind);
    mesh.intend("web", "db", "allow").await;
    mesh.intend("web", "cache", "allow").await;
    let mut proxies = Vec::new();
    for spec in [&DB, &CACHE] {
        proxies.push(mesh.add(spec).await);
    }
    let gateway = mesh
        .add_gateway("mesh-gateway", "mesh-gateway", json!({}))
        .await;
    let address = mesh.public("mesh-gateway");
    proxies.push(gateway);
    let name = server_names(&mesh).await;

    // Callers that leave in the middle of their ClientHello keep nobody else waiting.
    for _ in 0..8 {
        let mut leaving = TcpStream::connect(address).await.expect("it listens");
        leaving.write_all(&[22, 3, 1]).await.expect("it is sent");
        leaving.shutdown().await.expect("it ends");
        let mut rest = Vec::new();
        let ended = timeout(Duration::from_secs(5), leaving.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "the connection is kept");
    }
    for service in ["db", "cache"] {
        let ask = || async { line(&mesh, address, "web", &name(service)).await };
        let answer = eventually("a service answers", ask, |answer| !answer.is_empty()).await;
        assert_eq!(answer, format!("{service}: hello\n"));
    }
    // The service itself decides who may call it.
    assert_eq!(line(&mesh, address, "shop", &name("db")).await, "");
    assert_eq!(line(&mesh, address, "web", &name("missing")).await, "");

    // A subset is reached by its own name.
    let subsets = json!({"Subsets": {"all": {}, "none": {"Filter": "Service.Meta.version == v9"}}});
    mesh.entry(resolver("db", subsets)).await;
    let subset = name("all.db");
    let ask = || async { line(&mesh, address, "web", &subset).await };
    let answer = eventually("the subset answers", ask, |answer| !answer.is_empty()).await;
    assert_eq!(answer, "db: hello\n");
    assert_eq!(line(&mesh, address, "web", &name("none.db")).await, "");
    for mut proxy in proxies {
        assert!(proxy.stop().await.success(), "{}", proxy.log());
    }
    mesh.stop().await;
}
