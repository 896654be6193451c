//! Resolves settings to a server's configuration: defaults, consistency checks, invalid values.

mod dns;
mod listeners;
mod operations;
mod wan;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use legate_model::json::same_key;
use legate_model::{Locality, Secret};
use legate_runtime::logging::LogOptions;
use legate_server::{
    AclConfig, AgentConfig, ApiLimit, CaConfig, CheckSettings, ConnectionLimits, DefaultPolicy,
    IntentionAction, Scripts, ServerConfig, StoreConfig, TokenSet,
};
use uuid::Uuid;

use self::listeners::Listeners;
use self::operations::LogFile;
use super::config::{Acl, Connect, Settings, time};
use super::sockaddr;
use super::sources::Sources;
use super::watches::{Watch, own_address};
use crate::server_api::environment;

/// The configuration to run.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) server: ServerConfig,
    pub(super) log: LogOptions,
    pub(super) log_file: Option<LogFile>,
    /// The file for the process id.
    pub(super) pid_file: Option<PathBuf>,
    pub(super) leave: Leave,
    /// Whether the files are reloaded when one of them changes.
    pub(super) reload_by_itself: bool,
    pub(super) watches: Vec<Watch>,
    /// Whether the agent runs commands of `consul exec`.
    pub(super) executes: bool,
}

/// The signals on which the node leaves the catalog before the server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leave {
    pub(super) on_terminate: bool,
    pub(super) on_interrupt: bool,
}

/// # Errors
/// Names the setting.
pub(super) fn resolve(sources: Sources, dev: bool) -> anyhow::Result<Resolved> {
    let settings = sources.settings;
    settings.check().context("the command line")?;
    if !dev && settings.server != Some(true) {
        bail!("client agents are not supported: run a server with -server or -dev");
    }
    let datacenter = settings
        .datacenter
        .clone()
        .unwrap_or_else(|| "dc1".to_owned());
    let datacenter = datacenter.to_ascii_lowercase();
    let primary_datacenter = wan::primary(&settings, &datacenter)?;
    let wan = wan::settings(
        &settings,
        advertise(&settings)?,
        primary_datacenter.as_deref(),
        dev,
    )?;
    let ports = Listeners::of(&settings, dev)?;
    let check_settings = check_settings(&settings)?;
    let (tokens, token_file) = agent_tokens(&settings, dev);
    let acl = acl(settings.acl.clone())?;
    let server = ServerConfig {
        datacenter,
        primary_datacenter,
        node_name: node_name(&settings)?,
        advertise: advertise(&settings)?,
        http: ports.http,
        https: ports.https,
        grpc: ports.grpc,
        grpc_tls: ports.grpc_tls,
        dns: ports.dns,
        wan,
        translate_wan_addrs: settings.translate_wan_addrs == Some(true),
        more_listeners: ports.more,
        dns_domains: dns::domains(&settings)?,
        dns_settings: dns::settings(&settings)?,
        store: store(settings.data_dir.clone(), dev)?,
        connect: settings
            .connect
            .as_ref()
            .and_then(|connect| connect.enabled)
            != Some(false),
        peering: settings.peering.as_ref().and_then(|one| one.enabled) != Some(false),
        connections: connections(
            settings
                .limits
                .as_ref()
                .and_then(|l| l.http_max_conns_per_client),
        ),
        acl,
        agent: AgentConfig {
            registers_itself: true,
            node_id: node_id(settings.node_id.as_deref())?,
            tagged_addresses: tagged_addresses(&settings)?,
            locality: locality(settings.locality.clone())?,
            coordinate: settings.disable_coordinates != Some(true),
            node_meta: settings.node_meta.clone().unwrap_or_default(),
            services: sources.services,
            checks: sources.checks,
            config_entries: sources.config_entries,
            check_settings,
            tokens,
            token_file,
        },
        default_intention_policy: intention_policy(&settings)?,
        ca: ca(settings.connect.clone().unwrap_or_default())?,
        update_max_per_second: update_rate(
            settings
                .xds
                .as_ref()
                .and_then(|xds| xds.update_max_per_second),
        )?,
        ..ServerConfig::default()
    };
    let server = operations::with(server, &settings, dev)?;
    queries_itself(&server, &settings, &sources.watches)?;
    resolved(server, &settings, sources.watches)
}

