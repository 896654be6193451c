//! Control plane, applications and sidecars of one scenario.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use http::Method;
use legate_ca::CaConfig;
use legate_intentions::Action;
use legate_model::Secret;
use legate_runtime::Scope;
use legate_server::{AclConfig, DefaultPolicy, Parts, Server, ServerConfig};
use legate_store::Store;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client;
use crate::sidecar::{Sidecar, SidecarFlags};
use crate::{app, wait};

/// The catalog node everything is registered on.
pub const NODE: &str = "node-1";
/// The token that may do everything where ACLs are on.
pub const MANAGEMENT: &str = "4ed1b1c2-0c3d-4f6c-9a9b-1c0f2f7a5e11";

const HTTP: u16 = 8500;
const GRPC: u16 = 8502;
const GRPC_TLS: u16 = 8503;
const APP: u16 = 8080;
const PUBLIC: u16 = 20000;
const FIRST_UPSTREAM: u16 = 9001;
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What differs between scenarios.
#[derive(Debug, Clone, Default)]
pub struct MeshOptions {
    /// ACLs with default deny; [`MANAGEMENT`] may do everything.
    pub acl: bool,
    /// Lifetimes of certificates.
    pub ca: CaConfig,
}

/// One service instance with its sidecar.
#[derive(Debug, Clone)]
pub struct ServiceSpec {
    /// Name of the service.
    pub service: &'static str,
    /// Instance ID; also what the application answers with.
    pub instance: &'static str,
    /// `tcp` or `http`.
    pub protocol: &'static str,
    /// Destinations, in the order of their local ports.
    pub upstreams: &'static [&'static str],
}

/// A control plane and what was started around it.
pub struct Mesh {
    /// State of the control plane; outlives a stopped server.
    pub store: Store,
    config: ServerConfig,
    server: Option<Server>,
    apps: Scope,
    folder: TempDir,
    network: [u8; 2],
    places: BTreeMap<&'static str, u8>,
}

impl Mesh {
    /// Starts the control plane on addresses of its own. Intentions deny by default.
    ///
    /// # Panics
    ///
    /// When the server does not start.
    pub async fn start(options: MeshOptions) -> Self {
        let network = next_network();
        let control = IpAddr::from(Ipv4Addr::new(127, network[0], network[1], 1));
        let acl = AclConfig {
            enabled: options.acl,
            default_policy: if options.acl {
                DefaultPolicy::Deny
            } else {
                DefaultPolicy::Allow
            },
            initial_management: options.acl.then(|| Secret::new(MANAGEMENT)),
        };
        let config = ServerConfig {
            node_name: "server".into(),
            advertise: control,
            http: Some((control, HTTP).into()),
            grpc: Some((control, GRPC).into()),
            grpc_tls: Some((control, GRPC_TLS).into()),
            dns: None,
            acl,
            default_intention_policy: Some(Action::Deny),
            ca: options.ca,
            ..ServerConfig::default()
        };
        let mut mesh = Self {
            store: Store::new(),
            config,
            server: None,
            apps: Scope::new("applications"),
            folder: tempfile::tempdir().expect("a temporary folder"),
            network,
            places: BTreeMap::new(),
        };
        mesh.start_server().await;
        let roots = mesh
            .api(Method::GET, "/v1/connect/ca/roots?pem=true", None)
            .await;
        std::fs::write(mesh.roots(), roots).expect("the roots can be written");
        mesh
    }

    /// Starts the server again, with the state it had.
    ///
    /// # Panics
    ///
    /// When the server does not start.
    pub async fn start_server(&mut self) {
        let parts = Parts {
            store: self.store.clone(),
            ..Parts::default()
        };
        let server = Server::start(self.config.clone(), parts)
            .await
            .expect("the control plane starts");
        self.server = Some(server);
    }

    /// Stops the server; its state stays.
    ///
    /// # Panics
    ///
    /// When it does not stop.
    pub async fn stop_server(&mut self) {
        let server = self.server.take().expect("the control plane runs");
        server
            .stop(STOP_LIMIT)
            .await
            .expect("the control plane stops");
    }

    /// Root certificates as a file.
    #[must_use]
    pub fn roots(&self) -> PathBuf {
        self.folder.path().join("roots.pem")
    }

    /// A file in the folder of this mesh.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Calls the HTTP API as management and returns the answer.
    ///
    /// # Panics
    ///
    /// On every status but success, with what the server said.
    pub async fn api(&self, method: Method, path: &str, body: Option<Value>) -> String {
        let http = self.config.http.expect("the HTTP API is on");
        let token = self.config.acl.enabled.then_some(MANAGEMENT);
        let answer = client::send(method.clone(), http, path, token, body.as_ref()).await;
        let (status, text) = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        assert!(status.is_success(), "{method} {path}: {status}: {text}");
        text
    }

    /// Writes an intention.
    pub async fn intend(&self, source: &str, destination: &str, action: &str) {
        let path =
            format!("/v1/connect/intentions/exact?source={source}&destination={destination}");
        self.api(Method::PUT, &path, Some(json!({"Action": action})))
            .await;
    }

    /// Starts the application of an instance and registers it with its proxy.
    pub async fn register(&mut self, spec: &ServiceSpec) {
        let address = self.place(spec.instance);
        match spec.protocol {
            "tcp" => app::tcp(spec.instance, (address, APP).into(), &self.apps).await,
            _ => app::http(spec.instance, (address, APP).into(), &self.apps).await,
        }
        let defaults =
            json!({"Kind": "service-defaults", "Name": spec.service, "Protocol": spec.protocol});
        self.api(Method::PUT, "/v1/config", Some(defaults)).await;
        for service in [self.instance(spec), self.proxy(spec)] {
            let registration = json!({"Node": NODE, "Address": "127.0.0.1", "Service": service});
            self.api(Method::PUT, "/v1/catalog/register", Some(registration))
                .await;
        }
    }

