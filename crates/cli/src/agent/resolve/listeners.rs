//! The listeners of each API: addresses and ports from the settings.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use legate_server::{MoreListeners, UnixSocket};

use super::super::config::{Ports, Settings};
use super::super::sockaddr;

/// The prefix of Unix socket addresses.
const UNIX: &str = "unix://";

/// The listeners of each API. The first address of each is its address in the catalog.
pub(super) struct Listeners {
    pub(super) http: Option<SocketAddr>,
    pub(super) https: Option<SocketAddr>,
    pub(super) grpc: Option<SocketAddr>,
    pub(super) grpc_tls: Option<SocketAddr>,
    pub(super) dns: Option<SocketAddr>,
    pub(super) more: MoreListeners,
}

impl Listeners {
    /// Default ports are Consul's: plaintext gRPC is enabled in development mode only.
    pub(super) fn of(settings: &Settings, dev: bool) -> anyhow::Result<Self> {
        let client = match settings.client_addr.as_deref() {
            Some(addresses) if !addresses.is_empty() => {
                sockaddr::resolve_all(addresses).context("client_addr")?
            }
            _ => vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        };
        let own = settings.addresses.clone().unwrap_or_default();
        let Ports {
            dns,
            http,
            https,
            grpc,
            grpc_tls,
            server: _,
        } = settings.ports.clone().unwrap_or_default();
        let (http_address, sockets) = without_sockets(own.http);
        let http = (port("http", http, 8500)?, http_address, !sockets.is_empty());
        let mut more = MoreListeners {
            http_sockets: match http.0 {
                Some(_) => self::sockets(settings, sockets)?,
                None => Vec::new(),
            },
            ..MoreListeners::default()
        };
        let at = |name: &str, port: Option<u16>, address: Option<String>| {
            let Some(port) = port else {
                return Ok((None, Vec::new()));
            };
            let ips = match address.filter(|address| !address.trim().is_empty()) {
                Some(own) => {
                    sockaddr::resolve_all(&own).with_context(|| format!("addresses.{name}"))?
                }
                None => client.clone(),
            };
            let mut all = ips.into_iter().map(|ip| SocketAddr::new(ip, port));
            Ok::<_, anyhow::Error>((all.next(), all.collect::<Vec<_>>()))
        };
        let (http, more_http) = match http {
            // Only Unix sockets are configured.
            (_, None, true) => (None, Vec::new()),
            (port, address, _) => at("http", port, address)?,
        };
        let (https, more_https) = at("https", port("https", https, -1)?, own.https)?;
        let default = if dev { 8502 } else { -1 };
        let (grpc, more_grpc) = at("grpc", port("grpc", grpc, default)?, own.grpc)?;
        let grpc_tls = port("grpc_tls", grpc_tls, 8503)?;
        let (grpc_tls, more_grpc_tls) = at("grpc_tls", grpc_tls, own.grpc_tls)?;
        let (dns, more_dns) = at("dns", port("dns", dns, 8600)?, own.dns)?;
        more.http = more_http;
        more.https = more_https;
        more.grpc = more_grpc;
        more.grpc_tls = more_grpc_tls;
        more.dns = more_dns;
        Ok(Self {
            http,
            https,
            grpc,
            grpc_tls,
            dns,
            more,
        })
    }
}

pub(super) fn port(name: &str, port: Option<i64>, default: i64) -> anyhow::Result<Option<u16>> {
    match port.unwrap_or(default) {
        -1 => Ok(None),
        port => u16::try_from(port).map(Some).ok().with_context(|| {
            format!("ports.{name} must be a port from 0 to 65535, or -1 for none")
        }),
    }
}

/// Separates IP addresses from paths of Unix sockets.
fn without_sockets(addresses: Option<String>) -> (Option<String>, Vec<String>) {
    let Some(addresses) = addresses else {
        return (None, Vec::new());
    };
    let words = addresses.split_whitespace();
    let (sockets, others): (Vec<&str>, Vec<&str>) =
        words.partition(|address| address.starts_with(UNIX));
    let sockets = sockets
        .iter()
        .filter_map(|socket| socket.strip_prefix(UNIX));
    let others = others.join(" ");
    (
        Some(others).filter(|others| !others.is_empty()),
        sockets.map(ToOwned::to_owned).collect(),
    )
}

fn sockets(settings: &Settings, paths: Vec<String>) -> anyhow::Result<Vec<UnixSocket>> {
    let of_all = settings.unix_sockets.clone().unwrap_or_default();
    let named = |text: Option<String>| text.filter(|text| !text.is_empty());
    let (user, group) = (named(of_all.user), named(of_all.group));
    let mode = match named(of_all.mode) {
        None => None,
        Some(text) => match u32::from_str_radix(&text, 8) {
            Ok(mode) if mode <= 0o777 => Some(mode),
            _ => bail!("unix_sockets.mode {text:?} must be permissions in octal, such as 0770"),
        },
    };
    let all = paths.into_iter().map(|path| UnixSocket {
        path: PathBuf::from(path),
        user: user.clone(),
        group: group.clone(),
        mode,
    });
    Ok(all.collect())
}
