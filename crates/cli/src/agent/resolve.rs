//! From settings to a server: defaults, what fits together, and what is refused for its value.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use legate_model::duration;
use legate_runtime::logging::{Level, LogOptions};
use legate_server::{
    AclConfig, AgentConfig, ApiLimit, CaConfig, ConnectionLimits, DefaultPolicy, IntentionAction,
    ServerConfig, StoreConfig,
};

use super::config::{Acl, CaSettings, Files, Ports, Settings, Switch};
use super::sockaddr;
use super::sources::Sources;

/// What is started.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) server: ServerConfig,
    pub(super) log: LogOptions,
}

const SERVER: bool = true;

/// Refuses values that are not served, of one file.
///
/// # Errors
/// Names the key and why.
pub(super) fn refuse(settings: &Settings) -> anyhow::Result<()> {
    for (key, set, served, reason) in switches(settings) {
        if set.is_some_and(|set| set != served) {
            bail!("{key} = {} is not served: {reason}", !served);
        }
    }
    let tls = settings.tls.clone().unwrap_or_default();
    let all = [
        ("defaults", tls.defaults),
        ("https", tls.https),
        ("grpc", tls.grpc),
    ];
    for (key, files) in all {
        if files.and_then(|files| files.verify_incoming) == Some(true) {
            bail!(
                "tls.{key}.verify_incoming = true is not served: certificates of clients are not \
                 asked for; tokens say who may do what"
            );
        }
    }
    let connect = settings.connect.as_ref();
    let ca = connect.and_then(|connect| connect.ca_config.as_ref());
    let provider = connect.and_then(|connect| connect.ca_provider.as_deref());
    let key_type = ca.and_then(|ca| ca.private_key_type.as_deref());
    let domain = settings
        .domain
        .as_deref()
        .map(|name| name.trim_matches('.'));
    for (key, set, served) in [
        ("connect.ca_provider", provider, "consul"),
        ("connect.ca_config.private_key_type", key_type, "ec"),
        ("domain", domain, "consul"),
    ] {
        if let Some(set) = set.filter(|set| !set.is_empty() && *set != served) {
            bail!("{key} = {set:?} is not served: it is always {served:?}");
        }
    }
    if ca
        .and_then(|ca| ca.private_key_bits)
        .is_some_and(|bits| bits != 256)
    {
        bail!("connect.ca_config.private_key_bits: keys have 256 bits, leave it out");
    }
    if settings
        .bootstrap_expect
        .is_some_and(|servers| servers != 1)
    {
        bail!(
            "bootstrap_expect must be 1: several servers share their state through etcd \
             (legate-server --etcd-endpoints)"
        );
    }
    Ok(())
}

/// A key, what it is set to, the one value that is served, and why there is no other.
type OneValue = (&'static str, Option<bool>, bool, &'static str);

fn switches(settings: &Settings) -> [OneValue; 11] {
    let on = |switch: &Option<Switch>| switch.as_ref().and_then(|one| one.enabled);
    let connect = settings.connect.clone().unwrap_or_default();
    let no_scripts = "checks that run a command are not run";
    let no_web = "there is no web interface";
    [
        (
            "connect.enabled",
            connect.enabled,
            true,
            "the mesh is what this server is for",
        ),
        (
            "connect.enable_mesh_gateway_wan_federation",
            connect.enable_mesh_gateway_wan_federation,
            false,
            "federation is not part of this server",
        ),
        (
            "enable_central_service_config",
            settings.enable_central_service_config,
            true,
            "proxies always get what config entries say",
        ),
        (
            "enable_script_checks",
            settings.enable_script_checks,
            false,
            no_scripts,
        ),
        (
            "enable_local_script_checks",
            settings.enable_local_script_checks,
            false,
            no_scripts,
        ),
        (
            "disable_remote_exec",
            settings.disable_remote_exec,
            true,
            "there is no remote execution",
        ),
        (
            "disable_update_check",
            settings.disable_update_check,
            true,
            "nobody is asked for updates",
        ),
        (
            "peering.enabled",
            on(&settings.peering),
            false,
            "cluster peering is not served",
        ),
        ("ui", settings.ui, false, no_web),
        ("ui_config.enabled", on(&settings.ui_config), false, no_web),
        (
            "server",
            settings.server,
            SERVER,
            "client agents are not served: run a server",
        ),
    ]
}

