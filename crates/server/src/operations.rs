//! Operational settings as plain values: additional listeners, HTTP restrictions, limits, the audit log and
//! telemetry. No file or network access here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use ipnet::IpNet;
use legate_model::Secret;

/// Consul's default maximum size of a KV value and of a transaction's body.
const KV_LIMIT: usize = 512 * 1024;

/// A UNIX socket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its path. An existing socket is replaced.
    pub path: PathBuf,
    /// Name or id of the user that owns it. Default: the process's user.
    pub user: Option<String>,
    /// Name or id of the group that owns it. Default: the process's group.
    pub group: Option<String>,
    /// File mode. Default: by the process's umask.
    pub mode: Option<u32>,
}

/// Additional listen addresses of the APIs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MoreListeners {
    /// The HTTP API.
    pub http: Vec<SocketAddr>,
    /// The HTTP API on UNIX sockets.
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

/// A TLS version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2, the oldest supported version.
    #[default]
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// TLS requirements of a listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    /// Whether clients must present a certificate of one of `client_authorities`. Default: no.
    pub verify_incoming: bool,
    /// CA certificates of clients: PEM files, or directories with PEM files.
    pub client_authorities: Vec<PathBuf>,
    /// The minimum TLS version. Default: 1.2.
    pub min_version: TlsVersion,
    /// Go's names of the permitted TLS 1.2 cipher suites. Empty: all.
    pub cipher_suites: Vec<String>,
}

/// Restrictions of the HTTP API that apply to all tokens, and headers added to responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpPolicy {
    /// Blocked path prefixes.
    pub block_endpoints: Vec<String>,
    /// Networks from which writes are permitted. Empty: all.
    pub allow_write_from: Vec<IpNet>,
    /// Host names under which browsers reach this server, in addition to its node name, `localhost` and the names
    /// below its DNS domains.
    pub hosts: Vec<String>,
    /// Headers added to every response.
    pub response_headers: Vec<(HeaderName, HeaderValue)>,
    /// The maximum size of a request's headers, in bytes.
    pub max_header_bytes: usize,
    /// Timeout of TLS handshakes.
    pub handshake_timeout: Duration,
}

impl Default for HttpPolicy {
    fn default() -> Self {
        Self {
            block_endpoints: Vec::new(),
            allow_write_from: Vec::new(),
            hosts: Vec::new(),
            response_headers: Vec::new(),
            max_header_bytes: 1024 * 1024,
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

/// Handling of requests that exceed a rate limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LimitMode {
    /// Requests are not counted.
    #[default]
    Disabled,
    /// Logged but served.
    Permissive,
    /// Rejected.
    Enforcing,
}

/// Rate limits of the HTTP and gRPC APIs together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RequestLimits {
    /// Handling of requests that exceed a limit.
    pub mode: LimitMode,
    /// Reads per second; `None`: no limit.
    pub read_rate: Option<f64>,
    /// Writes per second; `None`: no limit.
    pub write_rate: Option<f64>,
}

/// Size limits of stored values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeLimits {
    /// Maximum size of a KV value, in bytes. Default 512 KiB.
    pub kv_value: usize,
    /// Maximum size of a transaction's body, in bytes. Default 512 KiB.
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

/// Wait times of blocking queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryTimes {
    /// If the query does not set `wait`. Default 5 minutes.
    pub default: Duration,
    /// The maximum. Default 10 minutes.
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

/// One audit log file, and its rotation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditSink {
    /// Its name in the settings.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// File mode. Default 0600.
    pub mode: Option<u32>,
    /// When files are rotated, and how many are retained.
    pub rotation: legate_runtime::rotating_file::Rotation,
}

/// Export of metrics and traces.
#[derive(Debug, Clone, PartialEq)]
pub struct TelemetryConfig {
    /// OTLP endpoint over HTTP for traces and metrics, such as `http://127.0.0.1:4318`. Default: none.
    pub otlp_endpoint: Option<String>,
    /// Headers of each OTLP request.
    pub otlp_headers: BTreeMap<String, Secret>,
    /// Export interval of metrics, for all exporters. Default 10 s.
    pub interval: Duration,
    /// Fraction of new traces that are sampled, from 0 to 1. Requests that carry a sampling decision keep it.
    pub traces_ratio: f64,
    /// `host:port` of a StatsD server (UDP).
    pub statsd: Option<String>,
    /// `host:port` of a DogStatsD server (UDP), with tags.
    pub dogstatsd: Option<String>,
    /// Tags of all DogStatsD metrics.
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
