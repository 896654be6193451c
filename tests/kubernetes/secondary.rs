//! Access control of two datacenters, as the chart's Jobs set it up with real servers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use legate_identity::tls::ServerPolicy;
use legate_kubernetes::acl_init::{Options, SecondaryFlags, initialise};
use legate_kubernetes::servers::ServerFlags;
use legate_kubernetes::tenancy::TenancyFlags;
use legate_model::Secret;
use legate_server::{AclConfig, AgentFiles, DefaultPolicy, Server, ServerConfig, WanSettings};
use legate_store::Store;
use legate_testkit::certs::{CertFiles, TestCa};
use legate_testkit::kubernetes::FakeKubernetes;
use legate_tests::{client, eventually};
use serde_json::{Value, json};

use crate::cluster::{config, start};

const STOP: Duration = Duration::from_secs(10);
const METHOD: &str = "legate-k8s-auth-method";
const COMPONENTS: &str = "legate-k8s-component-auth-method-dc2";

/// A server and its cluster, with the account for token reviews.
struct Datacenter {
    server: Server,
    kubernetes: FakeKubernetes,
}

impl Datacenter {
    /// `primary`: the address of the primary's server, and the replication token.
    async fn start(ca: &TestCa, name: &str, primary: Option<(SocketAddr, &str)>) -> Self {
        let CertFiles { cert, key, .. } = ca.agent(&[&format!("server.{name}.consul")]);
        let mut config = ServerConfig {
            datacenter: name.to_owned(),
            node_name: format!("node-{name}"),
            acl: AclConfig {
                enabled: true,
                default_policy: DefaultPolicy::Deny,
                initial_management: None,
                key_list_policy: false,
            },
            primary_datacenter: Some("dc1".to_owned()),
            wan: Some(WanSettings {
                listen: SocketAddr::from(([127, 0, 0, 1], 0)),
                advertise: IpAddr::V4(Ipv4Addr::LOCALHOST),
                files: Some(AgentFiles {
                    certificate: cert,
                    key,
                    policy: ServerPolicy {
                        client_authorities: vec![ca.ca_file()],
                        ..ServerPolicy::default()
                    },
                }),
                join: primary
                    .iter()
                    .map(|(server, _)| server.to_string())
                    .collect(),
                retry_interval: Duration::from_secs(1),
                retry_max: 0,
                through_gateways: None,
            }),
            ..config()
        };
        let token = primary.map(|(_, token)| Secret::new(token));
        config.agent.tokens.replication = token;
        let kubernetes = FakeKubernetes::start().await;
        kubernetes.apply(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "legate-auth-method", "namespace": "mesh"},
            "data": {"ca.crt": STANDARD.encode(ca.ca_pem()), "token": STANDARD.encode("a.b.c")},
        }));
        Self {
            server: start(config, &Store::new()).await,
            kubernetes,
        }
    }

    fn options(&self) -> Options {
        let http = self.server.http_addr().unwrap();
        Options {
            full_name: "legate".to_owned(),
            namespace: "mesh".to_owned(),
            servers: ServerFlags {
                server_addresses: http.ip().to_string(),
                server_http_port: Some(http.port()),
                tls: false,
                ca_certs: None,
                use_system_roots: false,
                tls_server_name: None,
                tenancy: TenancyFlags::default(),
            },
            bootstrap_token_file: None,
            kubernetes_host: "https://kubernetes.default.svc".to_owned(),
            binding_rule_selector: "serviceaccount.name!=default".to_owned(),
            mesh_gateway: Some("mesh-gateway".parse().unwrap()),
            ingress_gateway: Vec::new(),
            terminating_gateway: Vec::new(),
            api_gateways: true,
            peering: true,
            create_replication_token: false,
            secondary: SecondaryFlags {
                replication_token_file: None,
                datacenter: None,
                primary_datacenter: None,
                primary_kubernetes_host: None,
            },
            timeout: Duration::from_secs(60),
        }
    }

    async fn initialise(&self, options: &Options) {
        let url = self.kubernetes.url().parse().unwrap();
        let client = kube::Client::try_from(kube::Config::new(url)).unwrap();
        initialise(options, client).await.unwrap();
    }

    /// The token in a Secret of the cluster.
    fn token(&self, name: &str) -> String {
        let secrets = self.kubernetes.objects("Secret");
        let mut named = secrets.iter().filter(|one| one["metadata"]["name"] == name);
        let token = named.next().unwrap()["data"]["token"]
            .as_str()
            .unwrap()
            .to_owned();
        String::from_utf8(STANDARD.decode(token).unwrap()).unwrap()
    }

    /// Null if it does not exist.
    async fn get(&self, path: &str, token: &str) -> Value {
        let http = self.server.http_addr().unwrap();
        let sent = client::send(Method::GET, http, path, Some(token), None).await;
        let (status, body) = sent.unwrap();
        match status.is_success() {
            true => serde_json::from_slice(body.as_ref()).unwrap(),
            false => Value::Null,
        }
    }
}