/// # Errors
/// Names the setting.
pub(super) fn resolve(sources: Sources, dev: bool) -> anyhow::Result<Resolved> {
    let settings = sources.settings;
    refuse(&settings).context("the command line")?;
    if !dev && settings.server != Some(SERVER) {
        bail!("client agents are not served: run a server with -server or -dev");
    }
    let datacenter = settings
        .datacenter
        .clone()
        .unwrap_or_else(|| "dc1".to_owned());
    let datacenter = datacenter.to_ascii_lowercase();
    if let Some(primary) = &settings.primary_datacenter
        && !primary.eq_ignore_ascii_case(&datacenter)
    {
        bail!(
            "primary_datacenter is {primary:?} and datacenter {datacenter:?}: federation is not \
             part of this server, so that they must be the same"
        );
    }
    let ports = Listeners::of(&settings, dev)?;
    let tls = settings.tls.clone().unwrap_or_default();
    let defaults = files("tls.defaults", tls.defaults.as_ref())?;
    let https = files("tls.https", tls.https.as_ref())?;
    let grpc = files("tls.grpc", tls.grpc.as_ref())?;
    let default_intention_policy = intention_policy(&settings)?;
    let acl = acl(settings.acl.clone())?;
    let server = ServerConfig {
        datacenter,
        node_name: node_name(&settings)?,
        advertise: advertise(&settings)?,
        http: ports.http,
        https: ports.https,
        grpc: ports.grpc,
        grpc_tls: ports.grpc_tls,
        dns: ports.dns,
        dns_only_passing: settings.dns_config.and_then(|dns| dns.only_passing) == Some(true),
        store: store(settings.data_dir, dev)?,
        grpc_tls_files: grpc.or_else(|| defaults.clone()),
        https_files: https.or(defaults),
        connections: connections(settings.limits.and_then(|l| l.http_max_conns_per_client)),
        acl,
        agent: AgentConfig {
            registers_itself: true,
            node_meta: settings.node_meta.unwrap_or_default(),
            services: sources.services,
            checks: sources.checks,
            config_entries: sources.config_entries,
        },
        default_intention_policy,
        ca: ca(settings
            .connect
            .and_then(|connect| connect.ca_config)
            .unwrap_or_default())?,
        update_max_per_second: update_rate(settings.xds.and_then(|x| x.update_max_per_second))?,
        ..ServerConfig::default()
    };
    let level = settings.log_level.as_deref().unwrap_or("info");
    let level = match level.to_ascii_lowercase().as_str() {
        "err" => "error".to_owned(),
        other => other.to_owned(),
    };
    let log = LogOptions {
        name: "legate",
        level: level.parse::<Level>().context("log_level")?,
        json: settings.log_json == Some(true),
    };
    Ok(Resolved { server, log })
}

fn node_name(settings: &Settings) -> anyhow::Result<String> {
    if let Some(name) = settings.node_name.clone().filter(|name| !name.is_empty()) {
        return Ok(name);
    }
    let host = nix::unistd::gethostname().context("the name of this host cannot be read")?;
    host.into_string().map_err(|name| {
        anyhow::anyhow!("the name of this host, {name:?}, is not text: name the node with -node")
    })
}

/// The address of the node in the catalog.
fn advertise(settings: &Settings) -> anyhow::Result<IpAddr> {
    if let Some(address) = &settings.advertise_addr {
        let ip = sockaddr::resolve(address).context("advertise_addr")?;
        if ip.is_unspecified() {
            bail!("advertise_addr is {ip}: it must be an address that others can dial");
        }
        return Ok(ip);
    }
    let Some(bind) = &settings.bind_addr else {
        return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    };
    let ip = sockaddr::resolve(bind).context("bind_addr")?;
    if !ip.is_unspecified() {
        return Ok(ip);
    }
    sockaddr::private().context("bind_addr is every address; set advertise_addr")
}

/// Where each API listens.
struct Listeners {
    http: Option<SocketAddr>,
    https: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
    grpc_tls: Option<SocketAddr>,
    dns: Option<SocketAddr>,
}