/// What queries the agent's own API requires it without TLS.
fn queries_itself(
    server: &ServerConfig,
    settings: &Settings,
    watches: &[Watch],
) -> anyhow::Result<()> {
    let key = match settings.disable_remote_exec {
        _ if own_address(server).is_some() => return Ok(()),
        _ if !watches.is_empty() => "watches",
        Some(false) => "disable_remote_exec = false",
        _ => return Ok(()),
    };
    bail!("{key} requires the HTTP API without TLS: set ports.http")
}

/// The settings of the program around the server.
fn resolved(
    server: ServerConfig,
    settings: &Settings,
    watches: Vec<Watch>,
) -> anyhow::Result<Resolved> {
    let pid_file = settings.pid_file.clone().filter(|file| !file.is_empty());
    Ok(Resolved {
        server,
        log: operations::log(settings)?,
        log_file: operations::log_file(settings)?,
        pid_file: pid_file.map(PathBuf::from),
        leave: Leave {
            on_terminate: settings.leave_on_terminate == Some(true),
            // The default of Consul's servers.
            on_interrupt: settings.skip_leave_on_interrupt == Some(false),
        },
        reload_by_itself: settings.auto_reload_config == Some(true),
        watches,
        executes: settings.disable_remote_exec == Some(false),
    })
}

/// The id of the node, normalized.
fn node_id(id: Option<&str>) -> anyhow::Result<Option<String>> {
    let Some(id) = id.filter(|id| !id.is_empty()) else {
        return Ok(None);
    };
    let id = Uuid::parse_str(id).with_context(|| format!("node_id {id:?} is not a UUID"))?;
    Ok(Some(id.to_string()))
}

/// The region and zone of the node.
fn locality(locality: Option<Locality>) -> anyhow::Result<Option<Locality>> {
    let Some(locality) = locality.filter(|set| *set != Locality::default()) else {
        return Ok(None);
    };
    locality.validate().context("locality")?;
    Ok(Some(locality))
}

fn tagged_addresses(settings: &Settings) -> anyhow::Result<BTreeMap<String, String>> {
    let mut addresses = settings.tagged_addresses.clone().unwrap_or_default();
    let wan = &settings.advertise_addr_wan;
    if let Some(address) = wan {
        let family = match sockaddr::resolve(address).context("advertise_addr_wan")? {
            IpAddr::V4(_) => "wan_ipv4",
            IpAddr::V6(_) => "wan_ipv6",
        };
        addresses.insert(family.to_owned(), address.clone());
    }
    for (tag, address) in [
        ("lan_ipv4", &settings.advertise_addr_ipv4),
        ("lan_ipv6", &settings.advertise_addr_ipv6),
        ("wan", wan),
        ("wan_ipv4", &settings.advertise_addr_wan_ipv4),
        ("wan_ipv6", &settings.advertise_addr_wan_ipv6),
    ] {
        if let Some(address) = address {
            addresses.insert(tag.to_owned(), address.clone());
        }
    }
    addresses
        .into_iter()
        .map(|(tag, address)| {
            let ip = sockaddr::resolve(&address).with_context(|| format!("the address {tag}"))?;
            Ok((tag, ip.to_string()))
        })
        .collect()
}

/// Script checks are enabled for all sources or for files only; `-dev` does not change this.
fn check_settings(settings: &Settings) -> anyhow::Result<CheckSettings> {
    let default = CheckSettings::default();
    let scripts = match (
        settings.enable_script_checks,
        settings.enable_local_script_checks,
    ) {
        (Some(true), _) => Scripts::All,
        (_, Some(true)) => Scripts::OfFiles,
        _ => Scripts::Off,
    };
    if settings.check_output_max_size == Some(0) {
        bail!("check_output_max_size must be at least 1, in bytes");
    }
    let interval = settings.check_update_interval.as_deref();
    let interval = time("check_update_interval", interval)?;
    Ok(CheckSettings {
        scripts,
        output_max_size: settings
            .check_output_max_size
            .unwrap_or(default.output_max_size),
        output_interval: interval.unwrap_or(default.output_interval),
        docker_host: environment("DOCKER_HOST").unwrap_or(default.docker_host),
    })
}

