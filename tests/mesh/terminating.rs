//! Terminating gateways: services in the mesh reach services outside it, as far as the intentions of
//! those allow.

use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use http::Method;
use legate_runtime::Scope;
use legate_testkit::certs::{ServerTls, TestCa};
use legate_tests::mesh::NODE;
use legate_tests::wait::LIMIT;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, client, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const CALLER: ServiceSpec = ServiceSpec {
    service: "web",
    instance: "web",
    protocol: "http",
    upstreams: &["maps", "raw"],
};

/// Registers a service without a sidecar.
pub(crate) async fn outside(mesh: &Mesh, name: &str, protocol: &str, address: SocketAddr) {
    mesh.entry(json!({"Kind": "service-defaults", "Name": name, "Protocol": protocol}))
        .await;
    let instance = json!({
        "ID": name, "Service": name, "Address": address.ip(), "Port": address.port(),
    });
    mesh.catalog(json!({"Service": instance})).await;
}

/// Calls an upstream of the caller until it answers like this: a status and the name of the
/// instance; `None` for a closed connection.
async fn settle(mesh: &Mesh, index: u16, wanted: Option<(u16, &str)>) {
    let upstream = mesh.upstream("web", index);
    let ask = || async move {
        let (status, text) = client::get(upstream, "/").await.ok()?;
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let instance = body["instance"].as_str().unwrap_or_default().to_owned();
        Some((status.as_u16(), instance))
    };
    let is = |got: &Option<(u16, String)>| {
        got.as_ref().map(|(status, name)| (*status, name.as_str())) == wanted
    };
    eventually(&format!("upstream {index} answers {wanted:?}"), ask, is).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_outside_are_reached_as_their_intentions_allow() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    for (name, protocol) in [("maps", "http"), ("raw", "tcp")] {
        let address = mesh.application(name);
        mesh.outsider(name, address).await;
        outside(&mesh, name, protocol, address).await;
    }
    let services = json!([{"Name": "maps"}, {"Name": "raw"}]);
    let entry =
        |services| json!({"Kind": "terminating-gateway", "Name": "egress", "Services": services});
    mesh.entry(entry(services)).await;
    let gateway = mesh
        .add_gateway("terminating-gateway", "egress", json!({}))
        .await;
    let caller = mesh.add(&CALLER).await;

    // Requests are refused, connections closed.
    settle(&mesh, 0, Some((403, ""))).await;
    settle(&mesh, 1, None).await;
    mesh.intend("web", "maps", "allow").await;
    settle(&mesh, 0, Some((200, "maps"))).await;
    settle(&mesh, 1, None).await;
    mesh.intend("web", "raw", "allow").await;
    settle(&mesh, 1, Some((200, "raw"))).await;
    mesh.intend("web", "maps", "deny").await;
    settle(&mesh, 0, Some((403, ""))).await;
    mesh.intend("web", "maps", "allow").await;

    // A gateway for all services reaches the same ones.
    mesh.entry(entry(json!([{"Name": "*"}]))).await;
    settle(&mesh, 0, Some((200, "maps"))).await;
    settle(&mesh, 1, Some((200, "raw"))).await;

    // Without an instance there is an answer of its own, and never another service's.
    let gone = json!({"Node": NODE, "ServiceID": "maps"});
    mesh.api(Method::PUT, "/v1/catalog/deregister", Some(gone))
        .await;
    settle(&mesh, 0, Some((503, ""))).await;
    settle(&mesh, 1, Some((200, "raw"))).await;
    for mut proxy in [caller, gateway] {
        assert!(proxy.stop().await.success(), "{}", proxy.log());
    }
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_name_that_does_not_resolve_is_in_the_status() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.entry(json!({"Kind": "service-defaults", "Name": "gone", "Protocol": "tcp"}))
        .await;
    let instance = json!({
        "ID": "gone", "Service": "gone", "Address": "gone.invalid", "Port": 443,
    });
    mesh.catalog(json!({"Service": instance})).await;
    mesh.entry(json!({
        "Kind": "terminating-gateway", "Name": "egress", "Services": [{"Name": "gone"}],
    }))
    .await;
    let mut gateway = mesh
        .add_gateway("terminating-gateway", "egress", json!({}))
        .await;
    let found = || async {
        let found = gateway.status().await["envoy"]["clusters_without_endpoints"].take();
        found[0].as_str().unwrap_or_default().to_owned()
    };
    let is = |found: &String| found.starts_with("gone.default.");
    eventually("the status names the service", found, is).await;
    assert!(gateway.stop().await.success(), "{}", gateway.log());
    mesh.stop().await;
}

/// Replaces a file as a renewal should: readers have the old content or the new one.
fn replace(path: &Path, content: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, content).expect("a new file");
    std::fs::rename(new, path).expect("a replaced file");
}

