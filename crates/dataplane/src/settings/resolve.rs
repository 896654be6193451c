//! Turns values into [`Settings`]: checks in a fixed order with the error texts of Consul's
//! dataplane, and rules for settings that depend on each other. Reads no file.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use legate_client::{Bearer, Credentials, LoginConfig, TlsConfig};
use legate_envoy::bootstrap::XdsAddress;
use legate_envoy::process::{DrainStrategy, EnvoyLog};
use legate_model::Secret;
use legate_runtime::logging::Level;

use super::lifecycle_paths;
use super::table::Item;
use super::types::ProxyKind;
use super::types::{
    Environment, Envoy, Lifecycle, Mode, PrometheusTls, Proxy, Servers, Settings, Telemetry,
};
use super::values::{Values, parse_ip};

/// Shortest refresh interval. Every proxy of the mesh queries the servers at this rate.
const MIN_BOOTSTRAP_REFRESH: Duration = Duration::from_secs(10);

/// Checks and converts the values. Also returns warnings for the user.
pub(super) fn resolve(
    values: &Values,
    extra_args: Vec<OsString>,
    environment: Environment,
) -> anyhow::Result<(Settings, Vec<String>)> {
    let mut warnings = Vec::new();
    let mode = match values.text(Item::Mode) {
        "sidecar" => Mode::Sidecar,
        "dns-proxy" => Mode::DnsProxy,
        other => bail!("unknown -mode {other:?}: use sidecar or dns-proxy"),
    };
    let addresses = values
        .some_text(Item::Addresses)
        .context("consul addresses not specified")?;
    ensure!(
        values.int(Item::GrpcPort) != 0,
        "consul server gRPC port not specified"
    );
    let proxy = proxy(values, &mut warnings);
    let xds = match mode {
        Mode::Sidecar => {
            sidecar_basics(values, &proxy)?;
            xds(values)?
        }
        // Nothing listens there in this mode, so the setting is ignored.
        Mode::DnsProxy => XdsAddress::Tcp((Ipv4Addr::LOCALHOST, 0).into()),
    };
    let dns = dns(values, mode)?;
    ensure!(
        mode == Mode::Sidecar || matches!(proxy.namespace.as_str(), "" | "default"),
        "namespace must be empty or set to 'default' when running in dns-proxy mode"
    );
    let credentials = credentials(values, &mut warnings)?;
    let telemetry = telemetry(values)?;
    let envoy = envoy(values, extra_args)?;
    // A later dataplane has to find it at the same address.
    let varies = matches!(&xds, XdsAddress::Tcp(address) if address.port() == 0);
    ensure!(
        mode == Mode::DnsProxy || envoy.state_dir.is_none() || !varies,
        "-envoy-state-dir needs a fixed address for Envoy's configuration: set -xds-bind-port, or -xds-bind-addr=unix://PATH"
    );
    let settings = Settings {
        mode,
        servers: Servers {
            addresses: addresses.to_owned(),
            grpc_port: values.port(Item::GrpcPort)?,
            watch_disabled: values.bool(Item::ServerWatchDisabled),
            tls: server_tls(values)?,
            credentials,
        },
        proxy,
        logging: EnvoyLog {
            level: level(values)?,
            json: values.bool(Item::LogJson),
        },
        xds,
        dns,
        telemetry,
        envoy,
        lifecycle: lifecycle(values)?,
        environment,
    };
    Ok((settings, warnings))
}

/// The log level. A level from a flag or variable is checked before any file is read.
pub(super) fn level(values: &Values) -> anyhow::Result<Level> {
    let level = values.text(Item::LogLevel).parse().ok();
    level.context("invalid log level. valid values - TRACE, DEBUG, INFO, WARN, ERROR")
}

