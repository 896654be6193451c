//! API gateways: requests reach the service of the most specific rule, and no other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use legate_identity::{Authority, RootRequest};
use legate_testkit::jwt::TestSigner;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::API;
use crate::tokens::{ISSUER, LATER};
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
    async fn start(services: &[ServiceSpec], entries: &[Value]) -> Self {
        Self::start_with("envoy", services, entries).await
    }

    /// The same with a gateway whose proxy is of this kind.
    async fn start_with(kind: &'static str, services: &[ServiceSpec], entries: &[Value]) -> Self {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        let mut sidecars = Vec::new();
        mesh.intend("edge", "*", "allow").await;
        for spec in services {
            sidecars.push(mesh.add(spec).await);
        }
        for entry in entries {
            mesh.entry(entry.clone()).await;
        }
        mesh.use_proxy(kind);
        let gateway = mesh.add_gateway("api-gateway", "edge", json!({})).await;
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

    /// Sends requests until the answer is this status, and returns it.
    async fn settle(&self, url: (&str, &str), headers: &[(&str, &str)], status: u16) -> Answer {
        let ask = || async {
            let answer = request(self.gateway, url, headers).await;
            answer.map_err(|error| error.to_string())
        };
        let what = format!("a request to {url:?} is answered with {status}");
        let is = |answer: &Result<Response<Bytes>, String>| matches!(answer, Ok(answer) if answer.status().as_u16() == status);
        Answer(eventually(&what, ask, is).await.expect("accepted"))
    }

    /// Waits until a service answers requests to this host and path.
    async fn reaches(&self, url: (&str, &str), instance: &str) {
        let ask = || async {
            let answer = request(self.gateway, url, &[]).await;
            answer.map_or(Value::Null, |answer| {
                Answer(answer).body()["instance"].take()
            })
        };
        let what = format!("{instance} answers {url:?}");
        eventually(&what, ask, |found| *found == instance).await;
    }

    async fn stop(self) {
        for mut sidecar in self.sidecars {
            assert!(sidecar.stop().await.success(), "{}", sidecar.log());
        }
        self.mesh.stop().await;
    }
}

struct Answer(Response<Bytes>);

impl Answer {
    fn body(&self) -> Value {
        serde_json::from_slice(self.0.body()).unwrap_or_default()
    }
}

async fn request(
    server: SocketAddr,
    (host, path): (&str, &str),
    headers: &[(&str, &str)],
) -> Result<Response<Bytes>, legate_runtime::BoxError> {
    let mut request = Request::get(path).header("host", host);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client::ask(server, request.body(Full::default())?).await
}

fn gateway(listeners: Value) -> Value {
    json!({"Kind": "api-gateway", "Name": "edge", "Listeners": listeners})
}

fn listener() -> Value {
    json!({"Name": "one", "Port": HTTP, "Protocol": "http"})
}

fn route(name: &str, hosts: Value, rules: Value) -> Value {
    json!({
        "Kind": "http-route", "Name": name, "Parents": [{"Name": "edge"}], "Hostnames": hosts,
        "Rules": rules,
    })
}

