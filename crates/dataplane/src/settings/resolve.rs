//! From values to [`Settings`]: checks in a fixed order, with the messages that people know, and
//! the rules by which settings stand for each other. Reads no file.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use legate_client::{Bearer, Credentials, LoginConfig, TlsConfig};
use legate_envoy::bootstrap::XdsAddress;
use legate_envoy::process::{DrainStrategy, EnvoyLog};
use legate_model::Secret;
use legate_runtime::logging::Level;

use super::lifecycle_paths;
use super::table::Item;
use super::types::{
    Environment, Envoy, Lifecycle, Mode, PrometheusTls, Proxy, Servers, Settings, Telemetry,
};
use super::values::{Source, Values};
use super::{SettingsError, invalid};

const DEFAULT_MERGE_PORT: u16 = 20100;
const DEFAULT_GRACEFUL_PORT: u16 = 20300;

/// Every proxy of a mesh asks, so that none may ask often.
const MIN_BOOTSTRAP_REFRESH: Duration = Duration::from_secs(10);

/// What the settings say, and what their author should know.
pub(super) struct Resolved {
    pub(super) settings: Settings,
    pub(super) warnings: Vec<String>,
}

/// Checks and types the values.
pub(super) fn resolve(
    values: &Values,
    extra_args: Vec<OsString>,
    environment: Environment,
) -> Result<Resolved, SettingsError> {
    let mut warnings = Vec::new();
    let mode = match values.text(Item::Mode) {
        "sidecar" => Mode::Sidecar,
        "dns-proxy" => Mode::DnsProxy,
        other => {
            return Err(invalid(format!(
                "unknown -mode {other:?}: use sidecar or dns-proxy"
            )));
        }
    };
    let addresses = values
        .some_text(Item::Addresses)
        .ok_or_else(|| invalid("consul addresses not specified"))?
        .to_owned();
    if values.int(Item::GrpcPort) == 0 {
        return Err(invalid("consul server gRPC port not specified"));
    }
    let proxy = proxy(values, &mut warnings);
    if mode == Mode::Sidecar {
        sidecar_basics(values, &proxy)?;
    }
    let xds = match mode {
        Mode::Sidecar => xds(values)?,
        // Nothing listens there, so nothing that is said about it matters.
        Mode::DnsProxy => XdsAddress::Tcp(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)),
    };
    let dns = dns(values, mode)?;
    if mode == Mode::DnsProxy && !matches!(proxy.namespace.as_str(), "" | "default") {
        return Err(invalid(
            "namespace must be empty or set to 'default' when running in dns-proxy mode",
        ));
    }
    let credentials = credentials(values, &mut warnings)?;
    let telemetry = telemetry(values)?;
    let envoy = envoy(values, extra_args)?;
    if mode == Mode::Sidecar && envoy.state_dir.is_some() && !is_fixed(&xds) {
        return Err(invalid(
            "-envoy-state-dir needs a fixed address for Envoy's configuration: set -xds-bind-port, or -xds-bind-addr=unix://PATH",
        ));
    }
    let settings = Settings {
        mode,
        servers: Servers {
            addresses,
            grpc_port: port(values, Item::GrpcPort)?,
            watch_disabled: values.bool(Item::ServerWatchDisabled),
            tls: server_tls(values)?,
            credentials,
        },
        proxy,
        logging: logging(values)?,
        xds,
        dns,
        telemetry,
        envoy,
        lifecycle: lifecycle(values)?,
        environment,
    };
    Ok(Resolved { settings, warnings })
}

/// Whether a later dataplane will be found at the same address.
fn is_fixed(xds: &XdsAddress) -> bool {
    match xds {
        XdsAddress::Tcp(address) => address.port() != 0,
        XdsAddress::Unix(_) => true,
    }
}

/// The level that flag or variable ask for; it is checked before a file is even read.
pub(super) fn check_level(values: &Values) -> Result<(), SettingsError> {
    level(values).map(drop)
}

