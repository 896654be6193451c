//! What the built-in proxy serves, as typed values: listeners, clusters, endpoints and secrets. Each value was decoded
//! from an Envoy resource (`decode`), and has nothing that the proxy does not act upon.
//!
//! It has no sockets and no state of connections.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::access_log::AccessLog;
use crate::rbac::Rules;

/// Name of a resource.
pub type Name = Arc<str>;

/// Where something listens, or is dialled.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// An IP address and a port.
    Socket(SocketAddr),
    /// A unix socket.
    Pipe {
        /// Its path. A leading `@` means the abstract namespace.
        path: PathBuf,
        /// The permissions of a socket that is listened on, 0 for the default.
        mode: u32,
    },
    /// A DNS name and a port; only in clusters that resolve names.
    Dns(Arc<str>, u16),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Socket(address) => address.fmt(f),
            Address::Pipe { path, .. } => path.display().fmt(f),
            Address::Dns(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

/// The direction of a listener's traffic, as seen from the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// Not stated.
    #[default]
    Unspecified,
    /// To the application.
    Inbound,
    /// From the application.
    Outbound,
}

/// A listener.
#[derive(Debug, Clone, PartialEq)]
pub struct Listener {
    /// Its name, unique among listeners.
    pub name: Name,
    /// Where it listens.
    pub address: Address,
    /// Prefix of its statistics; the address if it is empty.
    pub stat_prefix: String,
    /// The direction of its traffic.
    pub direction: Direction,
    /// Whether connections arrive by redirection, and the original destination decides (`original_dst`).
    pub original_destination: bool,
    /// Whether the first bytes are inspected for a ClientHello (`tls_inspector`).
    pub inspect_tls: Option<InspectTls>,
    /// How long the inspection may take. 0 means without a limit. Envoy's default is 15 s.
    pub inspect_timeout: Duration,
    /// Whether a connection continues when that time is over; otherwise it is closed.
    pub continue_on_timeout: bool,
    /// The filter chains. No two have the same match.
    pub chains: Vec<Arc<Chain>>,
    /// The chain for connections that no other matches.
    pub default_chain: Option<Arc<Chain>>,
    /// Access logs for connections without a chain, and of the listener as a whole.
    pub access_logs: Vec<AccessLog>,
}

/// For which connections a ClientHello is looked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InspectTls {
    /// Only connections to one of these destination ports are inspected, from the first port up to and without the
    /// second; all if it is `None`.
    pub only_ports: Option<Vec<(u32, u32)>>,
    /// Connections to one of these destination ports are not inspected.
    pub except_ports: Vec<(u32, u32)>,
}

/// A filter chain: what happens to the connections that it matches.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    /// Its name, may be empty.
    pub name: String,
    /// Which connections it matches.
    pub matches: Arc<ChainMatch>,
    /// Terminates TLS; `None` passes the bytes on as they are.
    pub tls: Option<Arc<DownstreamTls>>,
    /// How long the handshake may take; 0 means the default of the proxy.
    pub handshake_timeout: Duration,
    /// The filters before `tcp`, in order.
    pub filters: Vec<Filter>,
    /// Where the connection goes.
    pub tcp: TcpProxy,
}

/// The criteria of a filter chain. An empty criterion matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ChainMatch {
    /// The destination port.
    pub port: Option<u16>,
    /// Ranges of destination addresses.
    pub prefixes: Vec<Prefix>,
    /// Server names: exact, or `*.` and a suffix. As they were sent: as in Envoy, a name with an upper-case letter matches
    /// nothing, because the client's name is compared in lower case.
    pub server_names: Vec<String>,
    /// The transport that the inspection has found.
    pub transport: Option<Transport>,
    /// ALPN protocols, one of which the client has to offer.
    pub alpn: Vec<String>,
}

/// What the inspection of the first bytes finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Anything but TLS, or nothing was inspected (`raw_buffer`).
    Raw,
    /// A ClientHello (`tls`).
    Tls,
}

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// An address in it.
    pub address: IpAddr,
    /// How many of its first bits count.
    pub length: u8,
}

