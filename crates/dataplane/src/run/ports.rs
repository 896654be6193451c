//! Checks that Envoy's ports are free before anything is started. Envoy itself would crash repeatedly
//! and report the reason somewhere in a hundred log lines. Binds each port only for a moment.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::settings;

/// How long a port may take to become free: an Envoy that the kernel has just killed together with
/// its dataplane may still hold it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Delay between attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Checks that Envoy can bind the configured addresses.
///
/// # Errors
/// When one cannot be bound; the error names the first of them and its settings.
pub(super) async fn check(envoy: &settings::Envoy) -> anyhow::Result<()> {
    let admin = "-envoy-admin-bind-address, -envoy-admin-bind-port";
    check_free(envoy.admin, "admin interface", admin).await?;
    if let Some(ready) = envoy.ready {
        let settings = "-envoy-ready-bind-address, -envoy-ready-bind-port";
        check_free(ready, "readiness endpoint", settings).await?;
    }
    Ok(())
}

async fn check_free(address: SocketAddr, purpose: &str, settings: &str) -> anyhow::Result<()> {
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
