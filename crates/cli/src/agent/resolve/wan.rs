//! The port for servers, and the servers of other datacenters to join.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use legate_identity::tls::{AgentFiles, ServerPolicy};
use legate_server::{TlsVersion, WanSettings};

use super::super::config::{Settings, time};
use super::super::sockaddr;
use super::{listeners, operations};

/// Consul's default port for servers.
const PORT: i64 = 8300;
/// Consul's default of `retry_interval_wan`.
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
) -> anyhow::Result<Option<WanSettings>> {
    let join = settings.retry_join_wan.clone().unwrap_or_default();
    if let Some(found) = join.iter().find(|address| address.contains("provider=")) {
        bail!(
            "retry_join_wan {found:?}: clouds are not asked for servers; write addresses or host names"
        );
    }
    let ports = settings.ports.clone().unwrap_or_default();
    let port = listeners::port("server", ports.server, PORT)?;
    let files = files(settings)?;
    let (Some(port), Some(files)) = (port, files) else {
        if !join.is_empty() {
            bail!(
                "retry_join_wan requires ports.server, and ca_file, cert_file and key_file in tls.internal_rpc or \
                 tls.defaults: servers only trust each other by certificates (legate tls ca create, legate tls cert \
                 create -server)"
            );
        }
        return Ok(None);
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