/// A filter before the TCP proxy.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// Decides by the peer's identity.
    Rbac(Arc<Rbac>),
    /// Closes connections beyond a number.
    ConnectionLimit(ConnectionLimit),
    /// Takes the server name of the ClientHello as the name of the cluster (`sni_cluster`).
    SniCluster,
}

/// The rules of an RBAC filter.
#[derive(Debug, Clone, PartialEq)]
pub struct Rbac {
    /// Prefix of its statistics.
    pub stat_prefix: String,
    /// The rules; `None` allows everything, as an RBAC filter without rules does.
    pub rules: Option<Rules>,
}

/// A limit on the open connections of a filter chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionLimit {
    /// Prefix of its statistics.
    pub stat_prefix: String,
    /// The largest number of connections.
    pub max: u64,
    /// How long a connection beyond it is kept open before it is closed.
    pub delay: Duration,
}

/// The TCP proxy of a filter chain.
#[derive(Debug, Clone, PartialEq)]
pub struct TcpProxy {
    /// Prefix of its statistics.
    pub stat_prefix: String,
    /// The clusters with their weights; one cluster in most cases. Never empty. An empty name means that no cluster
    /// serves it.
    pub clusters: Vec<(Name, u32)>,
    /// How many hosts are tried. At least 1.
    pub max_connect_attempts: u32,
    /// How long both directions may be silent; `None` for ever. Envoy's default is 1 h.
    pub idle_timeout: Option<Duration>,
    /// How long a connection may last.
    pub max_duration: Option<Duration>,
    /// Access logs.
    pub access_logs: Vec<AccessLog>,
}

/// TLS that a filter chain terminates.
#[derive(Debug, Clone, PartialEq)]
pub struct DownstreamTls {
    /// Versions, suites, ALPN and certificates.
    pub common: CommonTls,
    /// Whether a client has to present a certificate.
    pub require_client_certificate: bool,
}

/// TLS towards the hosts of a cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamTls {
    /// Versions, suites, ALPN and certificates.
    pub common: CommonTls,
    /// The server name in the ClientHello; none if it is empty.
    pub sni: String,
}

/// What both directions of TLS have.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CommonTls {
    /// The oldest version.
    pub min_version: TlsVersion,
    /// The newest version. `V1_2` for a client with chosen cipher suites, which is Envoy's default for clients.
    pub max_version: TlsVersion,
    /// Names of cipher suites for TLS 1.2, as OpenSSL writes them. Empty means the defaults.
    pub cipher_suites: Vec<String>,
    /// ALPN protocols, the preferred one first.
    pub alpn: Vec<String>,
    /// The certificate to present; a client may have none.
    pub certificate: Option<Source<Certificate>>,
    /// Which authorities the other side's certificate has to come from; `None` accepts any.
    pub validation: Option<Source<Validation>>,
    /// The other side's certificate has to have one of these URIs. Empty means any.
    pub uris: Vec<String>,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum TlsVersion {
    /// Not stated: TLS 1.2 as the oldest, TLS 1.3 as the newest.
    #[default]
    Auto,
    /// TLS 1.0.
    V1_0,
    /// TLS 1.1.
    V1_1,
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// A secret: by name, or in the resource that uses it.
#[derive(Debug, Clone, PartialEq)]
pub enum Source<T> {
    /// A secret with this name.
    Named(Name),
    /// The secret itself.
    Inline(Arc<T>),
}

/// A secret as a resource.
#[derive(Debug, Clone, PartialEq)]
pub enum Secret {
    /// A certificate with its key.
    Certificate(Arc<Certificate>),
    /// Authorities.
    Validation(Arc<Validation>),
}

/// A certificate with its key. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The chain, PEM.
    pub chain: String,
    /// The key, PEM.
    pub key: String,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificate(***)")
    }
}

/// Authorities of certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Validation {
    /// Any certificate of one of these authorities, PEM.
    Authorities(String),
    /// For each trust domain its authorities, PEM: the other side's URI says which of them count.
    TrustDomains(BTreeMap<String, String>),
}

