//! Certificates at an API server, and the webhook over real TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_identity::{Authority, CertificateInfo, RootRequest};
use legate_kubernetes::certificates::Certificates;
use legate_kubernetes::context::{Caches, Context};
use legate_kubernetes::{certificates, inject};
use legate_runtime::logging::{Level, LogOptions};
use legate_runtime::metrics::{Registry, encode};
use legate_runtime::{Clock, Readiness, Scope};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::api_server::{ApiServer, CONFIGURATION, SECRETS, decoded};
use super::support::{options, pod, service};

const PATIENCE: Duration = Duration::from_secs(30);
const NAME: &str = "legate-operator.mesh.svc";

/// The injecting part of an operator's replica.
struct Replica {
    address: SocketAddr,
    readiness: Readiness,
    registry: Registry,
    certificates: Certificates,
}

async fn replica(scope: &Scope, client: &kube::Client, flags: &[&str]) -> Replica {
    let mut options = options(flags);
    options.ports.bind = [127, 0, 0, 1].into();
    options.ports.webhook_port = 0;
    let (readiness, registry) = (Readiness::new(), Registry::new());
    let context = Context {
        options: Arc::new(options),
        config: Arc::new(serde_json::from_str("{}").unwrap()),
        log: LogOptions {
            name: "test",
            level: Level::Info,
            json: false,
        },
        client: client.clone(),
        caches: Caches::start(client, &readiness, &scope.spawner()),
        controllers: scope.spawner(),
        answers: scope.spawner(),
        readiness: readiness.clone(),
        registry: registry.clone(),
        clock: Clock::system(),
    };
    let certificates = certificates::start(&context).unwrap();
    let webhook = inject::start(&context, &certificates).await.unwrap();
    Replica {
        address: webhook.address,
        readiness,
        registry,
        certificates,
    }
}

impl Replica {
    async fn ready(&self) {
        let ready = timeout(PATIENCE, self.readiness.wait_ready()).await;
        assert!(ready.is_ok(), "{:?}", self.readiness.report());
    }

    /// A connection that verifies the webhook with `bundle`, like the API server.
    async fn connect(&self, bundle: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bundle).unwrap();
        let options = ClientTls {
            ca: Some(file.path().to_owned()),
            ..ClientTls::default()
        };
        let connector = TlsConnector::from(client_config(&options).unwrap());
        let stream = TcpStream::connect(self.address).await?;
        connector.connect(server_name(NAME).unwrap(), stream).await
    }

    async fn post(&self, bundle: &str, path: &str, body: &[u8]) -> (u16, String) {
        let mut stream = self.connect(bundle).await.unwrap();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {NAME}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // A server that refuses may not read the whole request.
        let _ = stream.write_all(body).await;
        let mut answer = Vec::new();
        let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    async fn review(&self, bundle: &str, review: &Value) -> Value {
        let body = review.to_string();
        let (status, answer) = self.post(bundle, "/mutate", body.as_bytes()).await;
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
        answer["response"].clone()
    }
}

fn bundle(api: &ApiServer) -> String {
    let configuration = api.get(CONFIGURATION).unwrap();
    let bundles = configuration["webhooks"].as_array().unwrap().iter();
    let mut bundles: Vec<&Value> = bundles
        .map(|webhook| {
            assert_eq!(webhook["clientConfig"]["service"]["path"], "/mutate");
            &webhook["clientConfig"]["caBundle"]
        })
        .collect();
    bundles.dedup();
    assert_eq!(bundles.len(), 1);
    decoded(bundles[0])
}

