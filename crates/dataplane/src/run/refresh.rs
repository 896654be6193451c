//! Keeps what Envoy runs in step with what it should run: on request, when a file that it reads has
//! changed, and when a server has other parameters for the proxy.
//!
//! A request always brings a new Envoy. What changes by itself does so only where the new one takes
//! over without a gap; otherwise it is logged and waits for a request, because a change
//! that many proxies share must not cut the traffic of all of them.

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

/// How often is looked at files.
const LOOK: Duration = Duration::from_secs(5);

/// How long servers may take to answer before the parameters of before are used.
const ANSWER: Duration = Duration::from_secs(5);

/// By how much the time between two questions to servers varies, so that proxies which started
/// together do not ask together.
const JITTER: f64 = 0.2;

/// The task that does so.
pub(super) struct Refresh {
    pub(super) desired: Arc<Desired>,
    pub(super) exposition: Exposition,
    pub(super) session: Session,
    /// What a server said last.
    pub(super) params: GetEnvoyBootstrapParamsResponse,
    pub(super) handle: Handle<EnvoyConfig>,
    pub(super) requests: mpsc::Receiver<Request>,
    pub(super) signals: Signals,
    /// What Envoy was last started with.
    pub(super) current: EnvoyConfig,
    /// What the files were at the last look, or nothing when they have to be looked at in any case.
    pub(super) looked: Option<FileStamp>,
    /// What the last look found instead. It is used when the next look finds the same, because
    /// files change one after another.
    pub(super) found: Option<EnvoyConfig>,
    /// The change that was logged and waits for a request.
    pub(super) logged: Option<EnvoyConfig>,
}

impl Refresh {
    /// Runs until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), Infallible> {
        stop.run_until_cancelled(self.work()).await;
        self.exposition.stop().await;
        Ok(())
    }

    async fn work(&mut self) {
        let mut looks = interval_at(Instant::now() + LOOK, LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let period = self.desired.settings.envoy.bootstrap_refresh;
        let next_question = || Instant::now() + varied(period, rand::random());
        let mut question = next_question();
        loop {
            tokio::select! {
                Some(request) = self.requests.recv() => {
                    let outcome = self.restart("POST /restart").await;
                    // Whoever asked may have gone.
                    let _ = request.send(outcome.map(|()| self.handle.report()));
                }
                () = self.signals.restart() => {
                    // A failure is logged.
                    let _ = self.restart("SIGHUP").await;
                }
                _ = looks.tick() => self.look().await,
                () = sleep_until(question), if !period.is_zero() => {
                    if self.ask().await {
                        self.look().await;
                    }
                    question = next_question();
                }
            }
        }
    }

    /// What should run. Files that Envoy reads are hashed in a thread of their own: the disk may be
    /// slow. Where there are none, there is nothing to wait for, and no thread is kept for it.
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

    /// A new Envoy in any case.
    async fn restart(&mut self, by: &'static str) -> Result<(), String> {
        tracing::info!(by, "envoy is restarted on request");
        self.ask().await;
        let configured = match self.configure().await {
            Ok(configured) => configured,
            Err(error) => {
                tracing::error!(%error, "envoy is not restarted and runs on");
                return Err(error);
            }
        };
        self.follow(&configured).await;
        // After a stop there is nothing left to configure, which the restart tells.
        let _ = self.handle.update(configured.envoy);
        self.handle.restart().map_err(|stopped| stopped.to_string())
    }

    /// Compares what should run with what does.
    async fn look(&mut self) {
        let stamp = Some(self.desired.stamp());
        if self.looked == stamp && self.found.is_none() {
            return;
        }
        self.looked = stamp;
        let configured = match self.configure().await {
            Ok(configured) => configured,
            Err(error) => {
                self.looked = None;
                tracing::debug!(%error, "no configuration for envoy follows from the files of now");
                return;
            }
        };
        if configured.envoy == self.current {
            (self.found, self.logged) = (None, None);
            return;
        }
        if self.found.as_ref() != Some(&configured.envoy) {
            self.found = Some(configured.envoy);
            return;
        }
        let changed = self.current.difference(&configured.envoy);
        match way(&self.handle.report()) {
            Way::Hot => {
                tracing::info!(changed, "envoy is restarted hot");
                self.follow(&configured).await;
                let _ = self.handle.update(configured.envoy.hot_only());
            }
            Way::Free => {
                tracing::info!(changed, "envoy, which does not serve, is started anew");
                self.follow(&configured).await;
                let _ = self.handle.update(configured.envoy);
            }
            Way::Blocked(obstacle) if self.logged.as_ref() != Some(&configured.envoy) => {
                tracing::warn!(
                    changed,
                    obstacle,
                    "envoy runs on as it is, because a restart would cut connections; SIGHUP, \
                     POST /restart or legate-dataplane -restart does it"
                );
                self.logged = Some(configured.envoy);
            }
            Way::Blocked(_) => {}
        }
    }

    async fn follow(&mut self, configured: &Configured) {
        if configured.envoy != self.current {
            configured.warn();
        }
        self.exposition.follow(&configured.telemetry).await;
        self.current = configured.envoy.clone();
        (self.found, self.logged) = (None, None);
    }

    /// Asks a server for the proxy's parameters of now; answers whether they are others.
    async fn ask(&mut self) -> bool {
        let proxy = &self.desired.settings.proxy;
        let fetched = bootstrap::fetch(&self.session, proxy, Duration::ZERO);
        let params = match timeout(ANSWER, fetched).await {
            Ok(Ok(params)) => params,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the parameters of before are used");
                return false;
            }
            Err(_) => {
                tracing::info!("no server answers now, the parameters of before are used");
                return false;
            }
        };
        let changed = params != self.params;
        if changed {
            (self.params, self.looked) = (params, None);
        }
        changed
    }
}

/// How Envoy can come to run something else without cutting connections.
#[derive(Debug, PartialEq)]
enum Way {
    /// The new one takes over.
    Hot,
    /// Nobody can be connected, so that nothing has to be taken over.
    Free,
    /// It cannot.
    Blocked(String),
}

fn way(report: &Report) -> Way {
    let starts = |epoch: &EpochReport| epoch.state == EpochState::Starting;
    if report.epochs.iter().all(starts) {
        return Way::Free;
    }
    match &report.obstacle {
        None => Way::Hot,
        Some(obstacle) => Way::Blocked(obstacle.clone()),
    }
}

/// `period`, by at most [`JITTER`] longer or shorter; `random` is from 0 to 1.
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
        // What crashes again and again, or only starts, may get what mends it.
        for free in [&[][..], &[Starting]] {
            assert_eq!(way(&report(free)), Way::Free);
        }
        for held in [&[Healthy][..], &[Draining, Starting], &[Draining]] {
            let mut report = report(held);
            assert!(matches!(way(&report), Way::Blocked(_)), "{held:?}");
            report.obstacle = None;
            assert_eq!(way(&report), Way::Hot, "{held:?}");
        }
    }
}
