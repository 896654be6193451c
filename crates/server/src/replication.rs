//! Follows the primary datacenter: a secondary has the primary's config entries, namespaces and partitions, and what is
//! global in its ACL tables. The leader of the secondary does it; a next one continues.
//!
//! [`legate_store::Replication`] is what is exchanged; this file asks for it, applies it, and knows how it went.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use legate_model::timestamp;
use legate_runtime::metrics::{Error as MetricsError, IntCounter, IntGauge, Registry};
use legate_runtime::{Backoff, BackoffPolicy, BoxError, CancellationToken, Clock};
use legate_store::{NotReplicated, Position, ReplicatedRow, Replication, Since, Store, WriteTxn};
use legate_wan::Wan;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use crate::acl::Rights;
use crate::config::ServerConfig;
use crate::problems::Problems;
use crate::wan;

/// What fails while the primary cannot be followed.
const PROBLEM: &str = "replication from the primary datacenter";
/// What fails while some of its rows cannot be applied.
const ROWS: &str = "replication of some rows";
/// How long the primary waits for a change, at most.
pub(crate) const WAIT: Duration = Duration::from_secs(60);
/// The time for an answer beyond that wait.
const GRACE: Duration = Duration::from_secs(30);
/// The shortest time between two answers with changes.
pub(crate) const PACE: Duration = Duration::from_millis(200);
/// After this time all rows are asked for, which mends whatever became different.
const RENEWAL: Duration = Duration::from_secs(600);
/// The time until everything is asked for after rows could not be applied.
const REFUSED_RETRY: Duration = Duration::from_secs(10);
/// The maximum number of rows in a transaction.
const AT_ONCE: usize = 500;
/// The largest sum of bytes of rows in a transaction, except of a single row. Those of etcd have at most 1.5 MiB.
const LARGEST_BATCH: usize = 512 * 1024;
/// The longest answer in bytes: some hundred thousand rows.
const LARGEST_ANSWER: usize = 256 * 1024 * 1024;

/// What a secondary asks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) since: Since,
    /// Whether everything is wanted, whatever is there already.
    pub(crate) all: bool,
    /// How long to wait for a change.
    pub(crate) wait: Duration,
    /// Whether ACLs are enabled in the secondary.
    pub(crate) acls: bool,
}

/// What was applied at once.
struct Round {
    /// Whether it was everything, and not only what has changed.
    is_whole: bool,
    /// Whether all rows could be applied.
    is_complete: bool,
}

/// How replication goes, as the API shows it.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Progress {
    /// The primary datacenter.
    pub(crate) source: String,
    /// Whether this server follows it: the leader does.
    pub(crate) running: bool,
    /// The index of the primary up to which everything was applied.
    pub(crate) index: u64,
    /// When the last answer was applied. Without changes there is one every minute.
    #[serde(with = "timestamp::option")]
    pub(crate) last_success: Option<SystemTime>,
    /// When the last attempt failed that did.
    #[serde(with = "timestamp::option")]
    pub(crate) last_error: Option<SystemTime>,
    /// What it failed with. Remains after successes, as in Consul.
    pub(crate) last_error_message: String,
}

/// Follows the primary datacenter.
pub(crate) struct Follower {
    pub(crate) primary: String,
    pub(crate) acls: bool,
    pub(crate) store: Store,
    pub(crate) wan: Wan,
    pub(crate) rights: Rights,
    pub(crate) clock: Clock,
    pub(crate) problems: Problems,
    pub(crate) status: Status,
}

/// How replication goes. Clones share it.
#[derive(Clone)]
pub(crate) struct Status {
    progress: Arc<Mutex<Progress>>,
    index: IntGauge,
    success: IntGauge,
    failures: IntCounter,
}

impl Status {
    /// `None` in the primary datacenter. Fails if the registry already contains metrics of these names.
    pub(crate) fn of(
        config: &ServerConfig,
        registry: &Registry,
    ) -> Result<Option<Self>, MetricsError> {
        let Some(source) = config.primary() else {
            return Ok(None);
        };
        let index = IntGauge::new(
            "legate_replication_index",
            "The index of the primary datacenter up to which its rows were applied.",
        )?;
        let success = IntGauge::new(
            "legate_replication_last_success_timestamp_seconds",
            "When rows of the primary datacenter were last applied, or there were none.",
        )?;
        let failures = IntCounter::new(
            "legate_replication_failures_total",
            "Failed attempts to get or apply rows of the primary datacenter.",
        )?;
        registry.register(Box::new(index.clone()))?;
        registry.register(Box::new(success.clone()))?;
        registry.register(Box::new(failures.clone()))?;
        let progress = Progress {
            source: source.to_owned(),
            ..Progress::default()
        };
        Ok(Some(Self {
            progress: Arc::new(Mutex::new(progress)),
            index,
            success,
            failures,
        }))
    }

    /// How it goes now.
    pub(crate) fn progress(&self) -> Progress {
        self.lock().clone()
    }

    fn runs(&self, running: bool) {
        self.lock().running = running;
    }

