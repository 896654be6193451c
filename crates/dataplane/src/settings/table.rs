//! The table of settings: one block each. Flag parsing, environment, file keys, precedence, usage
//! text and reference are all derived from it, so that adding a setting is adding a block here
//! and reading it where settings are resolved.

/// What a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// Text that is never shown.
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
    /// The variable; for [`Kind::Pairs`] without the digit that follows.
    pub(super) env: Option<&'static str>,
    /// The path of the file's key, joined by dots.
    pub(super) file: Option<&'static str>,
    /// The default as a flag would give it.
    pub(super) default: Option<&'static str>,
    /// What the setting is for, without a full stop.
    pub(super) doc: &'static str,
}

/// Keys that the file may hold and that mean nothing.
pub(super) const IGNORED_FILE_KEYS: [&str; 1] = ["logging.name"];

macro_rules! optional {
    () => {
        None
    };
    ($value:literal) => {
        Some($value)
    };
}

macro_rules! settings {
    ($($key:ident: $kind:ident {
        flag: $flag:literal,
        $(env: $env:literal,)?
        $(file: $file:literal,)?
        $(default: $default:literal,)?
        doc: $doc:literal
    })*) => {
        /// Names of settings within the program.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(super) enum Item { $($key),* }

        /// Every setting, in the order of [`Item`].
        pub(super) const SETTINGS: &[Setting] = &[$(Setting {
            key: Item::$key,
            kind: Kind::$kind,
            flag: $flag,
            env: optional!($($env)?),
            file: optional!($($file)?),
            default: optional!($($default)?),
            doc: $doc,
        }),*];
    };
}

impl Item {
    /// The setting's declaration.
    pub(super) fn setting(self) -> &'static Setting {
        &SETTINGS[self as usize]
    }
}

