//! Control plane, applications and sidecars of one scenario.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use http::Method;
use legate_ca::CaConfig;
use legate_runtime::Scope;
use legate_server::AgentFiles;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client;
use crate::control_plane::{ControlPlane, DNS, GRPC_TLS, HTTP};
use crate::replicas::Replicas;
use crate::scripted::{self, Requests};
use crate::sidecar::{Sidecar, SidecarFlags};
use crate::{app, wait};

/// The catalog node of all registrations.
pub const NODE: &str = "node-1";
/// The management token, if ACLs are on.
pub const MANAGEMENT: &str = "4ed1b1c2-0c3d-4f6c-9a9b-1c0f2f7a5e11";

const APP: u16 = 8080;
const PUBLIC: u16 = 20000;
const FIRST_UPSTREAM: u16 = 9001;
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The options of a scenario's mesh.
#[derive(Debug, Clone, Default)]
pub struct MeshOptions {
    /// ACLs with default deny; [`MANAGEMENT`] is the management token.
    pub acl: bool,
    /// Intentions allow by default instead of deny; for Legate's servers only.
    pub allow: bool,
    /// Certificate settings, for Legate's servers only.
    pub ca: CaConfig,
    /// A Consul program as the control plane; Legate's own server if `None`.
    pub consul: Option<PathBuf>,
    /// Whether Consul's state persists when it is stopped, which makes its start slower. Legate's server
    /// always has persistent state.
    pub durable: bool,
    /// The number of servers; 0 means 1. Several of Legate's servers are processes that share an etcd of
    /// three members and use default certificate lifetimes.
    pub servers: u8,
    /// The datacenter, if others exist; for Legate's servers only.
    pub datacenter: Option<Datacenter>,
    /// Whether several servers are in the catalog, for clusters that are peered with them.
    pub peering: bool,
}

/// A datacenter of several.
#[derive(Debug, Clone)]
pub struct Datacenter {
    /// Its name.
    pub name: &'static str,
    /// The primary datacenter.
    pub primary: &'static str,
    /// The certificate and CA of its server.
    pub files: AgentFiles,
    /// The address of the server of another datacenter that it joins.
    pub join: Option<IpAddr>,
    /// If servers of other datacenters are reached through mesh gateways only: those of the primary, for a secondary.
    pub gateways: Option<Vec<SocketAddr>>,
    /// If its only server is a process, which is killed when it is stopped: the address of the port for servers.
    pub node: Option<IpAddr>,
}

/// One service instance with its sidecar.
#[derive(Debug, Clone)]
pub struct ServiceSpec {
    /// The service's name.
    pub service: &'static str,
    /// Instance ID, which is also the application's response.
    pub instance: &'static str,
    /// `tcp` or `http`.
    pub protocol: &'static str,
    /// Upstreams, in the order of their local ports.
    pub upstreams: &'static [&'static str],
}

impl ServiceSpec {
    /// A service for TCP with one instance of the same name.
    #[must_use]
    pub const fn tcp(name: &'static str, upstreams: &'static [&'static str]) -> Self {
        Self {
            service: name,
            instance: name,
            protocol: "tcp",
            upstreams,
        }
    }
}

/// A control plane with its applications.
pub struct Mesh {
    control: ControlPlane,
    /// The value of `-addresses` of sidecars.
    addresses: String,
    datacenter: &'static str,
    /// The server used for the HTTP API.
    api: IpAddr,
    acl: bool,
    apps: Scope,
    folder: TempDir,
    network: [u8; 2],
    places: BTreeMap<&'static str, u8>,
    /// The value of `-proxy` of sidecars.
    proxy_kind: &'static str,
}

impl Mesh {
    /// Starts the control plane on addresses of its own. Intentions deny by default unless the options
    /// differ.
    ///
    /// # Panics
    ///
    /// If the server does not start.
    pub async fn start(options: MeshOptions) -> Self {
        let network = next_network();
        let address = Ipv4Addr::new(127, network[0], network[1], 1);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let control = ControlPlane::start(address, &options, folder.path()).await;
        let addresses = match &control {
            ControlPlane::Replicas(replicas) => replicas.addresses(),
            ControlPlane::Legate(_) | ControlPlane::Agent(_) | ControlPlane::Consul(_) => {
                address.to_string()
            }
        };
        let datacenter = options.datacenter.as_ref();
        Self {
            control,
            addresses,
            datacenter: datacenter.map_or("dc1", |datacenter| datacenter.name),
            api: address.into(),
            acl: options.acl,
            apps: Scope::new("applications"),
            folder,
            network,
            places: BTreeMap::new(),
            proxy_kind: "envoy",
        }
    }

