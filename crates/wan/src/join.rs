//! Joins servers by their addresses.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use legate_identity::tls::ExpectedServer;
use tokio::net::lookup_host;
use tokio::time::sleep;

use crate::dial::dial;
use crate::gateways::GatewaySettings;
use crate::membership::ServerName;
use crate::{Protocol, Wan};

/// The pause after the first attempt to join the primary through gateways.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How often it is looked whether a server of the primary is known, at least.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

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
            match self.discover_at(address).await {
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

    async fn discover_at(&self, address: SocketAddr) -> io::Result<ServerName> {
        let any = ExpectedServer::Any;
        let connection = dial(self.identity(), address, any, Protocol::Members).await?;
        self.discover(connection).await
    }

    /// In a secondary, joins any server of the primary whenever none is known that answers. The primary never joins a
    /// secondary, whose servers introduce themselves.
    pub(crate) async fn join_through_gateways(&self, settings: GatewaySettings) {
        let primary = &settings.primary;
        if primary.eq_ignore_ascii_case(&self.0.config.datacenter) {
            return;
        }
        let mut pause = FIRST_PAUSE;
        loop {
            if !self.membership().servers(primary).is_empty() {
                pause = FIRST_PAUSE;
                sleep(settings.interval.min(LOOK_AGAIN)).await;
                continue;
            }
            let server = ExpectedServer::OfDatacenter(primary);
            let joined = async {
                let connection = self.connect_through(primary, server, Protocol::Members);
                self.discover(connection.await?).await
            };
            match joined.await {
                Ok(name) => tracing::info!(server = %name, "joined the primary datacenter"),
                Err(error) => {
                    tracing::warn!(primary, %error, "the primary datacenter cannot be joined");
                }
            }
            let spread = 0.8 + rand::random::<f64>() * 0.4;
            tokio::select! {
                () = sleep(pause.mul_f64(spread)) => {}
                () = self.0.new_gateways.notified() => sleep(FIRST_PAUSE).await,
            }
            pause = (pause * 2).min(settings.interval.max(FIRST_PAUSE));
        }
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
