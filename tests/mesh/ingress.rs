//! Ingress gateways: clients outside the mesh reach the service that they name, and no other.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::API;
use crate::chains::resolver;
use legate_tests::client::line;

const OTHER: ServiceSpec = ServiceSpec {
    service: "other",
    instance: "other",
    protocol: "http",
    upstreams: &[],
};
const DB: ServiceSpec = ServiceSpec {
    service: "db",
    instance: "db",
    protocol: "tcp",
    upstreams: &[],
};

const HTTP: u16 = 8000;
const TCP: u16 = 8001;
const TLS: u16 = 8443;

/// A gateway `edge` with services behind it, which its intentions allow.
struct Scene {
    mesh: Mesh,
    sidecars: Vec<Sidecar>,
    gateway: SocketAddr,
}

impl Scene {
    async fn start(services: &[ServiceSpec], listeners: Value) -> Self {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        let mut sidecars = Vec::new();
        mesh.intend("edge", "*", "allow").await;
        mesh.entry(json!({"Kind": "service-defaults", "Name": "missing", "Protocol": "http"}))
            .await;
        for spec in services {
            sidecars.push(mesh.add(spec).await);
        }
        expose(&mesh, listeners).await;
        let gateway = mesh.add_gateway("ingress-gateway", "edge", json!({})).await;
        let address = (gateway.address, HTTP).into();
        sidecars.push(gateway);
        Self {
            mesh,
            sidecars,
            gateway: address,
        }
    }

    fn port(&self, port: u16) -> SocketAddr {
        (self.gateway.ip(), port).into()
    }

    /// Sends requests for a host until the answer is this status, and returns it.
    async fn settle(&self, host: &str, status: u16) -> Response<Bytes> {
        let ask = || async {
            let answer = request(self.gateway, host).await;
            answer.map_err(|error| error.to_string())
        };
        let what = format!("a request to {host} is answered with {status}");
        let is = |answer: &Result<Response<Bytes>, String>| matches!(answer, Ok(answer) if answer.status().as_u16() == status);
        eventually(&what, ask, is).await.expect("accepted")
    }

    async fn stop(self) {
        for mut sidecar in self.sidecars {
            assert!(sidecar.stop().await.success(), "{}", sidecar.log());
        }
        self.mesh.stop().await;
    }
}

async fn expose(mesh: &Mesh, listeners: Value) {
    let entry = json!({"Kind": "ingress-gateway", "Name": "edge", "Listeners": listeners});
    mesh.entry(entry).await;
}

async fn request(
    server: SocketAddr,
    host: &str,
) -> Result<Response<Bytes>, legate_runtime::BoxError> {
    let request = Request::get("/x").header("host", host);
    let request = request.header("x-removed", "1").body(Full::default())?;
    client::ask(server, request).await
}

fn instance(answer: &Response<Bytes>) -> Value {
    body(answer)["instance"].take()
}

