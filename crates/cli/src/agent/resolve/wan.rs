//! The port for servers, and the servers of other datacenters to join.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use legate_server::{AgentFiles, WanSettings};

use super::super::config::{Settings, time};
use super::super::sockaddr;
use super::listeners;

/// Consul's default port for servers.
const PORT: i64 = 8300;
/// Consul's default of `retry_interval_wan`.
const RETRY: Duration = Duration::from_secs(30);

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
    let (own, defaults) = (
        all.internal_rpc.unwrap_or_default(),
        all.defaults.unwrap_or_default(),
    );
    let file = |own: Option<String>, default: Option<String>| {
        let set = |file: &String| !file.is_empty();
        own.filter(set).or(default.filter(set)).map(PathBuf::from)
    };
    let authorities = [
        file(own.ca_file, defaults.ca_file),
        file(own.ca_path, defaults.ca_path),
    ];
    let authorities: Vec<PathBuf> = authorities.into_iter().flatten().collect();
    let version = own.tls_min_version.or(defaults.tls_min_version);
    let only_newest = match version.as_deref().unwrap_or_default() {
        "" | "TLS_AUTO" | "TLSv1_2" | "tls12" => false,
        "TLSv1_3" | "tls13" => true,
        other => bail!("tls.internal_rpc.tls_min_version {other:?} must be TLSv1_2 or TLSv1_3"),
    };
    let certificate = file(own.cert_file, defaults.cert_file);
    let key = file(own.key_file, defaults.key_file);
    Ok(match (certificate, key, authorities.is_empty()) {
        (Some(certificate), Some(key), false) => Some(AgentFiles {
            authorities,
            certificate,
            key,
            only_newest,
        }),
        _ => None,
    })
}
