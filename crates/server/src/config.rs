//! The settings of a server as plain values. No file or network access here; `main.rs` reads flags and the
//! environment.

pub(crate) mod dns;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use legate_ca::CaConfig;
use legate_identity::tls::AgentFiles;
use legate_intentions::Action;
pub use legate_model::acl::DefaultPolicy;
use legate_model::{CheckType, ConfigEntry, Locality, Secret, ServiceDefinition};
use legate_runtime::logging::Level;
pub use legate_store::{EtcdConfig, StoreConfig};
pub use legate_wan::{GatewayAddress, InvalidGatewayAddress};
use serde::{Deserialize, Serialize};

use self::dns::{DnsDomains, DnsSettings};
use crate::net::ConnectionLimits;
use crate::operations::{
    AuditSink, HttpPolicy, MoreListeners, QueryTimes, RequestLimits, SizeLimits, TelemetryConfig,
    TlsPolicy,
};

/// ACL settings of a server.
#[derive(Debug, Clone, Default)]
pub struct AclConfig {
    /// Whether ACLs are enforced. Default: no, as in Consul.
    pub enabled: bool,
    /// What tokens may do where no rule matches. Default: allow, as in Consul.
    pub default_policy: DefaultPolicy,
    /// Secret of a management token that is created at startup.
    pub initial_management: Option<Secret>,
    /// Whether listing keys requires `list` permission on their prefix. Default: no, as in Consul.
    pub key_list_policy: bool,
}

/// The agent's own tokens, at most one of each kind. The field names are used in the settings and in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenSet {
    /// Used for requests without a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Secret>,
    /// Stored but unused: this server is the catalog.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Secret>,
    /// Permits writing this agent and reading nodes, whatever the ACL tables contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_recovery: Option<Secret>,
    /// Used for what a secondary datacenter asks of the primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication: Option<Secret>,
    /// Stored but unused: the author of the configuration files is trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_file_service_registration: Option<Secret>,
    /// Used for DNS queries, in preference to `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<Secret>,
}

/// The server's role as agent of its node, and what it registers at startup. Must be validated already.
#[derive(Debug, Clone, Default)]
pub struct AgentConfig {
    /// Whether the server registers itself, as Consul's servers do: the service `consul`, and the check
    /// `serfHealth` of its node, which always passes. Default: no. In a shared store, nothing marks the check critical
    /// after this server failed.
    pub registers_itself: bool,
    /// The node's id, a UUID. Default: the stored id, else a random one.
    pub node_id: Option<String>,
    /// Addresses of the node in other networks, in addition to `lan` and `wan`.
    pub tagged_addresses: BTreeMap<String, String>,
    /// Region and zone of the node. Default: none.
    pub locality: Option<Locality>,
    /// Whether the node has a network coordinate, from which clients estimate round-trip times. Default: no.
    /// Nothing measures them: it is the one of a node that has not measured yet, unless a client sets another.
    pub coordinate: bool,
    /// Metadata of the node.
    pub node_meta: BTreeMap<String, String>,
    /// Services to register on the node.
    pub services: Vec<ServiceDefinition>,
    /// Checks to register on the node.
    pub checks: Vec<CheckType>,
    /// Config entries to create. Existing entries are not overwritten.
    pub config_entries: Vec<ConfigEntry>,
    /// Limits and permissions of health checks.
    pub check_settings: legate_checks::Settings,
    /// The agent's own tokens.
    pub tokens: TokenSet,
    /// File in which tokens set through the API are stored. `None`: they are lost at exit.
    pub token_file: Option<PathBuf>,
}

/// The settings that configuration files can change while the agent runs. A reload deregisters services and
/// checks that were in the previous version of the files and no longer are.
#[derive(Debug, Clone, Default)]
pub struct Definitions {
    /// Services, with their checks and sidecars.
    pub services: Vec<ServiceDefinition>,
    /// Checks of the node or of its services.
    pub checks: Vec<CheckType>,
    /// The agent's own tokens.
    pub tokens: TokenSet,
    /// Rate limits.
    pub request_limits: RequestLimits,
    /// DNS settings.
    pub dns: DnsSettings,
    /// Minimum level of log events. Takes effect if [`crate::Reload::with_log`] provides the log.
    pub log_level: Option<Level>,
}

/// How servers of other datacenters and this one reach each other.
#[derive(Debug, Clone)]
pub struct WanSettings {
    /// Address of the port for servers. Consul's port: 8300.
    pub listen: SocketAddr,
    /// The address at which servers of other datacenters reach it.
    pub advertise: IpAddr,
    /// The certificate, its key and the CA of all servers. `None`: whoever reaches the port counts as a server. Only for
    /// development, without ACLs.
    pub files: Option<AgentFiles>,
    /// Servers to join at the start.
    pub join: Vec<String>,
    /// The time between two attempts to join.
    pub retry_interval: Duration,
    /// The number of attempts. 0 means no limit.
    pub retry_max: u32,
    /// If other datacenters are reached through mesh gateways only. Then no servers are joined by their addresses.
    pub through_gateways: Option<PrimaryGateways>,
}

/// How a secondary finds the mesh gateways of the primary. Empty in the primary itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrimaryGateways {
    /// Some of them.
    pub addresses: Vec<GatewayAddress>,
    /// The time between two attempts to reach the primary. Consul's default: 30 s.
    pub interval: Duration,
}