impl Listeners {
    /// The ports are Consul's: without TLS gRPC is on in development only.
    fn of(settings: &Settings, dev: bool) -> anyhow::Result<Self> {
        let client = match &settings.client_addr {
            Some(address) => sockaddr::resolve(address).context("client_addr")?,
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let ports = settings.ports.clone().unwrap_or_default();
        let own = settings.addresses.clone().unwrap_or_default();
        let Ports {
            dns,
            http,
            https,
            grpc,
            grpc_tls,
        } = ports;
        let listen = |name: &str, address: Option<String>, port: Option<i64>, default: i64| {
            let ip = match address {
                Some(own) => {
                    sockaddr::resolve(&own).with_context(|| format!("addresses.{name}"))?
                }
                None => client,
            };
            match port.unwrap_or(default) {
                -1 => Ok(None),
                port => {
                    let port = u16::try_from(port).ok();
                    let port = port.with_context(|| {
                        format!("ports.{name} must be a port from 0 to 65535, or -1 for none")
                    })?;
                    Ok::<_, anyhow::Error>(Some(SocketAddr::new(ip, port)))
                }
            }
        };
        Ok(Self {
            http: listen("http", own.http, http, 8500)?,
            https: listen("https", own.https, https, -1)?,
            grpc: listen("grpc", own.grpc, grpc, if dev { 8502 } else { -1 })?,
            grpc_tls: listen("grpc_tls", own.grpc_tls, grpc_tls, 8503)?,
            dns: listen("dns", own.dns, dns, 8600)?,
        })
    }
}

fn files(key: &str, files: Option<&Files>) -> anyhow::Result<Option<(PathBuf, PathBuf)>> {
    let Some(files) = files else { return Ok(None) };
    let named = |file: &Option<String>| file.clone().filter(|file| !file.is_empty());
    match (named(&files.cert_file), named(&files.key_file)) {
        (Some(cert), Some(key)) => Ok(Some((cert.into(), key.into()))),
        (None, None) => Ok(None),
        _ => bail!("{key} needs both cert_file and key_file"),
    }
}

fn store(data_dir: Option<String>, dev: bool) -> anyhow::Result<StoreConfig> {
    match data_dir {
        _ if dev => Ok(StoreConfig::Memory),
        Some(directory) if !directory.is_empty() => Ok(StoreConfig::Disk {
            directory: directory.into(),
            key_file: None,
        }),
        _ => bail!("data_dir is needed without -dev: the directory that keeps the state"),
    }
}

fn connections(per_client: Option<usize>) -> ConnectionLimits {
    let mut limits = ConnectionLimits::default();
    match per_client {
        None => {}
        // No limit for one address, as in Consul.
        Some(0) => limits.http.per_address = limits.http.in_all,
        Some(per_address) => {
            limits.http = ApiLimit {
                in_all: limits.http.in_all.max(per_address),
                per_address,
            };
        }
    }
    limits
}

/// What happens to a connection that no intention speaks of. As in Consul the default policy of ACLs
/// decides, also where ACLs are off.
fn intention_policy(settings: &Settings) -> anyhow::Result<Option<IntentionAction>> {
    let acl = settings
        .acl
        .as_ref()
        .and_then(|acl| acl.default_policy.as_ref());
    for (key, policy) in [
        (
            "default_intention_policy",
            settings.default_intention_policy.as_ref(),
        ),
        ("acl.default_policy", acl),
    ] {
        match policy.map_or("", String::as_str) {
            "" => {}
            "allow" => return Ok(Some(IntentionAction::Allow)),
            "deny" => return Ok(Some(IntentionAction::Deny)),
            other => bail!("{key} is {other:?}: it must be allow or deny"),
        }
    }
    Ok(None)
}

fn acl(acl: Option<Acl>) -> anyhow::Result<AclConfig> {
    let acl = acl.unwrap_or_default();
    let enabled = acl.enabled == Some(true);
    let default_policy = match acl.default_policy.as_deref().unwrap_or("allow") {
        "allow" => DefaultPolicy::Allow,
        "deny" => DefaultPolicy::Deny,
        other => bail!("acl.default_policy is {other:?}: it must be allow or deny"),
    };
    let initial = acl.tokens.and_then(|tokens| tokens.initial_management);
    let initial_management = initial.filter(|token| !token.is_empty());
    if initial_management.is_some() && !enabled {
        bail!("acl.tokens.initial_management needs acl.enabled = true");
    }
    Ok(AclConfig {
        enabled,
        default_policy,
        initial_management,
    })
}

fn ca(settings: CaSettings) -> anyhow::Result<CaConfig> {
    let time = |key: &str, text: Option<String>, default: Duration| match text {
        None => Ok(default),
        Some(text) => duration::parse(&text)
            .map_err(|error| anyhow::anyhow!("connect.ca_config.{key}: {error}")),
    };
    let default = CaConfig::default();
    Ok(CaConfig {
        leaf_ttl: time("leaf_cert_ttl", settings.leaf_cert_ttl, default.leaf_ttl)?,
        root_ttl: time("root_cert_ttl", settings.root_cert_ttl, default.root_ttl)?,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked"
)]
fn update_rate(rate: Option<f64>) -> anyhow::Result<u32> {
    let rate = rate.unwrap_or_default();
    if !(0.0..=f64::from(u32::MAX)).contains(&rate) {
        bail!("xds.update_max_per_second must be a number from 0, which is no limit");
    }
    Ok(rate.ceil() as u32)
}

#[cfg(test)]
mod tests;
