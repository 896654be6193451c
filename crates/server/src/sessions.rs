//! Expiry of sessions that were not renewed in time, and of lock delays. Only the leader does it.
//!
//! Times are measured with this server's monotonic clock, from the moment at which it first sees a row;
//! renewing a session changes its row. After a restart or a change of leadership, all TTLs start again, as in
//! Consul.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use legate_runtime::{BoxError, CancellationToken};
use legate_store::{Expiring, LockDelay, Store, Unavailable, WriteTxn};
use tokio::time::{Instant, sleep, sleep_until};

/// Multiple of its TTL after which a session expires. Consul's grace for delayed renewals.
const GRACE: u32 = 2;

/// How long changes are collected before the rows are read again.
const COLLECT: Duration = Duration::from_millis(100);

/// How often leadership is checked again, and the delay before a failed write is retried.
const ROUND: Duration = Duration::from_secs(1);

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
    let mut timers = Timers::default();
    loop {
        let mut watch = {
            let state = store.state();
            let txn = state.read();
            timers.observe(txn.expiring_sessions(), txn.lock_delays(), Instant::now());
            store.watch(&txn.into_reads())
        };
        loop {
            if !store.leadership().is_held() {
                return;
            }
            if let Some(overdue) = timers.overdue(Instant::now()) {
                end(store, overdue).await;
                break;
            }
            let round = Instant::now() + ROUND;
            let next = timers.next().map_or(round, |next| next.min(round));
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

async fn end(store: &Store, overdue: Overdue) {
    let (sessions, locks) = (overdue.sessions.len(), overdue.delays.len());
    let ended = store
        .write(move |txn: &mut WriteTxn| -> Result<(), Unavailable> {
            for session in &overdue.sessions {
                txn.expire_session(session);
            }
            for delay in &overdue.delays {
                txn.end_lock_delay(delay);
            }
            Ok(())
        })
        .await;
    match ended {
        Ok(_) => tracing::debug!(sessions, locks, "sessions and lock delays have expired"),
        Err(error) => {
            tracing::warn!(sessions, locks, %error, "expired sessions could not be removed; retrying");
            sleep(ROUND).await;
        }
    }
}

/// Maximum rows of each kind expired in one transaction.
const AT_ONCE: usize = 100;

/// Rows that have expired.
#[derive(Debug, Default, PartialEq, Eq)]
struct Overdue {
    sessions: Vec<Expiring>,
    delays: Vec<LockDelay>,
}

/// The time at which each row was first seen.
#[derive(Debug, Default)]
struct Timers {
    sessions: HashMap<Expiring, Instant>,
    delays: HashMap<LockDelay, Instant>,
}

impl Timers {
    /// Updates the timers from the current rows.
    fn observe(&mut self, sessions: Vec<Expiring>, delays: Vec<LockDelay>, now: Instant) {
        keep(&mut self.sessions, sessions, now);
        keep(&mut self.delays, delays, now);
    }

    /// The rows that have expired; `None` if there are none.
    fn overdue(&self, now: Instant) -> Option<Overdue> {
        let sessions = over(&self.sessions, session_ends, now);
        let delays = over(&self.delays, delay_ends, now);
        let overdue = Overdue { sessions, delays };
        (overdue != Overdue::default()).then_some(overdue)
    }

    /// The time of the next expiry.
    fn next(&self) -> Option<Instant> {
        let sessions = self
            .sessions
            .iter()
            .map(|(row, since)| session_ends(row, *since));
        let delays = self
            .delays
            .iter()
            .map(|(row, since)| delay_ends(row, *since));
        sessions.chain(delays).min()
    }
}

fn session_ends(row: &Expiring, since: Instant) -> Instant {
    since + row.time_to_live * GRACE
}

fn delay_ends(row: &LockDelay, since: Instant) -> Instant {
    since + row.delay
}

fn keep<T: Hash + Eq>(known: &mut HashMap<T, Instant>, rows: Vec<T>, now: Instant) {
    let before = std::mem::take(known);
    let since = |row: T| {
        let since = before.get(&row).copied().unwrap_or(now);
        (row, since)
    };
    *known = rows.into_iter().map(since).collect();
}

fn over<T: Clone>(
    rows: &HashMap<T, Instant>,
    ends: impl Fn(&T, Instant) -> Instant,
    now: Instant,
) -> Vec<T> {
    let over = rows.iter().filter(|(row, since)| ends(row, **since) <= now);
    over.map(|(row, _)| row.clone()).take(AT_ONCE).collect()
}

#[cfg(test)]
mod tests {
    use legate_model::Tenancy;

    use super::*;

    fn session(renewals: u64) -> Expiring {
        Expiring {
            tenancy: Tenancy::default(),
            id: "s".to_owned(),
            time_to_live: Duration::from_secs(10),
            renewals,
        }
    }

    fn delay(since: u64) -> LockDelay {
        LockDelay {
            tenancy: Tenancy::default(),
            key: "k".to_owned(),
            delay: Duration::from_secs(15),
            since,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_when_it_was_not_renewed_twice_its_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timers = Timers::default();
        assert_eq!((timers.next(), timers.overdue(start)), (None, None));
        timers.observe(vec![session(0)], vec![delay(7)], at(0));
        assert_eq!(timers.next(), Some(at(15)));
        timers.observe(vec![session(0)], vec![delay(9)], at(5));
        timers.observe(vec![session(1)], vec![delay(9)], at(12));
        assert_eq!(timers.next(), Some(at(20)));
        assert_eq!(timers.overdue(at(19)), None);
        let delays = timers.overdue(at(20)).unwrap();
        assert_eq!((delays.sessions.len(), delays.delays), (0, vec![delay(9)]));
        timers.observe(vec![session(1)], Vec::new(), at(21));
        assert_eq!(timers.overdue(at(31)), None);
        let ended = timers.overdue(at(32)).unwrap();
        assert_eq!(ended.sessions, [session(1)]);
        timers.observe(Vec::new(), Vec::new(), at(33));
        assert_eq!(timers.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn many_are_ended_in_several_steps() {
        let rows = |n: usize| {
            (0..n)
                .map(|i| Expiring {
                    id: i.to_string(),
                    ..session(0)
                })
                .collect()
        };
        let mut timers = Timers::default();
        let start = Instant::now();
        timers.observe(rows(3 * AT_ONCE), Vec::new(), start);
        let overdue = timers.overdue(start + Duration::from_secs(60)).unwrap();
        assert_eq!(overdue.sessions.len(), AT_ONCE);
    }
}
