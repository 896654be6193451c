//! The settings of a server's operation, as values: where else it listens, what its HTTP API lets
//! through, limits, the audit log and telemetry. Nothing here touches files or the network.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use ipnet::IpNet;
use legate_model::Secret;

/// The largest value of KV, and body of a transaction, that Consul takes unless it is set otherwise.
const KV_LIMIT: usize = 512 * 1024;

/// A socket in the file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its file. A socket that is there already is replaced.
    pub path: PathBuf,
    /// The name or number of the user that owns it. Default: that of the process.
    pub user: Option<String>,
    /// The name or number of the group that owns it. Default: that of the process.
    pub group: Option<String>,
    /// Who may do what with it. Default: what the process's mask leaves.
    pub mode: Option<u32>,
}

/// Where APIs listen in addition to their first address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MoreListeners {
    /// The HTTP API.
    pub http: Vec<SocketAddr>,
    /// The HTTP API, at sockets in the file system.
    pub http_sockets: Vec<UnixSocket>,
    /// The HTTP API with TLS.
    pub https: Vec<SocketAddr>,
    /// gRPC without TLS.
    pub grpc: Vec<SocketAddr>,
    /// gRPC with TLS.
    pub grpc_tls: Vec<SocketAddr>,
    /// DNS.
    pub dns: Vec<SocketAddr>,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2. The oldest one that is served.
    #[default]
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// What a listener with TLS asks of its clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    /// Whether a client needs a certificate of one of these authorities. Default: no.
    pub verify_incoming: bool,
    /// PEM files, or directories of them, with the authorities of clients.
    pub client_authorities: Vec<PathBuf>,
    /// The oldest version that is spoken. Default: 1.2.
    pub min_version: TlsVersion,
    /// Go's names of the suites of TLS 1.2 that are spoken; empty means all.
    pub cipher_suites: Vec<String>,
}

/// What the HTTP API lets through, whatever a token allows, and what it adds to its answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpPolicy {
    /// Paths that are refused, with all below each.
    pub block_endpoints: Vec<String>,
    /// Networks that may write. Empty: all.
    pub allow_write_from: Vec<IpNet>,
    /// Headers of every answer.
    pub response_headers: Vec<(HeaderName, HeaderValue)>,
    /// The largest head of a request, in bytes.
    pub max_header_bytes: usize,
    /// How long a client may take for a TLS handshake.
    pub handshake_timeout: Duration,
}

impl Default for HttpPolicy {
    fn default() -> Self {
        Self {
            block_endpoints: Vec::new(),
            allow_write_from: Vec::new(),
            response_headers: Vec::new(),
            max_header_bytes: 1024 * 1024,
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

/// What happens to requests that are too many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LimitMode {
    /// They are not counted.
    #[default]
    Disabled,
    /// They are logged and answered.
    Permissive,
    /// They are refused.
    Enforcing,
}

/// How many requests in a second the HTTP and gRPC APIs take together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RequestLimits {
    /// What happens to what is too much.
    pub mode: LimitMode,
    /// Reads in a second; `None` is no limit.
    pub read_rate: Option<f64>,
    /// Writes in a second; `None` is no limit.
    pub write_rate: Option<f64>,
}

/// How large what is stored may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeLimits {
    /// The largest value of KV, in bytes. Default 512 KiB.
    pub kv_value: usize,
    /// The largest body of a transaction, in bytes. Default 512 KiB.
    pub transaction: usize,
}

impl Default for SizeLimits {
    fn default() -> Self {
        Self {
            kv_value: KV_LIMIT,
            transaction: KV_LIMIT,
        }
    }
}

/// How long blocking queries wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryTimes {
    /// When they do not say. Default 5 minutes.
    pub default: Duration,
    /// At most. Default 10 minutes.
    pub max: Duration,
}

impl Default for QueryTimes {
    fn default() -> Self {
        Self {
            default: Duration::from_secs(300),
            max: Duration::from_secs(600),
        }
    }
}

/// One file that is written to, and when another one takes its place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditSink {
    /// What the settings call it.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Who may do what with it. Default 0600.
    pub mode: Option<u32>,
    /// When another file takes its place, and how many are kept.
    pub rotation: legate_runtime::rotating_file::Rotation,
}

/// What a server reports to others about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct TelemetryConfig {
    /// Where OpenTelemetry's collector takes traces and metrics over HTTP, such as
    /// `http://127.0.0.1:4318`. Default: nowhere.
    pub otlp_endpoint: Option<String>,
    /// Headers of each request to it.
    pub otlp_headers: BTreeMap<String, Secret>,
    /// How often metrics are sent, to whomever. Default 10 s.
    pub interval: Duration,
    /// The part of requests that begin a trace, from 0 to 1. Those that carry a decision keep it.
    pub traces_ratio: f64,
    /// `host:port` that takes metrics over UDP in StatsD's form.
    pub statsd: Option<String>,
    /// `host:port` that takes metrics over UDP in DogStatsD's form, with tags.
    pub dogstatsd: Option<String>,
    /// Tags of all metrics of DogStatsD.
    pub dogstatsd_tags: Vec<String>,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            otlp_headers: BTreeMap::new(),
            interval: Duration::from_secs(10),
            traces_ratio: 1.0,
            statsd: None,
            dogstatsd: None,
            dogstatsd_tags: Vec::new(),
        }
    }
}
