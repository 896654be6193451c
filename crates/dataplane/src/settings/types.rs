//! The settings as the rest of the dataplane uses them: typed, complete and checked. Independent of
//! the flag, variable or file key that a value came from.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use legate_client::{Credentials, TlsConfig};
use legate_envoy::bootstrap::XdsAddress;
use legate_envoy::process::{DrainStrategy, EnvoyLog};
use serde::Serialize;

/// All settings, merged from flags, environment, file and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// What this process does (`-mode`).
    pub mode: Mode,
    /// Addresses of the servers, TLS and credentials.
    pub servers: Servers,
    /// Identity of the proxy.
    pub proxy: Proxy,
    /// Level (`-log-level`) and format (`-log-json`) of the log, Envoy's as well.
    pub logging: EnvoyLog,
    /// Address of the xDS relay for Envoy (`-xds-bind-addr`, `-xds-bind-port`).
    pub xds: XdsAddress,
    /// Address of the DNS server; `None` if disabled (`-consul-dns-bind-addr`,
    /// `-consul-dns-bind-port`).
    pub dns: Option<SocketAddr>,
    /// Metrics and where they are exposed.
    pub telemetry: Telemetry,
    /// The Envoy process and its listeners.
    pub envoy: Envoy,
    /// Start and shutdown of the process.
    pub lifecycle: Lifecycle,
    /// The environment at start: for `$PATH` look-ups and for variables that a proxy's telemetry
    /// keys refer to.
    pub environment: Environment,
}

/// Operating mode of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Relay configuration to an Envoy that this process supervises.
    Sidecar,
    /// Answer DNS only.
    DnsProxy,
}

/// Addresses of the servers, TLS and credentials.
#[derive(Debug, Clone, PartialEq)]
pub struct Servers {
    /// `-addresses` as written: host names, IP addresses, or `exec=COMMAND ARGS`. Never empty.
    pub addresses: String,
    /// `-grpc-port`: the port of every server. Never 0.
    pub grpc_port: u16,
    /// `-server-watch-disabled`: use only the given addresses and do not discover other servers.
    pub watch_disabled: bool,
    /// TLS towards the servers; `None` if `-tls-disabled`.
    pub tls: Option<TlsConfig>,
    /// How to authenticate.
    pub credentials: Credentials,
}

/// Identity of the proxy. An empty string means that the server chooses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Proxy {
    /// `-proxy-node-name`.
    pub node_name: String,
    /// `-proxy-node-id`; takes precedence over the name.
    pub node_id: String,
    /// `-proxy-id`, or the content of the file at `-proxy-id-path`. Never empty in sidecar mode.
    pub id: String,
    /// `-proxy-namespace`.
    pub namespace: String,
    /// `-proxy-partition`.
    pub partition: String,
}

/// Metrics and where they are exposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// `-telemetry-use-central-config`: apply the telemetry keys of the proxy's configuration.
    pub use_central_config: bool,
    /// `-telemetry-prom-retention-time`. Never zero.
    pub retention: Duration,
    /// TLS of the Prometheus listener: all three parts or none.
    pub prometheus_tls: Option<PrometheusTls>,
    /// `-telemetry-prom-service-metrics-url`: the application's metrics.
    pub service_metrics_url: Option<String>,
    /// `-telemetry-prom-scrape-path`. Never empty.
    pub scrape_path: String,
    /// `-telemetry-prom-merge-port`: port of the merged metrics. Never 0.
    pub merge_port: u16,
    /// `-telemetry-prom-bind-addr`: address of the merged metrics and of the dataplane's own.
    pub bind: IpAddr,
}

/// TLS files of the Prometheus listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusTls {
    /// `-telemetry-prom-ca-certs-path` or `-telemetry-prom-ca-certs-file`: a file or a directory.
    pub ca: PathBuf,
    /// `-telemetry-prom-cert-file`.
    pub certificate: PathBuf,
    /// `-telemetry-prom-key-file`.
    pub key: PathBuf,
}

