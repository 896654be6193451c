//! The flags of `legate-server`, and the only place where it reads the environment.

mod datacenters;
mod storage;

use std::env::VarError;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{ArgAction, Parser, ValueEnum};
use legate_ca::CaConfig;
use legate_intentions::Action;
use legate_model::{Secret, duration};
use legate_runtime::logging::{Level, LogOptions};
use legate_server::{
    AclConfig, AgentConfig, ApiLimit, ConnectionLimits, DefaultPolicy, DnsSettings, ServerConfig,
    StoreConfig, TelemetryConfig, TokenSet,
};

use self::datacenters::{Datacenters, REPLICATION_TOKEN};
use self::storage::{Addresses, ETCD_PASSWORD, Storage};

/// The variable with the initial management token's secret. Not a flag, because command lines are visible to
/// all users of the machine.
const INITIAL_TOKEN: &str = "LEGATE_INITIAL_MANAGEMENT_TOKEN";

const ENVIRONMENT: &str = "Environment:
  LEGATE_INITIAL_MANAGEMENT_TOKEN  Secret (a UUID) of a token that may do everything, present from
                                   the first moment. Needs --acl.
  LEGATE_ETCD_PASSWORD             Password of --etcd-user.
  LEGATE_REPLICATION_TOKEN         Secret of a token of --primary-datacenter, with acl=write and
                                   operator=write. Needed there with --acl.";

/// Secrets from the environment, kept off the command line.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    /// The initial management token's secret.
    initial_token: Option<Secret>,
    /// etcd's password.
    etcd_password: Option<Secret>,
    /// The token for what a secondary datacenter asks of the primary.
    replication_token: Option<Secret>,
}

impl Secrets {
    /// Reads the secrets from the environment.
    ///
    /// # Errors
    /// If a variable is not valid UTF-8.
    pub(crate) fn from_environment() -> anyhow::Result<Self> {
        Ok(Self {
            initial_token: variable(INITIAL_TOKEN)?,
            etcd_password: variable(ETCD_PASSWORD)?,
            replication_token: variable(REPLICATION_TOKEN)?,
        })
    }
}

fn variable(name: &str) -> anyhow::Result<Option<Secret>> {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the program's config module"
    )]
    match std::env::var(name) {
        Ok(secret) if secret.is_empty() => Ok(None),
        Ok(secret) => Ok(Some(Secret::new(secret))),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => bail!("{name} is not valid UTF-8"),
    }
}

/// The control plane of a service mesh: Consul's HTTP and gRPC APIs, xDS, DNS and a certificate
/// authority in one process.
#[derive(Debug, Parser)]
#[command(name = "legate-server", version, after_help = ENVIRONMENT)]
pub(crate) struct Options {
    /// Name of the datacenter that this server serves.
    #[arg(long, default_value = "dc1")]
    datacenter: String,

    /// Puts this server into the catalog as an instance of the service consul, so that peered clusters get the addresses of
    /// all servers, and mesh gateways lead to them.
    #[arg(long)]
    peering: bool,

    /// Name of this server's node. Services registered through /v1/agent belong to it. Required with
    /// --etcd-endpoints, and different for each server. Default: legate.
    #[arg(long)]
    node_name: Option<String>,

    /// Address to listen on. With 0.0.0.0 or :: (all addresses), --advertise is required.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,

    /// Address at which others reach this server. Default: the address of --bind.
    #[arg(long)]
    advertise: Option<IpAddr>,

    /// Port of the HTTP API; 0 picks a free port, -1 disables it.
    #[arg(long, default_value_t = 8500, value_parser = port, allow_hyphen_values = true)]
    http_port: i32,

    /// Port of the HTTP API with TLS; 0 picks a free port, -1 disables it.
    #[arg(long, default_value_t = -1, value_parser = port, allow_hyphen_values = true)]
    https_port: i32,

    /// Port of the gRPC API without TLS; 0 picks a free port, -1 disables it.
    #[arg(long, default_value_t = 8502, value_parser = port, allow_hyphen_values = true)]
    grpc_port: i32,

