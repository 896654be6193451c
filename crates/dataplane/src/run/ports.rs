//! Whether Envoy can have the ports that it needs, found out before anything is started: Envoy itself
//! would end again and again, and say why among a hundred lines. Binds for a moment, keeps nothing.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::settings;

/// How long a port may take to become free: an Envoy that the kernel has just ended, together with
/// its dataplane, may still have it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether the addresses that the settings give to Envoy can be had.
///
/// # Errors
/// Names the first one that cannot.
pub(super) async fn check(envoy: &settings::Envoy) -> anyhow::Result<()> {
    let admin = "-envoy-admin-bind-address, -envoy-admin-bind-port";
    can_be_had(envoy.admin, "admin interface", admin).await?;
    if let Some(ready) = envoy.ready {
        let settings = "-envoy-ready-bind-address, -envoy-ready-bind-port";
        can_be_had(ready, "readiness endpoint", settings).await?;
    }
    Ok(())
}

async fn can_be_had(address: SocketAddr, purpose: &str, settings: &str) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind(address).await {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                sleep(PAUSE).await;
            }
            Err(error) => {
                bail!("Envoy cannot listen on {address} for its {purpose} ({settings}): {error}")
            }
        }
    }
}
