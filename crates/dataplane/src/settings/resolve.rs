//! From values to [`Settings`]: checks in a fixed order, with the messages that people know, and
//! the rules by which settings stand for each other. Reads no file.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use legate_client::{Bearer, Credentials, LoginConfig, TlsConfig};
use legate_envoy::process::DrainStrategy;
use legate_model::Secret;
use legate_runtime::logging::Level;

use super::invalid::Invalid;
use super::paths;
use super::table::Item;
use super::types::{
    Environment, Envoy, Lifecycle, Logging, Mode, PrometheusTls, Proxy, Servers, Settings,
    Telemetry, XdsBind,
};
use super::values::{Source, Values};

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
) -> Result<Resolved, Invalid> {
    let mut warnings = Vec::new();
    let mode = match values.text(Item::Mode) {
        "sidecar" => Mode::Sidecar,
        "dns-proxy" => Mode::DnsProxy,
        other => return Err(Invalid::Mode(other.to_owned())),
    };
    let addresses = values
        .some_text(Item::Addresses)
        .ok_or(Invalid::NoAddresses)?
        .to_owned();
    if values.int(Item::GrpcPort) == 0 {
        return Err(Invalid::NoGrpcPort);
    }
    let proxy = proxy(values, &mut warnings);
    if mode == Mode::Sidecar {
        sidecar_basics(values, &proxy)?;
    }
    let xds = match mode {
        Mode::Sidecar => xds(values)?,
        // Nothing listens there, so nothing that is said about it matters.
        Mode::DnsProxy => XdsBind::Tcp(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)),
    };
    let dns = dns(values, mode)?;
    if mode == Mode::DnsProxy && !matches!(proxy.namespace.as_str(), "" | "default") {
        return Err(Invalid::DnsProxyNamespace);
    }
    let credentials = credentials(values, &mut warnings)?;
    let telemetry = telemetry(values)?;
    let envoy = envoy(values, extra_args)?;
    if mode == Mode::Sidecar && envoy.state_dir.is_some() && !is_fixed(&xds) {
        return Err(Invalid::StateDirNeedsXds);
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
fn is_fixed(xds: &XdsBind) -> bool {
    match xds {
        XdsBind::Tcp(address) => address.port() != 0,
        XdsBind::Unix(_) => true,
    }
}

/// The level that flag or variable ask for; it is checked before a file is even read.
pub(super) fn check_level(values: &Values) -> Result<(), Invalid> {
    level(values).map(drop)
}

fn level(values: &Values) -> Result<Level, Invalid> {
    values
        .text(Item::LogLevel)
        .parse()
        .map_err(|_| Invalid::LogLevel)
}

fn logging(values: &Values) -> Result<Logging, Invalid> {
    Ok(Logging {
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

fn sidecar_basics(values: &Values, proxy: &Proxy) -> Result<(), Invalid> {
    if proxy.id.is_empty() {
        return Err(Invalid::NoProxyId);
    }
    if values.text(Item::AdminBindAddress).is_empty() {
        return Err(Invalid::NoAdminAddress);
    }
    if values.int(Item::AdminBindPort) == 0 {
        return Err(Invalid::NoAdminPort);
    }
    if values.text(Item::XdsBindAddr).is_empty() {
        return Err(Invalid::NoXdsAddress);
    }
    Ok(())
}

fn xds(values: &Values) -> Result<XdsBind, Invalid> {
    let address = values.text(Item::XdsBindAddr);
    if let Some(path) = address.strip_prefix("unix://") {
        if path.is_empty() {
            return Err(Invalid::NoXdsAddress);
        }
        return Ok(XdsBind::Unix(path.into()));
    }
    let ip = ip(address)
        .filter(IpAddr::is_loopback)
        .ok_or(Invalid::XdsNotLocal)?;
    Ok(XdsBind::Tcp(SocketAddr::new(
        ip,
        port(values, Item::XdsBindPort)?,
    )))
}

fn dns(values: &Values, mode: Mode) -> Result<Option<SocketAddr>, Invalid> {
    if values.int(Item::DnsBindPort) == -1 {
        return Ok(None);
    }
    let text = values.text(Item::DnsBindAddr);
    let ip = ip(text);
    if mode == Mode::Sidecar && !ip.is_some_and(|ip| ip.is_loopback()) {
        return Err(Invalid::DnsNotLocal);
    }
    let ip = ip.ok_or_else(|| Invalid::DnsAddress(text.to_owned()))?;
    Ok(Some(SocketAddr::new(ip, port(values, Item::DnsBindPort)?)))
}

fn credentials(values: &Values, warnings: &mut Vec<String>) -> Result<Credentials, Invalid> {
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
                (None, None) => return Err(Invalid::NoBearer),
            };
            if values.text(Item::LoginAuthMethod).is_empty() {
                return Err(Invalid::NoAuthMethod);
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
        other => Err(Invalid::CredentialType(other.to_owned())),
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

fn server_tls(values: &Values) -> Result<Option<TlsConfig>, Invalid> {
    if values.bool(Item::TlsDisabled) {
        return Ok(None);
    }
    let client_certificate = match (path(values, Item::TlsCert), path(values, Item::TlsKey)) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(Invalid::HalfClientCertificate),
    };
    Ok(Some(TlsConfig {
        ca: path(values, Item::CaCerts),
        client_certificate,
        server_name: values.some_text(Item::TlsServerName).map(str::to_owned),
        insecure_skip_verify: values.bool(Item::TlsInsecureSkipVerify),
    }))
}

fn telemetry(values: &Values) -> Result<Telemetry, Invalid> {
    let ca = path(values, Item::PromCaCertsPath).or_else(|| path(values, Item::PromCaCertsFile));
    let certificate = path(values, Item::PromCertFile);
    let prometheus_tls = match (ca, certificate, path(values, Item::PromKeyFile)) {
        (Some(ca), Some(certificate), Some(key)) => Some(PrometheusTls {
            ca,
            certificate,
            key,
        }),
        (None, None, None) => None,
        _ => return Err(Invalid::PartialPrometheusTls),
    };
    let retention = u64::try_from(values.duration(Item::PromRetentionTime))
        .ok()
        .filter(|nanoseconds| *nanoseconds > 0)
        .map(Duration::from_nanos)
        .ok_or(Invalid::Retention)?;
    let scrape_path = values
        .some_text(Item::PromScrapePath)
        .ok_or(Invalid::NoScrapePath)?;
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

fn envoy(values: &Values, extra_args: Vec<OsString>) -> Result<Envoy, Invalid> {
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
        drain_strategy: DrainStrategy::parse(strategy)
            .ok_or_else(|| Invalid::DrainStrategy(strategy.to_owned()))?,
        executable: path(values, Item::EnvoyExecutablePath),
        hot_restart: values.bool(Item::EnvoyHotRestart),
        bootstrap_refresh: bootstrap_refresh(values)?,
        state_dir: path(values, Item::EnvoyStateDir),
        extra_args,
    })
}

fn bootstrap_refresh(values: &Values) -> Result<Duration, Invalid> {
    let nanoseconds = u64::try_from(values.duration(Item::EnvoyBootstrapRefresh)).ok();
    nanoseconds
        .map(Duration::from_nanos)
        .filter(|period| period.is_zero() || *period >= MIN_BOOTSTRAP_REFRESH)
        .ok_or(Invalid::BootstrapRefresh)
}

/// Start and end of the process's life. Also checked before a running dataplane is asked
/// something, so that no question meets a path that means something else.
pub(super) fn lifecycle(values: &Values) -> Result<Lifecycle, Invalid> {
    let http_path = |key: Item| {
        let text = values
            .some_text(key)
            .or(key.setting().default)
            .unwrap_or_default();
        if text.starts_with('/') {
            Ok(text.to_owned())
        } else {
            Err(Invalid::HttpPath {
                flag: key.setting().flag,
                value: text.to_owned(),
            })
        }
    };
    let shutdown_path = http_path(Item::GracefulShutdownPath)?;
    let startup_path = http_path(Item::GracefulStartupPath)?;
    paths::check(&shutdown_path, &startup_path)?;
    let drain_listeners = values.bool(Item::ShutdownDrainListeners);
    let end_when_idle = values.bool(Item::ShutdownEndWhenIdle);
    if end_when_idle && !drain_listeners {
        return Err(Invalid::IdleWithoutDrain);
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

/// Where the lifecycle server listens.
fn lifecycle_bind(values: &Values) -> Result<SocketAddr, Invalid> {
    let ip = match values.text(Item::GracefulAddr) {
        // What binds today keeps binding; other names would need a resolver at start.
        "" | "localhost" => Ipv4Addr::LOCALHOST.into(),
        _ => address(values, Item::GracefulAddr)?,
    };
    let port = port_or(values, Item::GracefulPort, DEFAULT_GRACEFUL_PORT)?;
    Ok(SocketAddr::new(ip, port))
}

/// The file to read an id from: a path replaces an id of a weaker source, an id beside it stays.
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
) -> Result<SocketAddr, Invalid> {
    Ok(SocketAddr::new(
        address(values, address_key)?,
        port(values, port_key)?,
    ))
}

fn address(values: &Values, key: Item) -> Result<IpAddr, Invalid> {
    let text = values.text(key);
    ip(text).ok_or_else(|| Invalid::Address {
        flag: key.setting().flag,
        value: text.to_owned(),
    })
}

fn port(values: &Values, key: Item) -> Result<u16, Invalid> {
    let value = values.int(key);
    u16::try_from(value).map_err(|_| Invalid::Port {
        flag: key.setting().flag,
        value,
    })
}

fn port_or(values: &Values, key: Item, instead_of_zero: u16) -> Result<u16, Invalid> {
    Ok(match port(values, key)? {
        0 => instead_of_zero,
        port => port,
    })
}

fn count(values: &Values, key: Item) -> Result<u32, Invalid> {
    let value = values.int(key);
    u32::try_from(value).map_err(|_| Invalid::Count {
        flag: key.setting().flag,
        value,
    })
}

fn seconds(values: &Values, key: Item) -> Result<Duration, Invalid> {
    Ok(Duration::from_secs(count(values, key)?.into()))
}

fn path(values: &Values, key: Item) -> Option<PathBuf> {
    values
        .some_text(key)
        .map(|text| Path::new(text).to_path_buf())
}