fn level(values: &Values) -> Result<Level, SettingsError> {
    values
        .text(Item::LogLevel)
        .parse()
        .map_err(|_| invalid("invalid log level. valid values - TRACE, DEBUG, INFO, WARN, ERROR"))
}

fn logging(values: &Values) -> Result<EnvoyLog, SettingsError> {
    Ok(EnvoyLog {
        level: level(values)?,
        json: values.bool(Item::LogJson),
    })
}

const PROXY_GROUP: [Item; 6] = [
    Item::ProxyNodeName,
    Item::ProxyNodeId,
    Item::ProxyId,
    Item::ProxyIdPath,
    Item::ProxyNamespace,
    Item::ProxyPartition,
];

/// The deprecated names, in the order of [`PROXY_GROUP`].
const SERVICE_GROUP: [Item; 6] = [
    Item::ServiceNodeName,
    Item::ServiceNodeId,
    Item::ServiceId,
    Item::ServiceIdPath,
    Item::ServiceNamespace,
    Item::ServicePartition,
];

/// One value of the current names, from whatever source, puts all deprecated ones out of force.
fn proxy(values: &Values, warnings: &mut Vec<String>) -> Proxy {
    let current = PROXY_GROUP.iter().find(|key| values.given(**key));
    let ignored: Vec<String> = SERVICE_GROUP
        .iter()
        .filter(|key| values.some_text(**key).is_some())
        .map(|key| format!("-{}", key.setting().flag))
        .collect();
    if let Some(current) = current
        && !ignored.is_empty()
    {
        warnings.push(format!(
            "{} (or the same from environment or file) is ignored, because -{} is set: give all of the proxy's settings by their current names",
            ignored.join(", "),
            current.setting().flag
        ));
    }
    let group = if current.is_some() {
        PROXY_GROUP
    } else {
        SERVICE_GROUP
    };
    let [node_name, node_id, id, _, namespace, partition] =
        group.map(|key| values.text(key).to_owned());
    Proxy {
        node_name,
        node_id,
        id,
        namespace,
        partition,
    }
}

fn sidecar_basics(values: &Values, proxy: &Proxy) -> Result<(), SettingsError> {
    if proxy.id.is_empty() {
        return Err(invalid("proxy ID not specified"));
    }
    if values.text(Item::AdminBindAddress).is_empty() {
        return Err(invalid("envoy admin bind address not specified"));
    }
    if values.int(Item::AdminBindPort) == 0 {
        return Err(invalid("envoy admin bind port not specified"));
    }
    if values.text(Item::XdsBindAddr).is_empty() {
        return Err(invalid("envoy xDS bind address not specified"));
    }
    Ok(())
}

fn xds(values: &Values) -> Result<XdsAddress, SettingsError> {
    let address = values.text(Item::XdsBindAddr);
    if let Some(path) = address.strip_prefix("unix://") {
        if path.is_empty() {
            return Err(invalid("envoy xDS bind address not specified"));
        }
        return Ok(XdsAddress::Unix(path.into()));
    }
    let ip = ip(address)
        .filter(IpAddr::is_loopback)
        .ok_or_else(|| invalid("non-local xDS bind address not allowed"))?;
    Ok(XdsAddress::Tcp(SocketAddr::new(
        ip,
        port(values, Item::XdsBindPort)?,
    )))
}

fn dns(values: &Values, mode: Mode) -> Result<Option<SocketAddr>, SettingsError> {
    if values.int(Item::DnsBindPort) == -1 {
        return Ok(None);
    }
    let text = values.text(Item::DnsBindAddr);
    let ip = ip(text);
    if mode == Mode::Sidecar && !ip.is_some_and(|ip| ip.is_loopback()) {
        return Err(invalid(
            "non-local DNS proxy bind address not allowed when running as a sidecar",
        ));
    }
    let ip = ip.ok_or_else(|| {
        invalid(format!(
            "failed to create dns server: error parsing specified dns bind addr '{text}'"
        ))
    })?;
    Ok(Some(SocketAddr::new(ip, port(values, Item::DnsBindPort)?)))
}