/// Replaces all files of a folder as Kubernetes does for a mounted secret: they are links through
/// `..data`, which is replaced alone.
fn mount(folder: &Path, version: &str, files: &[(&str, &str)]) {
    let content = folder.join(version);
    std::fs::create_dir_all(&content).expect("a new folder");
    for (name, text) in files {
        std::fs::write(content.join(name), text).expect("a new file");
        let link = folder.join(name);
        if !link.is_symlink() {
            symlink(Path::new("..data").join(name), link).expect("a link to the file");
        }
    }
    let new = folder.join("..data_tmp");
    symlink(version, &new).expect("a link to the new folder");
    std::fs::rename(new, folder.join("..data")).expect("a replaced link");
}

/// A service outside the mesh: it asks its callers for certificates of `ca`, answers one request of each
/// connection, and closes it.
async fn serve_with_tls(address: SocketAddr, ca: &TestCa, scope: &Scope) {
    let tls = ServerTls {
        alpn: false,
        require_client_cert: true,
    };
    let tls = TlsAcceptor::from(ca.server_config(&["maps.example.com"], tls));
    let listener = TcpListener::bind(address).await.expect("a free address");
    let stop = scope.token();
    scope.spawn("a service with TLS", async move {
        let serve = async {
            loop {
                let (stream, _) = listener.accept().await?;
                // Either side may reject the other one.
                let Ok(mut stream) = tls.accept(stream).await else {
                    continue;
                };
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 19\r\nconnection: close\r\n\r\n\
                    {\"instance\":\"maps\"}";
                let _ = stream.write_all(answer).await;
                let _ = stream.shutdown().await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => Ok::<(), std::io::Error>(()),
            ended = serve => ended,
        }
    });
}

/// The service `maps` outside the mesh, which `web` may call.
async fn maps_with_tls(mesh: &mut Mesh, ca: &TestCa, scope: &Scope) {
    let address = mesh.application("maps");
    serve_with_tls(address, ca, scope).await;
    outside(mesh, "maps", "http", address).await;
    mesh.intend("web", "maps", "allow").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_files_of_certificates_are_used_without_a_changed_entry() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let (ca, other, scope) = (TestCa::new(), TestCa::new(), Scope::new("outside"));
    maps_with_tls(&mut mesh, &ca, &scope).await;
    let [authorities, certificate, key] =
        ["authorities.pem", "certificate.pem", "key.pem"].map(|name| mesh.file(name));
    let stranger = other.client("gateway");
    replace(&authorities, &other.ca_pem());
    replace(&certificate, &stranger.cert_pem);
    replace(&key, &stranger.key_pem);
    mesh.entry(
        json!({"Kind": "terminating-gateway", "Name": "egress", "Services": [{
            "Name": "maps", "SNI": "maps.example.com", "CAFile": authorities,
            "CertFile": certificate, "KeyFile": key,
        }]}),
    )
    .await;
    let gateway = mesh
        .add_gateway("terminating-gateway", "egress", json!({}))
        .await;
    let caller = mesh.add(&CALLER).await;

    // The gateway does not know the server's authority, then the server not the gateway's.
    settle(&mesh, 0, Some((503, ""))).await;
    replace(&authorities, &ca.ca_pem());
    settle(&mesh, 0, Some((503, ""))).await;
    let known = ca.client("gateway");
    replace(&key, &known.key_pem);
    replace(&certificate, &known.cert_pem);
    settle(&mesh, 0, Some((200, "maps"))).await;
    replace(&authorities, &other.ca_pem());
    settle(&mesh, 0, Some((503, ""))).await;

    scope.stop(LIMIT).await.expect("the service ends");
    for mut proxy in [caller, gateway] {
        assert!(proxy.stop().await.success(), "{}", proxy.log());
    }
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_kubernetes_secret_is_used_without_a_changed_entry() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let (ca, other, scope) = (TestCa::new(), TestCa::new(), Scope::new("outside"));
    maps_with_tls(&mut mesh, &ca, &scope).await;
    let folder = mesh.file("secret");
    let secret = |version: &str, of: &TestCa| {
        let own = of.client("gateway");
        let files = [
            ("ca.crt", ca.ca_pem()),
            ("tls.crt", own.cert_pem),
            ("tls.key", own.key_pem),
        ];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        mount(&folder, version, &files);
    };
    secret("..1", &ca);
    mesh.entry(
        json!({"Kind": "terminating-gateway", "Name": "egress", "Services": [{
            "Name": "maps", "SNI": "maps.example.com", "CAFile": folder.join("ca.crt"),
            "CertFile": folder.join("tls.crt"), "KeyFile": folder.join("tls.key"),
        }]}),
    )
    .await;
    let gateway = mesh
        .add_gateway("terminating-gateway", "egress", json!({}))
        .await;
    let caller = mesh.add(&CALLER).await;
    settle(&mesh, 0, Some((200, "maps"))).await;
    secret("..2", &other);
    settle(&mesh, 0, Some((503, ""))).await;
    secret("..3", &ca);
    settle(&mesh, 0, Some((200, "maps"))).await;

    scope.stop(LIMIT).await.expect("the service ends");
    for mut proxy in [caller, gateway] {
        assert!(proxy.stop().await.success(), "{}", proxy.log());
    }
    mesh.stop().await;
}
