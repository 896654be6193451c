//! The table of settings, one entry each. Flag parsing, environment, file keys, precedence, usage
//! text and reference documentation are derived from it: a new setting needs an entry here and its
//! use in `resolve`.

use std::fmt;

/// The type of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// Text that is never shown, such as a token.
    Secret,
    Int,
    Bool,
    Duration,
    /// `key=value`, any number of times.
    Pairs,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub(super) key: Item,
    pub(super) kind: Kind,
    /// The flag's name, without dashes.
    pub(super) flag: &'static str,
    /// The environment variable; for [`Kind::Pairs`] without the trailing digit.
    pub(super) env: Option<&'static str>,
    /// The path of the key in the file, joined by dots.
    pub(super) file: Option<&'static str>,
    /// The default, in the syntax of a flag.
    pub(super) default: Option<&'static str>,
    /// Description of the setting, without a full stop.
    pub(super) doc: &'static str,
}

/// A key that the file may contain but that has no effect.
pub(super) const IGNORED_FILE_KEY: &str = "logging.name";

impl Item {
    /// The setting's declaration.
    pub(super) fn setting(self) -> &'static Setting {
        &SETTINGS[self as usize]
    }
}

/// Prints the flag, as errors name the setting.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-{}", self.setting().flag)
    }
}

macro_rules! optional {
    () => {
        None
    };
    ($value:literal) => {
        Some($value)
    };
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $key:ident: $kind:ident {
        flag: $flag:literal
        $(, env: $env:literal)?
        $(, file: $file:literal)?
        $(, default: $default:literal)?
    })*) => {
        /// Identifiers of settings within the program.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(super) enum Item { $($(#[doc = $doc])+ $key),* }

        /// Every setting, in the order of [`Item`].
        pub(super) const SETTINGS: &[Setting] = &[$(Setting {
            key: Item::$key,
            kind: Kind::$kind,
            flag: $flag,
            env: optional!($($env)?),
            file: optional!($($file)?),
            default: optional!($($default)?),
            doc: concat!($($doc),+).trim_ascii_start(),
        }),*];
    };
}