    fn succeeded(&self, index: u64, now: SystemTime) {
        let mut progress = self.lock();
        (progress.index, progress.last_success) = (index, Some(now));
        self.index.set(i64::try_from(index).unwrap_or(i64::MAX));
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = seconds.unwrap_or_default().as_secs();
        self.success.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    fn failed(&self, error: &BoxError, now: SystemTime) {
        let mut progress = self.lock();
        progress.last_error = Some(now);
        progress.last_error_message = error.to_string();
        self.failures.inc();
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        // Each change is complete before anything can panic.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of rows for the next transaction: not too many, and not too large. At least one.
fn batch(rows: &[ReplicatedRow]) -> usize {
    let mut bytes = 0;
    let fits = |row: &&ReplicatedRow| {
        bytes += row.size();
        bytes <= LARGEST_BATCH
    };
    let fitting = rows.iter().take(AT_ONCE).take_while(fits);
    fitting.count().max(1)
}

impl Follower {
    /// Follows until `stop`.
    ///
    /// # Errors
    /// Never: failures are retried.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), Infallible> {
        let following = self.follow();
        stop.run_until_cancelled(following).await.unwrap_or(Ok(()))
    }

    async fn follow(self) -> Result<(), Infallible> {
        let mut position = Position::default();
        let mut renewal = Instant::now();
        let mut backoff = Backoff::new(BackoffPolicy::DATACENTER);
        loop {
            self.status.runs(self.store.leadership().is_held());
            self.store.leadership().held().await;
            self.status.runs(true);
            match self.round(&mut position, renewal).await {
                Ok(Round {
                    is_whole,
                    is_complete,
                }) => {
                    let now = Instant::now();
                    if !is_complete {
                        renewal = renewal.clamp(now, now + REFUSED_RETRY);
                    }
                    if is_whole {
                        renewal = match is_complete {
                            true => now + RENEWAL,
                            false => now + REFUSED_RETRY,
                        };
                    }
                    backoff.reset();
                    self.problems.solved(PROBLEM);
                    sleep(PACE).await;
                }
                Err(error) => {
                    self.status.failed(&error, self.clock.now());
                    self.problems.report(PROBLEM, &error);
                    tracing::warn!(
                        primary = self.primary, %error,
                        "the primary datacenter cannot be followed: trying again"
                    );
                    sleep(backoff.next(rand::random())).await;
                }
            }
        }
    }

    /// Gets and applies what has changed, or everything if the renewal is due.
    async fn round(&self, position: &mut Position, renewal: Instant) -> Result<Round, BoxError> {
        let left = renewal.saturating_duration_since(Instant::now());
        let since = position.ask(&self.store.state());
        let question = serde_json::to_vec(&Question {
            since,
            all: left.is_zero(),
            wait: left.min(WAIT),
            acls: self.acls,
        })?;
        let token = self.rights.replication_token();
        let (wan, primary) = (&self.wan, &self.primary);
        let asked = wan::ask_up_to(
            wan,
            primary,
            "replication",
            &token,
            question,
            LARGEST_ANSWER,
        );
        let answer = timeout(WAIT + GRACE, asked).await??;
        let answer: Arc<Replication> = Arc::new(serde_json::from_slice(&answer)?);
        let refused = self.apply(&answer).await?;
        // Rows that cannot be applied are asked for again with everything.
        position.advance(&answer);
        let round = Round {
            is_whole: left.is_zero(),
            is_complete: refused.is_empty(),
        };
        let now = self.clock.now();
        self.status.succeeded(answer.index, now);
        match refused.first() {
            None if round.is_whole => self.problems.solved(ROWS),
            // Those that were refused before still are.
            None => {}
            Some(first) => {
                let more = match refused.len() {
                    1 => String::new(),
                    several => format!(" (and {} more rows)", several - 1),
                };
                let error = BoxError::from(format!("{first}{more}"));
                tracing::warn!(primary = self.primary, %error, "a row is not replicated");
                self.problems.report(ROWS, &error);
                self.status.failed(&error, now);
            }
        }
        Ok(round)
    }

    /// Returns the rows that cannot be applied.
    async fn apply(&self, answer: &Arc<Replication>) -> Result<Vec<NotReplicated>, BoxError> {
        let begun = Arc::clone(answer);
        self.write(move |txn| txn.begin_to_follow(&begun)).await??;
        if answer.is_empty() {
            return Ok(Vec::new());
        }
        loop {
            let (answer, now) = (Arc::clone(answer), self.clock.now());
            let removed = self.write(move |txn| txn.remove_unreplicated(&answer, AT_ONCE, now));
            if removed.await? {
                break;
            }
        }
        let mut refused: Vec<NotReplicated> = Vec::new();
        let mut start = 0;
        while start < answer.rows.len() {
            let end = start + batch(&answer.rows[start..]);
            let (answer, now) = (Arc::clone(answer), self.clock.now());
            let written = self.write(move |txn| {
                let applied = answer.rows[start..end].iter();
                let applied = applied.map(|row| txn.replicate(row, now));
                applied.filter_map(Result::err).collect::<Vec<_>>()
            });
            refused.extend(written.await?);
            start = end;
        }
        let applied = Arc::clone(answer);
        self.write(move |txn| txn.set_followed(&applied)).await?;
        Ok(refused)
    }

    /// Runs a transaction as the leader. A server that leads no more must not write what it got before its successor
    /// did: the successor's rows are newer.
    async fn write<T: Send + 'static>(
        &self,
        mut transaction: impl FnMut(&mut WriteTxn) -> T + Send + 'static,
    ) -> Result<T, BoxError> {
        let leadership = self.store.leadership().clone();
        let written = self.store.write(move |txn| match leadership.is_held() {
            true => Ok(transaction(txn)),
            false => Err(BoxError::from(
                "another server of this datacenter leads now",
            )),
        });
        Ok(written.await?.1)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(bytes: usize) -> ReplicatedRow {
        let row = json!({ "table": 4, "names": [], "row": "x".repeat(bytes) });
        serde_json::from_str(&row.to_string()).unwrap()
    }

    #[test]
    fn transactions_are_limited_by_rows_and_by_bytes() {
        assert_eq!(batch(&vec![row(1); 501]), 500);
        assert_eq!(batch(&vec![row(1); 7]), 7);
        assert_eq!(batch(&vec![row(200 * 1024); 7]), 2);
        assert_eq!(batch(&[row(600 * 1024), row(1)]), 1, "at least one");
    }
}
