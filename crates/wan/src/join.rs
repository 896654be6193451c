//! Joins servers by their addresses.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::lookup_host;
use tokio::time::sleep;

use crate::Wan;

/// Why no server was joined.
#[derive(Debug, thiserror::Error)]
#[error("Failed to join {address}: {reason}")]
pub struct JoinError {
    /// What was to be joined.
    pub address: String,
    /// What failed at each of its addresses.
    pub reason: String,
}

impl Wan {
    /// Joins a server: a host name or address, with or without a port, which is by default that of this server.
    /// A name of Consul's form `node.datacenter/address` is accepted too.
    ///
    /// # Errors
    /// [`JoinError`] with what failed at each address.
    pub async fn join(&self, address: &str) -> Result<(), JoinError> {
        let failed = |reason: String| JoinError {
            address: address.to_owned(),
            reason,
        };
        let port = self.membership().own().address.port();
        let host = address.rsplit_once('/').map_or(address, |(_, host)| host);
        let found = resolve(host, port).await;
        let found = found.map_err(|error| failed(error.to_string()))?;
        let mut reasons = Vec::new();
        for address in found {
            match self.discover(address).await {
                Ok(name) => {
                    tracing::info!(server = %name, %address, "joined a server");
                    return Ok(());
                }
                Err(error) => reasons.push(format!("{address}: {error}")),
            }
        }
        Err(failed(match reasons.is_empty() {
            true => "it has no address".to_owned(),
            false => reasons.join("; "),
        }))
    }

    /// Tries the servers of the settings until one is joined.
    pub(crate) async fn join_until_done(&self) {
        let config = &self.0.config;
        let mut attempts = 0;
        loop {
            let mut joined = false;
            for address in &config.join {
                match self.join(address).await {
                    Ok(()) => joined = true,
                    Err(error) => {
                        tracing::warn!(%error, "a server of another datacenter cannot be joined")
                    }
                }
            }
            attempts += 1;
            if joined {
                return;
            }
            if config.retry_max != 0 && attempts >= config.retry_max {
                tracing::error!(
                    attempts,
                    "no server of another datacenter was joined; join one with join -wan"
                );
                return;
            }
            sleep(config.retry_interval).await;
        }
    }
}

/// The addresses of a host, at most eight.
async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let has_port = host
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let found: Vec<SocketAddr> = match has_port {
        true => lookup_host(host).await?.take(8).collect(),
        false => lookup_host((host, port)).await?.take(8).collect(),
    };
    Ok(found)
}
