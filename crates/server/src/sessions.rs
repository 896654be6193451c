//! Expiry of sessions that were not renewed in time, and of lock delays. Only the leader does it.
//!
//! Times are measured with this server's monotonic clock, from the moment at which it first sees a row. The
//! leader keeps renewals in memory: those of other servers are sent to it, and none are stored. After a restart
//! or a change of leadership, all TTLs start again, as in Consul, so a renewal that the previous leader kept is
//! not missed.

use std::collections::BTreeMap;
use std::time::Duration;

use legate_runtime::{BoxError, CancellationToken};
use legate_store::{Expiring, LockDelay, ReadTxn, Renewals, State, Store, Unavailable, WriteTxn};
use tokio::time::{Instant, sleep, sleep_until};

/// Multiple of its TTL after which a session expires. Consul's grace for delayed renewals.
const GRACE: u32 = 2;

/// How long changes are collected before the rows are read again.
const COLLECT: Duration = Duration::from_millis(100);

/// How often leadership is checked again, and the delay before a failed write is retried.
const ROUND: Duration = Duration::from_secs(1);

/// Maximum rows expired in one transaction.
const AT_ONCE: usize = 200;

/// The minimum number of deadlines for a sweep.
const SWEEP_FROM: usize = 1024;

/// Expires sessions and lock delays until `stop`.
///
/// # Errors
/// Never: failed writes are retried.
pub(crate) async fn end_overdue(store: Store, stop: CancellationToken) -> Result<(), BoxError> {
    let ending = async {
        loop {
            store.leadership().held().await;
            lead(&store).await;
        }
    };
    let _: Option<()> = stop.run_until_cancelled(ending).await;
    Ok(())
}

/// Runs until this server loses leadership.
async fn lead(store: &Store) {
    let renewals = store.renewals();
    // All TTLs start now, so earlier renewals are void.
    renewals.clear();
    let mut deadlines = Deadlines::default();
    loop {
        let mut watch = {
            let state = store.state();
            let txn = state.read();
            deadlines.observe(&txn, Instant::now());
            let reads = txn.into_reads();
            deadlines.sweep(&state, renewals);
            store.watch(&reads)
        };
        loop {
            if !store.leadership().is_held() {
                return;
            }
            let overdue = deadlines.overdue(Instant::now(), renewals, &store.state().read());
            if !overdue.is_empty() {
                end(store, overdue, &mut deadlines).await;
                continue;
            }
            let round = Instant::now() + ROUND;
            let next = deadlines.next().map_or(round, |next| next.min(round));
            tokio::select! {
                () = watch.changed() => {
                    sleep(COLLECT).await;
                    break;
                }
                () = sleep_until(next) => {}
            }
        }
    }
}

/// Ends what is overdue. What is still there afterwards gets a new deadline.
async fn end(store: &Store, overdue: Vec<Due>, deadlines: &mut Deadlines) {
    let (rows, ending, renewed) = (overdue.len(), overdue.clone(), store.renewals().clone());
    let ended = store
        .write(move |txn: &mut WriteTxn| -> Result<(), Unavailable> {
            for due in &ending {
                match due {
                    Due::Session(session) if renewed.contains(session) => {}
                    Due::Session(session) => txn.expire_session(session),
                    Due::Delay(delay) => txn.end_lock_delay(delay),
                }
            }
            Ok(())
        })
        .await;
    let again = match ended {
        Ok(_) => {
            tracing::debug!(rows, "sessions and lock delays have expired");
            Instant::now()
        }
        Err(error) => {
            tracing::warn!(rows, %error, "expired sessions could not be removed; retrying");
            Instant::now() + ROUND
        }
    };
    let state = store.state();
    let txn = state.read();
    for due in overdue.into_iter().filter(|due| due.is_current(&txn)) {
        deadlines.add(again, due);
    }
}

/// A row that expires.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Due {
    Session(Expiring),
    Delay(LockDelay),
}

impl Due {
    /// Whether the row is as it was seen.
    fn is_current(&self, txn: &ReadTxn<'_>) -> bool {
        match self {
            Self::Session(session) => txn.is_expiring(session),
            Self::Delay(delay) => txn.is_delayed(delay),
        }
    }
}

/// The rows that expire, ordered by their deadlines. Rows that end earlier stay in the queue until their
/// deadline or the next sweep.
#[derive(Debug, Default)]
struct Deadlines {
    /// The number makes the keys unique.
    queue: BTreeMap<(Instant, u64), Due>,
    number: u64,
    /// The index of the last state that was observed.
    seen: u64,
    /// The number of rows at which the next sweep removes those that have ended.
    sweep_at: usize,
}

impl Deadlines {
    /// Adds the rows that were written since the last call.
    fn observe(&mut self, txn: &ReadTxn<'_>, now: Instant) {
        if txn.replaced_after(self.seen) {
            self.queue.clear();
        }
        for session in txn.expiring_sessions(self.seen) {
            self.add(now + session.time_to_live * GRACE, Due::Session(session));
        }
        for delay in txn.lock_delays(self.seen) {
            self.add(now + delay.delay, Due::Delay(delay));
        }
        self.seen = txn.at();
    }

    fn add(&mut self, at: Instant, due: Due) {
        self.number += 1;
        self.queue.insert((at, self.number), due);
    }

    /// Takes rows that have expired, at most [`AT_ONCE`]. Renewed sessions get a new deadline.
    fn overdue(&mut self, now: Instant, renewals: &Renewals, txn: &ReadTxn<'_>) -> Vec<Due> {
        let mut overdue = Vec::new();
        while overdue.len() < AT_ONCE
            && let Some(first) = self.queue.first_entry()
            && first.key().0 <= now
        {
            let due = first.remove();
            let renewed = match &due {
                Due::Session(session) => renewals
                    .take(session)
                    .map(|at| at + session.time_to_live * GRACE),
                Due::Delay(_) => None,
            };
            match renewed {
                _ if !due.is_current(txn) => {}
                Some(deadline) => self.add(deadline, due),
                None => overdue.push(due),
            }
        }
        overdue
    }

    /// The time of the next expiry.
    fn next(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes rows that have ended, and their renewals, when there may be as many as others.
    fn sweep(&mut self, state: &State, renewals: &Renewals) {
        if self.queue.len() < self.sweep_at.max(SWEEP_FROM) {
            return;
        }
        let txn = state.read();
        self.queue.retain(|_, due| due.is_current(&txn));
        renewals.sweep(state);
        self.sweep_at = 2 * self.queue.len();
    }
}

#[cfg(test)]
mod tests;
