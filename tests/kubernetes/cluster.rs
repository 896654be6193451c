//! A small cluster: a fake API server, operators, and injected pods.

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use kube::Client;
use legate_kubernetes::leader::{self, Times};
use legate_kubernetes::servers::{Credentials, Options, Servers};
use legate_kubernetes::sync;
use legate_kubernetes::tenancy::Tenants;
use legate_runtime::metrics::Registry;
use legate_runtime::{Clock, Scope};
use legate_server::{Parts, Server, ServerConfig};
use legate_store::Store;
use legate_testkit::kubernetes::FakeKubernetes;
use legate_tests::{client, eventually};
use serde_json::{Value, json};

const PREFIX: &str = "consul.hashicorp.com/";

/// Short, so that tests of a lost lease are fast.
pub(crate) const TIMES: Times = Times {
    duration: Duration::from_millis(2_000),
    renew_within: Duration::from_millis(1_000),
    retry: Duration::from_millis(100),
};

/// A control plane of this workspace without ACLs, on `address` or a free port.
pub(crate) async fn server(address: Option<SocketAddr>, store: &Store) -> Server {
    let config = ServerConfig {
        http: Some(address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap())),
        ..config()
    };
    start(config, store).await
}

pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        http: Some("127.0.0.1:0".parse().unwrap()),
        grpc: None,
        grpc_tls: None,
        dns: None,
        ..ServerConfig::default()
    }
}

pub(crate) async fn start(config: ServerConfig, store: &Store) -> Server {
    let parts = Parts {
        store: Some(store.clone()),
        ..Parts::default()
    };
    Server::start(config, parts).await.unwrap()
}

/// A fake API server, and the address of the control plane.
pub(crate) struct Cluster {
    pub(crate) kubernetes: FakeKubernetes,
    pub(crate) http: SocketAddr,
    pub(crate) credentials: Credentials,
    pub(crate) auth_method: Option<String>,
    pub(crate) tenants: Tenants,
}