fn credentials(values: &Values, warnings: &mut Vec<String>) -> Result<Credentials, SettingsError> {
    let text = |key| values.text(key).to_owned();
    warnings.extend(unused_credentials(values));
    match values.text(Item::CredentialType) {
        "" => Ok(Credentials::None),
        "static" => Ok(match values.some_text(Item::StaticToken) {
            Some(token) => Credentials::Static(Secret::new(token.to_owned())),
            None => {
                warnings.push(
                    "-credential-type=static without -static-token: no token is sent".to_owned(),
                );
                Credentials::None
            }
        }),
        "login" => {
            let token = values.some_text(Item::LoginBearerToken);
            let path = values.some_text(Item::LoginBearerTokenPath);
            let bearer = match (token, path) {
                (Some(token), _) => Bearer::Token(Secret::new(token.to_owned())),
                (None, Some(path)) => Bearer::File(path.into()),
                (None, None) => {
                    return Err(invalid(
                        "bearer token (or path to a file containing a bearer token) is required for login",
                    ));
                }
            };
            if values.text(Item::LoginAuthMethod).is_empty() {
                return Err(invalid(
                    "auth method is required for login: set -login-auth-method",
                ));
            }
            Ok(Credentials::Login(LoginConfig {
                auth_method: text(Item::LoginAuthMethod),
                namespace: text(Item::LoginNamespace),
                partition: text(Item::LoginPartition),
                datacenter: text(Item::LoginDatacenter),
                bearer,
                meta: values.pairs(Item::LoginMeta),
            }))
        }
        other => Err(invalid(format!("unknown credential type: {other}"))),
    }
}

/// Credentials of a kind that is not asked for: most likely the kind was forgotten.
fn unused_credentials(values: &Values) -> impl Iterator<Item = String> {
    const LOGIN: [Item; 3] = [
        Item::LoginAuthMethod,
        Item::LoginBearerToken,
        Item::LoginBearerTokenPath,
    ];
    let given = |items: &[Item]| {
        let given = items.iter().filter(|key| values.some_text(**key).is_some());
        let flags = given.map(|key| format!("-{}", key.setting().flag));
        flags.collect::<Vec<_>>().join(", ")
    };
    let kind = values.text(Item::CredentialType);
    let groups = [
        ("static", given(&[Item::StaticToken])),
        ("login", given(&LOGIN)),
    ];
    let unused = groups
        .into_iter()
        .filter(move |(of, flags)| *of != kind && !flags.is_empty());
    unused.map(|(of, flags)| format!("{flags} is ignored: it needs -credential-type={of}"))
}

fn server_tls(values: &Values) -> Result<Option<TlsConfig>, SettingsError> {
    if values.bool(Item::TlsDisabled) {
        return Ok(None);
    }
    let client_certificate = match (path(values, Item::TlsCert), path(values, Item::TlsKey)) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            return Err(invalid(
                "-tls-cert and -tls-key go together: one of them is missing",
            ));
        }
    };
    Ok(Some(TlsConfig {
        ca: path(values, Item::CaCerts),
        client_certificate,
        server_name: values.some_text(Item::TlsServerName).map(str::to_owned),
        insecure_skip_verify: values.bool(Item::TlsInsecureSkipVerify),
    }))
}