    /// Restarts the server with its previous state.
    ///
    /// # Panics
    ///
    /// If the server does not start.
    pub async fn start_server(&mut self) {
        self.control.start_server(self.acl).await;
    }

    /// Stops the server; its state is kept.
    ///
    /// # Panics
    ///
    /// If it does not stop.
    pub async fn stop_server(&mut self) {
        self.control.stop_server().await;
    }

    /// Kills the server in `-addresses` of sidecars permanently; another one replaces it.
    ///
    /// # Panics
    ///
    /// If it is the only one.
    pub async fn lose_server(&mut self) {
        self.api = self.control.lose_first(self.acl).await;
    }

    /// The servers that share an etcd.
    ///
    /// # Panics
    ///
    /// If the control plane is of another kind.
    pub fn replicas(&mut self) -> &mut Replicas {
        match &mut self.control {
            ControlPlane::Replicas(replicas) => replicas,
            ControlPlane::Legate(_) | ControlPlane::Agent(_) | ControlPlane::Consul(_) => {
                panic!("the mesh was started with one server, or with Consul")
            }
        }
    }

    /// Uses the n-th server for the HTTP API from now on.
    ///
    /// # Panics
    ///
    /// If there are fewer servers.
    pub fn use_server(&mut self, n: usize) {
        self.api = self.replicas().address(n);
    }

    /// The address of the server.
    #[must_use]
    pub fn server(&self) -> IpAddr {
        self.api
    }

    /// The address of the server's HTTP API.
    #[must_use]
    pub fn http(&self) -> SocketAddr {
        SocketAddr::new(self.api, HTTP)
    }

    /// The path of a file in the folder of this mesh.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Calls the HTTP API with the management token and returns the response.
    ///
    /// # Panics
    ///
    /// On an error status, with the server's message.
    pub async fn api(&self, method: Method, path: &str, body: Option<Value>) -> String {
        let http = SocketAddr::new(self.api, HTTP);
        let token = self.acl.then_some(MANAGEMENT);
        let answer = client::send(method.clone(), http, path, token, body.as_ref()).await;
        let (status, text) = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        assert!(status.is_success(), "{method} {path}: {status}: {text}");
        text
    }

    /// Writes a config entry.
    pub async fn entry(&self, entry: Value) {
        self.api(Method::PUT, "/v1/config", Some(entry)).await;
    }

    /// Writes an intention.
    pub async fn intend(&self, source: &str, destination: &str, action: &str) {
        let path =
            format!("/v1/connect/intentions/exact?source={source}&destination={destination}");
        self.api(Method::PUT, &path, Some(json!({"Action": action})))
            .await;
    }

    /// Starts the application of an instance and registers it with its proxy, without checks.
    pub async fn register(&mut self, spec: &ServiceSpec) {
        self.register_with(spec, None).await;
    }

    /// The same, with a check of the proxy that is initially critical.
    pub async fn register_critical(&mut self, spec: &ServiceSpec) {
        self.register_with(spec, Some("critical")).await;
    }

