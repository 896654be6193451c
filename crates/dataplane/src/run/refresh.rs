//! Keeps the running Envoy in step with its desired configuration: on request, when a file that
//! Envoy reads has changed, and when a server returns other parameters for the proxy.
//!
//! A request always starts a new Envoy. Automatic changes do so only if the new Envoy can take over
//! without a gap. Otherwise they are logged and wait for a request, because a change that many
//! proxies share must not cut the traffic of all of them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use legate_api::dataplane::GetEnvoyBootstrapParamsResponse;
use legate_client::Session;
use legate_envoy::supervision::{EnvoyConfig, EpochReport, EpochState, Handle, Report};
use legate_runtime::CancellationToken;
use legate_runtime::file_stamp::FileStamp;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};

use super::desired::{Configured, Desired};
use super::exposition::Exposition;
use crate::bootstrap;
use crate::restart::Request;
use crate::signals::Signals;

/// Interval between file checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long to wait for servers before the previous parameters are used.
const ANSWER: Duration = Duration::from_secs(5);

/// Relative variation of the interval between queries to servers, so that proxies that started
/// together do not query together.
const JITTER: f64 = 0.2;

/// The task that keeps Envoy's configuration up to date.
pub(super) struct Refresh {
    pub(super) desired: Arc<Desired>,
    pub(super) exposition: Exposition,
    pub(super) session: Session,
    /// The most recent parameters from a server.
    pub(super) params: GetEnvoyBootstrapParamsResponse,
    pub(super) handle: Handle<EnvoyConfig>,
    pub(super) requests: mpsc::Receiver<Request>,
    pub(super) signals: Signals,
    /// The configuration that Envoy was last started with.
    pub(super) current: EnvoyConfig,
    /// Fingerprint of the files at the last check; `None` forces a comparison at the next one.
    pub(super) last_stamp: Option<FileStamp>,
    /// A changed configuration that the last check found. It is used if the next check finds the
    /// same one, because files change one after another.
    pub(super) candidate: Option<EnvoyConfig>,
    /// The change that was logged and waits for a request.
    pub(super) logged: Option<EnvoyConfig>,
}

impl Refresh {
    /// Runs until `stop` is cancelled.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), Infallible> {
        stop.run_until_cancelled(self.work()).await;
        self.exposition.stop().await;
        Ok(())
    }

    async fn work(&mut self) {
        let mut checks = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let period = self.desired.settings.envoy.bootstrap_refresh;
        let next_query = || Instant::now() + varied(period, rand::random());
        let mut query = next_query();
        loop {
            tokio::select! {
                Some(request) = self.requests.recv() => {
                    let outcome = self.restart("POST /restart").await;
                    // The requester may be gone.
                    let _ = request.send(outcome.map(|()| self.handle.report()));
                }
                () = self.signals.restart() => {
                    // A failure has been logged.
                    let _ = self.restart("SIGHUP").await;
                }
                _ = checks.tick() => self.check().await,
                () = sleep_until(query), if !period.is_zero() => {
                    if self.ask().await {
                        self.check().await;
                    }
                    query = next_query();
                }
            }
        }
    }

    /// The desired configuration. Files that Envoy reads are hashed in a blocking thread, because
    /// the disk may be slow. Without such files no thread is needed.
    async fn configure(&self) -> Result<Configured, String> {
        let configured = match &self.desired.settings.telemetry.prometheus_tls {
            None => self.desired.configure(&self.params),
            Some(_) => {
                let (desired, params) = (Arc::clone(&self.desired), self.params.clone());
                let configured = spawn_blocking(move || desired.configure(&params)).await;
                configured.map_err(|error| error.to_string())?
            }
        };
        configured.map_err(|error| error.to_string())
    }

    /// Starts a new Envoy whether or not anything has changed.
    async fn restart(&mut self, by: &'static str) -> Result<(), String> {
        tracing::info!(by, "restarting envoy on request");
        self.ask().await;
        let configured = match self.configure().await {
            Ok(configured) => configured,
            Err(error) => {
                tracing::error!(%error, "envoy is not restarted and keeps running");
                return Err(error);
            }
        };
        self.follow(&configured).await;
        // After a stop nothing can be configured any more; `restart` reports that.
        let _ = self.handle.update(configured.envoy);
        self.handle.restart().map_err(|stopped| stopped.to_string())
    }

    /// Compares the desired configuration with the current one.
    async fn check(&mut self) {
        let stamp = Some(self.desired.stamp());
        if self.last_stamp == stamp && self.candidate.is_none() {
            return;
        }
        self.last_stamp = stamp;
        let configured = match self.configure().await {
            Ok(configured) => configured,
            Err(error) => {
                self.last_stamp = None;
                tracing::debug!(%error, "envoy's configuration cannot be built from the current files");
                return;
            }
        };
        if configured.envoy == self.current {
            (self.candidate, self.logged) = (None, None);
            return;
        }
        if self.candidate.as_ref() != Some(&configured.envoy) {
            self.candidate = Some(configured.envoy);
            return;
        }
        let changed = self.current.difference(&configured.envoy);
        match possible_restart(&self.handle.report()) {
            Restart::Hot => {
                tracing::info!(changed, "restarting envoy hot");
                self.follow(&configured).await;
                let _ = self.handle.update(configured.envoy.hot_only());
            }
            Restart::Free => {
                tracing::info!(changed, "restarting envoy, which does not serve");
                self.follow(&configured).await;
                let _ = self.handle.update(configured.envoy);
            }
            Restart::Blocked(obstacle) if self.logged.as_ref() != Some(&configured.envoy) => {
                tracing::warn!(
                    changed,
                    obstacle,
                    "envoy runs on as it is, because a restart would cut connections; SIGHUP, \
                     POST /restart or legate-dataplane -restart does it"
                );
                self.logged = Some(configured.envoy);
            }
            Restart::Blocked(_) => {}
        }
    }

    async fn follow(&mut self, configured: &Configured) {
        if configured.envoy != self.current {
            configured.warn();
        }
        self.exposition.follow(&configured.telemetry).await;
        self.current = configured.envoy.clone();
        (self.candidate, self.logged) = (None, None);
    }

    /// Requests the proxy's parameters from a server. Returns whether they have changed.
    async fn ask(&mut self) -> bool {
        let proxy = &self.desired.settings.proxy;
        let fetched = bootstrap::fetch(&self.session, proxy, Duration::ZERO);
        let params = match timeout(ANSWER, fetched).await {
            Ok(Ok(params)) => params,
            Ok(Err(error)) => {
                tracing::warn!(%error, "using the previous bootstrap parameters");
                return false;
            }
            Err(_) => {
                tracing::info!("no server responds, using the previous bootstrap parameters");
                return false;
            }
        };
        let changed = params != self.params;
        if changed {
            (self.params, self.last_stamp) = (params, None);
        }
        changed
    }
}