    /// Port of the gRPC API with TLS; 0 picks a free port, -1 disables it.
    #[arg(long, default_value_t = 8503, value_parser = port, allow_hyphen_values = true)]
    grpc_tls_port: i32,

    /// Port of DNS over UDP and TCP; 0 picks a free port, -1 disables it.
    #[arg(long, default_value_t = 8600, value_parser = port, allow_hyphen_values = true)]
    dns_port: i32,

    /// Return only passing instances over DNS. Default: also those in state `warning`. Consul's
    /// dns_config.only_passing.
    #[arg(long, action = ArgAction::SetTrue)]
    dns_only_passing: bool,

    /// Certificate chain (PEM file) for HTTP and gRPC with TLS, reloaded when it changes. Default: a
    /// certificate of the mesh CA, renewed automatically.
    #[arg(long, requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key (PEM file) of --tls-cert, reloaded when it changes.
    #[arg(long, requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Certificate chain (PEM file) for gRPC with TLS only, instead of --tls-cert.
    #[arg(long, requires = "grpc_tls_key")]
    grpc_tls_cert: Option<PathBuf>,

    /// Private key (PEM file) of --grpc-tls-cert.
    #[arg(long, requires = "grpc_tls_cert")]
    grpc_tls_key: Option<PathBuf>,

    /// Certificate chain (PEM file) for HTTP with TLS only, instead of --tls-cert.
    #[arg(long, requires = "http_tls_key")]
    http_tls_cert: Option<PathBuf>,

    /// Private key (PEM file) of --http-tls-cert.
    #[arg(long, requires = "http_tls_cert")]
    http_tls_key: Option<PathBuf>,

    /// Maximum HTTP connections, both ports together. Further ones get status 429, or are closed on the TLS
    /// port. All connection limits are lowered if the limit of open files (ulimit -n) is too low for them; HTTP
    /// and DNS keep a reserve.
    #[arg(long, default_value_t = ConnectionLimits::default().http.in_all, value_parser = count)]
    http_max_connections: usize,

    /// Maximum HTTP connections per client address. Consul's http_max_conns_per_client.
    #[arg(long, default_value_t = ConnectionLimits::default().http.per_address, value_parser = count)]
    http_max_connections_per_address: usize,

    /// Maximum gRPC connections, both ports together. Further ones are closed.
    #[arg(long, default_value_t = ConnectionLimits::default().grpc.in_all, value_parser = count)]
    grpc_max_connections: usize,

    /// Maximum gRPC connections per client address. Raise it if more sidecars than this reach the server
    /// through one address, such as a NAT gateway or a load balancer.
    #[arg(long, default_value_t = ConnectionLimits::default().grpc.per_address, value_parser = count)]
    grpc_max_connections_per_address: usize,

    /// Maximum DNS connections over TCP. Further ones are closed.
    #[arg(long, default_value_t = ConnectionLimits::default().dns.in_all, value_parser = count)]
    dns_max_connections: usize,

    /// Maximum DNS connections over TCP per client address.
    #[arg(long, default_value_t = ConnectionLimits::default().dns.per_address, value_parser = count)]
    dns_max_connections_per_address: usize,

    #[command(flatten)]
    storage: Storage,

    #[command(flatten)]
    datacenters: Datacenters,

    /// Maximum configuration updates per second over all sidecars, not counting the first of each; 0 means no
    /// limit. Consul's xds.update_max_per_second.
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    xds_updates_per_second: u32,

    /// Enable ACLs: requests need a token with the required permissions.
    #[arg(long, action = ArgAction::SetTrue)]
    acl: bool,

    /// What tokens may do where no rule matches.
    #[arg(long, value_enum, default_value = "allow")]
    acl_default_policy: Policy,

    /// Action for connections that match no intention. Default: the ACL default policy if ACLs are on, else
    /// allow.
    #[arg(long, value_enum)]
    default_intention_policy: Option<Policy>,

    /// Lifetime of service certificates in a new mesh, from 1h to 8760h. Afterwards the stored CA configuration
    /// applies (/v1/connect/ca/configuration).
    #[arg(long, default_value = "72h", value_parser = duration::parse)]
    leaf_cert_ttl: Duration,