    async fn register_with(&mut self, spec: &ServiceSpec, status: Option<&str>) {
        let address = self.application(spec.instance);
        match spec.protocol {
            "tcp" => app::tcp(spec.instance, address, &self.apps).await,
            _ => app::http(spec.instance, address, &self.apps).await,
        }
        self.register_only(spec, status).await;
    }

    /// Registers an instance whose application acts on the path of a request and counts requests. `header`
    /// is set by `/claims`, see [`scripted::serve`].
    pub async fn register_scripted(
        &mut self,
        spec: &ServiceSpec,
        header: &'static str,
        requests: &Requests,
    ) {
        let address = self.application(spec.instance);
        scripted::serve(spec.instance, address, header, requests, &self.apps).await;
        self.register_only(spec, None).await;
    }

    /// Registers an instance whose application is not running, or is started by the scenario.
    pub async fn register_dead(&mut self, spec: &ServiceSpec) {
        self.place(spec.instance);
        self.register_only(spec, None).await;
    }

    async fn register_only(&self, spec: &ServiceSpec, status: Option<&str>) {
        let defaults =
            json!({"Kind": "service-defaults", "Name": spec.service, "Protocol": spec.protocol});
        self.entry(defaults).await;
        let mut proxy = json!({"Service": self.proxy(spec)});
        if let Some(status) = status {
            proxy["Check"] = ready_check(spec.instance, status);
        }
        self.catalog(json!({"Service": self.instance(spec)})).await;
        self.catalog(proxy).await;
    }

    /// Sets the metadata of a registered instance's proxy.
    pub async fn describe(&self, spec: &ServiceSpec, meta: Value) {
        let mut proxy = self.proxy(spec);
        proxy["Meta"] = meta;
        self.catalog(json!({"Service": proxy})).await;
    }

    /// Registers an instance's proxy again with these tags.
    pub async fn set_tags(&self, spec: &ServiceSpec, tags: &[&str]) {
        let mut proxy = self.proxy(spec);
        proxy["Tags"] = json!(tags);
        self.catalog(json!({"Service": proxy})).await;
    }

    /// Registers an instance's proxy again with the ClusterIP of a Kubernetes Service.
    pub async fn tag(&self, spec: &ServiceSpec, cluster_ip: IpAddr) {
        let mut proxy = self.proxy(spec);
        proxy["TaggedAddresses"] = json!({"virtual": {"Address": cluster_ip, "Port": APP}});
        self.catalog(json!({"Service": proxy})).await;
    }

    /// Registers an instance's proxy again with these fields in `Proxy`.
    ///
    /// # Panics
    ///
    /// If they are not an object.
    pub async fn configure(&self, spec: &ServiceSpec, fields: Value) {
        let mut proxy = self.proxy(spec);
        for (field, value) in fields.as_object().expect("fields") {
            proxy["Proxy"][field] = value.clone();
        }
        self.catalog(json!({"Service": proxy})).await;
    }

    /// Registers an instance's proxy again with a region and zone.
    pub async fn locate(&self, spec: &ServiceSpec, locality: Value) {
        let mut proxy = self.proxy(spec);
        proxy["Locality"] = locality;
        self.catalog(json!({"Service": proxy})).await;
    }

    /// Starts an application outside of the mesh.
    pub async fn outsider(&mut self, name: &str, address: SocketAddr) {
        app::http(name, address, &self.apps).await;
    }

    /// The address of the control plane's DNS.
    #[must_use]
    pub fn dns(&self) -> SocketAddr {
        (self.api, DNS).into()
    }

    /// Registers something on the node [`NODE`].
    pub async fn catalog(&self, mut registration: Value) {
        registration["Node"] = json!(NODE);
        registration["Address"] = json!("127.0.0.1");
        self.api(Method::PUT, "/v1/catalog/register", Some(registration))
            .await;
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
        self.catalog(json!({"Check": ready_check(instance, status)}))
            .await;
    }