/// The Envoy process and its own listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envoy {
    /// `-proxy`.
    pub kind: ProxyKind,
    /// `-envoy-admin-bind-address` and `-envoy-admin-bind-port`.
    pub admin: SocketAddr,
    /// `-envoy-ready-bind-address` and `-envoy-ready-bind-port`; `None` unless both are given.
    pub ready: Option<SocketAddr>,
    /// `-proxy-return-after`: how long everything has been what the built-in proxy serves before it takes over again.
    pub return_after: Duration,
    /// `-proxy-close-outdated`: accept no connections to the application while Envoy is needed and does not serve.
    pub close_outdated: bool,
    /// `-envoy-concurrency`: worker threads.
    pub concurrency: u32,
    /// `-envoy-drain-time-seconds`.
    pub drain_time: Duration,
    /// `-envoy-drain-strategy`.
    pub drain_strategy: DrainStrategy,
    /// `-envoy-executable-path`; `None` means the first `envoy` on `$PATH`.
    pub executable: Option<PathBuf>,
    /// `-envoy-hot-restart`: let a new Envoy take over from the old one.
    pub hot_restart: bool,
    /// `-envoy-bootstrap-refresh-interval`: how often a server is queried for the bootstrap
    /// parameters; zero for never.
    pub bootstrap_refresh: Duration,
    /// `-envoy-state-dir`: folder for the state of Envoys that outlive the dataplane; `None` if
    /// they do not.
    pub state_dir: Option<PathBuf>,
    /// Arguments after `--`.
    pub extra_args: Vec<OsString>,
}

/// Which proxy serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyKind {
    /// Envoy.
    #[default]
    Envoy,
    /// The one in this process, for TCP.
    BuiltIn,
    /// The one in this process as long as it can serve everything, otherwise Envoy.
    Auto,
}

impl ProxyKind {
    /// The value of `-proxy`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Envoy => "envoy",
            Self::BuiltIn => "builtin",
            Self::Auto => "auto",
        }
    }

    /// Parses a value of `-proxy`.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Envoy, Self::BuiltIn, Self::Auto]
            .into_iter()
            .find(|kind| kind.as_str() == word)
    }
}

/// Start and shutdown of the process. No two paths of the lifecycle server overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifecycle {
    /// `-graceful-addr` and `-graceful-port`. The port is never 0.
    pub bind: SocketAddr,
    /// `-graceful-shutdown-path`. Starts with `/`.
    pub shutdown_path: String,
    /// `-graceful-startup-path`. Starts with `/`.
    pub startup_path: String,
    /// `-startup-grace-period-seconds`: how long the startup path waits for Envoy.
    pub startup_grace: Duration,
    /// `-shutdown-grace-period-seconds`: how long Envoy keeps serving after a stop was requested.
    pub shutdown_grace: Duration,
    /// `-shutdown-drain-listeners`: drain inbound listeners during that time.
    pub drain_listeners: bool,
    /// `-shutdown-end-when-idle`: end that time early, as soon as Envoy has no connections.
    /// Requires `drain_listeners`.
    pub end_when_idle: bool,
    /// `-dump-envoy-config-on-exit`: write Envoy's configuration to standard output before it
    /// stops.
    pub dump_envoy_config: bool,
}

/// The environment variables of the process. Its `Debug` output shows their names and masks the
/// values.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Environment(Arc<BTreeMap<OsString, OsString>>);

impl Environment {
    /// Creates an environment from variables in the form of `std::env::vars_os`.
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self(Arc::new(variables.into_iter().collect()))
    }

    /// The variables of this process. The only place that reads them.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the configuration module"
    )]
    pub fn of_process() -> Self {
        Self::new(std::env::vars_os())
    }

    /// The value of `name`, even if it is empty.
    pub fn get_os(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// The value of `name` if it is set and valid UTF-8, even if it is empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_os(name).and_then(OsStr::to_str)
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.keys().map(|name| (name, "***")))
            .finish()
    }
}

/// Why there are no settings to run with. Texts that users and scripts of Consul's dataplane match
/// on are the same here.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// `-h` or `-help`: print the usage.
    #[error("flag: help requested")]
    Help,
    /// The command line is invalid; print the usage with this message.
    #[error("{0}")]
    Flag(String),
    /// A setting or a combination of settings is invalid; the message names them and their source.
    #[error(transparent)]
    Invalid(#[from] anyhow::Error),
}