/// The proxy's settings. Each has a deprecated name; a value for any of the current names, from
/// whatever source, disables all deprecated ones.
fn proxy(values: &Values, warnings: &mut Vec<String>) -> Proxy {
    const NAMES: [(Item, Item); 6] = [
        (Item::ProxyNodeName, Item::ServiceNodeName),
        (Item::ProxyNodeId, Item::ServiceNodeId),
        (Item::ProxyId, Item::ServiceId),
        (Item::ProxyIdPath, Item::ServiceIdPath),
        (Item::ProxyNamespace, Item::ServiceNamespace),
        (Item::ProxyPartition, Item::ServicePartition),
    ];
    let current = NAMES.iter().find(|(item, _)| values.given(*item));
    let ignored = flags(values, NAMES.map(|(_, deprecated)| deprecated));
    if let Some((current, _)) = current
        && !ignored.is_empty()
    {
        warnings.push(format!(
            "{ignored} (or the same from environment or file) is ignored, because {current} is set: give all of the proxy's settings by their current names"
        ));
    }
    let [node_name, node_id, id, _, namespace, partition] = NAMES.map(|(item, deprecated)| {
        let item = if current.is_some() { item } else { deprecated };
        values.text(item).to_owned()
    });
    Proxy {
        node_name,
        node_id,
        id,
        namespace,
        partition,
    }
}