    /// Endpoint for traces and metrics by OTLP over HTTP, such as http://127.0.0.1:4318. Default: none.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,

    /// Time that open requests and streams get to finish after SIGTERM or SIGINT.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub(crate) stop_timeout: Duration,

    /// Minimum level of log events: trace, debug, info, warn or error.
    #[arg(long, default_value = "info", value_parser = str::parse::<Level>)]
    log_level: Level,

    /// Log as JSON instead of text.
    #[arg(long, action = ArgAction::SetTrue)]
    log_json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Policy {
    Allow,
    Deny,
}

fn port(text: &str) -> Result<i32, String> {
    text.parse::<i32>()
        .ok()
        .filter(|port| (-1..=i32::from(u16::MAX)).contains(port))
        .ok_or_else(|| {
            format!("{text:?} is not a port: use 1 to 65535, 0 for a free port, -1 to disable")
        })
}

/// The largest value of a connection limit: Linux's default maximum of open files per process (`fs.nr_open`).
const MAX_CONNECTIONS: usize = 1_048_576;

fn count(text: &str) -> Result<usize, String> {
    text.parse::<usize>()
        .ok()
        .filter(|count| (1..=MAX_CONNECTIONS).contains(count))
        .ok_or_else(|| format!("{text:?} is not a valid limit: use 1 to {MAX_CONNECTIONS}"))
}

impl Options {
    pub(crate) fn log(&self) -> LogOptions {
        LogOptions {
            name: "legate-server",
            level: self.log_level,
            json: self.log_json,
        }
    }

    fn check(&self, secrets: &Secrets) -> anyhow::Result<()> {
        if secrets.initial_token.is_some() && !self.acl {
            bail!("{INITIAL_TOKEN} is set, but ACLs are off: add --acl, or unset it");
        }
        let leaf_range = Duration::from_secs(3_600)..=Duration::from_secs(8_760 * 3_600);
        if !leaf_range.contains(&self.leaf_cert_ttl) {
            bail!(
                "--leaf-cert-ttl {} is out of range: it must be from 1h to 8760h",
                duration::format(self.leaf_cert_ttl)
            );
        }
        let is_secondary = self.datacenters.primary(&self.datacenter).is_some();
        if self.acl && is_secondary && secrets.replication_token.is_none() {
            bail!(
                "--primary-datacenter with --acl needs {REPLICATION_TOKEN}: tokens are only known here when they are \
                 replicated"
            );
        }
        Ok(())
    }

    pub(crate) fn config(self, secrets: Secrets) -> anyhow::Result<ServerConfig> {
        self.check(&secrets)?;
        let Secrets {
            initial_token,
            etcd_password,
            replication_token,
        } = secrets;
        let advertise = self.advertise.unwrap_or(self.bind);
        if advertise.is_unspecified() {
            bail!(
                "--bind {} means all addresses: set --advertise to the address at which others \
                 reach this server",
                self.bind
            );
        }
        let connections = self.connections();
        let addresses = Addresses {
            bind: self.bind,
            advertise,
        };
        let store = self.storage.config(etcd_password, addresses)?;
        let primary_datacenter = self.datacenters.primary(&self.datacenter);
        let translate_wan_addrs = self.datacenters.translate_wan_addrs;
        let wan = self.datacenters.config(&self.datacenter, addresses)?;
        let tls_files = self.tls_cert.zip(self.tls_key);
        let listen = |port: i32| Some(SocketAddr::new(self.bind, u16::try_from(port).ok()?));
        Ok(ServerConfig {
            datacenter: self.datacenter,
            primary_datacenter,
            agent: AgentConfig {
                // Mesh gateways lead to the servers that are registered.
                registers_itself: wan.is_some() || self.peering,
                tokens: TokenSet {
                    replication: replication_token,
                    ..TokenSet::default()
                },
                ..AgentConfig::default()
            },
            wan,
            translate_wan_addrs,
            node_name: node_name(self.node_name, &store)?,
            advertise,
            http: listen(self.http_port),
            https: listen(self.https_port),
            grpc: listen(self.grpc_port),
            grpc_tls: listen(self.grpc_tls_port),
            dns: listen(self.dns_port),
            dns_settings: DnsSettings {
                only_passing: self.dns_only_passing,
                ..DnsSettings::default()
            },
            store,
            update_max_per_second: self.xds_updates_per_second,
            grpc_tls_files: self
                .grpc_tls_cert
                .zip(self.grpc_tls_key)
                .or(tls_files.clone()),
            https_files: self.http_tls_cert.zip(self.http_tls_key).or(tls_files),
            connections,
            acl: AclConfig {
                enabled: self.acl,
                default_policy: match self.acl_default_policy {
                    Policy::Allow => DefaultPolicy::Allow,
                    Policy::Deny => DefaultPolicy::Deny,
                },
                initial_management: initial_token,
                key_list_policy: false,
            },
            default_intention_policy: self.default_intention_policy.map(|policy| match policy {
                Policy::Allow => Action::Allow,
                Policy::Deny => Action::Deny,
            }),
            telemetry: TelemetryConfig {
                otlp_endpoint: self.otlp_endpoint,
                ..TelemetryConfig::default()
            },
            ca: CaConfig {
                leaf_ttl: self.leaf_cert_ttl,
                ..CaConfig::default()
            },
            ..ServerConfig::default()
        })
    }