/// A cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Its name, unique among clusters.
    pub name: Name,
    /// Its name in statistics (`alt_stat_name`); the name if it is empty.
    pub stat_name: String,
    /// Where its hosts come from.
    pub hosts: Hosts,
    /// How long one attempt may take, TLS included. Envoy's default is 5 s.
    pub connect_timeout: Duration,
    /// How a host is chosen.
    pub balancing: Balancing,
    /// The largest number of connections, open and connecting. Envoy's default is 1,024.
    pub max_connections: u32,
    /// The largest number of connections that are being dialled (`max_pending_requests`). Envoy's default is 1,024.
    pub max_pending: u32,
    /// When hosts are ejected; `None` never.
    pub outlier_detection: Option<OutlierDetection>,
    /// Below this share of healthy hosts, in percent, all are used. Envoy's default is 50.
    pub panic_threshold: f64,
    /// TLS towards its hosts.
    pub tls: Option<Arc<UpstreamTls>>,
    /// Keepalive of its connections.
    pub keepalive: Option<Keepalive>,
}

/// Where the hosts of a cluster come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Hosts {
    /// In the cluster.
    Static(Arc<Endpoints>),
    /// Endpoints with this name.
    Discovered(Name),
    /// The addresses of a DNS name, of which each connection takes the current first one.
    LogicalDns {
        /// The name with its port, and the weight of no importance.
        endpoints: Arc<Endpoints>,
        /// How often it is resolved.
        refresh: Duration,
        /// Which addresses are asked for.
        family: DnsFamily,
    },
    /// The address that the connection wanted to reach.
    OriginalDestination,
    /// The first of these clusters that has healthy hosts.
    Aggregate(Vec<Name>),
}

/// Which addresses a DNS name is resolved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DnsFamily {
    /// IPv6, and IPv4 if there is none (`AUTO`).
    #[default]
    Auto,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// IPv4, and IPv6 if there is none (`V4_PREFERRED`).
    V4Preferred,
    /// Both (`ALL`).
    All,
}

/// How a host is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Balancing {
    /// In turn, by weight.
    #[default]
    RoundRobin,
    /// Of some at random the one with the fewest connections.
    LeastRequest {
        /// How many.
        choices: u32,
    },
    /// At random.
    Random,
}

/// When hosts are ejected. Only what applies to TCP: failed connects count as gateway failures, 5xx and
/// local-origin failures alike.
#[derive(Debug, Clone, PartialEq)]
pub struct OutlierDetection {
    /// Failures in a row that eject a host; 0 never. Envoy's default is 5.
    pub consecutive_failures: u32,
    /// How probable the ejection then is, in percent. Envoy's default is 100 for `consecutive_5xx` and 0 for
    /// `consecutive_gateway_failure`.
    pub enforcing: u32,
    /// How often ejected hosts are looked at. Envoy's default is 10 s.
    pub interval: Duration,
    /// How long a host is ejected, times the number of its ejections. Envoy's default is 30 s.
    pub base_ejection: Duration,
    /// The longest ejection. Envoy's default is 300 s, or `base_ejection` if that is longer.
    pub max_ejection: Duration,
    /// How many hosts may be ejected, in percent. Envoy's default is 10.
    pub max_ejection_percent: u32,
    /// Whether one host may be ejected in any case (`always_eject_one_host`). Envoy's default is no: with the default
    /// percentage, no host of a cluster with fewer than 10 is ejected.
    pub always_eject_one: bool,
    /// Whether hosts are ejected to which far more connects fail than to others (`enforcing_success_rate`, or
    /// `enforcing_local_origin_success_rate` for failures of local origin). Envoy's default is yes.
    pub success_rate: bool,
}

/// Keepalive of a connection; `None` means the default of the proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keepalive {
    /// Unanswered probes until the connection is closed.
    pub probes: Option<u32>,
    /// Idle time before the first probe.
    pub time: Option<Duration>,
    /// Time between probes.
    pub interval: Option<Duration>,
}

/// The endpoints of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoints {
    /// By priority, 0 first.
    pub priorities: Vec<Vec<Endpoint>>,
}

/// One endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: Address,
    /// Whether it may be used: unknown and healthy ones are.
    pub healthy: bool,
    /// Its share, relative to the others of its priority. At least 1.
    pub weight: u32,
}