/// How Envoy can switch to another configuration without cutting connections.
#[derive(Debug, PartialEq)]
enum Restart {
    /// The new process takes over.
    Hot,
    /// No client can be connected, so nothing has to be taken over.
    Free,
    /// Not at all, for this reason.
    Blocked(String),
}

fn possible_restart(report: &Report) -> Restart {
    let starts = |epoch: &EpochReport| epoch.state == EpochState::Starting;
    if report.epochs.iter().all(starts) {
        return Restart::Free;
    }
    match &report.obstacle {
        None => Restart::Hot,
        Some(obstacle) => Restart::Blocked(obstacle.clone()),
    }
}

/// `period`, randomised by at most [`JITTER`]; `random` is between 0 and 1.
fn varied(period: Duration, random: f64) -> Duration {
    period.mul_f64(1.0 + JITTER * (2.0 * random - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_spread() {
        let period = Duration::from_secs(300);
        assert_eq!(varied(period, 0.0), Duration::from_secs(240));
        assert_eq!(varied(period, 0.5), period);
        assert_eq!(varied(period, 1.0), Duration::from_secs(360));
    }

    #[test]
    fn only_connections_keep_a_change_waiting() {
        let report = |states: &[EpochState]| Report {
            epochs: (0..)
                .zip(states)
                .map(|(epoch, &state)| EpochReport {
                    epoch,
                    pid: 10 + epoch,
                    state,
                    since: Instant::now(),
                    adopted: false,
                })
                .collect(),
            obstacle: Some("it is switched off".to_owned()),
            ..Report::default()
        };
        use EpochState::{Draining, Healthy, Starting};
        // A process that keeps crashing or is only starting may get the change that repairs it.
        for free in [&[][..], &[Starting]] {
            assert_eq!(possible_restart(&report(free)), Restart::Free);
        }
        for held in [&[Healthy][..], &[Draining, Starting], &[Draining]] {
            let mut report = report(held);
            assert!(
                matches!(possible_restart(&report), Restart::Blocked(_)),
                "{held:?}"
            );
            report.obstacle = None;
            assert_eq!(possible_restart(&report), Restart::Hot, "{held:?}");
        }
    }
}