settings! {
    Version: Bool {
        flag: "version",
        doc: "Print the version and exit"
    }
    CheckProxyHealth: Bool {
        flag: "check-proxy-health",
        doc: "Ask Envoy whether it is ready; exit with 0 if it is and 1 if not"
    }
    Status: Bool {
        flag: "status",
        doc: "Print what the dataplane that runs at -graceful-addr and -graceful-port tells of itself; exit with 0 if it is ready, 1 if not and 2 if none answers; with -log-json print its status document"
    }
    Restart: Bool {
        flag: "restart",
        doc: "Ask the dataplane that runs at -graceful-addr and -graceful-port to start a new Envoy in place of the one it has; exit with 0 if it does, 1 if not and 2 if none answers"
    }
    Drain: Duration {
        flag: "drain",
        doc: "Ask the dataplane that runs at -graceful-addr and -graceful-port to drain inbound connections, and to refuse new ones after this time, 60s at most; outbound connections are not touched and nothing ends; exit with 0 if it does, 1 if not and 2 if none answers"
    }
    ConfigFile: Text {
        flag: "config-file",
        doc: "A JSON file of settings; its name ends in .json"
    }
    Mode: Text {
        flag: "mode", env: "DP_MODE", file: "mode", default: "sidecar",
        doc: "sidecar (relay configuration to an Envoy and supervise it) or dns-proxy (answer DNS only)"
    }

    Addresses: Text {
        flag: "addresses", env: "DP_CONSUL_ADDRESSES", file: "consul.addresses",
        doc: "Where the servers are: DNS names or IP addresses, separated by commas or blanks, or exec=COMMAND ARGS, a command that prints IP addresses"
    }
    GrpcPort: Int {
        flag: "grpc-port", env: "DP_CONSUL_GRPC_PORT", file: "consul.grpcPort", default: "8502",
        doc: "The gRPC port of every server"
    }
    ServerWatchDisabled: Bool {
        flag: "server-watch-disabled", env: "DP_SERVER_WATCH_DISABLED", file: "consul.serverWatchDisabled", default: "false",
        doc: "Keep to the addresses given, without asking servers for others; for servers behind a load balancer"
    }
    TlsDisabled: Bool {
        flag: "tls-disabled", env: "DP_TLS_DISABLED", file: "consul.tls.disabled", default: "false",
        doc: "Talk to servers without TLS"
    }
    CaCerts: Text {
        flag: "ca-certs", env: "DP_CA_CERTS", file: "consul.tls.caCertsPath",
        doc: "A PEM file, or a directory of them, with the authorities that servers are verified against; the system's when empty"
    }
    TlsCert: Text {
        flag: "tls-cert", env: "DP_TLS_CERT", file: "consul.tls.certFile",
        doc: "A PEM file with the certificate to show to servers; goes with -tls-key"
    }
    TlsKey: Text {
        flag: "tls-key", env: "DP_TLS_KEY", file: "consul.tls.keyFile",
        doc: "A PEM file with the key of -tls-cert"
    }
    TlsServerName: Text {
        flag: "tls-server-name", env: "DP_TLS_SERVER_NAME", file: "consul.tls.serverName",
        doc: "The name that servers' certificates carry; follows from -addresses when empty"
    }
    TlsInsecureSkipVerify: Bool {
        flag: "tls-insecure-skip-verify", env: "DP_TLS_INSECURE_SKIP_VERIFY", file: "consul.tls.insecureSkipVerify", default: "false",
        doc: "Do not verify servers' certificates"
    }

    CredentialType: Text {
        flag: "credential-type", env: "DP_CREDENTIAL_TYPE", file: "consul.credentials.type",
        doc: "How to authenticate at servers: static, login, or empty for not at all"
    }
    StaticToken: Secret {
        flag: "static-token", env: "DP_CREDENTIAL_STATIC_TOKEN", file: "consul.credentials.static.token",
        doc: "The ACL token for -credential-type=static"
    }
    LoginAuthMethod: Text {
        flag: "login-auth-method", env: "DP_CREDENTIAL_LOGIN_AUTH_METHOD", file: "consul.credentials.login.authMethod",
        doc: "The auth method for -credential-type=login"
    }
    LoginNamespace: Text {
        flag: "login-namespace", env: "DP_CREDENTIAL_LOGIN_NAMESPACE", file: "consul.credentials.login.namespace",
        doc: "The namespace of the auth method"
    }
    LoginPartition: Text {
        flag: "login-partition", env: "DP_CREDENTIAL_LOGIN_PARTITION", file: "consul.credentials.login.partition",
        doc: "The partition of the auth method"
    }
    LoginDatacenter: Text {
        flag: "login-datacenter", env: "DP_CREDENTIAL_LOGIN_DATACENTER", file: "consul.credentials.login.datacenter",
        doc: "The datacenter of the auth method"
    }
    LoginBearerToken: Secret {
        flag: "login-bearer-token", env: "DP_CREDENTIAL_LOGIN_BEARER_TOKEN", file: "consul.credentials.login.bearerToken",
        doc: "The bearer token to log in with; wins over -login-bearer-token-path"
    }
    LoginBearerTokenPath: Text {
        flag: "login-bearer-token-path", env: "DP_CREDENTIAL_LOGIN_BEARER_TOKEN_PATH", file: "consul.credentials.login.bearerTokenPath",
        doc: "A file with the bearer token, read for each login"
    }
    LoginMeta: Pairs {
        flag: "login-meta", env: "DP_CREDENTIAL_LOGIN_META", file: "consul.credentials.login.meta",
        doc: "Metadata of the token that a login creates, as key=value; repeatable"
    }

    ProxyNodeName: Text {
        flag: "proxy-node-name", env: "DP_PROXY_NODE_NAME", file: "proxy.nodeName",
        doc: "The name of the node that the proxy is registered on"
    }
    ProxyNodeId: Text {
        flag: "proxy-node-id", env: "DP_PROXY_NODE_ID", file: "proxy.nodeID",
        doc: "The id of the node that the proxy is registered on; wins over its name"
    }
    ProxyId: Text {
        flag: "proxy-id", env: "DP_PROXY_ID", file: "proxy.id",
        doc: "The id of the proxy's service instance"
    }
    ProxyIdPath: Text {
        flag: "proxy-id-path", env: "DP_PROXY_ID_PATH", file: "proxy.idPath",
        doc: "A file with the id of the proxy's service instance"
    }
    ProxyNamespace: Text {
        flag: "proxy-namespace", env: "DP_PROXY_NAMESPACE", file: "proxy.namespace",
        doc: "The namespace of the proxy"
    }
    ProxyPartition: Text {
        flag: "proxy-partition", env: "DP_PROXY_PARTITION", file: "proxy.partition",
        doc: "The partition of the proxy"
    }
    ServiceNodeName: Text {
        flag: "service-node-name", env: "DP_SERVICE_NODE_NAME", file: "service.nodeName",
        doc: "Deprecated, use -proxy-node-name"
    }
    ServiceNodeId: Text {
        flag: "service-node-id", env: "DP_SERVICE_NODE_ID", file: "service.nodeID",
        doc: "Deprecated, use -proxy-node-id"
    }
    ServiceId: Text {
        flag: "proxy-service-id", env: "DP_PROXY_SERVICE_ID", file: "service.serviceID",
        doc: "Deprecated, use -proxy-id"
    }
    ServiceIdPath: Text {
        flag: "proxy-service-id-path", env: "DP_PROXY_SERVICE_ID_PATH", file: "service.serviceIDPath",
        doc: "Deprecated, use -proxy-id-path"
    }
    ServiceNamespace: Text {
        flag: "service-namespace", env: "DP_SERVICE_NAMESPACE", file: "service.namespace",
        doc: "Deprecated, use -proxy-namespace"
    }
    ServicePartition: Text {
        flag: "service-partition", env: "DP_SERVICE_PARTITION", file: "service.partition",
        doc: "Deprecated, use -proxy-partition"
    }

    LogLevel: Text {
        flag: "log-level", env: "DP_LOG_LEVEL", file: "logging.logLevel", default: "info",
        doc: "Least level that is logged: trace, debug, info, warn or error; Envoy's log follows"
    }
    LogJson: Bool {
        flag: "log-json", env: "DP_LOG_JSON", file: "logging.logJSON", default: "false",
        doc: "Log one JSON object a line; Envoy's log follows"
    }

    XdsBindAddr: Text {
        flag: "xds-bind-addr", env: "DP_XDS_BIND_ADDR", file: "xdsServer.bindAddress", default: "127.0.0.1",
        doc: "Where Envoy gets its configuration: a loopback IP address, or unix://PATH"
    }
    XdsBindPort: Int {
        flag: "xds-bind-port", env: "DP_XDS_BIND_PORT", file: "xdsServer.bindPort", default: "0",
        doc: "The port at -xds-bind-addr; 0 takes any free one"
    }
    DnsBindAddr: Text {
        flag: "consul-dns-bind-addr", env: "DP_CONSUL_DNS_BIND_ADDR", file: "dnsServer.bindAddress", default: "127.0.0.1",
        doc: "The IP address at which DNS is answered; a loopback one in a sidecar"
    }
    DnsBindPort: Int {
        flag: "consul-dns-bind-port", env: "DP_CONSUL_DNS_BIND_PORT", file: "dnsServer.bindPort", default: "-1",
        doc: "The port at which DNS is answered; -1 for none, 0 takes any free one"
    }

    TelemetryUseCentralConfig: Bool {
        flag: "telemetry-use-central-config", env: "DP_TELEMETRY_USE_CENTRAL_CONFIG", file: "telemetry.useCentralConfig", default: "true",
        doc: "Honour the telemetry keys of the proxy's configuration"
    }
    PromRetentionTime: Duration {
        flag: "telemetry-prom-retention-time", env: "DP_TELEMETRY_PROM_RETENTION_TIME", file: "telemetry.prometheus.retentionTime", default: "60s",
        doc: "How long metrics that are no longer updated stay visible"
    }
    PromCaCertsPath: Text {
        flag: "telemetry-prom-ca-certs-path", env: "DP_TELEMETRY_PROM_CA_CERTS_PATH", file: "telemetry.prometheus.caCertsPath",
        doc: "A PEM file, or a directory of them, with the authorities that Prometheus' certificate is verified against"
    }
    PromCaCertsFile: Text {
        flag: "telemetry-prom-ca-certs-file", env: "DP_TELEMETRY_PROM_CA_CERTS_FILE", file: "telemetry.prometheus.caCertsFile",
        doc: "The same as -telemetry-prom-ca-certs-path, which wins; the Kubernetes injector passes both"
    }
    PromKeyFile: Text {
        flag: "telemetry-prom-key-file", env: "DP_TELEMETRY_PROM_KEY_FILE", file: "telemetry.prometheus.keyFile",
        doc: "A PEM file with the key of -telemetry-prom-cert-file"
    }
    PromCertFile: Text {
        flag: "telemetry-prom-cert-file", env: "DP_TELEMETRY_PROM_CERT_FILE", file: "telemetry.prometheus.certFile",
        doc: "A PEM file with the certificate of the Prometheus listener"
    }
    PromServiceMetricsUrl: Text {
        flag: "telemetry-prom-service-metrics-url", env: "DP_TELEMETRY_PROM_SERVICE_METRICS_URL", file: "telemetry.prometheus.serviceMetricsURL",
        doc: "Where the application offers its metrics, to be merged with the proxy's"
    }
    PromScrapePath: Text {
        flag: "telemetry-prom-scrape-path", env: "DP_TELEMETRY_PROM_SCRAPE_PATH", file: "telemetry.prometheus.scrapePath", default: "/metrics",
        doc: "The path at which Prometheus asks for metrics"
    }
    PromMergePort: Int {
        flag: "telemetry-prom-merge-port", env: "DP_TELEMETRY_PROM_MERGE_PORT", file: "telemetry.prometheus.mergePort", default: "20100",
        doc: "The port at which the merged metrics are served to Envoy's Prometheus listener"
    }
    PromBindAddr: Text {
        flag: "telemetry-prom-bind-addr", env: "DP_TELEMETRY_PROM_BIND_ADDR", file: "telemetry.prometheus.bindAddress", default: "::",
        doc: "The IP address of -telemetry-prom-merge-port and of port 20101, which has the dataplane's own metrics; all addresses, IPv4 and IPv6, when ::"
    }

    AdminBindAddress: Text {
        flag: "envoy-admin-bind-address", env: "DP_ENVOY_ADMIN_BIND_ADDRESS", file: "envoy.adminBindAddress", default: "127.0.0.1",
        doc: "The IP address of Envoy's admin interface"
    }
    AdminBindPort: Int {
        flag: "envoy-admin-bind-port", env: "DP_ENVOY_ADMIN_BIND_PORT", file: "envoy.adminBindPort", default: "19000",
        doc: "The port of Envoy's admin interface"
    }
    ReadyBindAddress: Text {
        flag: "envoy-ready-bind-address", env: "DP_ENVOY_READY_BIND_ADDRESS", file: "envoy.readyBindAddress",
        doc: "The IP address at which Envoy answers /ready; needs -envoy-ready-bind-port"
    }
    ReadyBindPort: Int {
        flag: "envoy-ready-bind-port", env: "DP_ENVOY_READY_BIND_PORT", file: "envoy.readyBindPort", default: "0",
        doc: "The port at which Envoy answers /ready; needs -envoy-ready-bind-address"
    }
    EnvoyConcurrency: Int {
        flag: "envoy-concurrency", env: "DP_ENVOY_CONCURRENCY", file: "envoy.concurrency", default: "2",
        doc: "Envoy's worker threads"
    }
    EnvoyDrainTime: Int {
        flag: "envoy-drain-time-seconds", env: "DP_ENVOY_DRAIN_TIME", file: "envoy.drainTimeSeconds", default: "30",
        doc: "How many seconds Envoy takes to drain a listener"
    }
    EnvoyDrainStrategy: Text {
        flag: "envoy-drain-strategy", env: "DP_ENVOY_DRAIN_STRATEGY", file: "envoy.drainStrategy", default: "immediate",
        doc: "How connections are asked to close meanwhile: immediate (all at once) or gradual"
    }
    EnvoyExecutablePath: Text {
        flag: "envoy-executable-path", env: "DP_ENVOY_EXECUTABLE_PATH", file: "envoy.executablePath",
        doc: "The Envoy program; the first envoy in $PATH when empty"
    }
    EnvoyHotRestart: Bool {
        flag: "envoy-hot-restart", env: "DP_ENVOY_HOT_RESTART", file: "envoy.hotRestart", default: "true",
        doc: "Let a new Envoy take the sockets and connections of the old one over, where that can work; needs shared memory at /dev/shm"
    }
    EnvoyBootstrapRefresh: Duration {
        flag: "envoy-bootstrap-refresh-interval", env: "DP_ENVOY_BOOTSTRAP_REFRESH_INTERVAL", file: "envoy.bootstrapRefreshInterval", default: "5m",
        doc: "How often a server is asked whether Envoy's bootstrap configuration has changed, which a new Envoy then takes over with; 0 for only when a restart is asked for"
    }
    EnvoyStateDir: Text {
        flag: "envoy-state-dir", env: "DP_ENVOY_STATE_DIR", file: "envoy.stateDir",
        doc: "A folder for snapshot, pid file and log of an Envoy that outlives the dataplane and is adopted by the next one; for machines, not for containers; needs a fixed -xds-bind-port or a unix socket"
    }
    ShutdownDrainListeners: Bool {
        flag: "shutdown-drain-listeners", env: "DP_SHUTDOWN_DRAIN_LISTENERS", file: "envoy.shutdownDrainListenersEnabled", default: "false",
        doc: "Drain inbound listeners while the shutdown grace period runs"
    }
    ShutdownGracePeriod: Int {
        flag: "shutdown-grace-period-seconds", env: "DP_SHUTDOWN_GRACE_PERIOD_SECONDS", file: "envoy.shutdownGracePeriodSeconds", default: "0",
        doc: "How many seconds Envoy keeps serving after a stop was asked for"
    }
    ShutdownEndWhenIdle: Bool {
        flag: "shutdown-end-when-idle", env: "DP_SHUTDOWN_END_WHEN_IDLE", file: "envoy.shutdownEndWhenIdle", default: "false",
        doc: "End the shutdown grace period early, after 5 s at least, as soon as nothing is connected to Envoy; for a sidecar that stops after its application, such as a native one of Kubernetes; needs -shutdown-drain-listeners"
    }
    GracefulShutdownPath: Text {
        flag: "graceful-shutdown-path", env: "DP_GRACEFUL_SHUTDOWN_PATH", file: "envoy.gracefulShutdownPath", default: "/graceful_shutdown",
        doc: "The HTTP path that asks for a stop"
    }
    GracefulStartupPath: Text {
        flag: "graceful-startup-path", env: "DP_GRACEFUL_STARTUP_PATH", file: "envoy.gracefulStartupPath", default: "/graceful_startup",
        doc: "The HTTP path that answers when Envoy is ready"
    }
    GracefulAddr: Text {
        flag: "graceful-addr", env: "DP_GRACEFUL_ADDR", file: "envoy.gracefulAddr",
        doc: "The IP address of the two paths, and of /live, /ready, /startup, /status and /metrics; 127.0.0.1 when empty"
    }
    GracefulPort: Int {
        flag: "graceful-port", env: "DP_GRACEFUL_PORT", file: "envoy.gracefulPort", default: "20300",
        doc: "The port at -graceful-addr; 20300 when 0"
    }
    StartupGracePeriod: Int {
        flag: "startup-grace-period-seconds", env: "DP_STARTUP_GRACE_PERIOD_SECONDS", file: "envoy.startupGracePeriodSeconds", default: "0",
        doc: "How many seconds -graceful-startup-path waits for Envoy"
    }
    DumpEnvoyConfigOnExit: Bool {
        flag: "dump-envoy-config-on-exit", env: "DP_DUMP_ENVOY_CONFIG_ON_EXIT", file: "envoy.dumpEnvoyConfigOnExitEnabled", default: "false",
        doc: "Write Envoy's configuration to standard output before it stops"
    }
}
