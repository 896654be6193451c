//! The control plane of a mesh: Legate's own in this process or as a process, several of Legate's
//! servers with an etcd, or Consul servers. All have the same APIs on the same ports of loopback addresses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Method;
use legate_intentions::Action;
use legate_model::Secret;
use legate_server::{
    AclConfig, AgentConfig, DefaultPolicy, EtcdConfig, GatewayAddress, Parts, PrimaryGateways,
    Server, ServerConfig, StoreConfig, WanSettings,
};
use legate_store::Store;
use legate_testkit::state::{Location, State};
use serde_json::Value;

use crate::agent::Agent;
use crate::client;
use crate::consul::{Cluster, Consul};
use crate::mesh::{Datacenter, MANAGEMENT, MeshOptions};
use crate::replicas::Replicas;
use crate::wait::{self, LIMIT};

/// The port of the HTTP API.
pub(crate) const HTTP: u16 = 8500;
/// The port of plaintext gRPC.
pub(crate) const GRPC: u16 = 8502;
/// The port of gRPC over TLS.
pub(crate) const GRPC_TLS: u16 = 8503;
/// The port for servers of other datacenters.
pub(crate) const SERVERS: u16 = 8300;
/// The port of DNS, if the control plane serves it.
pub(crate) const DNS: u16 = 8600;

const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The control plane of a mesh.
pub(crate) enum ControlPlane {
    /// A server of this workspace, in this process.
    Legate(Box<Legate>),
    /// `legate agent`, as a process.
    Agent(Box<Agent>),
    /// Several servers of this workspace with one etcd.
    Replicas(Box<Replicas>),
    /// Real Consul servers.
    Consul(Box<Cluster>),
}

/// A server of this workspace. Its state outlives it: in memory, in a file or in etcd, selected by
/// `LEGATE_TEST_STORE`.
pub(crate) struct Legate {
    config: ServerConfig,
    roots: PathBuf,
    server: Option<Server>,
    /// The in-memory store, passed from one server to the next.
    in_memory: Option<Store>,
    _state: State,
}

impl ControlPlane {
    /// Starts it at `address`. Intentions deny by default.
    pub(crate) async fn start(address: Ipv4Addr, options: &MeshOptions, folder: &Path) -> Self {
        let node = options.datacenter.as_ref();
        let node = node.and_then(|datacenter| datacenter.node);
        let mut control = match &options.consul {
            None if node.is_some() => {
                Self::Agent(Box::new(Agent::new(address.into(), options, folder)))
            }
            Some(binary) => Self::Consul(Box::new(Cluster::new(binary, address, folder, options))),
            None if options.servers > 1 => {
                Self::Replicas(Box::new(Replicas::new(address, folder, options).await))
            }
            None => Self::Legate(Box::new(Legate::new(address.into(), options, folder).await)),
        };
        control.start_server(options.acl).await;
        let roots = match &control {
            Self::Legate(legate) => Some(&legate.roots),
            Self::Agent(agent) => Some(&agent.roots),
            Self::Replicas(_) | Self::Consul(_) => None,
        };
        if let Some(file) = roots {
            let http = SocketAddr::from((address, HTTP));
            let roots = || async move {
                let answer = client::get(http, "/v1/connect/ca/roots?pem=true").await;
                answer.map_err(|error| error.to_string())
            };
            let has_roots = |answer: &Result<client::Answer, String>| matches!(answer, Ok((status, _)) if status.is_success());
            // A secondary datacenter gets them from the primary.
            let answer = wait::eventually("the server has a CA", roots, has_roots).await;
            let (_, pem) = answer.expect("roots");
            std::fs::write(file, pem).expect("the roots can be written");
        }
        control
    }