impl Cluster {
    pub(crate) async fn new(http: SocketAddr) -> Cluster {
        let kubernetes = FakeKubernetes::start().await;
        for name in ["n1", "n2"] {
            kubernetes.apply(json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {
                    "topology.kubernetes.io/region": "r1", "topology.kubernetes.io/zone": "z1",
                }},
            }));
        }
        kubernetes.apply(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.7", "type": "ClusterIP",
                "ports": [{"port": 80, "targetPort": 8080}]},
        }));
        Cluster {
            kubernetes,
            http,
            credentials: Credentials::None,
            auth_method: None,
            tenants: Tenants::default(),
        }
    }

    /// Starts an operator, which stops with the scope.
    pub(crate) fn operator(&self, name: &str) -> Scope {
        self.operator_with(name, &Registry::new())
    }

    /// The same with metrics in the given registry.
    pub(crate) fn operator_with(&self, name: &str, registry: &Registry) -> Scope {
        let scope = Scope::new("operator");
        let url = self.kubernetes.url().parse().unwrap();
        let kubernetes = Client::try_from(kube::Config::new(url)).unwrap();
        let options = Options {
            host: self.http.ip().to_string(),
            port: self.http.port(),
            tls: None,
            credentials: self.credentials.clone(),
            partition: self.tenants.partition().map(str::to_owned),
        };
        let servers = Servers::new(options, scope.spawner()).unwrap();
        let sync = sync::Options {
            gateway_api: false,
            reporter: "legate-operator".to_owned(),
            installation: "default/legate".to_owned(),
            node_meta: [("team".to_owned(), "a".to_owned())].into(),
            tenants: self.tenants.clone(),
            auth_method: self.auth_method.clone(),
            component_auth_method: None,
            metrics: sync::SyncMetrics::register(registry).unwrap(),
            clock: Clock::system(),
        };
        let lease = leader::Settings {
            namespace: "default".to_owned(),
            name: "legate-operator".to_owned(),
            identity: name.to_owned(),
            times: TIMES,
        };
        let client = kubernetes.clone();
        let writers = move |lead: leader::Lead, spawner: legate_runtime::Spawner| {
            let run = sync::run(kubernetes.clone(), servers.clone(), lead, sync.clone());
            spawner.spawn("sync", run);
        };
        let run = leader::run(client, lease, Clock::system(), scope.spawner(), writers);
        scope.spawn("leader", run);
        scope
    }

    /// Creates an injected pod.
    pub(crate) fn pod(&self, name: &str, uid: &str, ready: bool) {
        self.kubernetes.apply(pod(name, uid, ready));
    }

    /// Creates pods and waits for their proxies in the catalog; each pod's uid is its name.
    pub(crate) async fn with_pods(&self, names: &[&str]) {
        for name in names {
            self.pod(name, name, true);
        }
        let ready: Vec<_> = names.iter().map(|name| (*name, true)).collect();
        self.shows("web", &ready).await;
    }

    pub(crate) fn delete_pod(&self, name: &str) {
        self.kubernetes.delete("Pod", "default", name);
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (_, body) = client::get(self.http, path).await.unwrap();
        serde_json::from_str(&body).unwrap_or_default()
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) {
        let sent = client::send(Method::PUT, self.http, path, None, Some(body)).await;
        let (status, answer) = sent.unwrap();
        assert!(status.is_success(), "{path}: {answer:?}");
    }

    /// The instances of a service's proxies by id, and whether all checks of each pass; empty while
    /// the control plane is unreachable.
    pub(crate) async fn proxies(&self, service: &str) -> Vec<(String, bool)> {
        let path = format!("/v1/health/connect/{service}");
        let Ok((_, body)) = client::get(self.http, &path).await else {
            return Vec::new();
        };
        let rows: Vec<Value> = serde_json::from_str(&body).unwrap_or_default();
        let mut found: Vec<_> = rows
            .iter()
            .map(|row| {
                let checks = row["Checks"].as_array().unwrap();
                let passing = checks.iter().all(|check| check["Status"] == "passing");
                (row["Service"]["ID"].as_str().unwrap().to_owned(), passing)
            })
            .collect();
        found.sort();
        found
    }

    /// Waits until a service has exactly these pods with this readiness.
    pub(crate) async fn shows(&self, service: &str, pods: &[(&str, bool)]) {
        let wanted: Vec<(String, bool)> = pods
            .iter()
            .map(|(pod, ready)| (format!("{pod}-{service}-sidecar-proxy"), *ready))
            .collect();
        let what = format!("{service} has {pods:?}");
        eventually(&what, || self.proxies(service), |found| *found == wanted).await;
    }
}

pub(crate) fn pod(name: &str, uid: &str, ready: bool) -> Value {
    let annotation = |name: &str| format!("{PREFIX}{name}");
    let ready = if ready { "True" } else { "False" };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": uid,
            "labels": {
                "app": "web", (annotation("connect-inject-managed-by")): "legate-k8s",
            },
            "annotations": {
                (annotation("connect-inject-status")): "injected",
                (annotation("connect-service")): "web",
                (annotation("connect-service-port")): "8080",
                (annotation("connect-service-upstreams")): "api:1234",
                (annotation("transparent-proxy-status")): "enabled",
                (annotation("service-tags")): "v1,$POD_NAME",
                (annotation("service-meta-team")): "a",
                (annotation("prometheus-scrape-port")): "20200",
                (annotation("expose-paths")):
                    "[{\"ListenerPort\":20300,\"LocalPathPort\":8080,\"Path\":\"/healthz\",\"Protocol\":\"http\"}]",
            },
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "web"}]},
        "status": {
            "phase": "Running", "podIP": "10.244.0.5", "hostIP": "192.0.2.1",
            "conditions": [{"type": "Ready", "status": ready}],
        },
    })
}