/// The agent's own tokens, and the file for tokens that are set through the API.
fn agent_tokens(settings: &Settings, dev: bool) -> (TokenSet, Option<PathBuf>) {
    let acl = settings.acl.clone().unwrap_or_default();
    let kept = acl.enable_token_persistence == Some(true) && !dev;
    let directory = settings.data_dir.as_ref().filter(|_| kept);
    let file = directory.map(|directory| PathBuf::from(directory).join("acl-tokens.json"));
    let tokens = acl.tokens.unwrap_or_default();
    let set = |token: Option<Secret>| token.filter(|token| !token.is_empty());
    let tokens = TokenSet {
        default: set(tokens.default),
        agent: set(tokens.agent),
        agent_recovery: set(tokens.agent_recovery),
        replication: set(tokens.replication),
        config_file_service_registration: set(tokens.config_file_service_registration),
        dns: set(tokens.dns),
    };
    (tokens, file)
}

fn node_name(settings: &Settings) -> anyhow::Result<String> {
    if let Some(name) = settings.node_name.clone().filter(|name| !name.is_empty()) {
        return Ok(name);
    }
    let host = nix::unistd::gethostname().context("the name of this host cannot be read")?;
    host.into_string()
        .map_err(|name| anyhow::anyhow!("the name of this host, {name:?}, is not text: set -node"))
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

fn store(data_dir: Option<String>, dev: bool) -> anyhow::Result<StoreConfig> {
    match data_dir {
        _ if dev => Ok(StoreConfig::Memory),
        Some(directory) if !directory.is_empty() => Ok(StoreConfig::Disk {
            directory: directory.into(),
            key_file: None,
        }),
        _ => bail!("data_dir is required without -dev: the directory for the state"),
    }
}

fn connections(per_client: Option<usize>) -> ConnectionLimits {
    let mut limits = ConnectionLimits::default();
    match per_client {
        None => {}
        // 0 means no limit per address, as in Consul.
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

/// The action for connections without an intention. As in Consul it is the default policy of ACLs,
/// even if ACLs are disabled.
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
        bail!("acl.tokens.initial_management requires acl.enabled = true");
    }
    Ok(AclConfig {
        enabled,
        default_policy,
        initial_management,
        key_list_policy: acl.enable_key_list_policy == Some(true),
    })
}

/// The CA configuration of a new mesh. Its keys are those of the API, in lower case.
fn ca(connect: Connect) -> anyhow::Result<CaConfig> {
    let mut config = CaConfig::default();
    if let Some(provider) = connect.ca_provider.filter(|name| !name.is_empty()) {
        config.provider = provider;
    }
    for (key, value) in connect.ca_config.unwrap_or_default() {
        let text = value.as_str().map(str::to_owned);
        if same_key(&key, "cluster_id") {
            let id = text.unwrap_or_default();
            let parsed = Uuid::parse_str(&id)
                .with_context(|| format!("connect.ca_config.cluster_id {id:?} is not a UUID"));
            config.cluster_id = Some(id)
                .filter(|id| !id.is_empty())
                .map(|_| parsed)
                .transpose()?;
        } else if same_key(&key, "leaf_cert_ttl") {
            config.leaf_ttl = time("connect.ca_config.leaf_cert_ttl", text.as_deref())?
                .unwrap_or(config.leaf_ttl);
        } else if same_key(&key, "root_cert_ttl") {
            config.root_ttl = time("connect.ca_config.root_cert_ttl", text.as_deref())?
                .unwrap_or(config.root_ttl);
        } else {
            config.more.0.insert(key, value);
        }
    }
    if config.leaf_ttl < Duration::from_secs(3600) {
        bail!(
            "connect.ca_config.leaf_cert_ttl: leaf cert TTL must be greater or equal than 1h0m0s"
        );
    }
    config.validate().context("connect.ca_config")?;
    Ok(config)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked"
)]
fn update_rate(rate: Option<f64>) -> anyhow::Result<u32> {
    let rate = rate.unwrap_or_default();
    if !(0.0..=f64::from(u32::MAX)).contains(&rate) {
        bail!("xds.update_max_per_second must not be negative; 0 means no limit");
    }
    Ok(rate.ceil() as u32)
}

#[cfg(test)]
mod tests;