    /// Deregisters an instance and its proxy.
    pub async fn deregister(&self, instance: &str) {
        for id in [proxy_id(instance), instance.to_owned()] {
            let body = json!({"Node": NODE, "ServiceID": id});
            self.api(Method::PUT, "/v1/catalog/deregister", Some(body))
                .await;
        }
    }

    /// The flags of an instance's sidecar: TLS to the server, no token.
    #[must_use]
    pub fn flags(&mut self, instance: &'static str) -> SidecarFlags {
        let flags = vec![
            ("addresses", self.addresses.clone()),
            ("grpc-port", GRPC_TLS.to_string()),
            ("ca-certs", self.control.ca_file().display().to_string()),
            (
                "tls-server-name",
                format!("server.{}.consul", self.datacenter),
            ),
            ("proxy-node-name", NODE.to_owned()),
            ("proxy-id", proxy_id(instance)),
        ];
        SidecarFlags {
            program: None,
            address: self.place(instance),
            flags,
            proxy_kind: self.proxy_kind,
        }
    }

    /// Sidecars that start from now on have this kind of proxy, `envoy` or `builtin`. At first it is `envoy`.
    pub fn use_proxy(&mut self, kind: &'static str) {
        self.proxy_kind = kind;
    }

    /// Starts a sidecar with these flags.
    #[must_use]
    pub fn sidecar(&self, name: &str, flags: &SidecarFlags) -> Sidecar {
        Sidecar::spawn(flags, self.file(&format!("{name}.log")))
    }

    /// Registers an instance, starts its sidecar and waits until it is ready.
    pub async fn add(&mut self, spec: &ServiceSpec) -> Sidecar {
        self.register(spec).await;
        self.join(spec).await
    }

