//! What can be wrong with settings as a whole. Texts that people and scripts know from the
//! original are kept word for word.

/// A setting, or several together, that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// `-mode` is neither of the two.
    #[error("unknown -mode {0:?}: use sidecar or dns-proxy")]
    Mode(String),
    /// `-addresses` is missing or empty.
    #[error("consul addresses not specified")]
    NoAddresses,
    /// `-grpc-port` is 0.
    #[error("consul server gRPC port not specified")]
    NoGrpcPort,
    /// No proxy id from any source.
    #[error("proxy ID not specified")]
    NoProxyId,
    /// `-envoy-admin-bind-address` is empty.
    #[error("envoy admin bind address not specified")]
    NoAdminAddress,
    /// `-envoy-admin-bind-port` is 0.
    #[error("envoy admin bind port not specified")]
    NoAdminPort,
    /// `-xds-bind-addr` is empty.
    #[error("envoy xDS bind address not specified")]
    NoXdsAddress,
    /// `-xds-bind-addr` is neither a loopback IP address nor a unix socket.
    #[error("non-local xDS bind address not allowed")]
    XdsNotLocal,
    /// `-consul-dns-bind-addr` is not a loopback IP address.
    #[error("non-local DNS proxy bind address not allowed when running as a sidecar")]
    DnsNotLocal,
    /// `-consul-dns-bind-addr` is not an IP address.
    #[error("failed to create dns server: error parsing specified dns bind addr '{0}'")]
    DnsAddress(String),
    /// DNS alone answers for the default namespace only.
    #[error("namespace must be empty or set to 'default' when running in dns-proxy mode")]
    DnsProxyNamespace,
    /// A login without proof.
    #[error("bearer token (or path to a file containing a bearer token) is required for login")]
    NoBearer,
    /// A login without an auth method.
    #[error("auth method is required for login: set -login-auth-method")]
    NoAuthMethod,
    /// `-credential-type` is none of the known ones.
    #[error("unknown credential type: {0}")]
    CredentialType(String),
    /// A client certificate without its key, or the other way round.
    #[error("-tls-cert and -tls-key go together: one of them is missing")]
    HalfClientCertificate,
    /// Some, but not all, TLS files of the Prometheus listener.
    #[error(
        "Must provide -telemetry-prom-ca-certs-path, -telemetry-prom-cert-file, and -telemetry-prom-key-file to enable TLS for prometheus metrics"
    )]
    PartialPrometheusTls,
    /// A retention time of zero or less.
    #[error("-telemetry-prom-retention-time must be greater than zero")]
    Retention,
    /// An empty scrape path.
    #[error("-telemetry-prom-scrape-path must not be empty")]
    NoScrapePath,
    /// `-log-level` is none of the five.
    #[error("invalid log level. valid values - TRACE, DEBUG, INFO, WARN, ERROR")]
    LogLevel,
    /// `-envoy-drain-strategy` is neither of the two.
    #[error("unknown -envoy-drain-strategy {0:?}: use immediate or gradual")]
    DrainStrategy(String),
    /// Too short a time between two questions to servers, or a negative one.
    #[error("-envoy-bootstrap-refresh-interval must be 0 (never) or at least 10s")]
    BootstrapRefresh,
    /// An Envoy that outlives the dataplane would not find the next one.
    #[error(
        "-envoy-state-dir needs a fixed address for Envoy's configuration: set -xds-bind-port, or -xds-bind-addr=unix://PATH"
    )]
    StateDirNeedsXds,
    /// Text that is no IP address.
    #[error("-{flag} {value:?} is not an IP address")]
    Address {
        /// The setting.
        flag: &'static str,
        /// Its value.
        value: String,
    },
    /// A number that is no port.
    #[error("-{flag} {value} is not a port: use 0 to 65535")]
    Port {
        /// The setting.
        flag: &'static str,
        /// Its value.
        value: i64,
    },
    /// A number that is negative or too large.
    #[error("-{flag} {value} is out of range: use 0 to 4294967295")]
    Count {
        /// The setting.
        flag: &'static str,
        /// Its value.
        value: i64,
    },
    /// An HTTP path without a slash in front.
    #[error("-{flag} {value:?} must start with /")]
    HttpPath {
        /// The setting.
        flag: &'static str,
        /// Its value.
        value: String,
    },
    /// New connections keep coming where listeners do not drain.
    #[error("-shutdown-end-when-idle needs -shutdown-drain-listeners: set both")]
    IdleWithoutDrain,
    /// Both lifecycle paths are the same.
    #[error("-graceful-shutdown-path and -graceful-startup-path are both {0:?}: they must differ")]
    SamePaths(String),
    /// Two questions at once.
    #[error("-status, -restart and -drain are questions of their own: ask one at a time")]
    TwoQuestions,
    /// One lifecycle path lies below the other.
    #[error(
        "-graceful-shutdown-path {shutdown:?} and -graceful-startup-path {startup:?} overlap: a path that ends with a slash stands for everything below it"
    )]
    OverlappingPaths {
        /// The one.
        shutdown: String,
        /// The other.
        startup: String,
    },
    /// A lifecycle path stands for one that is answered in another way.
    #[error(
        "-{flag} {value:?} stands for {path}, which the same port answers in another way: use another path"
    )]
    PathTaken {
        /// The setting.
        flag: &'static str,
        /// Its value.
        value: String,
        /// The path that it takes.
        path: &'static str,
    },
}