fn telemetry(values: &Values) -> Result<Telemetry, SettingsError> {
    let ca = path(values, Item::PromCaCertsPath).or_else(|| path(values, Item::PromCaCertsFile));
    let certificate = path(values, Item::PromCertFile);
    let prometheus_tls = match (ca, certificate, path(values, Item::PromKeyFile)) {
        (Some(ca), Some(certificate), Some(key)) => Some(PrometheusTls {
            ca,
            certificate,
            key,
        }),
        (None, None, None) => None,
        _ => {
            return Err(invalid(
                "Must provide -telemetry-prom-ca-certs-path, -telemetry-prom-cert-file, and -telemetry-prom-key-file to enable TLS for prometheus metrics",
            ));
        }
    };
    let retention = u64::try_from(values.duration(Item::PromRetentionTime))
        .ok()
        .filter(|nanoseconds| *nanoseconds > 0)
        .map(Duration::from_nanos)
        .ok_or_else(|| invalid("-telemetry-prom-retention-time must be greater than zero"))?;
    let scrape_path = values
        .some_text(Item::PromScrapePath)
        .ok_or_else(|| invalid("-telemetry-prom-scrape-path must not be empty"))?;
    Ok(Telemetry {
        use_central_config: values.bool(Item::TelemetryUseCentralConfig),
        retention,
        prometheus_tls,
        service_metrics_url: values
            .some_text(Item::PromServiceMetricsUrl)
            .map(str::to_owned),
        scrape_path: scrape_path.to_owned(),
        merge_port: port_or(values, Item::PromMergePort, DEFAULT_MERGE_PORT)?,
        bind: match values.text(Item::PromBindAddr) {
            // Set to nothing, it is as good as not set.
            "" => Ipv6Addr::UNSPECIFIED.into(),
            _ => address(values, Item::PromBindAddr)?,
        },
    })
}

fn envoy(values: &Values, extra_args: Vec<OsString>) -> Result<Envoy, SettingsError> {
    let ready = match (
        values.some_text(Item::ReadyBindAddress),
        values.int(Item::ReadyBindPort),
    ) {
        (None, _) | (_, 0) => None,
        _ => Some(socket(values, Item::ReadyBindAddress, Item::ReadyBindPort)?),
    };
    let strategy = values.text(Item::EnvoyDrainStrategy);
    Ok(Envoy {
        admin: socket(values, Item::AdminBindAddress, Item::AdminBindPort)?,
        ready,
        concurrency: count(values, Item::EnvoyConcurrency)?,
        drain_time: seconds(values, Item::EnvoyDrainTime)?,
        drain_strategy: DrainStrategy::parse(strategy).ok_or_else(|| {
            invalid(format!(
                "unknown -envoy-drain-strategy {strategy:?}: use immediate or gradual"
            ))
        })?,
        executable: path(values, Item::EnvoyExecutablePath),
        hot_restart: values.bool(Item::EnvoyHotRestart),
        bootstrap_refresh: bootstrap_refresh(values)?,
        state_dir: path(values, Item::EnvoyStateDir),
        extra_args,
    })
}

fn bootstrap_refresh(values: &Values) -> Result<Duration, SettingsError> {
    let nanoseconds = u64::try_from(values.duration(Item::EnvoyBootstrapRefresh)).ok();
    nanoseconds
        .map(Duration::from_nanos)
        .filter(|period| period.is_zero() || *period >= MIN_BOOTSTRAP_REFRESH)
        .ok_or_else(|| {
            invalid("-envoy-bootstrap-refresh-interval must be 0 (never) or at least 10s")
        })
}

/// Start and end of the process's life. Also checked before a running dataplane is asked
/// something, so that no question meets a path that means something else.
pub(super) fn lifecycle(values: &Values) -> Result<Lifecycle, SettingsError> {
    let http_path = |key: Item| {
        let text = values
            .some_text(key)
            .or(key.setting().default)
            .unwrap_or_default();
        if text.starts_with('/') {
            Ok(text.to_owned())
        } else {
            let flag = key.setting().flag;
            Err(invalid(format!("-{flag} {text:?} must start with /")))
        }
    };
    let shutdown_path = http_path(Item::GracefulShutdownPath)?;
    let startup_path = http_path(Item::GracefulStartupPath)?;
    check_paths(&shutdown_path, &startup_path)?;
    let drain_listeners = values.bool(Item::ShutdownDrainListeners);
    let end_when_idle = values.bool(Item::ShutdownEndWhenIdle);
    if end_when_idle && !drain_listeners {
        return Err(invalid(
            "-shutdown-end-when-idle needs -shutdown-drain-listeners: set both",
        ));
    }
    Ok(Lifecycle {
        bind: lifecycle_bind(values)?,
        shutdown_path,
        startup_path,
        startup_grace: seconds(values, Item::StartupGracePeriod)?,
        shutdown_grace: seconds(values, Item::ShutdownGracePeriod)?,
        drain_listeners,
        end_when_idle,
        dump_envoy_config: values.bool(Item::DumpEnvoyConfigOnExit),
    })
}