fn review(object: &Value) -> Value {
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "0c9a8d74", "operation": "CREATE", "namespace": "shop", "name": "",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "userInfo": { "username": "someone" },
            "object": object, "oldObject": null, "dryRun": false,
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_decided_about_over_tls_from_caches_alone() {
    let scope = Scope::new("test");
    let (api, client) = ApiServer::start(&scope.spawner()).await;
    let web = service("web", "shop", json!({ "app": "web" }));
    api.put("/services/web", json!(*web));
    let labels = json!({ "consul.hashicorp.com/transparent-proxy": "false" });
    api.put(
        "/namespaces/shop",
        json!({ "metadata": { "name": "shop", "labels": labels } }),
    );
    let replica = replica(&scope, &client, &[]).await;
    replica.ready().await;
    let bundle = bundle(&api);
    // From here on the API server is not needed.
    api.broken.store(true, Ordering::Relaxed);

    let object = pod(&[("unheard-of", "x")]);
    let answer = replica.review(&bundle, &review(&object)).await;
    assert_eq!(answer["allowed"], true);
    assert_eq!(answer["patchType"], "JSONPatch");
    assert_eq!(answer["warnings"].as_array().unwrap().len(), 1);
    let patch: json_patch::Patch = serde_json::from_str(&decoded(&answer["patch"])).unwrap();
    let mut injected = object.clone();
    json_patch::patch(&mut injected, &patch).unwrap();
    // The namespace's label turns redirection off: only the sidecar remains.
    let init = injected["spec"]["initContainers"].as_array().unwrap();
    assert_eq!(
        (init.len(), &init[0]["name"]),
        (1, &json!("consul-dataplane"))
    );

    let mut other = pod(&[]);
    other["metadata"]["labels"]["app"] = json!("nobody");
    let answer = replica.review(&bundle, &review(&other)).await;
    assert_eq!(answer["allowed"], false);
    let message = answer["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("no Service in shop selects the pod"),
        "{message}"
    );

    let mut no_pod = review(&json!({ "metadata": {}, "spec": { "containers": 7 } }));
    let answer = replica.review(&bundle, &no_pod).await;
    assert!(
        answer["status"]["message"]
            .as_str()
            .unwrap()
            .contains("is not a pod")
    );
    no_pod["request"]["kind"]["kind"] = json!("Secret");
    let answer = replica.review(&bundle, &no_pod).await;
    assert!(
        answer["status"]["message"]
            .as_str()
            .unwrap()
            .contains("received a Secret")
    );
    let mut update = review(&object);
    update["request"]["operation"] = json!("UPDATE");
    let answer = replica.review(&bundle, &update).await;
    assert_eq!(
        (&answer["allowed"], answer.get("patch")),
        (&json!(true), None)
    );

    garbage(&replica, &bundle).await;
    let metrics = encode(&replica.registry);
    for line in [
        "{result=\"injected\"} 1\n",
        "{result=\"invalid\"} 6\n",
        "{result=\"refused\"} 3\n",
    ] {
        let line = format!("legate_k8s_admissions_total{line}");
        assert!(metrics.contains(&line), "{metrics}");
    }
    scope.stop(PATIENCE).await.unwrap();
}

/// Bodies that are not a review.
async fn garbage(replica: &Replica, bundle: &str) {
    for garbage in [
        &b"{"[..],
        b"",
        b"[]",
        b"{\"kind\":\"AdmissionReview\"}",
        b"\xff\xfe",
    ] {
        let (status, text) = replica.post(bundle, "/mutate", garbage).await;
        assert_eq!(status, 400);
        assert!(
            text.starts_with("this is not an AdmissionReview: ") && text.len() < 400,
            "{text}"
        );
    }
    let long = vec![b' '; 5 * 1024 * 1024];
    assert_eq!(replica.post(bundle, "/mutate", &long).await.0, 413);
    assert_eq!(replica.post(bundle, "/other", b"{}").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_do_not_block_others() {
    let scope = Scope::new("test");
    let (api, client) = ApiServer::start(&scope.spawner()).await;
    let replica = replica(&scope, &client, &[]).await;
    replica.ready().await;
    let mut silent = Vec::new();
    for _ in 0..400 {
        silent.push(TcpStream::connect(replica.address).await.unwrap());
    }
    let answer = replica
        .review(&bundle(&api), &review(&json!({ "metadata": {} })))
        .await;
    assert_eq!(answer["allowed"], true, "{answer}");
    // Each may take the time of one request.
    for mut stream in silent {
        let end = timeout(PATIENCE, stream.read(&mut [0])).await;
        assert!(matches!(end, Ok(Ok(0) | Err(_))));
    }
    scope.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_share_one_ca_and_wait_for_an_unreachable_api_server() {
    let scope = Scope::new("test");
    let (api, client) = ApiServer::start(&scope.spawner()).await;
    api.broken.store(true, Ordering::Relaxed);
    let flags = ["--tls", "--managed-ca"];
    let one = replica(&scope, &client, &flags).await;
    let other = replica(&scope, &client, &flags).await;
    let mut readiness = one.readiness.clone();
    let pending = |readiness: &Readiness| {
        let reasons = format!("{:?}", readiness.report());
        reasons.contains("the Secret legate-webhook-cert cannot be read")
            && reasons.contains("etcd is away")
    };
    while !pending(&readiness) {
        timeout(PATIENCE, readiness.changed()).await.unwrap();
    }
    api.broken.store(false, Ordering::Relaxed);
    one.ready().await;
    other.ready().await;
    let bundle = bundle(&api);
    for replica in [&one, &other] {
        let answer = replica
            .review(&bundle, &review(&json!({ "metadata": {} })))
            .await;
        assert_eq!(answer["allowed"], true, "{answer}");
    }
    assert_eq!(api.secret("legate-webhook-cert", "ca.crt"), bundle);
    // The servers' certificate is signed by the published CA.
    let ca = api.secret("legate-ca-cert", "tls.crt");
    let leaf = api.secret("legate-server-cert", "tls.crt");
    let (ca, leaf) = [ca, leaf]
        .map(|pem| CertificateInfo::from_pem(&pem).unwrap())
        .into();
    assert_eq!(leaf.authority_key_id, Some(ca.subject_key_id));
    assert!(
        leaf.dns_names
            .contains(&"legate-server.mesh.svc".to_owned())
    );
    assert!(
        api.secret("legate-server-cert", "tls.key")
            .contains("PRIVATE KEY")
    );
    scope.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_ca_is_never_replaced() {
    let scope = Scope::new("test");
    let (api, client) = ApiServer::start(&scope.spawner()).await;
    let path = format!("{SECRETS}/legate-ca-key");
    let damaged = json!({ "metadata": { "name": "legate-ca-key" },
                          "data": { "ca.crt": "Z2FyYmFnZQ==", "ca.key": "Z2FyYmFnZQ==" } });
    let before = api.put(&path, damaged);
    let replica = replica(&scope, &client, &["--tls", "--managed-ca"]).await;
    let mut readiness = replica.readiness.clone();
    while !format!("{:?}", readiness.report())
        .contains("legate-ca-key holds no CA of this operator")
    {
        timeout(PATIENCE, readiness.changed()).await.unwrap();
    }
    assert_eq!(api.get(&path), Some(before));
    scope.stop(PATIENCE).await.unwrap();
}

/// A CA that the operator has not made.
fn root() -> Authority {
    Authority::generate_root(RootRequest {
        common_name: "of others".to_owned(),
        uri: "urn:test".to_owned(),
        serial: 1,
        now: SystemTime::now(),
        ttl: Duration::from_secs(3600),
    })
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ca_in_files_signs_the_servers_certificate() {
    let scope = Scope::new("test");
    let (api, client) = ApiServer::start(&scope.spawner()).await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (before, now) = (root(), root());
    // The one that signs is found by its key.
    let bundle = before.cert_pem().to_owned() + now.cert_pem();
    std::fs::write(file("ca.crt"), &bundle).unwrap();
    std::fs::write(file("ca.key"), root().key_pem()).unwrap();
    let flags = [
        "--tls".to_owned(),
        format!("--ca-certs={}", file("ca.crt").display()),
        format!("--ca-key={}", file("ca.key").display()),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let signed_by = |ca: &Authority| {
        let leaf = api.secret("legate-server-cert", "tls.crt");
        let leaf = CertificateInfo::from_pem(&leaf).unwrap();
        assert_eq!(
            leaf.authority_key_id,
            Some(ca.info().subject_key_id.clone())
        );
        let name = "*.server.dc1.consul".to_owned();
        assert!(leaf.dns_names.contains(&name), "{:?}", leaf.dns_names);
    };
    let first = replica(&scope, &client, &flags).await;
    let mut readiness = first.readiness.clone();
    while !format!("{:?}", readiness.report()).contains("(--ca-key) cannot be used") {
        timeout(PATIENCE, readiness.changed()).await.unwrap();
    }
    std::fs::write(file("ca.key"), now.key_pem()).unwrap();
    first.ready().await;
    signed_by(&now);
    let found = first.certificates.signing_ca().borrow().clone().unwrap();
    assert_eq!(
        (found.certificates, found.key.expose()),
        (bundle, now.key_pem().as_str())
    );

    let path = format!("{SECRETS}/legate-server-cert");
    let held = api.get(&path);
    replica(&scope, &client, &flags).await.ready().await;
    assert_eq!(api.get(&path), held, "it is kept");
    std::fs::write(file("ca.key"), before.key_pem()).unwrap();
    replica(&scope, &client, &flags).await.ready().await;
    signed_by(&before);
    // The CA stays with those who have given it.
    for name in ["legate-ca-key", "legate-ca-cert"] {
        assert_eq!(api.get(&format!("{SECRETS}/{name}")), None, "{name}");
    }
    scope.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_from_files_is_presented_and_nothing_is_patched() {
    let scope = Scope::new("test");
    let (api, client) = ApiServer::start(&scope.spawner()).await;
    let folder = tempfile::tempdir().unwrap();
    let (now, root) = (SystemTime::now(), root());
    let leaf = root
        .issue(legate_identity::LeafRequest {
            uris: Vec::new(),
            dns_names: vec![NAME.to_owned()],
            ips: Vec::new(),
            serial: 2,
            now,
            ttl: Duration::from_secs(3600),
        })
        .unwrap();
    let flag = format!("--webhook-cert-dir={}", folder.path().display());
    let replica = replica(&scope, &client, &[&flag]).await;
    let mut readiness = replica.readiness.clone();
    while !format!("{:?}", readiness.report()).contains("tls.crt") {
        timeout(PATIENCE, readiness.changed()).await.unwrap();
    }
    assert!(replica.connect(root.cert_pem()).await.is_err());
    std::fs::write(folder.path().join("tls.crt"), &leaf.cert_pem).unwrap();
    std::fs::write(folder.path().join("tls.key"), leaf.key.to_pem()).unwrap();
    replica.ready().await;
    replica.connect(root.cert_pem()).await.unwrap();
    let configuration = api.get(CONFIGURATION).unwrap();
    assert_eq!(
        configuration["webhooks"][0]["clientConfig"].get("caBundle"),
        None
    );
    scope.stop(PATIENCE).await.unwrap();
}