    fn connections(&self) -> ConnectionLimits {
        ConnectionLimits {
            http: ApiLimit {
                in_all: self.http_max_connections,
                per_address: self.http_max_connections_per_address,
            },
            grpc: ApiLimit {
                in_all: self.grpc_max_connections,
                per_address: self.grpc_max_connections_per_address,
            },
            dns: ApiLimit {
                in_all: self.dns_max_connections,
                per_address: self.dns_max_connections_per_address,
            },
        }
    }
}

fn node_name(named: Option<String>, store: &StoreConfig) -> anyhow::Result<String> {
    match named {
        Some(name) => Ok(name),
        None if matches!(store, StoreConfig::Etcd(_)) => bail!(
            "--etcd-endpoints needs --node-name, different for each server: each runs the checks \
             of its own node"
        ),
        None => Ok(ServerConfig::default().node_name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn config(flags: &[&str]) -> anyhow::Result<ServerConfig> {
        config_with(flags, Secrets::default())
    }

    pub(super) fn config_with(flags: &[&str], secrets: Secrets) -> anyhow::Result<ServerConfig> {
        let name = ["legate-server"];
        Options::try_parse_from(name.iter().chain(flags))?.config(secrets)
    }

    #[test]
    fn the_default_is_development_mode() {
        let config = config(&[]).unwrap();
        let default = ServerConfig::default();
        assert_eq!(config.http, default.http);
        assert_eq!(config.grpc, default.grpc);
        assert_eq!(config.grpc_tls, default.grpc_tls);
        assert_eq!(config.dns, default.dns);
        assert_eq!(config.datacenter, default.datacenter);
        assert_eq!(config.node_name, default.node_name);
        assert_eq!(config.ca.leaf_ttl, Duration::from_secs(72 * 3_600));
        assert!(!config.acl.enabled);
        assert_eq!(config.connections, default.connections);
    }

    #[test]
    fn servers_that_share_a_store_have_names() {
        let shared = ["--etcd-endpoints=a:2379", "--encryption-key-file=k"];
        let error = config(&shared).unwrap_err().to_string();
        assert!(error.contains("--node-name"), "{error}");
        let named = [&shared[..], &["--node-name=server-1"]].concat();
        assert_eq!(config(&named).unwrap().node_name, "server-1");
    }

    #[test]
    fn connection_limits_are_settings() {
        let config = config(&[
            "--http-max-connections=10",
            "--http-max-connections-per-address=1",
            "--grpc-max-connections=20",
            "--grpc-max-connections-per-address=2",
            "--dns-max-connections=30",
            "--dns-max-connections-per-address=3",
        ]);
        let limits = config.unwrap().connections;
        let all = [limits.http, limits.grpc, limits.dns];
        let both = all.map(|one| (one.in_all, one.per_address));
        assert_eq!(both, [(10, 1), (20, 2), (30, 3)]);
    }

    #[test]
    fn one_pair_of_files_serves_both_ports_unless_one_has_its_own() {
        let pair = |name: &str| Some((format!("{name}.crt").into(), format!("{name}.key").into()));
        let own = config(&[
            "--https-port=0",
            "--tls-cert=both.crt",
            "--tls-key=both.key",
            "--http-tls-cert=http.crt",
            "--http-tls-key=http.key",
        ]);
        let own = own.unwrap();
        assert_eq!(own.https.unwrap().port(), 0);
        assert_eq!(own.grpc_tls_files, pair("both"));
        assert_eq!(own.https_files, pair("http"));
        let both = config(&["--tls-cert=both.crt", "--tls-key=both.key"]).unwrap();
        assert_eq!(both.grpc_tls_files, both.https_files);
        assert_eq!(both.https, None, "it is off by default");
    }

    #[test]
    fn ports_can_be_turned_off() {
        let config = config(&["--http-port=-1", "--grpc-port", "-1", "--dns-port=0"]).unwrap();
        assert_eq!(config.http, None);
        assert_eq!(config.grpc, None);
        assert_eq!(config.dns.unwrap().port(), 0);
    }

    #[test]
    fn invalid_flags_are_refused_by_name() {
        let text = |flags: &[&str]| config(flags).unwrap_err().to_string();
        assert!(text(&["--http-port=70000"]).contains("--http-port"));
        for nonsense in ["0", "-1", "many", "1048577"] {
            let flag = format!("--grpc-max-connections={nonsense}");
            assert!(text(&[&flag]).contains("--grpc-max-connections"));
        }
        assert!(text(&["--bind=0.0.0.0"]).contains("--advertise"));
        assert!(text(&["--leaf-cert-ttl=1m"]).contains("1h"));
        assert!(text(&["--log-level=loud"]).contains("loud"));
        assert!(text(&["--leaf-cert-ttl=soon"]).contains("--leaf-cert-ttl"));
        assert!(text(&["--grpc-tls-cert=x.pem"]).contains("--grpc-tls-key"));
        assert!(text(&["--tls-key=x.pem"]).contains("--tls-cert"));
        assert!(text(&["--http-tls-cert=x.pem"]).contains("--http-tls-key"));
        assert!(text(&["--acl-default-policy=maybe"]).contains("allow"));
        let options = Options::try_parse_from(["legate-server"]).unwrap();
        let lonely = options
            .config(Secrets {
                initial_token: Some(Secret::new("x")),
                ..Secrets::default()
            })
            .unwrap_err();
        assert!(lonely.to_string().contains("--acl"));
    }

    /// The chart's rendered output is in `tests/chart`.
    #[test]
    fn the_flags_of_the_chart_are_taken() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/chart");
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        for (name, etcd) in [
            ("default.yaml", false),
            ("plain.yaml", false),
            ("etcd.yaml", true),
            ("everything.yaml", false),
        ] {
            let text = text(name);
            let set = text
                .split("\n---\n")
                .find(|one| one.contains("\nkind: StatefulSet\n"));
            let lines = set.unwrap().lines().map(str::trim_start);
            let lines = lines.skip_while(|line| *line != "args:").skip(1);
            let flags = lines.map_while(|line| line.strip_prefix("- ")).map(|flag| {
                flag.replace("$(POD_NAME)", "legate-server-0")
                    .replace("$(POD_IP)", "10.0.0.1")
            });
            let options =
                Options::try_parse_from(["legate-server".to_owned()].into_iter().chain(flags));
            let secrets = Secrets {
                etcd_password: etcd.then(|| Secret::new("x")),
                ..Secrets::default()
            };
            let config = options.unwrap().config(secrets).unwrap();
            let tls = name != "plain.yaml";
            assert_eq!(
                (config.http.is_some(), config.https.is_some()),
                (!tls, tls),
                "{name}"
            );
            let grpc = if tls { config.grpc_tls } else { config.grpc };
            assert_eq!(grpc.unwrap().port(), 8502, "{name}");
            assert_eq!(config.acl.enabled, tls, "{name}");
            assert_eq!(matches!(config.store, StoreConfig::Etcd(_)), etcd, "{name}");
        }
    }
}