    /// Registers an instance in a partition and namespace, starts its sidecar and waits until it is ready.
    /// The upstreams are in the order of their local ports.
    ///
    /// # Panics
    ///
    /// If the upstreams are not a list of objects.
    pub async fn add_in(
        &mut self,
        spec: &ServiceSpec,
        [partition, namespace]: [&'static str; 2],
        mut upstreams: Value,
    ) -> Sidecar {
        let address = self.application(spec.instance);
        app::http(spec.instance, address, &self.apps).await;
        self.entry(json!({
            "Kind": "service-defaults", "Name": spec.service, "Protocol": spec.protocol,
            "Namespace": namespace, "Partition": partition,
        }))
        .await;
        let list = upstreams.as_array_mut().expect("a list of upstreams");
        for (upstream, port) in list.iter_mut().zip(FIRST_UPSTREAM..) {
            upstream["LocalBindAddress"] = json!(address.ip());
            upstream["LocalBindPort"] = json!(port);
        }
        let mut proxy = self.proxy(spec);
        proxy["Proxy"]["Upstreams"] = upstreams;
        for mut service in [self.instance(spec), proxy] {
            service["Namespace"] = json!(namespace);
            let registration = json!({"Partition": partition, "Service": service});
            self.catalog(registration).await;
        }
        let flags = self.flags(spec.instance);
        let flags = flags.with("proxy-namespace", namespace);
        let flags = flags.with("proxy-partition", partition);
        let mut sidecar = self.sidecar(spec.instance, &flags);
        sidecar.ready().await;
        sidecar
    }

    /// Starts the sidecar of a registered instance and waits until it is ready.
    pub async fn join(&mut self, spec: &ServiceSpec) -> Sidecar {
        let flags = self.flags(spec.instance);
        let mut sidecar = self.sidecar(spec.instance, &flags);
        sidecar.ready().await;
        sidecar
    }

    /// Registers an instance of a gateway, with these fields in `Proxy`, starts its proxy and waits
    /// until it is ready. Its service and ID are `name`.
    pub async fn add_gateway(&mut self, kind: &str, name: &'static str, proxy: Value) -> Sidecar {
        let fields = json!({"Proxy": proxy});
        self.add_gateway_with(kind, name, fields).await
    }

    /// The same with more fields of the registration.
    pub async fn add_gateway_with(
        &mut self,
        kind: &str,
        name: &'static str,
        fields: Value,
    ) -> Sidecar {
        let service = self.gateway(kind, name, &fields);
        self.catalog(json!({"Service": service})).await;
        self.join_gateway(name).await
    }

    /// The same with a check, which is critical until the gateway is ready.
    pub async fn add_checked_gateway(
        &mut self,
        kind: &str,
        name: &'static str,
        fields: Value,
    ) -> Sidecar {
        let check =
            |status| json!({"CheckID": name, "Name": "ready", "Status": status, "ServiceID": name});
        let service = self.gateway(kind, name, &fields);
        let critical = json!({"Service": service, "Check": check("critical")});
        self.catalog(critical).await;
        let gateway = self.join_gateway(name).await;
        self.catalog(json!({"Check": check("passing")})).await;
        gateway
    }

    fn gateway(&mut self, kind: &str, name: &'static str, fields: &Value) -> Value {
        let address = self.place(name);
        let mut service = json!({
            "Kind": kind, "ID": name, "Service": name,
            "Address": address.to_string(), "Port": PUBLIC,
        });
        for (field, value) in fields.as_object().into_iter().flatten() {
            service[field] = value.clone();
        }
        service
    }

    async fn join_gateway(&mut self, name: &'static str) -> Sidecar {
        let flags = self.flags(name).with("proxy-id", name);
        let mut gateway = self.sidecar(name, &flags);
        gateway.ready().await;
        gateway
    }

    /// The address of an instance's application.
    #[must_use]
    pub fn application(&mut self, instance: &'static str) -> SocketAddr {
        (self.place(instance), APP).into()
    }

    /// The local address of an instance's n-th upstream.
    #[must_use]
    pub fn upstream(&self, instance: &str, index: u16) -> SocketAddr {
        (self.address(self.places[instance]), FIRST_UPSTREAM + index).into()
    }

    /// The public address of an instance's sidecar.
    #[must_use]
    pub fn public(&self, instance: &str) -> SocketAddr {
        (self.address(self.places[instance]), PUBLIC).into()
    }

    /// Sends requests to an upstream until the response has this status.
    pub async fn settle(&self, instance: &str, status: u16) {
        self.answers(instance, status, "").await;
    }

    /// The same, until the response contains a text, too.
    pub async fn answers(&self, instance: &str, status: u16, text: &str) {
        let upstream = self.upstream(instance, 0);
        let probe = || async move {
            client::get(upstream, "/")
                .await
                .map_err(|error| error.to_string())
        };
        let accept = |answer: &Result<client::Answer, String>| matches!(answer, Ok((got, body)) if got.as_u16() == status && body.contains(text));
        let _answer = wait::eventually(
            &format!("the upstream of {instance} answers {status} {text}"),
            probe,
            accept,
        )
        .await;
    }

    /// Stops applications and control plane; sidecars are stopped by the scenario.
    ///
    /// # Panics
    ///
    /// If something does not stop or has failed.
    pub async fn stop(mut self) {
        self.apps
            .stop(STOP_LIMIT)
            .await
            .expect("the applications stop");
        if self.control.runs() {
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

/// ID and name of the proxy of an instance or a service.
#[must_use]
pub fn proxy_id(of: &str) -> String {
    format!("{of}-sidecar-proxy")
}

/// The check of an instance's proxy.
fn ready_check(instance: &str, status: &str) -> Value {
    let id = proxy_id(instance);
    json!({"CheckID": format!("{id}-ready"), "Name": "ready", "Status": status, "ServiceID": id})
}

/// A loopback network that no other mesh of this process uses, and most likely no other process.
fn next_network() -> [u8; 2] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let network = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = (std::process::id() % 199) as u8;
    [
        20 + process,
        1 + u8::try_from(network % 250).unwrap_or_default(),
    ]
}