/// The settings of one server.
///
/// [`ServerConfig::default`] is development mode: all APIs on loopback at Consul's ports, without ACLs. Port 0
/// picks a free port; an address of `None` disables that API.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The datacenter this server serves. Default `dc1`.
    pub datacenter: String,
    /// The datacenter whose CA, config entries and ACLs apply here too. `None`, the default: this one.
    pub primary_datacenter: Option<String>,
    /// The name of this server's node. Services registered through the agent API belong to it. Default
    /// `legate`.
    pub node_name: String,
    /// The address at which other machines reach this server. Default `127.0.0.1`.
    pub advertise: IpAddr,
    /// Address of the HTTP API. Default `127.0.0.1:8500`.
    pub http: Option<SocketAddr>,
    /// Address of the HTTP API with TLS. Default: disabled, as in Consul.
    pub https: Option<SocketAddr>,
    /// Address of gRPC without TLS. Default `127.0.0.1:8502`.
    pub grpc: Option<SocketAddr>,
    /// Address of gRPC with TLS. Default `127.0.0.1:8503`.
    pub grpc_tls: Option<SocketAddr>,
    /// Address of DNS, over UDP and TCP. Default `127.0.0.1:8600`.
    pub dns: Option<SocketAddr>,
    /// Servers of other datacenters. Default: there are none.
    pub wan: Option<WanSettings>,
    /// Whether clients of this server get the addresses `wan` of nodes and instances of other datacenters, over HTTP and
    /// DNS. Consul's `translate_wan_addrs`. Default: no.
    pub translate_wan_addrs: bool,
    /// The domains served by DNS. Default `consul`.
    pub dns_domains: DnsDomains,
    /// DNS settings.
    pub dns_settings: DnsSettings,
    /// Additional listen addresses.
    pub more_listeners: MoreListeners,
    /// Storage backend. Default: in memory.
    pub store: StoreConfig,
    /// Certificate chain and key (PEM files) of gRPC with TLS. Default: a certificate of the mesh CA.
    pub grpc_tls_files: Option<(PathBuf, PathBuf)>,
    /// Certificate chain and key (PEM files) of the HTTP API with TLS. Default: a certificate of the
    /// mesh CA.
    pub https_files: Option<(PathBuf, PathBuf)>,
    /// TLS requirements of the HTTP API.
    pub https_policy: TlsPolicy,
    /// TLS requirements of gRPC.
    pub grpc_tls_policy: TlsPolicy,
    /// Restrictions and response headers of the HTTP API.
    pub http_policy: HttpPolicy,
    /// Rate limits. Default: none.
    pub request_limits: RequestLimits,
    /// Size limits of stored values.
    pub sizes: SizeLimits,
    /// Wait times of blocking queries.
    pub query_times: QueryTimes,
    /// The shortest TTL of a session. Default 10 s.
    pub session_ttl_min: Duration,
    /// Audit log files, which record every write and every denied request. Default: none.
    pub audit: Vec<AuditSink>,
    /// Export of metrics and traces.
    pub telemetry: TelemetryConfig,
    /// Whether `/debug/pprof` is served without authentication if ACLs are off.
    pub debug: bool,
    /// Whether the service mesh is enabled. Default: yes. If not, the CA endpoints return errors.
    pub connect: bool,
    /// Whether clusters can be peered with this one. Default: yes. If not, what is stored of peers stays as it is.
    pub peering: bool,
    /// Connection limits of each API. Lowered at startup if the limit of open files requires it.
    pub connections: ConnectionLimits,
    /// ACL settings.
    pub acl: AclConfig,
    /// The server's role as agent.
    pub agent: AgentConfig,
    /// Action for connections that match no intention. Default: the ACL default policy if ACLs are on, else
    /// allow.
    pub default_intention_policy: Option<Action>,
    /// Lifetimes of the CA's certificates.
    pub ca: CaConfig,
    /// How long changes are coalesced before a proxy receives them. Default 200 ms.
    pub update_coalesce: Duration,
    /// Maximum snapshots per second over all proxies, not counting the first of each proxy. 0, the default,
    /// means no limit.
    pub update_max_per_second: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let loopback = |port| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Self {
            datacenter: "dc1".to_owned(),
            primary_datacenter: None,
            node_name: "legate".to_owned(),
            advertise: IpAddr::V4(Ipv4Addr::LOCALHOST),
            http: loopback(8500),
            https: None,
            grpc: loopback(8502),
            grpc_tls: loopback(8503),
            dns: loopback(8600),
            wan: None,
            translate_wan_addrs: false,
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
            peering: true,
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
    /// The primary datacenter, if it is another one.
    pub(crate) fn primary(&self) -> Option<&str> {
        let primary = self.primary_datacenter.as_deref()?;
        (!primary.eq_ignore_ascii_case(&self.datacenter)).then_some(primary)
    }

    /// The datacenter whose clients get translated addresses of others: this one, or none.
    pub(crate) fn translates_for(&self) -> Option<String> {
        self.translate_wan_addrs.then(|| self.datacenter.clone())
    }

    /// The settings of the CA.
    pub(crate) fn ca_settings(&self) -> CaConfig {
        CaConfig {
            primary: self.primary().map(str::to_ascii_lowercase),
            ..self.ca.clone()
        }
    }

    /// Action for connections that match no intention, with defaults applied.
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