/// The options of the Job in the secondary, whose pods are in one namespace of the mesh.
fn secondary(datacenter: &Datacenter, token_file: PathBuf) -> Options {
    let mut options = datacenter.options();
    options.servers.tenancy.destination_namespace = Some("apps".parse().unwrap());
    options.servers.tenancy.cross_namespace_acl_policy = Some("cross".to_owned());
    options.secondary = SecondaryFlags {
        replication_token_file: Some(token_file),
        datacenter: Some("dc2".to_owned()),
        primary_datacenter: Some("dc1".to_owned()),
        primary_kubernetes_host: Some("https://192.0.2.1:6443".to_owned()),
    };
    options
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_job_of_a_secondary_sets_up_access_control_in_both_datacenters() {
    let ca = TestCa::new();
    let one = Datacenter::start(&ca, "dc1", None).await;
    let mut options = one.options();
    options.create_replication_token = true;
    one.initialise(&options).await;
    one.initialise(&options).await;
    let token = one.token("legate-acl-replication-acl-token");
    assert_ne!(token, one.token("legate-bootstrap-acl-token"));

    let primary = (one.server.servers_addr().unwrap(), token.as_str());
    let two = Datacenter::start(&ca, "dc2", Some(primary)).await;
    let file = ca.folder().join("token");
    std::fs::write(&file, &token).unwrap();
    let options = secondary(&two, file);
    two.initialise(&options).await;

    // Sidecars log in where they are.
    let path = format!("/v1/acl/auth-method/{METHOD}?ns=apps");
    let method = two.get(&path, &token).await;
    assert_eq!(method["Config"]["Host"], "https://kubernetes.default.svc");
    assert_eq!(one.get(&path, &token).await, Value::Null);
    // The operator and gateways log in everywhere.
    let path = format!("/v1/acl/auth-method/{COMPONENTS}");
    for datacenter in [&one, &two] {
        let read = || datacenter.get(&path, &token);
        let shared = |method: &Value| {
            method["TokenLocality"] == "global"
                && method["Config"]["Host"] == "https://192.0.2.1:6443"
        };
        eventually("the method is in both datacenters", read, shared).await;
    }
    let roles = one.get("/v1/acl/roles", &token).await;
    let roles = roles.as_array().unwrap().iter();
    let mut roles: Vec<&str> = roles.map(|role| role["Name"].as_str().unwrap()).collect();
    roles.sort_unstable();
    let expected = [
        "legate-gateway-api-reader",
        "legate-mesh-gateway-acl-role",
        "legate-mesh-gateway-acl-role-dc2",
        "legate-operator-acl-role",
        "legate-operator-acl-role-dc2",
    ];
    assert_eq!(roles, expected);
    let rules = format!("/v1/acl/binding-rules?authmethod={COMPONENTS}");
    let rules = one.get(&rules, &token).await;
    assert_eq!(rules.as_array().unwrap().len(), 3, "{rules}");

    let index = one.server.store().state().index();
    two.initialise(&options).await;
    assert_eq!(
        one.server.store().state().index(),
        index,
        "nothing is written twice"
    );
    for datacenter in [one, two] {
        datacenter.server.stop(STOP).await.unwrap();
    }
}