    /// Starts every server with its previous state.
    pub(crate) async fn start_server(&mut self, acl: bool) {
        match self {
            Self::Legate(legate) => legate.start().await,
            Self::Agent(agent) => {
                agent.process.start();
                agent.process.ready().await;
            }
            Self::Replicas(replicas) => replicas.start_all().await,
            Self::Consul(cluster) => {
                cluster.servers.iter_mut().for_each(Consul::start);
                cluster.ready(acl).await;
            }
        }
    }

    /// Stops every server: the one in this process gracefully, others by SIGKILL.
    pub(crate) async fn stop_server(&mut self) {
        match self {
            Self::Legate(legate) => legate.stop().await,
            Self::Agent(agent) => agent.process.kill().await,
            Self::Replicas(replicas) => replicas.kill_all().await,
            Self::Consul(cluster) => {
                for server in &mut cluster.servers {
                    server.kill().await;
                }
            }
        }
    }

    /// Kills the first of several servers permanently, and returns the address of another once
    /// there is a leader again.
    pub(crate) async fn lose_first(&mut self, acl: bool) -> IpAddr {
        let Self::Consul(cluster) = self else {
            panic!("only Consul's servers take each other's part here")
        };
        cluster.servers.remove(0).kill().await;
        cluster.servers[0].elected(acl).await;
        cluster.servers[0].address()
    }

    /// Whether the server is running.
    pub(crate) fn runs(&mut self) -> bool {
        match self {
            Self::Legate(legate) => legate.server.is_some(),
            Self::Agent(agent) => agent.process.runs(),
            Self::Replicas(replicas) => (0..replicas.count()).any(|n| replicas.runs(n)),
            Self::Consul(cluster) => cluster.servers.iter_mut().any(Consul::runs),
        }
    }

    /// The CA file that verifies the certificate for gRPC over TLS.
    pub(crate) fn ca_file(&self) -> PathBuf {
        match self {
            Self::Legate(legate) => legate.roots.clone(),
            Self::Agent(agent) => agent.roots.clone(),
            Self::Replicas(replicas) => replicas.ca_file(),
            Self::Consul(cluster) => cluster.ca_file(),
        }
    }
}

impl Legate {
    async fn new(address: IpAddr, options: &MeshOptions, folder: &Path) -> Self {
        let state = State::new().await;
        let acl = AclConfig {
            enabled: options.acl,
            default_policy: if options.acl {
                DefaultPolicy::Deny
            } else {
                DefaultPolicy::Allow
            },
            initial_management: options.acl.then(|| Secret::new(MANAGEMENT)),
            key_list_policy: false,
        };
        let at = |port| Some(SocketAddr::new(address, port));
        let config = ServerConfig {
            node_name: "server".into(),
            advertise: address,
            http: at(HTTP),
            grpc: at(GRPC),
            grpc_tls: at(GRPC_TLS),
            dns: at(DNS),
            store: store_config(&state),
            acl,
            default_intention_policy: Some(match options.allow {
                true => Action::Allow,
                false => Action::Deny,
            }),
            ca: options.ca.clone(),
            ..ServerConfig::default()
        };
        let config = match &options.datacenter {
            Some(datacenter) => one_of_several(config, address, datacenter),
            None => config,
        };
        Self {
            in_memory: (config.store == StoreConfig::Memory).then(Store::new),
            config,
            roots: folder.join("roots.pem"),
            server: None,
            _state: state,
        }
    }

    async fn start(&mut self) {
        let parts = Parts {
            store: self.in_memory.clone(),
            ..Parts::default()
        };
        let server = Server::start(self.config.clone(), parts).await;
        self.server = Some(server.expect("the control plane starts"));
    }

    async fn stop(&mut self) {
        let server = self.server.take().expect("the control plane runs");
        let stopped = server.stop(STOP_LIMIT).await;
        stopped.expect("the control plane stops");
    }
}

fn gateway_address(address: &SocketAddr) -> GatewayAddress {
    GatewayAddress {
        host: address.ip().to_string(),
        port: address.port(),
    }
}

