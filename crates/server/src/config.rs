//! The settings of a server, as values. Reading flags and the environment is `main.rs`' work;
//! nothing here touches files or the network.

pub(crate) mod dns;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use legate_ca::CaConfig;
use legate_intentions::Action;
pub use legate_model::acl::DefaultPolicy;
use legate_model::{CheckType, ConfigEntry, Secret, ServiceDefinition};
use legate_runtime::logging::Level;
pub use legate_store::{EtcdConfig, StoreConfig};
use serde::{Deserialize, Serialize};

use self::dns::{DnsDomains, DnsSettings};
use crate::net::ConnectionLimits;
use crate::operations::{
    AuditSink, HttpPolicy, MoreListeners, QueryTimes, RequestLimits, SizeLimits, TelemetryConfig,
    TlsPolicy,
};

/// Access control of a server.
#[derive(Debug, Clone, Default)]
pub struct AclConfig {
    /// Whether tokens are looked at at all. Default: off, as in Consul.
    pub enabled: bool,
    /// What a token without a matching rule may do. Default: allow, as in Consul.
    pub default_policy: DefaultPolicy,
    /// A token that may do everything, present from the first moment. Its secret is the value.
    pub initial_management: Option<Secret>,
    /// Whether listing keys needs `list` on their prefix. Default: no, as in Consul.
    pub key_list_policy: bool,
}

/// The tokens that an agent has of its own: one of each kind, or none. The names are those of the settings and of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenSet {
    /// What requests without a token are judged by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Secret>,
    /// Kept and not used: this server is the catalog.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Secret>,
    /// May write this agent and read nodes, whatever the tables say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_recovery: Option<Secret>,
    /// Kept and not used: there is no replication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication: Option<Secret>,
    /// Kept and not used: whoever writes the configuration files is trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_file_service_registration: Option<Secret>,
    /// What DNS queries are judged by, before `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<Secret>,
}

/// What a server is as an agent, and what is registered when it starts. All of it is expected to be
/// valid.
#[derive(Debug, Clone, Default)]
pub struct AgentConfig {
    /// Whether the catalog has the server itself, as Consul's has: the service `consul`, and the
    /// check `serfHealth` of its node, which always passes. Default: no. It is for a server that is
    /// alone with its store: nobody else would take back that it is well.
    pub registers_itself: bool,
    /// The id of its node, a UUID. Default: the one that the node has, else a random one.
    pub node_id: Option<String>,
    /// Addresses of its node in other networks, in addition to `lan` and `wan`.
    pub tagged_addresses: BTreeMap<String, String>,
    /// Free key/value pairs of its node.
    pub node_meta: BTreeMap<String, String>,
    /// Services on its node.
    pub services: Vec<ServiceDefinition>,
    /// Checks on its node.
    pub checks: Vec<CheckType>,
    /// Config entries. One that exists already is left as it is.
    pub config_entries: Vec<ConfigEntry>,
    /// What is permitted to checks.
    pub check_settings: legate_checks::Settings,
    /// The tokens that the agent has of its own.
    pub tokens: TokenSet,
    /// Where those are kept that the API sets. Default: nowhere, they are gone with the process.
    pub token_file: Option<PathBuf>,
}

/// What configuration files say that can change while an agent runs. Services and checks that an
/// earlier reading had and this one has not are deregistered.
#[derive(Debug, Clone, Default)]
pub struct Definitions {
    /// Services, with their checks and sidecars.
    pub services: Vec<ServiceDefinition>,
    /// Checks of the node, or of a service of it.
    pub checks: Vec<CheckType>,
    /// The agent's own tokens.
    pub tokens: TokenSet,
    /// How many requests are taken in a second.
    pub request_limits: RequestLimits,
    /// How DNS answers.
    pub dns: DnsSettings,
    /// From which weight on events are logged, where [`crate::Reload::with_log`] names the log.
    pub log_level: Option<Level>,
}

