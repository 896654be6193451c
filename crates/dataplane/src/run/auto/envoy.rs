//! An Envoy that serves in the place of the built-in proxy: its start, what it reports, and its end. Its admin interface
//! is at a private port of the loopback address.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_envoy::admin::AdminClient;
use legate_envoy::supervision::{self, Ended, EnvoyConfig, Handle, Report};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::super::built_in::options;
use super::super::desired::Desired;
use super::super::ending::process_outcome;
use super::super::sidecar::host;
use crate::telemetry::Telemetry;

/// How long an Envoy that gets no new connections may keep those that it has.
const LINGER: Duration = Duration::from_secs(24 * 60 * 60);

/// How long an Envoy that is live may take until it listens everywhere.
const LISTEN: Duration = Duration::from_secs(30);

/// How often an Envoy is asked.
const LOOK: Duration = Duration::from_millis(200);

/// An Envoy and its supervisor.
pub(super) struct Running {
    pub(super) handle: Handle<EnvoyConfig>,
    pub(super) report: watch::Receiver<Report>,
    pub(super) admin: SocketAddr,
    pub(super) ended: BoxFuture<'static, anyhow::Result<Ended>>,
}

impl Running {
    /// Starts one that serves in the place of the built-in proxy.
    ///
    /// # Errors
    /// When there is no program, or its configuration cannot be made.
    pub(super) fn start(
        desired: &Desired,
        params: &GetEnvoyBootstrapParamsResponse,
        telemetry: &Telemetry,
    ) -> Result<Running, String> {
        let address = free_address();
        let address =
            address.map_err(|error| format!("no port for Envoy's admin interface: {error}"))?;
        let mut desired = desired.clone();
        // It has as many sockets of an address as the built-in proxy has threads.
        let threads = options(&desired.settings).threads;
        let envoy = &mut desired.settings.envoy;
        envoy.admin = address;
        envoy.concurrency = u32::try_from(threads).unwrap_or(1);
        // A replacement would not be behind the sockets of this process.
        envoy.hot_restart = false;
        let configured = desired
            .configure(params)
            .map_err(|error| error.to_string())?;
        configured.warn();
        let (host, options) = host(&desired.settings, telemetry, None);
        let (handle, controls) = supervision::handle();
        let running = supervision::run(host, configured.envoy, options, controls);
        Ok(Running {
            report: handle.watch(),
            handle,
            admin: address,
            ended: running.map(|ended| Ok(ended?)).boxed(),
        })
    }

    /// Ends it.
    pub(super) async fn stop(self) {
        self.handle.stop();
        // Nothing depends on how.
        let _ = self.ended.await;
    }

    /// Waits until its connections have ended, for a limited time, and ends it.
    pub(super) async fn linger(mut self) {
        let admin = AdminClient::new(self.admin);
        let idle = async {
            while !matches!(admin.active_connections().await, Ok(0)) {
                sleep(LOOK * 5).await;
            }
        };
        tokio::select! {
            _ = &mut self.ended => return,
            _ = timeout(LINGER, idle) => {}
        }
        self.stop().await;
    }
}

/// What Envoy's supervisor says.
pub(super) enum News {
    Report(Report),
    /// It has given up, for this reason.
    Ended(String),
}

/// What its supervisor says next.
pub(super) async fn next_of_envoy(envoy: &mut Option<Running>) -> News {
    let Some(envoy) = envoy else {
        return std::future::pending().await;
    };
    tokio::select! {
        biased;
        ended = &mut envoy.ended => {
            let outcome = ended.and_then(|ended| process_outcome(ended, None));
            let why = outcome.err().map(|error| error.to_string());
            News::Ended(why.unwrap_or_else(|| "it has ended".to_owned()))
        }
        Ok(()) = envoy.report.changed() => News::Report(envoy.report.borrow_and_update().clone()),
    }
}

/// A port of the loopback address that is free.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Waits until no listener of a live Envoy waits for anything, for a limited time.
pub(super) async fn listens(admin: AdminClient) {
    let waits = async {
        loop {
            let page = admin.get("/stats?filter=total_listeners_warming").await;
            let page = page.map(|page| String::from_utf8_lossy(&page).into_owned());
            if page.is_ok_and(|page| page.trim_end().ends_with(": 0")) {
                return;
            }
            sleep(LOOK).await;
        }
    };
    if timeout(LISTEN, waits).await.is_err() {
        tracing::warn!("Envoy still waits for parts of its listeners, and takes over");
    }
}