/// The settings of a server that servers of other datacenters reach.
fn one_of_several(config: ServerConfig, address: IpAddr, datacenter: &Datacenter) -> ServerConfig {
    let gateways = datacenter.gateways.as_ref().map(|known| PrimaryGateways {
        addresses: known.iter().map(gateway_address).collect(),
        interval: Duration::from_secs(1),
    });
    let advertise = match &gateways {
        // Nobody is there.
        Some(_) => IpAddr::from([192, 0, 2, 1]),
        None => address,
    };
    let wan = WanSettings {
        listen: SocketAddr::new(address, SERVERS),
        advertise,
        files: Some(datacenter.files.clone()),
        join: datacenter.join.iter().map(ToString::to_string).collect(),
        retry_interval: Duration::from_secs(1),
        retry_max: 0,
        through_gateways: gateways,
    };
    ServerConfig {
        agent: AgentConfig {
            // Gateways lead to the servers in the catalog.
            registers_itself: wan.through_gateways.is_some(),
            ..config.agent
        },
        datacenter: datacenter.name.to_owned(),
        primary_datacenter: Some(datacenter.primary.to_owned()),
        wan: Some(wan),
        ..config
    }
}

fn store_config(state: &State) -> StoreConfig {
    match state.place() {
        Location::Memory => StoreConfig::Memory,
        Location::Directory(directory) => StoreConfig::Disk {
            directory: directory.clone(),
            key_file: None,
        },
        Location::Etcd {
            endpoints,
            prefix,
            key_file,
        } => StoreConfig::Etcd(EtcdConfig {
            prefix: prefix.clone(),
            ..EtcdConfig::new(endpoints.clone(), key_file)
        }),
    }
}

impl Cluster {
    /// Waits until the servers have joined each other and serve.
    async fn ready(&mut self, acl: bool) {
        let servers = self.servers.len();
        self.servers[0].elected(acl).await;
        if servers < 2 {
            return;
        }
        let http = SocketAddr::new(self.servers[0].address(), HTTP);
        let token = acl.then_some(MANAGEMENT);
        let healthy = || async move {
            let path = "/v1/operator/autopilot/health";
            let answer = client::send(Method::GET, http, path, token, None).await;
            let health = answer.map(|(_, body)| body).unwrap_or_default();
            let health: Value = serde_json::from_str(&health).unwrap_or_default();
            let members = health["Servers"].as_array().map(Vec::len);
            (health["Healthy"].as_bool(), members)
        };
        let expected = (Some(true), Some(servers));
        let reached = |health: &_| *health == expected;
        wait::eventually_within(LIMIT * 4, "all servers are healthy", healthy, reached).await;
    }
}

impl Consul {
    /// Waits until there is a leader with a CA and, with ACLs, the initial token.
    async fn elected(&mut self, acl: bool) {
        let http = SocketAddr::new(self.address(), HTTP);
        let token = acl.then_some(MANAGEMENT);
        let path = if acl {
            "/v1/acl/token/self"
        } else {
            "/v1/connect/ca/roots"
        };
        let asked = || async move {
            let roots = client::get(http, "/v1/connect/ca/roots").await;
            let roots = roots.map(|(_, body)| body).unwrap_or_default();
            let roots: Value = serde_json::from_str(&roots).unwrap_or_default();
            let has_ca = !roots["ActiveRootID"]
                .as_str()
                .unwrap_or_default()
                .is_empty();
            let answer = client::send(Method::GET, http, path, token, None).await;
            has_ca && answer.is_ok_and(|(status, _)| status.is_success())
        };
        // Loading a program of this size from disk takes time.
        let elected = || {
            let runs = self.runs();
            let asked = asked();
            async move { (runs, asked.await) }
        };
        let settled = |(runs, ready): &(bool, bool)| !runs || *ready;
        let what = "Consul has a leader";
        let (runs, _) = wait::eventually_within(LIMIT * 4, what, elected, settled).await;
        assert!(runs, "Consul has ended:\n{}", self.log());
    }
}