/// The settings of one server.
///
/// [`ServerConfig::default`] is the development mode: everything on loopback at Consul's ports, no
/// ACLs. A port of 0 asks for a free one; an address of `None` turns that API off.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The datacenter this server serves. Default `dc1`.
    pub datacenter: String,
    /// The name of the node this server stands on, and the catalog node of services registered
    /// through the agent API. Default `legate`.
    pub node_name: String,
    /// The address other machines reach this server at. Default `127.0.0.1`.
    pub advertise: IpAddr,
    /// Where the HTTP API listens. Default `127.0.0.1:8500`.
    pub http: Option<SocketAddr>,
    /// Where the HTTP API listens with TLS. Default: nowhere, as in Consul.
    pub https: Option<SocketAddr>,
    /// Where gRPC listens without TLS. Default `127.0.0.1:8502`.
    pub grpc: Option<SocketAddr>,
    /// Where gRPC listens with TLS. Default `127.0.0.1:8503`.
    pub grpc_tls: Option<SocketAddr>,
    /// Where DNS answers, over UDP and TCP. Default `127.0.0.1:8600`.
    pub dns: Option<SocketAddr>,
    /// The domains that DNS answers for. Default `consul`.
    pub dns_domains: DnsDomains,
    /// How DNS answers.
    pub dns_settings: DnsSettings,
    /// Where APIs listen, too.
    pub more_listeners: MoreListeners,
    /// Where the store keeps its rows. Default: in memory.
    pub store: StoreConfig,
    /// Certificate chain and key (PEM files) of gRPC with TLS. Default: a certificate of the mesh CA.
    pub grpc_tls_files: Option<(PathBuf, PathBuf)>,
    /// Certificate chain and key (PEM files) of the HTTP API with TLS. Default: a certificate of the
    /// mesh CA.
    pub https_files: Option<(PathBuf, PathBuf)>,
    /// What the HTTP API with TLS asks of its clients.
    pub https_policy: TlsPolicy,
    /// What gRPC with TLS asks of its clients.
    pub grpc_tls_policy: TlsPolicy,
    /// What the HTTP API lets through.
    pub http_policy: HttpPolicy,
    /// How many requests are taken in a second. Default: no limit.
    pub request_limits: RequestLimits,
    /// How large what is stored may be.
    pub sizes: SizeLimits,
    /// How long blocking queries wait.
    pub query_times: QueryTimes,
    /// The shortest time that a session may live without being renewed. Default 10 s.
    pub session_ttl_min: Duration,
    /// Files that get a line for every write and every denied request. Default: none.
    pub audit: Vec<AuditSink>,
    /// What is reported to others.
    pub telemetry: TelemetryConfig,
    /// Whether the profiles of `/debug/pprof` are served to everybody where ACLs are off.
    pub debug: bool,
    /// Whether there is a mesh. Default: yes. Without, the endpoints of its CA refuse.
    pub connect: bool,
    /// How many connections each API holds. Fewer, when the process may not open as many files.
    pub connections: ConnectionLimits,
    /// Access control.
    pub acl: AclConfig,
    /// What this server is as an agent.
    pub agent: AgentConfig,
    /// What happens to a connection that no intention speaks of. Default: the ACL default policy
    /// when ACLs are on, else allow.
    pub default_intention_policy: Option<Action>,
    /// Lifetimes of the CA's certificates.
    pub ca: CaConfig,
    /// How long changes are collected before a proxy gets them. Default 200 ms.
    pub update_coalesce: Duration,
    /// Most snapshots of all proxies together in a second, without the first of each; 0, the
    /// default, is no limit.
    pub update_max_per_second: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let loopback = |port| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Self {
            datacenter: "dc1".to_owned(),
            node_name: "legate".to_owned(),
            advertise: IpAddr::V4(Ipv4Addr::LOCALHOST),
            http: loopback(8500),
            https: None,
            grpc: loopback(8502),
            grpc_tls: loopback(8503),
            dns: loopback(8600),
            dns_domains: DnsDomains::default(),
            dns_settings: DnsSettings::default(),
            more_listeners: MoreListeners::default(),
            store: StoreConfig::Memory,
            grpc_tls_files: None,
            https_files: None,
            https_policy: TlsPolicy::default(),
            grpc_tls_policy: TlsPolicy::default(),
            http_policy: HttpPolicy::default(),
            request_limits: RequestLimits::default(),
            sizes: SizeLimits::default(),
            query_times: QueryTimes::default(),
            session_ttl_min: Duration::from_secs(10),
            audit: Vec::new(),
            telemetry: TelemetryConfig::default(),
            debug: false,
            connect: true,
            connections: ConnectionLimits::default(),
            acl: AclConfig::default(),
            agent: AgentConfig::default(),
            default_intention_policy: None,
            ca: CaConfig::default(),
            update_coalesce: Duration::from_millis(200),
            update_max_per_second: 0,
        }
    }
}

impl ServerConfig {
    /// What happens to a connection that no intention speaks of, after applying the defaults.
    pub fn intention_default(&self) -> Action {
        match (self.default_intention_policy, &self.acl) {
            (Some(action), _) => action,
            (
                None,
                AclConfig {
                    enabled: true,
                    default_policy: DefaultPolicy::Deny,
                    ..
                },
            ) => Action::Deny,
            (None, _) => Action::Allow,
        }
    }
}