/// The flags of the given items that have a value, as text.
fn flags(values: &Values, items: impl IntoIterator<Item = Item>) -> String {
    let given = items
        .into_iter()
        .filter(|item| values.some_text(*item).is_some());
    given
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

fn sidecar_basics(values: &Values, proxy: &Proxy) -> anyhow::Result<()> {
    let empty = |item| values.some_text(item).is_none();
    for (missing, what) in [
        (proxy.id.is_empty(), "proxy ID"),
        (empty(Item::AdminBindAddress), "envoy admin bind address"),
        (
            values.int(Item::AdminBindPort) == 0,
            "envoy admin bind port",
        ),
        (empty(Item::XdsBindAddr), "envoy xDS bind address"),
    ] {
        ensure!(!missing, "{what} not specified");
    }
    Ok(())
}

fn xds(values: &Values) -> anyhow::Result<XdsAddress> {
    let address = values.text(Item::XdsBindAddr);
    if let Some(path) = address.strip_prefix("unix://") {
        ensure!(!path.is_empty(), "envoy xDS bind address not specified");
        return Ok(XdsAddress::Unix(path.into()));
    }
    let ip = parse_ip(address).filter(IpAddr::is_loopback);
    let ip = ip.context("non-local xDS bind address not allowed")?;
    let port = values.port(Item::XdsBindPort)?;
    Ok(XdsAddress::Tcp(SocketAddr::new(ip, port)))
}

fn dns(values: &Values, mode: Mode) -> anyhow::Result<Option<SocketAddr>> {
    if values.int(Item::DnsBindPort) == -1 {
        return Ok(None);
    }
    let text = values.text(Item::DnsBindAddr);
    let ip = parse_ip(text);
    ensure!(
        mode == Mode::DnsProxy || ip.is_some_and(|ip| ip.is_loopback()),
        "non-local DNS proxy bind address not allowed when running as a sidecar"
    );
    let ip = ip.with_context(|| {
        format!("failed to create dns server: error parsing specified dns bind addr '{text}'")
    })?;
    Ok(Some(SocketAddr::new(ip, values.port(Item::DnsBindPort)?)))
}

fn credentials(values: &Values, warnings: &mut Vec<String>) -> anyhow::Result<Credentials> {
    let text = |item| values.text(item).to_owned();
    let secret = |item| values.some_text(item).map(Secret::new);
    let kind = values.text(Item::CredentialType);
    let login = [
        Item::LoginAuthMethod,
        Item::LoginBearerToken,
        Item::LoginBearerTokenPath,
    ];
    // Credentials of the other type have no effect: probably `-credential-type` was forgotten.
    for (of, unused) in [
        ("static", flags(values, [Item::StaticToken])),
        ("login", flags(values, login)),
    ] {
        if of != kind && !unused.is_empty() {
            warnings.push(format!(
                "{unused} is ignored: it needs -credential-type={of}"
            ));
        }
    }
    match kind {
        "" => Ok(Credentials::None),
        "static" => Ok(match secret(Item::StaticToken) {
            Some(token) => Credentials::Static(token),
            None => {
                let warning = "-credential-type=static without -static-token: no token is sent";
                warnings.push(warning.to_owned());
                Credentials::None
            }
        }),
        "login" => {
            let token = secret(Item::LoginBearerToken).map(Bearer::Token);
            let bearer =
                token.or_else(|| values.path(Item::LoginBearerTokenPath).map(Bearer::File));
            let bearer = bearer.context(
                "bearer token (or path to a file containing a bearer token) is required for login",
            )?;
            ensure!(
                values.some_text(Item::LoginAuthMethod).is_some(),
                "auth method is required for login: set -login-auth-method"
            );
            Ok(Credentials::Login(LoginConfig {
                auth_method: text(Item::LoginAuthMethod),
                namespace: text(Item::LoginNamespace),
                partition: text(Item::LoginPartition),
                datacenter: text(Item::LoginDatacenter),
                bearer,
                meta: values.pairs(Item::LoginMeta),
            }))
        }
        other => bail!("unknown credential type: {other}"),
    }
}

fn server_tls(values: &Values) -> anyhow::Result<Option<TlsConfig>> {
    if values.bool(Item::TlsDisabled) {
        return Ok(None);
    }
    let (certificate, key) = (values.path(Item::TlsCert), values.path(Item::TlsKey));
    ensure!(
        certificate.is_some() == key.is_some(),
        "-tls-cert and -tls-key go together: one of them is missing"
    );
    Ok(Some(TlsConfig {
        ca: values.path(Item::CaCerts),
        client_certificate: certificate.zip(key),
        server_name: values.some_text(Item::TlsServerName).map(str::to_owned),
        insecure_skip_verify: values.bool(Item::TlsInsecureSkipVerify),
    }))
}

fn telemetry(values: &Values) -> anyhow::Result<Telemetry> {
    let ca = values
        .path(Item::PromCaCertsPath)
        .or_else(|| values.path(Item::PromCaCertsFile));
    let certificate = values.path(Item::PromCertFile);
    let prometheus_tls = match (ca, certificate, values.path(Item::PromKeyFile)) {
        (Some(ca), Some(certificate), Some(key)) => Some(PrometheusTls {
            ca,
            certificate,
            key,
        }),
        (None, None, None) => None,
        _ => bail!(
            "Must provide -telemetry-prom-ca-certs-path, -telemetry-prom-cert-file, and -telemetry-prom-key-file to enable TLS for prometheus metrics"
        ),
    };
    let retention = values.duration(Item::PromRetentionTime);
    let retention = retention.filter(|time| !time.is_zero());
    let scrape_path = values.some_text(Item::PromScrapePath);
    Ok(Telemetry {
        use_central_config: values.bool(Item::TelemetryUseCentralConfig),
        retention: retention.context("-telemetry-prom-retention-time must be greater than zero")?,
        prometheus_tls,
        service_metrics_url: values
            .some_text(Item::PromServiceMetricsUrl)
            .map(str::to_owned),
        scrape_path: scrape_path
            .context("-telemetry-prom-scrape-path must not be empty")?
            .to_owned(),
        merge_port: values.port_or_default(Item::PromMergePort)?,
        bind: match values.text(Item::PromBindAddr) {
            // An empty value counts as unset.
            "" => Ipv6Addr::UNSPECIFIED.into(),
            _ => values.address(Item::PromBindAddr)?,
        },
    })
}

fn envoy(values: &Values, extra_args: Vec<OsString>) -> anyhow::Result<Envoy> {
    let is_ready_bound =
        values.some_text(Item::ReadyBindAddress).is_some() && values.int(Item::ReadyBindPort) != 0;
    let ready = is_ready_bound.then(|| values.socket(Item::ReadyBindAddress, Item::ReadyBindPort));
    let strategy = values.text(Item::EnvoyDrainStrategy);
    let refresh = values
        .duration(Item::EnvoyBootstrapRefresh)
        .filter(|period| period.is_zero() || *period >= MIN_BOOTSTRAP_REFRESH);
    let kind = values.text(Item::ProxyKind);
    Ok(Envoy {
        kind: ProxyKind::parse(kind)
            .with_context(|| format!("unknown -proxy {kind:?}: use envoy, builtin or auto"))?,
        return_after: values
            .duration(Item::ProxyReturnAfter)
            .filter(|time| !time.is_zero())
            .context("-proxy-return-after must be longer than 0")?,
        close_outdated: values.bool(Item::ProxyCloseOutdated),
        admin: values.socket(Item::AdminBindAddress, Item::AdminBindPort)?,
        ready: ready.transpose()?,
        concurrency: values.count(Item::EnvoyConcurrency)?,
        drain_time: values.seconds(Item::EnvoyDrainTime)?,
        drain_strategy: DrainStrategy::parse(strategy).with_context(|| {
            format!("unknown -envoy-drain-strategy {strategy:?}: use immediate or gradual")
        })?,
        executable: values.path(Item::EnvoyExecutablePath),
        hot_restart: values.bool(Item::EnvoyHotRestart),
        bootstrap_refresh: refresh
            .context("-envoy-bootstrap-refresh-interval must be 0 (never) or at least 10s")?,
        state_dir: values.path(Item::EnvoyStateDir),
        extra_args,
    })
}

/// Settings of start and shutdown. Also checked before a request to a running dataplane, so that no
/// request is sent to a path with another meaning.
pub(super) fn lifecycle(values: &Values) -> anyhow::Result<Lifecycle> {
    let http_path = |item: Item| {
        let text = values
            .some_text(item)
            .or(item.setting().default)
            .unwrap_or_default();
        ensure!(text.starts_with('/'), "{item} {text:?} must start with /");
        Ok(text.to_owned())
    };
    let shutdown_path = http_path(Item::GracefulShutdownPath)?;
    let startup_path = http_path(Item::GracefulStartupPath)?;
    check_paths(&shutdown_path, &startup_path)?;
    let drain_listeners = values.bool(Item::ShutdownDrainListeners);
    let end_when_idle = values.bool(Item::ShutdownEndWhenIdle);
    ensure!(
        drain_listeners || !end_when_idle,
        "-shutdown-end-when-idle needs -shutdown-drain-listeners: set both"
    );
    let ip = match values.text(Item::GracefulAddr) {
        // Other names than `localhost` would need a resolver at start.
        "" | "localhost" => Ipv4Addr::LOCALHOST.into(),
        _ => values.address(Item::GracefulAddr)?,
    };
    let port = values.port_or_default(Item::GracefulPort)?;
    Ok(Lifecycle {
        bind: SocketAddr::new(ip, port),
        shutdown_path,
        startup_path,
        startup_grace: values.seconds(Item::StartupGracePeriod)?,
        shutdown_grace: values.seconds(Item::ShutdownGracePeriod)?,
        drain_listeners,
        end_when_idle,
        dump_envoy_config: values.bool(Item::DumpEnvoyConfigOnExit),
    })
}

/// Checks that no path of the lifecycle server has two meanings.
fn check_paths(shutdown: &str, startup: &str) -> anyhow::Result<()> {
    use lifecycle_paths::matches;
    ensure!(
        shutdown != startup,
        "-graceful-shutdown-path and -graceful-startup-path are both {shutdown:?}: they must differ"
    );
    ensure!(
        !matches(shutdown, startup) && !matches(startup, shutdown),
        "-graceful-shutdown-path {shutdown:?} and -graceful-startup-path {startup:?} overlap: a path that ends with a slash stands for everything below it"
    );
    for (item, value) in [
        (Item::GracefulShutdownPath, shutdown),
        (Item::GracefulStartupPath, startup),
    ] {
        let taken = lifecycle_paths::PATHS
            .iter()
            .find(|path| matches(value, path));
        if let Some(path) = taken {
            bail!(
                "{item} {value:?} stands for {path}, which the same port answers in another way: use another path"
            );
        }
    }
    Ok(())
}