fn to(prefix: &str, service: &str) -> Value {
    json!({
        "Matches": [{"Path": {"Match": "prefix", "Value": prefix}}],
        "Services": [{"Name": service}],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_to_the_service_of_the_most_specific_rule() {
    let changes = json!({
        "Matches": [{"Path": {"Match": "prefix", "Value": "/old/"}}],
        "Services": [{"Name": "api"}],
        "Filters": {
            "Headers": [{"Set": {"x-set": "2"}, "Remove": ["x-removed"]}],
            "URLRewrite": {"Path": "/new/"},
        },
        "ResponseFilters": {"Headers": [{"Add": {"x-answer": "3"}}]},
    });
    let missing = json!({"Kind": "service-defaults", "Name": "missing", "Protocol": "http"});
    let entries = [
        missing,
        gateway(json!([listener()])),
        route(
            "a",
            json!(["a.test"]),
            json!([to("/", "api"), to("/gone", "missing"), changes]),
        ),
        route("b", json!(null), json!([to("/", "other")])),
        route("c", json!(["a.test"]), json!([to("/tcp", "bytes")])),
    ];
    let scene = Scene::start(&[API, OTHER], &entries).await;
    scene.reaches(("a.test", "/x"), "api").await;
    scene.reaches(("A.test:8000", "/x"), "api").await;
    scene.reaches(("b.test", "/x"), "other").await;
    scene.settle(("a.test", "/gone"), &[], 503).await;
    // The service of the route does not speak HTTP.
    scene.settle(("a.test", "/tcp"), &[], 500).await;
    let answer = scene
        .settle(("a.test", "/old/x"), &[("x-removed", "1")], 200)
        .await;
    let body = answer.body();
    assert_eq!(body["path"], "/new/x");
    assert_eq!(body["headers"]["x-set"], "2");
    assert_eq!(body["headers"]["x-removed"], Value::Null);
    assert_eq!(answer.0.headers()["x-answer"], "3");
    let caller = body["caller"].as_str().expect("a caller").to_owned();
    assert!(caller.ends_with("/svc/edge"), "{caller}");

    // The gateway is a caller like any other.
    scene.mesh.intend("edge", "api", "deny").await;
    scene.settle(("a.test", "/x"), &[], 403).await;
    scene.mesh.intend("edge", "api", "allow").await;
    scene.reaches(("a.test", "/x"), "api").await;
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_share_the_requests_of_a_rule() {
    let services = json!([{"Name": "api", "Weight": 3}, {"Name": "other", "Weight": 1}]);
    let entries = [
        gateway(json!([listener()])),
        route("a", json!(null), json!([{"Services": services}])),
    ];
    let scene = Scene::start(&[API, OTHER], &entries).await;
    scene.reaches(("a.test", "/"), "api").await;
    scene.reaches(("a.test", "/"), "other").await;
    let mut of_api = 0;
    for _ in 0..200 {
        let answer = scene.settle(("a.test", "/"), &[], 200).await;
        of_api += u32::from(answer.body()["instance"] == "api");
    }
    assert!((120..180).contains(&of_api), "{of_api}");
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_go_to_the_service_of_the_only_route() {
    let tcp = |name: &str, service: &str| {
        json!({
            "Kind": "tcp-route", "Name": name, "Parents": [{"Name": "edge"}],
            "Services": [{"Name": service}],
        })
    };
    let entries = [
        gateway(json!([{"Name": "one", "Port": TCP, "Protocol": "tcp"}])),
        tcp("a", "db"),
    ];
    for kind in ["envoy", "builtin"] {
        let scene = Scene::start_with(kind, &[DB], &entries).await;
        let port = scene.port(TCP);
        let says = |reply: &String| !reply.is_empty();
        let reply = eventually("a line comes back", || line(port, "hello"), says).await;
        assert_eq!(reply, "db: hello\n");
        // A second route conflicts, and nothing is served.
        scene.mesh.entry(tcp("b", "cache")).await;
        let closed = || async move { TcpStream::connect(port).await.is_err() };
        eventually("the port is closed", closed, |closed| *closed).await;
        scene.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_or_a_rule_requires_tokens() {
    let signer = TestSigner::generate();
    let keys = json!({"keys": [signer.public_jwk("k1")]});
    let keys = STANDARD.encode(keys.to_string());
    let provider = json!({
        "Kind": "jwt-provider", "Name": "okta", "Issuer": ISSUER,
        "JSONWebKeySet": {"Local": {"JWKS": keys}},
    });
    let claim = json!([{"Path": ["role"], "Value": "admin"}]);
    let of_admins = json!({"JWT": {"Providers": [{"Name": "okta", "VerifyClaims": claim}]}});
    let of_all = json!({"JWT": {"Providers": [{"Name": "okta"}]}});
    let mut admin = to("/admin", "other");
    admin["Filters"] = of_admins;
    let entries = [
        provider,
        gateway(json!([listener()])),
        route("a", json!(null), json!([to("/", "api"), admin])),
    ];
    let scene = Scene::start(&[API, OTHER], &entries).await;
    let token = |role: &str| {
        let claims = json!({"iss": ISSUER, "exp": LATER, "sub": "ada", "role": role});
        format!("Bearer {}", signer.sign_as("k1", &claims))
    };
    let (user, admin) = (token("user"), token("admin"));
    let url = |path| ("a.test", path);
    scene.reaches(url("/"), "api").await;
    scene.settle(url("/admin"), &[], 403).await;
    scene
        .settle(url("/admin"), &[("authorization", &user)], 403)
        .await;
    let answer = scene
        .settle(url("/admin"), &[("authorization", &admin)], 200)
        .await;
    assert_eq!(answer.body()["instance"], "other");
    // No spelling of the path passes the requirement.
    scene.settle(url("/x/../admin"), &[], 403).await;

    let mut listener = listener();
    listener["Override"] = of_all;
    scene.mesh.entry(gateway(json!([listener]))).await;
    scene.settle(url("/"), &[], 403).await;
    scene
        .settle(url("/"), &[("authorization", &user)], 200)
        .await;
    scene
        .settle(url("/admin"), &[("authorization", &user)], 200)
        .await;
    scene
        .settle(url("/"), &[("authorization", "Bearer x")], 403)
        .await;
    scene.stop().await;
}

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn pair(name: &str) -> (String, String) {
    pair_from(name, SystemTime::now())
}

/// A certificate that is valid for an hour from this time, and its key.
fn pair_from(name: &str, now: SystemTime) -> (String, String) {
    let root = Authority::generate_root(RootRequest {
        common_name: name.to_owned(),
        uri: "spiffe://example.consul".to_owned(),
        serial: 1,
        now,
        ttl: HOUR,
    });
    let root = root.expect("a certificate");
    (root.cert_pem().to_owned(), root.key_pem())
}

/// Accepts every certificate.
#[derive(Debug)]
struct Anything(Arc<CryptoProvider>);

impl ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A TLS connection to a server for this name.
pub(crate) async fn connect(
    server: SocketAddr,
    name: &'static str,
) -> Option<TlsStream<TcpStream>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anything(provider)))
        .with_no_client_auth();
    let stream = TcpStream::connect(server).await.ok()?;
    let connector = TlsConnector::from(Arc::new(config));
    let connected = connector.connect(name.try_into().ok()?, stream).await;
    connected.ok()
}

/// The certificate that a server presents to clients of this name.
pub(crate) async fn presented(
    server: SocketAddr,
    name: &'static str,
) -> Option<CertificateDer<'static>> {
    let stream = connect(server, name).await?;
    let (_, connection) = stream.get_ref();
    Some(
        connection
            .peer_certificates()?
            .first()?
            .clone()
            .into_owned(),
    )
}

/// The status of the response to a request on an open connection.
pub(crate) async fn ask_on(stream: &mut TlsStream<TcpStream>) -> String {
    let request = "GET / HTTP/1.1\r\nhost: 500.test\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    loop {
        let count = stream.read_buf(&mut answer).await.expect("an answer");
        assert_ne!(count, 0, "the connection is closed");
        let text = String::from_utf8_lossy(&answer);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if length.is_some_and(|length| length == body.len().to_string()) {
            return head.lines().next().unwrap_or_default().to_owned();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_certificates_a_changed_one_closes_no_connection() {
    const CHANGED: &str = "500.test";
    let entry = |number: usize, (certificate, key): &(String, String)| {
        json!({
            "Kind": "inline-certificate", "Name": number.to_string(), "Certificate": certificate,
            "PrivateKey": key,
        })
    };
    let names = (0..1_000).map(|number| json!({"Name": number.to_string()}));
    let listener = json!({
        "Name": "one", "Port": TLS, "Protocol": "http",
        "TLS": {"Certificates": names.collect::<Vec<_>>()},
    });
    let mut entries: Vec<_> = (0..1_000)
        .map(|number| entry(number, &pair(&format!("{number}.test"))))
        .collect();
    entries.push(gateway(json!([listener])));
    entries.push(route("a", json!(null), json!([to("/", "api")])));
    let scene = Scene::start(&[API], &entries).await;
    let server = scene.port(TLS);
    let envoy = scene.sidecars.last().expect("the gateway");
    let found = eventually(
        "it accepts TLS",
        || connect(server, CHANGED),
        Option::is_some,
    );
    let mut open = found.await.expect("a connection");
    assert_eq!(ask_on(&mut open).await, "HTTP/1.1 200 OK");
    let listeners = async || {
        let counters = ["added", "modified", "removed", "in_place_updated"];
        let mut found = Vec::new();
        for counter in counters {
            let name = format!("listener_manager.listener_{counter}");
            found.push(envoy.stat(&name).await);
        }
        found
    };
    let before = listeners().await;
    assert_eq!(before[0], 1, "{before:?}");

    let renewed = pair(CHANGED);
    scene.mesh.entry(entry(500, &renewed)).await;
    let der = CertificateDer::from_pem_slice(renewed.0.as_bytes()).expect("PEM");
    let is_renewed = |found: &Option<CertificateDer<'static>>| found.as_ref() == Some(&der);
    eventually("it is renewed", || presented(server, CHANGED), is_renewed).await;
    assert_eq!(listeners().await, before);
    assert_eq!(ask_on(&mut open).await, "HTTP/1.1 200 OK");
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_get_the_certificate_of_the_name_that_they_ask_for() {
    let entry = |name: &str, (certificate, key): &(String, String)| {
        json!({
            "Kind": "inline-certificate", "Name": name, "Certificate": certificate,
            "PrivateKey": key,
        })
    };
    let (a, b, renewed) = (pair("a.test"), pair("b.test"), pair("a.test"));
    let listener = json!({
        "Name": "one", "Port": TLS, "Protocol": "http",
        "TLS": {"Certificates": [{"Name": "a"}, {"Name": "b"}]},
    });
    let entries = [
        entry("a", &a),
        entry("b", &b),
        gateway(json!([listener])),
        route("a", json!(null), json!([to("/", "api")])),
    ];
    let scene = Scene::start(&[API], &entries).await;
    let server = scene.port(TLS);
    let is = |pair: &(String, String)| {
        let der = CertificateDer::from_pem_slice(pair.0.as_bytes()).expect("PEM");
        move |found: &Option<CertificateDer<'static>>| found.as_ref() == Some(&der)
    };
    eventually("a is presented", || presented(server, "a.test"), is(&a)).await;
    eventually("b is presented", || presented(server, "b.test"), is(&b)).await;
    let other = presented(server, "c.test").await;
    assert!(other.is_some() && !is(&a)(&other) && !is(&b)(&other));
    scene.mesh.entry(entry("a", &renewed)).await;
    eventually(
        "it is renewed",
        || presented(server, "a.test"),
        is(&renewed),
    )
    .await;
    assert!(is(&b)(&presented(server, "b.test").await));
    // Plain HTTP gets no answer.
    assert!(request(server, ("a.test", "/"), &[]).await.is_err());

    // An expired certificate is in the status.
    let expired = pair_from("a.test", SystemTime::now() - 2 * HOUR);
    scene.mesh.entry(entry("a", &expired)).await;
    let envoy = scene.sidecars.last().expect("the gateway");
    let shown = || async { envoy.status().await["envoy"]["expired_certificates"].take() };
    let is = |shown: &Value| shown.as_array().is_some_and(|shown| shown.len() == 1);
    eventually("the status names it", shown, is).await;
    scene.stop().await;
}