fn body(answer: &Response<Bytes>) -> Value {
    serde_json::from_slice(answer.body()).expect("the answer of an application")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_to_the_service_of_their_host() {
    let listener = json!({"Port": HTTP, "Protocol": "http", "Services": [
        {
            "Name": "api", "Hosts": ["api.example", "*.api.example"],
            "RequestHeaders": {"Set": {"x-set": "2"}, "Remove": ["x-removed"]},
            "ResponseHeaders": {"Add": {"x-answer": "3"}},
        },
        {"Name": "other"},
        {"Name": "missing", "Hosts": ["missing.example"]},
    ]});
    let mut scene = Scene::start(&[API, OTHER], json!([listener])).await;
    for host in [
        "api.example",
        "a.api.example",
        "API.example",
        "api.example:8000",
    ] {
        let answer = scene.settle(host, 200).await;
        assert_eq!(instance(&answer), "api", "{host}");
        assert_eq!(answer.headers()["x-answer"], "3", "{host}");
        let body = body(&answer);
        let caller = body["caller"].as_str().expect("a caller");
        assert!(caller.ends_with("/svc/edge"), "{caller}");
        assert_eq!(body["headers"]["x-set"], "2");
        assert_eq!(body["headers"]["x-removed"], Value::Null);
    }
    for host in ["other.ingress.consul", "other.ingress.dc1.consul:8000"] {
        let answer = scene.settle(host, 200).await;
        assert_eq!(instance(&answer), "other", "{host}");
        assert_eq!(body(&answer)["headers"]["x-removed"], "1", "{host}");
    }
    scene.settle("missing.example", 503).await;
    for host in [
        "unknown.example",
        "api.ingress.consul",
        "api",
        "api.example.org",
    ] {
        scene.settle(host, 404).await;
    }

    // The gateway is a caller like any other.
    scene.mesh.intend("edge", "api", "deny").await;
    scene.settle("api.example", 403).await;
    scene.settle("other.ingress.consul", 200).await;
    scene.mesh.intend("edge", "api", "allow").await;
    scene.settle("api.example", 200).await;

    // A lost instance, and an instance of what was missing.
    scene.mesh.check("api", "critical").await;
    scene.settle("api.example", 503).await;
    let missing = ServiceSpec {
        service: "missing",
        instance: "missing",
        ..OTHER
    };
    let found = scene.mesh.add(&missing).await;
    let answer = scene.settle("missing.example", 200).await;
    assert_eq!(instance(&answer), "missing");
    scene.sidecars.push(found);
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routers_and_splitters_apply_behind_the_gateway() {
    let listener = json!({"Port": HTTP, "Protocol": "http", "Services": [{"Name": "split"}]});
    let services = [
        API,
        OTHER,
        ServiceSpec {
            service: "split",
            instance: "split",
            ..OTHER
        },
    ];
    let scene = Scene::start(&services, json!([listener])).await;
    let host = "split.ingress.consul";
    assert_eq!(instance(&scene.settle(host, 200).await), "split");
    scene
        .mesh
        .entry(
            json!({"Kind": "service-splitter", "Name": "split", "Splits": [
                {"Weight": 50, "Service": "api"}, {"Weight": 50, "Service": "other"},
            ]}),
        )
        .await;
    for expected in ["api", "other"] {
        let ask = || async { instance(&scene.settle(host, 200).await) };
        let what = format!("{expected} gets a part of the requests");
        eventually(&what, ask, |instance| instance == expected).await;
    }
    scene
        .mesh
        .entry(
            json!({"Kind": "service-router", "Name": "split", "Routes": [{
                "Match": {"HTTP": {"PathPrefix": "/x"}}, "Destination": {"Service": "api"},
            }]}),
        )
        .await;
    scene.mesh.check("api", "critical").await;
    scene.settle(host, 503).await;
    let failover = json!({"Failover": {"*": {"Service": "other"}}});
    scene.mesh.entry(resolver("api", failover)).await;
    assert_eq!(instance(&scene.settle(host, 200).await), "other");
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_go_to_the_service_of_the_port() {
    let listeners = json!([
        {"Port": TCP, "Services": [{"Name": "db"}]},
        {"Port": HTTP, "Protocol": "http", "Services": [{"Name": "api"}]},
    ]);
    let scene = Scene::start(&[API, DB], listeners).await;
    let port = scene.port(TCP);
    let reply = eventually(
        "a line comes back",
        || line(port, "hello"),
        |reply| !reply.is_empty(),
    )
    .await;
    assert_eq!(reply, "db: hello\n");
    scene.settle("api.ingress.consul", 200).await;
    // The removed port is closed, and the other one keeps its service.
    expose(
        &scene.mesh,
        json!([{"Port": HTTP, "Protocol": "http", "Services": [{"Name": "api"}]}]),
    )
    .await;
    let closed = || async move { TcpStream::connect(port).await.is_err() };
    eventually("the port is closed", closed, |closed| *closed).await;
    scene.settle("api.ingress.consul", 200).await;
    scene.stop().await;
}

/// The body of the answer to a request over TLS, or the error.
async fn over_tls(mesh: &Mesh, server: SocketAddr, name: &'static str) -> Result<String, String> {
    let roots = mesh
        .api(http::Method::GET, "/v1/connect/ca/roots", None)
        .await;
    let roots: Value = serde_json::from_str(&roots).expect("JSON");
    let mut store = RootCertStore::empty();
    for root in roots["Roots"].as_array().expect("roots") {
        let pem = root["RootCert"].as_str().expect("a certificate");
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
        store.add(der).expect("a root");
    }
    let config = ClientConfig::builder()
        .with_root_certificates(store)
        .with_no_client_auth();
    let exchange = async {
        let stream = TcpStream::connect(server).await?;
        let connector = TlsConnector::from(Arc::new(config));
        let server_name = name.try_into().expect("a name");
        let mut stream = connector.connect(server_name, stream).await?;
        let request = format!("GET / HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // The connection may end without a closing message of TLS.
        let _ = stream.read_to_end(&mut answer).await;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    exchange.await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_verify_the_certificate_of_the_gateway() {
    let exposed = |host: &str| {
        json!([{
            "Port": TLS, "Protocol": "http", "TLS": {"Enabled": true, "TLSMinVersion": "TLSv1_2"},
            "Services": [{"Name": "api", "Hosts": [host]}, {"Name": "other"}],
        }])
    };
    let scene = Scene::start(&[API, OTHER], exposed("api.example")).await;
    let server = scene.port(TLS);
    let ask = |name: &'static str| over_tls(&scene.mesh, server, name);
    let answered_by = |instance: &str| {
        let instance = format!("\"instance\":\"{instance}\"");
        move |answer: &Result<String, String>| {
            answer
                .as_ref()
                .is_ok_and(|answer| answer.contains(&instance))
        }
    };
    let api = || ask("api.example");
    let answered = eventually("api answers", api, answered_by("api")).await;
    answered.expect("an answer");
    let other = || ask("other.ingress.consul");
    let answered = eventually("other answers", other, answered_by("other")).await;
    answered.expect("an answer");
    let refused = ask("unknown.example").await.expect_err("no such name");
    assert!(refused.contains("certificate"), "{refused}");
    // Plain HTTP gets no answer.
    assert!(request(server, "api.example").await.is_err());
    // The name of a new host appears in the certificate.
    expose(&scene.mesh, exposed("new.example")).await;
    let new = || ask("new.example");
    let answered = eventually("the new host answers", new, answered_by("api")).await;
    answered.expect("an answer");
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_star_exposes_services_as_they_appear() {
    let listener = json!({"Port": HTTP, "Protocol": "http", "Services": [
        {"Name": "*"}, {"Name": "api", "Hosts": ["api.example"]},
    ]});
    let mut scene = Scene::start(&[API, DB], json!([listener])).await;
    scene.settle("api.example", 200).await;
    for host in [
        "api.ingress.consul",
        "other.ingress.consul",
        "db.ingress.consul",
    ] {
        scene.settle(host, 404).await;
    }
    let other = scene.mesh.add(&OTHER).await;
    scene.sidecars.push(other);
    let answer = scene.settle("other.ingress.consul", 200).await;
    assert_eq!(instance(&answer), "other");
    scene.settle("db.ingress.consul", 404).await;
    scene.mesh.deregister("other").await;
    scene.settle("other.ingress.consul", 404).await;
    scene.settle("api.example", 200).await;
    scene.stop().await;
}