settings! {
    /// Print the version and exit
    Version: Bool { flag: "version" }

    /// Ask Envoy whether it is ready; exit with 0 if it is and 1 if not
    CheckProxyHealth: Bool { flag: "check-proxy-health" }

    /// Print the status of the dataplane that runs at -graceful-addr and -graceful-port; exit with
    /// 0 if it is ready, 1 if not and 2 if there is no answer; with -log-json print the status
    /// document
    Status: Bool { flag: "status" }

    /// Request a new Envoy from the dataplane that runs at -graceful-addr and -graceful-port; exit
    /// with 0 if it serves or is about to start, 1 if refused and 2 if there is no answer
    Restart: Bool { flag: "restart" }

    /// Request the dataplane that runs at -graceful-addr and -graceful-port to drain inbound
    /// connections, and to refuse new ones after this time, 60s at most; outbound connections and
    /// processes are not touched; exit with 0 on success, 1 if refused and 2 if there is no answer
    Drain: Duration { flag: "drain" }

    /// A JSON file of settings; its name ends in .json
    ConfigFile: Text { flag: "config-file" }

    /// sidecar (relay configuration to an Envoy and supervise it) or dns-proxy (answer DNS only)
    Mode: Text { flag: "mode", env: "DP_MODE", file: "mode", default: "sidecar" }

    /// Addresses of the servers: DNS names or IP addresses, separated by commas or blanks, or
    /// exec=COMMAND ARGS, a command that prints IP addresses
    Addresses: Text { flag: "addresses", env: "DP_CONSUL_ADDRESSES", file: "consul.addresses" }

    /// The gRPC port of every server
    GrpcPort: Int { flag: "grpc-port", env: "DP_CONSUL_GRPC_PORT", file: "consul.grpcPort", default: "8502" }

    /// Use only the given addresses and do not discover other servers; for servers behind a load
    /// balancer
    ServerWatchDisabled: Bool { flag: "server-watch-disabled", env: "DP_SERVER_WATCH_DISABLED", file: "consul.serverWatchDisabled", default: "false" }

    /// Connect to servers without TLS
    TlsDisabled: Bool { flag: "tls-disabled", env: "DP_TLS_DISABLED", file: "consul.tls.disabled", default: "false" }

    /// A PEM file, or a directory of them, with the CA certificates that servers are verified
    /// against; the system's when empty
    CaCerts: Text { flag: "ca-certs", env: "DP_CA_CERTS", file: "consul.tls.caCertsPath" }

    /// A PEM file with the client certificate; requires -tls-key
    TlsCert: Text { flag: "tls-cert", env: "DP_TLS_CERT", file: "consul.tls.certFile" }

    /// A PEM file with the key of -tls-cert
    TlsKey: Text { flag: "tls-key", env: "DP_TLS_KEY", file: "consul.tls.keyFile" }

    /// The name in the servers' certificates; derived from -addresses when empty
    TlsServerName: Text { flag: "tls-server-name", env: "DP_TLS_SERVER_NAME", file: "consul.tls.serverName" }

    /// Do not verify servers' certificates
    TlsInsecureSkipVerify: Bool { flag: "tls-insecure-skip-verify", env: "DP_TLS_INSECURE_SKIP_VERIFY", file: "consul.tls.insecureSkipVerify", default: "false" }

    /// How to authenticate to servers: static, login, or empty for no authentication
    CredentialType: Text { flag: "credential-type", env: "DP_CREDENTIAL_TYPE", file: "consul.credentials.type" }

    /// The ACL token for -credential-type=static
    StaticToken: Secret { flag: "static-token", env: "DP_CREDENTIAL_STATIC_TOKEN", file: "consul.credentials.static.token" }

    /// The auth method for -credential-type=login
    LoginAuthMethod: Text { flag: "login-auth-method", env: "DP_CREDENTIAL_LOGIN_AUTH_METHOD", file: "consul.credentials.login.authMethod" }

    /// The namespace of the auth method
    LoginNamespace: Text { flag: "login-namespace", env: "DP_CREDENTIAL_LOGIN_NAMESPACE", file: "consul.credentials.login.namespace" }

    /// The partition of the auth method
    LoginPartition: Text { flag: "login-partition", env: "DP_CREDENTIAL_LOGIN_PARTITION", file: "consul.credentials.login.partition" }

    /// The datacenter of the auth method
    LoginDatacenter: Text { flag: "login-datacenter", env: "DP_CREDENTIAL_LOGIN_DATACENTER", file: "consul.credentials.login.datacenter" }

    /// The bearer token for the login; overrides -login-bearer-token-path
    LoginBearerToken: Secret { flag: "login-bearer-token", env: "DP_CREDENTIAL_LOGIN_BEARER_TOKEN", file: "consul.credentials.login.bearerToken" }

    /// A file with the bearer token, read for each login
    LoginBearerTokenPath: Text { flag: "login-bearer-token-path", env: "DP_CREDENTIAL_LOGIN_BEARER_TOKEN_PATH", file: "consul.credentials.login.bearerTokenPath" }

    /// Metadata of the token that a login creates, as key=value; repeatable
    LoginMeta: Pairs { flag: "login-meta", env: "DP_CREDENTIAL_LOGIN_META", file: "consul.credentials.login.meta" }

    /// The name of the node that the proxy is registered on
    ProxyNodeName: Text { flag: "proxy-node-name", env: "DP_PROXY_NODE_NAME", file: "proxy.nodeName" }

    /// The id of the node that the proxy is registered on; overrides its name
    ProxyNodeId: Text { flag: "proxy-node-id", env: "DP_PROXY_NODE_ID", file: "proxy.nodeID" }

    /// The id of the proxy's service instance
    ProxyId: Text { flag: "proxy-id", env: "DP_PROXY_ID", file: "proxy.id" }

    /// A file with the id of the proxy's service instance
    ProxyIdPath: Text { flag: "proxy-id-path", env: "DP_PROXY_ID_PATH", file: "proxy.idPath" }

    /// The namespace of the proxy
    ProxyNamespace: Text { flag: "proxy-namespace", env: "DP_PROXY_NAMESPACE", file: "proxy.namespace" }

    /// The partition of the proxy
    ProxyPartition: Text { flag: "proxy-partition", env: "DP_PROXY_PARTITION", file: "proxy.partition" }

    /// Deprecated, use -proxy-node-name
    ServiceNodeName: Text { flag: "service-node-name", env: "DP_SERVICE_NODE_NAME", file: "service.nodeName" }

    /// Deprecated, use -proxy-node-id
    ServiceNodeId: Text { flag: "service-node-id", env: "DP_SERVICE_NODE_ID", file: "service.nodeID" }

    /// Deprecated, use -proxy-id
    ServiceId: Text { flag: "proxy-service-id", env: "DP_PROXY_SERVICE_ID", file: "service.serviceID" }

    /// Deprecated, use -proxy-id-path
    ServiceIdPath: Text { flag: "proxy-service-id-path", env: "DP_PROXY_SERVICE_ID_PATH", file: "service.serviceIDPath" }

    /// Deprecated, use -proxy-namespace
    ServiceNamespace: Text { flag: "service-namespace", env: "DP_SERVICE_NAMESPACE", file: "service.namespace" }

    /// Deprecated, use -proxy-partition
    ServicePartition: Text { flag: "service-partition", env: "DP_SERVICE_PARTITION", file: "service.partition" }

    /// Lowest level that is logged: trace, debug, info, warn or error; also applies to Envoy's log
    LogLevel: Text { flag: "log-level", env: "DP_LOG_LEVEL", file: "logging.logLevel", default: "info" }

    /// Log one JSON object per line; also applies to Envoy's log
    LogJson: Bool { flag: "log-json", env: "DP_LOG_JSON", file: "logging.logJSON", default: "false" }

    /// The address that Envoy fetches its configuration from: a loopback IP address, or unix://PATH
    XdsBindAddr: Text { flag: "xds-bind-addr", env: "DP_XDS_BIND_ADDR", file: "xdsServer.bindAddress", default: "127.0.0.1" }

    /// The port at -xds-bind-addr; 0 picks a free one
    XdsBindPort: Int { flag: "xds-bind-port", env: "DP_XDS_BIND_PORT", file: "xdsServer.bindPort", default: "0" }

    /// The IP address of the DNS server; must be loopback in a sidecar
    DnsBindAddr: Text { flag: "consul-dns-bind-addr", env: "DP_CONSUL_DNS_BIND_ADDR", file: "dnsServer.bindAddress", default: "127.0.0.1" }

    /// The port of the DNS server; -1 disables it, 0 picks a free one
    DnsBindPort: Int { flag: "consul-dns-bind-port", env: "DP_CONSUL_DNS_BIND_PORT", file: "dnsServer.bindPort", default: "-1" }

    /// Apply the telemetry keys of the proxy's configuration
    TelemetryUseCentralConfig: Bool { flag: "telemetry-use-central-config", env: "DP_TELEMETRY_USE_CENTRAL_CONFIG", file: "telemetry.useCentralConfig", default: "true" }

    /// How long metrics that are no longer updated stay visible
    PromRetentionTime: Duration { flag: "telemetry-prom-retention-time", env: "DP_TELEMETRY_PROM_RETENTION_TIME", file: "telemetry.prometheus.retentionTime", default: "60s" }

    /// A PEM file, or a directory of them, with the CA certificates that Prometheus' certificate is
    /// verified against
    PromCaCertsPath: Text { flag: "telemetry-prom-ca-certs-path", env: "DP_TELEMETRY_PROM_CA_CERTS_PATH", file: "telemetry.prometheus.caCertsPath" }

    /// The same as -telemetry-prom-ca-certs-path, which takes precedence; the Kubernetes injector
    /// passes both
    PromCaCertsFile: Text { flag: "telemetry-prom-ca-certs-file", env: "DP_TELEMETRY_PROM_CA_CERTS_FILE", file: "telemetry.prometheus.caCertsFile" }

    /// A PEM file with the key of -telemetry-prom-cert-file
    PromKeyFile: Text { flag: "telemetry-prom-key-file", env: "DP_TELEMETRY_PROM_KEY_FILE", file: "telemetry.prometheus.keyFile" }

    /// A PEM file with the certificate of the Prometheus listener
    PromCertFile: Text { flag: "telemetry-prom-cert-file", env: "DP_TELEMETRY_PROM_CERT_FILE", file: "telemetry.prometheus.certFile" }

    /// The URL of the application's metrics, which are merged with the proxy's
    PromServiceMetricsUrl: Text { flag: "telemetry-prom-service-metrics-url", env: "DP_TELEMETRY_PROM_SERVICE_METRICS_URL", file: "telemetry.prometheus.serviceMetricsURL" }

    /// The path that Prometheus scrapes
    PromScrapePath: Text { flag: "telemetry-prom-scrape-path", env: "DP_TELEMETRY_PROM_SCRAPE_PATH", file: "telemetry.prometheus.scrapePath", default: "/metrics" }

    /// The port at which the merged metrics are served to Envoy's Prometheus listener
    PromMergePort: Int { flag: "telemetry-prom-merge-port", env: "DP_TELEMETRY_PROM_MERGE_PORT", file: "telemetry.prometheus.mergePort", default: "20100" }

    /// The IP address of -telemetry-prom-merge-port and of port 20101, which serves the dataplane's
    /// own metrics; :: for all addresses, IPv4 and IPv6
    PromBindAddr: Text { flag: "telemetry-prom-bind-addr", env: "DP_TELEMETRY_PROM_BIND_ADDR", file: "telemetry.prometheus.bindAddress", default: "::" }

    /// Which proxy serves: envoy; builtin, which needs less memory and serves TCP only; or auto, the latter as long as it
    /// can
    ProxyKind: Text { flag: "proxy", env: "DP_PROXY", file: "proxy.kind", default: "envoy" }

    /// With -proxy auto, how long everything must have been what the built-in proxy serves before it takes over from
    /// Envoy again; at most once in twelve times this
    ProxyReturnAfter: Duration { flag: "proxy-return-after", env: "DP_PROXY_RETURN_AFTER", file: "proxy.returnAfter", default: "5m" }

    /// With -proxy auto, accept no connections to the application if Envoy has been needed for a minute and does not
    /// serve; by default the last configuration is served on
    ProxyCloseOutdated: Bool { flag: "proxy-close-outdated", env: "DP_PROXY_CLOSE_OUTDATED", file: "proxy.closeOutdated", default: "false" }

    /// The IP address of Envoy's admin interface
    AdminBindAddress: Text { flag: "envoy-admin-bind-address", env: "DP_ENVOY_ADMIN_BIND_ADDRESS", file: "envoy.adminBindAddress", default: "127.0.0.1" }

    /// The port of Envoy's admin interface
    AdminBindPort: Int { flag: "envoy-admin-bind-port", env: "DP_ENVOY_ADMIN_BIND_PORT", file: "envoy.adminBindPort", default: "19000" }

    /// The IP address at which Envoy answers /ready; needs -envoy-ready-bind-port
    ReadyBindAddress: Text { flag: "envoy-ready-bind-address", env: "DP_ENVOY_READY_BIND_ADDRESS", file: "envoy.readyBindAddress" }

    /// The port at which Envoy answers /ready; needs -envoy-ready-bind-address
    ReadyBindPort: Int { flag: "envoy-ready-bind-port", env: "DP_ENVOY_READY_BIND_PORT", file: "envoy.readyBindPort", default: "0" }

    /// The number of Envoy's worker threads
    EnvoyConcurrency: Int { flag: "envoy-concurrency", env: "DP_ENVOY_CONCURRENCY", file: "envoy.concurrency", default: "2" }

    /// How many seconds Envoy takes to drain a listener
    EnvoyDrainTime: Int { flag: "envoy-drain-time-seconds", env: "DP_ENVOY_DRAIN_TIME", file: "envoy.drainTimeSeconds", default: "30" }

    /// How connections are asked to close while draining: immediate (all at once) or gradual
    EnvoyDrainStrategy: Text { flag: "envoy-drain-strategy", env: "DP_ENVOY_DRAIN_STRATEGY", file: "envoy.drainStrategy", default: "immediate" }

    /// The Envoy program; the first envoy in $PATH when empty
    EnvoyExecutablePath: Text { flag: "envoy-executable-path", env: "DP_ENVOY_EXECUTABLE_PATH", file: "envoy.executablePath" }

    /// Let a new Envoy take over sockets and connections of the old one where possible; needs
    /// shared memory at /dev/shm
    EnvoyHotRestart: Bool { flag: "envoy-hot-restart", env: "DP_ENVOY_HOT_RESTART", file: "envoy.hotRestart", default: "true" }

    /// How often a server is queried for changes of Envoy's bootstrap configuration, which a new
    /// Envoy takes over with; 0 for only when a restart is requested
    EnvoyBootstrapRefresh: Duration { flag: "envoy-bootstrap-refresh-interval", env: "DP_ENVOY_BOOTSTRAP_REFRESH_INTERVAL", file: "envoy.bootstrapRefreshInterval", default: "5m" }

    /// A folder for the snapshot, pid file and log of an Envoy that outlives the dataplane and is
    /// adopted by the next one; for machines, not for containers; needs a fixed -xds-bind-port or a
    /// unix socket
    EnvoyStateDir: Text { flag: "envoy-state-dir", env: "DP_ENVOY_STATE_DIR", file: "envoy.stateDir" }

    /// Drain inbound listeners, and all listeners of a gateway, while the shutdown grace period runs
    ShutdownDrainListeners: Bool { flag: "shutdown-drain-listeners", env: "DP_SHUTDOWN_DRAIN_LISTENERS", file: "envoy.shutdownDrainListenersEnabled", default: "false" }

    /// How many seconds Envoy keeps serving after a stop was requested
    ShutdownGracePeriod: Int { flag: "shutdown-grace-period-seconds", env: "DP_SHUTDOWN_GRACE_PERIOD_SECONDS", file: "envoy.shutdownGracePeriodSeconds", default: "0" }

    /// End the shutdown grace period early, after 5 s at least or at once after -drain, as soon as Envoy has no
    /// connections; for a sidecar that stops after its application, such as a native sidecar of
    /// Kubernetes; needs -shutdown-drain-listeners
    ShutdownEndWhenIdle: Bool { flag: "shutdown-end-when-idle", env: "DP_SHUTDOWN_END_WHEN_IDLE", file: "envoy.shutdownEndWhenIdle", default: "false" }

    /// The HTTP path that requests a stop
    GracefulShutdownPath: Text { flag: "graceful-shutdown-path", env: "DP_GRACEFUL_SHUTDOWN_PATH", file: "envoy.gracefulShutdownPath", default: "/graceful_shutdown" }

    /// The HTTP path that responds once Envoy is ready
    GracefulStartupPath: Text { flag: "graceful-startup-path", env: "DP_GRACEFUL_STARTUP_PATH", file: "envoy.gracefulStartupPath", default: "/graceful_startup" }

    /// The IP address of the two paths, and of /live, /ready, /startup, /status and /metrics;
    /// 127.0.0.1 when empty
    GracefulAddr: Text { flag: "graceful-addr", env: "DP_GRACEFUL_ADDR", file: "envoy.gracefulAddr" }

    /// The port at -graceful-addr; 20300 when 0
    GracefulPort: Int { flag: "graceful-port", env: "DP_GRACEFUL_PORT", file: "envoy.gracefulPort", default: "20300" }

    /// How many seconds -graceful-startup-path waits for Envoy
    StartupGracePeriod: Int { flag: "startup-grace-period-seconds", env: "DP_STARTUP_GRACE_PERIOD_SECONDS", file: "envoy.startupGracePeriodSeconds", default: "0" }

    /// Write Envoy's configuration to standard output before it stops
    DumpEnvoyConfigOnExit: Bool { flag: "dump-envoy-config-on-exit", env: "DP_DUMP_ENVOY_CONFIG_ON_EXIT", file: "envoy.dumpEnvoyConfigOnExitEnabled", default: "false" }
}
