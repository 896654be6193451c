//! Leader election with a Lease (`coordination.k8s.io`): of several operators one writes.
//!
//! The holder stops writing before others may acquire the lease: after [`Times::renew_within`]
//! without a renewal, by its own clock, counted from when the last renewal was *sent*. Others
//! acquire it no earlier than [`Times::duration`] after they have read that renewal. The difference
//! covers requests in flight.
//!
//! Independent of what the writers write.

mod lease;
mod machine;
mod settings;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use kube::Client;
use legate_runtime::{CancellationToken, Clock, Scope, Spawner};
use tokio::time::Instant;

use self::lease::LeaseApi;
use self::machine::{Machine, Step};

pub use self::settings::{Settings, Times};

/// The deadline for writers when the operator shuts down.
const WRITERS_END: Duration = Duration::from_secs(5);

/// The deadline for writers when the lease is lost; then they are dropped.
const WRITERS_LOSE: Duration = Duration::from_millis(500);

/// Leadership, as seen by writers. Clones share the state.
#[derive(Clone, Debug)]
pub struct Lead {
    until: Arc<Mutex<Until>>,
    token: CancellationToken,
    clock: Clock,
}

/// The end of leadership by two clocks: the monotonic clock stops while a machine is suspended, and
/// the wall clock can be set back.
#[derive(Clone, Copy, Debug)]
struct Until {
    monotonic: Instant,
    wall: SystemTime,
}

impl Lead {
    fn new(until: Until, clock: Clock) -> Lead {
        Lead {
            until: Arc::new(Mutex::new(until)),
            token: CancellationToken::new(),
            clock,
        }
    }

    /// Permanent leadership, for tests and for programs that run once.
    #[must_use]
    pub fn forever() -> Lead {
        let far = Duration::from_secs(10 * 365 * 24 * 3600);
        let until = Until {
            monotonic: Instant::now() + far,
            wall: SystemTime::now() + far,
        };
        Lead::new(until, Clock::system())
    }

    /// Whether this process still leads. Writers check before every single write, because a process
    /// that was suspended resumes in the middle of its work.
    #[must_use]
    pub fn holds(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        !self.token.is_cancelled()
            && Instant::now() < until.monotonic
            && self.clock.now() < until.wall
    }

    /// Cancelled when leadership ends.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    fn extend(&self, until: Until) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

/// Campaigns for the lease and calls `start` with a scope for the writers each time it is won. The
/// writers are stopped when the lease is lost or `spawner` ends; in the latter case the lease is
/// released.
///
/// # Errors
///
/// None: failures are retried.
pub async fn run(
    client: Client,
    settings: Settings,
    clock: Clock,
    spawner: Spawner,
    start: impl Fn(Lead, Spawner),
) -> Result<(), Infallible> {
    let stop = spawner.token();
    let mut candidate = Candidate {
        machine: Machine::new(settings.identity.clone(), settings.times),
        api: LeaseApi::new(client, &settings),
        times: settings.times,
        clock,
    };
    loop {
        let until = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            until = candidate.win() => until,
        };
        tracing::info!(lease = settings.name, "this operator is the leader");
        let lead = Lead::new(until, candidate.clock.clone());
        let writers = spawner.child_with_own_token("leader");
        start(lead.clone(), writers.spawner());
        let lost = tokio::select! {
            () = stop.cancelled() => false,
            () = candidate.keep(&lead) => true,
        };
        let time = if lost { WRITERS_LOSE } else { WRITERS_END };
        end(&lead, &writers, time).await;
        if lost {
            tracing::warn!(
                lease = settings.name,
                "lost the lease: stopping the writers"
            );
            candidate.machine.lose();
            continue;
        }
        candidate.release().await;
        return Ok(());
    }
}

async fn end(lead: &Lead, writers: &Scope, time: Duration) {
    let until = *lead.until.lock().unwrap_or_else(PoisonError::into_inner);
    let left = until.monotonic.saturating_duration_since(Instant::now());
    lead.token.cancel();
    // Writers may use the remaining time of the lease, but no more.
    let time = match left.is_zero() {
        true => WRITERS_LOSE,
        false => time.min(left),
    };
    if let Err(error) = writers.stop(time).await {
        tracing::warn!(%error, "writers did not stop in time");
    }
}

/// A candidate for leadership.
struct Candidate {
    machine: Machine,
    api: LeaseApi,
    times: Times,
    clock: Clock,
}

impl Candidate {
    /// Retries until the lease is acquired.
    async fn win(&mut self) -> Until {
        loop {
            if let Some(until) = self.attempt().await {
                return until;
            }
            tokio::time::sleep(self.times.retry).await;
        }
    }

    /// Renews the lease until that has failed for too long.
    async fn keep(&mut self, lead: &Lead) {
        loop {
            let until = *lead.until.lock().unwrap_or_else(PoisonError::into_inner);
            let renewed = async {
                loop {
                    tokio::time::sleep(self.times.retry).await;
                    match self.attempt().await {
                        Some(until) => return Some(until),
                        // Another process holds it: no reason to wait.
                        None if self.machine.is_others() => return None,
                        None => {}
                    }
                }
            };
            match tokio::time::timeout_at(until.monotonic, renewed).await {
                Ok(Some(until)) if lead.holds() => lead.extend(until),
                _ => return,
            }
        }
    }

    /// Reads the lease once, and acquires or renews it if possible.
    async fn attempt(&mut self) -> Option<Until> {
        let limit = self.times.renew_within / 2;
        let found = tokio::time::timeout(limit, self.api.read()).await;
        match found {
            Ok(Ok(record)) => self.machine.saw(record, Instant::now()),
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot read the lease");
                return None;
            }
            Err(_) => {
                tracing::warn!("no answer from the API server to a read of the lease");
                return None;
            }
        }
        let Step::Write(record) = self.machine.next(Instant::now()) else {
            return None;
        };
        // The time before the request: others may see the renewal as early as that.
        let until = Until {
            monotonic: Instant::now() + self.times.renew_within,
            wall: self.clock.now() + self.times.renew_within,
        };
        let written = self.api.write(record, self.clock.now());
        match tokio::time::timeout(limit, written).await {
            Ok(Ok(Some(record))) => {
                self.machine.wrote(record, Instant::now());
                Some(until)
            }
            // Another process was faster.
            Ok(Ok(None)) => None,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot write the lease");
                None
            }
            Err(_) => {
                tracing::warn!("no answer from the API server to a renewal of the lease");
                None
            }
        }
    }

    /// Releases the lease, so that another process can acquire it at once. If that fails, the lease
    /// expires.
    async fn release(&mut self) {
        let Some(record) = self.machine.release() else {
            return;
        };
        let written = self.api.write(record, self.clock.now());
        match tokio::time::timeout(self.times.retry, written).await {
            Ok(Ok(_)) => tracing::info!("released the lease"),
            Ok(Err(error)) => tracing::warn!(%error, "cannot release the lease"),
            Err(_) => tracing::warn!("cannot release the lease: no answer"),
        }
    }
}