/// The lifecycle server answers every path in one way only.
fn check_paths(shutdown: &str, startup: &str) -> Result<(), SettingsError> {
    if shutdown == startup {
        return Err(invalid(format!(
            "-graceful-shutdown-path and -graceful-startup-path are both {shutdown:?}: they must differ"
        )));
    }
    if lifecycle_paths::matches(shutdown, startup) || lifecycle_paths::matches(startup, shutdown) {
        return Err(invalid(format!(
            "-graceful-shutdown-path {shutdown:?} and -graceful-startup-path {startup:?} overlap: a path that ends with a slash stands for everything below it"
        )));
    }
    for (key, value) in [
        (Item::GracefulShutdownPath, shutdown),
        (Item::GracefulStartupPath, startup),
    ] {
        let taken = lifecycle_paths::PATHS.iter();
        if let Some(path) = taken
            .copied()
            .find(|path| lifecycle_paths::matches(value, path))
        {
            let flag = key.setting().flag;
            return Err(invalid(format!(
                "-{flag} {value:?} stands for {path}, which the same port answers in another way: use another path"
            )));
        }
    }
    Ok(())
}

/// Where the lifecycle server listens.
fn lifecycle_bind(values: &Values) -> Result<SocketAddr, SettingsError> {
    let ip = match values.text(Item::GracefulAddr) {
        // What binds today keeps binding; other names would need a resolver at start.
        "" | "localhost" => Ipv4Addr::LOCALHOST.into(),
        _ => address(values, Item::GracefulAddr)?,
    };
    let port = port_or(values, Item::GracefulPort, DEFAULT_GRACEFUL_PORT)?;
    Ok(SocketAddr::new(ip, port))
}

/// The file to read an id from: a path replaces an id of a weaker source, an id of the same source
/// stays.
pub(super) fn id_file(values: &Values, id: Item, path: Item) -> Option<PathBuf> {
    // Flags and variables are one place: an id from either stands against a path from either.
    let place = |key| values.source(key).min(Source::Environment);
    let named = values.some_text(path)?;
    (place(path) > place(id)).then(|| PathBuf::from(named))
}

/// An IP address, in brackets or not.
pub(super) fn ip(text: &str) -> Option<IpAddr> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    bare.unwrap_or(text).parse().ok()
}

pub(super) fn socket(
    values: &Values,
    address_key: Item,
    port_key: Item,
) -> Result<SocketAddr, SettingsError> {
    Ok(SocketAddr::new(
        address(values, address_key)?,
        port(values, port_key)?,
    ))
}

fn address(values: &Values, key: Item) -> Result<IpAddr, SettingsError> {
    let text = values.text(key);
    let flag = key.setting().flag;
    ip(text).ok_or_else(|| invalid(format!("-{flag} {text:?} is not an IP address")))
}

fn port(values: &Values, key: Item) -> Result<u16, SettingsError> {
    let value = values.int(key);
    let flag = key.setting().flag;
    let wrong = |_| invalid(format!("-{flag} {value} is not a port: use 0 to 65535"));
    u16::try_from(value).map_err(wrong)
}

fn port_or(values: &Values, key: Item, instead_of_zero: u16) -> Result<u16, SettingsError> {
    Ok(match port(values, key)? {
        0 => instead_of_zero,
        port => port,
    })
}

fn count(values: &Values, key: Item) -> Result<u32, SettingsError> {
    let value = values.int(key);
    let flag = key.setting().flag;
    let wrong = |_| {
        invalid(format!(
            "-{flag} {value} is out of range: use 0 to 4294967295"
        ))
    };
    u32::try_from(value).map_err(wrong)
}

fn seconds(values: &Values, key: Item) -> Result<Duration, SettingsError> {
    Ok(Duration::from_secs(count(values, key)?.into()))
}

fn path(values: &Values, key: Item) -> Option<PathBuf> {
    values
        .some_text(key)
        .map(|text| Path::new(text).to_path_buf())
}