    fn instance(&self, spec: &ServiceSpec) -> Value {
        let address = self.places[spec.instance];
        json!({"ID": spec.instance, "Service": spec.service, "Address": self.address(address).to_string(), "Port": APP})
    }

    fn proxy(&self, spec: &ServiceSpec) -> Value {
        let address = self.address(self.places[spec.instance]).to_string();
        let upstreams: Vec<Value> = (FIRST_UPSTREAM..)
            .zip(spec.upstreams)
            .map(|(port, name)| json!({"DestinationName": name, "LocalBindAddress": address, "LocalBindPort": port}))
            .collect();
        json!({
            "Kind": "connect-proxy",
            "ID": proxy_id(spec.instance),
            "Service": proxy_id(spec.service),
            "Address": address,
            "Port": PUBLIC,
            "Proxy": {
                "DestinationServiceName": spec.service,
                "DestinationServiceID": spec.instance,
                "LocalServiceAddress": address,
                "LocalServicePort": APP,
                "Upstreams": upstreams,
            },
        })
    }

    /// Sets the health of an instance's proxy.
    pub async fn check(&self, instance: &str, status: &str) {
        let id = proxy_id(instance);
        let check = json!({"CheckID": format!("{id}-ready"), "Name": "ready", "Status": status, "ServiceID": id});
        let registration = json!({"Node": NODE, "Address": "127.0.0.1", "Check": check});
        self.api(Method::PUT, "/v1/catalog/register", Some(registration))
            .await;
    }

    /// Takes an instance and its proxy out of the catalog.
    pub async fn deregister(&self, instance: &str) {
        for id in [proxy_id(instance), instance.to_owned()] {
            let body = json!({"Node": NODE, "ServiceID": id});
            self.api(Method::PUT, "/v1/catalog/deregister", Some(body))
                .await;
        }
    }

    /// The flags of the sidecar of an instance: TLS to the server, no token.
    #[must_use]
    pub fn flags(&mut self, instance: &'static str) -> SidecarFlags {
        let control = self.config.advertise.to_string();
        let flags = vec![
            ("addresses", control),
            ("grpc-port", GRPC_TLS.to_string()),
            ("ca-certs", self.roots().display().to_string()),
            ("tls-server-name", "server.dc1.consul".to_owned()),
            ("proxy-node-name", NODE.to_owned()),
            ("proxy-id", proxy_id(instance)),
        ];
        SidecarFlags {
            address: self.place(instance),
            flags,
        }
    }

    /// Starts a sidecar with these flags.
    #[must_use]
    pub fn sidecar(&self, name: &str, flags: &SidecarFlags) -> Sidecar {
        Sidecar::spawn(flags, self.file(&format!("{name}.log")))
    }

    /// Registers an instance, starts its sidecar and waits until it is ready.
    pub async fn add(&mut self, spec: &ServiceSpec) -> Sidecar {
        self.register(spec).await;
        let flags = self.flags(spec.instance);
        let mut sidecar = self.sidecar(spec.instance, &flags);
        sidecar.ready().await;
        sidecar
    }

    /// Where the application of an instance finds its n-th upstream.
    #[must_use]
    pub fn upstream(&self, instance: &str, index: u16) -> SocketAddr {
        (self.address(self.places[instance]), FIRST_UPSTREAM + index).into()
    }

    /// Where other sidecars reach an instance.
    #[must_use]
    pub fn public(&self, instance: &str) -> SocketAddr {
        (self.address(self.places[instance]), PUBLIC).into()
    }

    /// Asks an upstream until it answers with a status.
    pub async fn settle(&self, instance: &str, status: u16) {
        let upstream = self.upstream(instance, 0);
        let probe = || async move {
            client::get(upstream, "/")
                .await
                .map_err(|error| error.to_string())
        };
        let accept = |answer: &Result<client::Answer, String>| matches!(answer, Ok((got, _)) if got.as_u16() == status);
        let _answer = wait::eventually(
            &format!("the upstream of {instance} answers {status}"),
            probe,
            accept,
        )
        .await;
    }

    /// Ends applications and control plane; sidecars are stopped by the scenario.
    ///
    /// # Panics
    ///
    /// When something does not stop or had failed.
    pub async fn stop(mut self) {
        self.apps
            .stop(STOP_LIMIT)
            .await
            .expect("the applications stop");
        if self.server.is_some() {
            self.stop_server().await;
        }
    }

    fn place(&mut self, instance: &'static str) -> IpAddr {
        let next = 10 + u8::try_from(self.places.len()).expect("a scenario is small");
        let place = *self.places.entry(instance).or_insert(next);
        self.address(place)
    }

    fn address(&self, place: u8) -> IpAddr {
        Ipv4Addr::new(127, self.network[0], self.network[1], place).into()
    }
}

/// ID and name of the proxy beside an instance or a service.
#[must_use]
pub fn proxy_id(of: &str) -> String {
    format!("{of}-sidecar-proxy")
}

/// A loopback network that no other mesh of this process, and hardly one of another, uses.
fn next_network() -> [u8; 2] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let network = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = (std::process::id() % 199) as u8;
    [
        20 + process,
        1 + u8::try_from(network % 250).unwrap_or_default(),
    ]
}
