//! Leadership by a Lease (`coordination.k8s.io`): of several operators one writes.
//!
//! Who holds the lease stops writing before anybody else may take it: after [`Times::renew_within`]
//! without a renewal, by its own clock, counted from when the last renewal was *sent*. Others take
//! it at the earliest [`Times::duration`] after they saw that renewal. The difference is the time
//! that a request may be under way.
//!
//! It knows nothing of what the writers write.

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

/// How long writers may take to end once the operator ends.
const WRITERS_END: Duration = Duration::from_secs(5);

/// How long writers may take to end by themselves once the lease is lost; then they are dropped.
const WRITERS_LOSE: Duration = Duration::from_millis(500);

/// Held leadership, as writers see it. Copies share it.
#[derive(Clone, Debug)]
pub struct Lead {
    until: Arc<Mutex<Until>>,
    token: CancellationToken,
    clock: Clock,
}

/// Until when leadership holds, by two clocks: the first stands still while a machine is suspended,
/// the second can be set back.
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

    /// Leadership that never ends: for tests and for programs that run once.
    #[must_use]
    pub fn forever() -> Lead {
        let far = Duration::from_secs(10 * 365 * 24 * 3600);
        let until = Until {
            monotonic: Instant::now() + far,
            wall: SystemTime::now() + far,
        };
        Lead::new(until, Clock::system())
    }

    /// Whether this process still leads. Writers ask before every single write: a process that was
    /// stopped for a while goes on in the middle of its work.
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

/// Waits for leadership and calls `start` each time that it is won, with a scope for the writers.
/// They are ended when it is lost, and when `spawner` ends; then the lease is given back.
///
/// # Errors
///
/// None: what fails is tried again.
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
        tracing::info!(lease = settings.name, "this operator leads");
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
            tracing::warn!(lease = settings.name, "lost the lease: writers are stopped");
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
    // Writers that end by themselves use what is left of the lease, and no more.
    let time = match left.is_zero() {
        true => WRITERS_LOSE,
        false => time.min(left),
    };
    if let Err(error) = writers.stop(time).await {
        tracing::warn!(%error, "writers did not end by themselves");
    }
}

/// One operator among those that may lead.
struct Candidate {
    machine: Machine,
    api: LeaseApi,
    times: Times,
    clock: Clock,
}

impl Candidate {
    /// Tries until the lease is held.
    async fn win(&mut self) -> Until {
        loop {
            if let Some(until) = self.attempt().await {
                return until;
            }
            tokio::time::sleep(self.times.retry).await;
        }
    }

    /// Renews until that fails for too long.
    async fn keep(&mut self, lead: &Lead) {
        loop {
            let until = *lead.until.lock().unwrap_or_else(PoisonError::into_inner);
            let renewed = async {
                loop {
                    tokio::time::sleep(self.times.retry).await;
                    match self.attempt().await {
                        Some(until) => return Some(until),
                        // Somebody else's: nothing to wait for.
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

    /// One look at the lease, and one attempt to take or renew it where that is allowed.
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
                tracing::warn!("the API server does not answer a look at the lease");
                return None;
            }
        }
        let Step::Write(record) = self.machine.next(Instant::now()) else {
            return None;
        };
        // From before the request: others may see the renewal as early as that.
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
            // Another one was faster.
            Ok(Ok(None)) => None,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot write the lease");
                None
            }
            Err(_) => {
                tracing::warn!("the API server does not answer a renewal of the lease");
                None
            }
        }
    }

    /// Lets the next one begin at once. Where that fails it begins when the lease has run out.
    async fn release(&mut self) {
        let Some(record) = self.machine.release() else {
            return;
        };
        let written = self.api.write(record, self.clock.now());
        match tokio::time::timeout(self.times.retry, written).await {
            Ok(Ok(_)) => tracing::info!("gave the lease back"),
            Ok(Err(error)) => tracing::warn!(%error, "cannot give the lease back"),
            Err(_) => tracing::warn!("cannot give the lease back: no answer"),
        }
    }
}
