//! The port for servers, and the servers of other datacenters to join.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use legate_identity::tls::{AgentFiles, ServerPolicy};
use legate_server::{InvalidGatewayAddress, PrimaryGateways, TlsVersion, WanSettings};

use super::super::config::{Settings, time};
use super::super::sockaddr;
use super::{listeners, operations};

/// Consul's default port for servers.
const PORT: i64 = 8300;
/// Consul's default of `retry_interval_wan` and `primary_gateways_interval`.
const RETRY: Duration = Duration::from_secs(30);

/// The primary datacenter, if it is another one.
///
/// # Errors
/// If tokens of the primary would not be known here.
pub(super) fn primary(settings: &Settings, datacenter: &str) -> anyhow::Result<Option<String>> {
    let primary = settings.primary_datacenter.clone().unwrap_or_default();
    let primary = primary.to_ascii_lowercase();
    let acl = settings.acl.clone().unwrap_or_default();
    let replicates = acl.enable_token_replication == Some(true);
    if primary.is_empty() || primary == datacenter {
        return Ok(None);
    }
    if acl.enabled == Some(true) && !replicates {
        bail!(
            "primary_datacenter is {primary:?} and acl.enable_token_replication is not set: tokens are only known here \
             when they are replicated; set acl.enable_token_replication = true, and acl.tokens.replication"
        );
    }
    Ok(Some(primary))
}

/// `None` without a port, or without a certificate to prove who this server is.
///
/// # Errors
/// Names the setting.
pub(super) fn settings(
    settings: &Settings,
    advertise: IpAddr,
    primary: Option<&str>,
    dev: bool,
) -> anyhow::Result<Option<WanSettings>> {
    let join = settings.retry_join_wan.clone().unwrap_or_default();
    let through_gateways = through_gateways(settings, primary)?;
    if let Some(found) = join.iter().find(|address| address.contains("provider=")) {
        bail!(
            "retry_join_wan {found:?}: clouds are not asked for servers; write addresses or host names"
        );
    }
    let ports = settings.ports.clone().unwrap_or_default();
    let port = listeners::port("server", ports.server, PORT)?;
    let files = files(settings)?;
    let is_unverified = dev && files.is_none() && may_be_unverified(settings);
    let port = port.filter(|_| files.is_some() || is_unverified);
    let Some(port) = port else {
        let wanting = match &through_gateways {
            Some(_) => "connect.enable_mesh_gateway_wan_federation",
            None if join.is_empty() => return Ok(None),
            None => "retry_join_wan",
        };
        bail!(
            "{wanting} requires ports.server, and ca_file, cert_file and key_file in tls.internal_rpc or tls.defaults: \
             servers only trust each other by certificates (legate tls ca create, legate tls cert create -server)"
        );
    };
    let bind = match &settings.bind_addr {
        Some(bind) => sockaddr::resolve(bind).context("bind_addr")?,
        None => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let advertise = match &settings.advertise_addr_wan {
        Some(address) => sockaddr::resolve(address).context("advertise_addr_wan")?,
        None => advertise,
    };
    if advertise.is_unspecified() {
        bail!(
            "advertise_addr_wan is {advertise}: it must be an address that other datacenters can dial"
        );
    }
    let interval = time("retry_interval_wan", settings.retry_interval_wan.as_deref())?;
    let attempts = settings.retry_max_wan.unwrap_or_default();
    Ok(Some(WanSettings {
        listen: SocketAddr::new(bind, port),
        advertise,
        files,
        join,
        retry_interval: interval.unwrap_or(RETRY).max(Duration::from_secs(1)),
        retry_max: u32::try_from(attempts).context("retry_max_wan must be 0 or more")?,
        through_gateways,
    }))
}

/// Whether a server in development mode has a port for servers without a certificate: other datacenters are named, and
/// there is nothing that only a certificate protects.
fn may_be_unverified(settings: &Settings) -> bool {
    let join = settings.retry_join_wan.iter().flatten();
    let acl = settings.acl.as_ref();
    let has_acls = acl.and_then(|acl| acl.enabled) == Some(true);
    let connect = settings.connect.as_ref();
    let by_gateways = connect.and_then(|connect| connect.enable_mesh_gateway_wan_federation);
    let names_others = settings.primary_datacenter.is_some() || join.count() > 0;
    names_others && !has_acls && by_gateways != Some(true)
}

/// Whether other datacenters are reached through mesh gateways only, and where those of the primary are.
///
/// # Errors
/// Names the setting.
fn through_gateways(
    settings: &Settings,
    primary: Option<&str>,
) -> anyhow::Result<Option<PrimaryGateways>> {
    let connect = settings.connect.as_ref();
    let is_on = connect.and_then(|connect| connect.enable_mesh_gateway_wan_federation);
    let addresses = settings.primary_gateways.clone().unwrap_or_default();
    let name = "connect.enable_mesh_gateway_wan_federation";
    if is_on != Some(true) {
        if !addresses.is_empty() {
            bail!("primary_gateways requires {name} = true");
        }
        return Ok(None);
    }
    if connect.and_then(|connect| connect.enabled) == Some(false) {
        bail!("{name} requires connect.enabled");
    }
    if settings
        .retry_join_wan
        .as_ref()
        .is_some_and(|join| !join.is_empty())
    {
        bail!(
            "{name} and retry_join_wan exclude each other: servers are joined through mesh gateways"
        );
    }
    if primary.is_none() && !addresses.is_empty() {
        bail!("primary_gateways is for a secondary datacenter: set primary_datacenter, too");
    }
    if let Some(cloud) = addresses
        .iter()
        .find(|address| address.contains("provider="))
    {
        bail!("primary_gateways {cloud:?}: clouds are not asked for gateways; write HOST:PORT");
    }
    let addresses = addresses.iter().map(|address| address.parse());
    let addresses: Result<_, InvalidGatewayAddress> = addresses.collect();
    let interval = settings.primary_gateways_interval.as_deref();
    let interval = time("primary_gateways_interval", interval)?;
    Ok(Some(PrimaryGateways {
        addresses: addresses.context("primary_gateways")?,
        interval: interval.unwrap_or(RETRY).max(Duration::from_secs(1)),
    }))
}

/// `tls.internal_rpc`, or what is missing there of `tls.defaults`.
fn files(settings: &Settings) -> anyhow::Result<Option<AgentFiles>> {
    let all = settings.tls.clone().unwrap_or_default();
    let (pair, policy) = operations::tls("internal_rpc", &all, all.internal_rpc.as_ref())?;
    let has_authorities = !policy.client_authorities.is_empty();
    let pair = pair.filter(|_| has_authorities);
    Ok(pair.map(|(certificate, key)| AgentFiles {
        certificate,
        key,
        policy: ServerPolicy {
            client_authorities: policy.client_authorities,
            only_newest: policy.min_version == TlsVersion::V1_3,
            cipher_suites: policy.cipher_suites,
        },
    }))
}
