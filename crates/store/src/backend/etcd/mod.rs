//! Stores rows in etcd, for several servers that all write.
//!
//! A commit is one etcd transaction with its rows and the head, guarded by the revision of the head
//! that this server has. So etcd serializes commits, and the commits of other servers arrive by a
//! watch in the same order at every server. [`layout`] defines the keys.
//!
//! A transaction changes at most 4,032 rows and 1.5 MiB (etcd's `--max-request-bytes`). A larger
//! commit of several transactions is divided; a larger single transaction is refused with the limit
//! in the error, and changes nothing. Replacing everything has no limit.
//!
//! A write completes within [`WRITE`] in any case. If the response to a commit is lost, the commit
//! is retried on another member: each commit has an id, and a server that finds the id of its
//! commit in the next head has made it. A write with an unknown outcome is `Unavailable`; if it was
//! made after all, the watch returns it.
//!
//! While etcd is away, writes fail at once after the first ones have timed out.

mod api;
mod client;
mod config;
mod dial;
mod follow;
mod layout;
mod lease;
mod pages;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use legate_runtime::{CancellationToken, Scope, Spawner, StopError};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::backend::{Backend, Batch, Change, Loaded, NotCommitted};
use crate::leadership::Leadership;
use crate::open_error::OpenError;
use crate::outcome::Unavailable;
use client::{Client, Failed};
pub use config::EtcdConfig;
pub(crate) use follow::Health;
use follow::{Follower, Seen, mark_away, read};
use layout::{Head, Layout, MOST_ROWS, ROWS};
pub(crate) use lease::Lead;
use lease::Lease;

/// The timeout of a write with all attempts: three members that hang one after the other.
const WRITE: Duration = Duration::from_secs(7);
/// How many commits of other servers are buffered; more wait in etcd.
const AHEAD: usize = 64;
/// The bytes of rows in one request of a restore, far below etcd's limit of 1.5 MiB.
const CHUNK: usize = 512 * 1024;
/// The timeout for stopping tasks.
const STOP: Duration = Duration::from_secs(2);

/// The etcd backend.
pub(crate) struct Etcd {
    client: Client,
    layout: Layout,
    members: String,
    known: Known,
    /// The commits that the follower saw, including this server's own.
    seen: mpsc::Receiver<Seen>,
    /// Commits that were seen and not returned yet.
    found: VecDeque<Change>,
    health: watch::Sender<Health>,
    leadership: Leadership,
    /// Notified when the leader's key has changed.
    leader: Arc<Notify>,
    /// Cancelled to revoke the lease.
    lease: CancellationToken,
    scope: Scope,
}

/// The last commit that the committer has, including those in `found`.
struct Known {
    /// The revision of the head; 0 if there is none.
    revision: i64,
    index: u64,
    generation: String,
    commit: Uuid,
}

impl Etcd {
    /// Reads everything and starts the follower. The contents are `None` if nothing was ever stored
    /// under the prefix.
    pub(crate) async fn open(
        config: &EtcdConfig,
        spawner: &Spawner,
    ) -> Result<(Self, Option<Loaded>), OpenError> {
        let scope = spawner.child("etcd");
        let client = Client::new(config, scope.spawner())?;
        let layout = Layout::new(&config.prefix);
        let members = config.endpoints.join(", ");
        let (at, stored) = read(&client, &layout)
            .await
            .map_err(|failed| OpenError::Etcd {
                members: members.clone(),
                reason: failed.into_reason(),
            })?;
        let known = Known {
            revision: stored.as_ref().map_or(0, |read| read.revision),
            index: stored.as_ref().map_or(0, |read| read.head.index),
            generation: stored
                .as_ref()
                .map_or_else(String::new, |read| read.head.generation.clone()),
            commit: stored
                .as_ref()
                .map_or(Uuid::nil(), |read| read.head.commit().id),
        };
        let (sender, seen) = mpsc::channel(AHEAD);
        let (health, _) = watch::channel(None);
        let leadership = Leadership::leased();
        let leader = Arc::new(Notify::new());
        let follower = Follower {
            client: client.clone(),
            layout: layout.clone(),
            revision: at,
            sent: known.revision,
            head: stored.as_ref().map(|read| read.head.clone()),
            seen: sender,
            health: health.clone(),
            leader: Arc::clone(&leader),
        };
        let (token, released) = (scope.token(), scope.token().child_token());
        scope.spawn("watch of etcd", async move {
            token.run_until_cancelled(follower.run()).await;
            Ok::<_, Infallible>(())
        });
        let etcd = Self {
            client,
            layout,
            members,
            known,
            seen,
            found: VecDeque::new(),
            health,
            leadership,
            leader,
            lease: released,
            scope,
        };
        Ok((etcd, stored.map(|read| read.loaded)))
    }

    /// The name of the store in errors.
    pub(crate) fn name(&self) -> String {
        format!(
            "the store in etcd ({})",
            String::from_utf8_lossy(&self.layout.head())
        )
    }

    /// Whether this server is the leader.
    pub(crate) fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Takes part in the election. Other servers reach this one at `address`.
    pub(crate) fn elect(&self, address: String) -> watch::Receiver<Lead> {
        let (lead, leads) = watch::channel(Lead::Nobody);
        let lease = Lease {
            client: self.client.with_attempts_of(lease::ATTEMPT),
            layout: self.layout.clone(),
            address,
            leadership: self.leadership.clone(),
            lead,
            changed: Arc::clone(&self.leader),
            health: self.health.clone(),
            id: None,
        };
        let released = self.lease.clone();
        self.scope.spawn("lease in etcd", async move {
            lease.run(released).await;
            Ok::<_, Infallible>(())
        });
        leads
    }

    /// Whether etcd answers.
    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// The members, for errors.
    pub(crate) fn members(&self) -> Arc<str> {
        self.members.as_str().into()
    }

    /// The next commit after the known ones. Cancel-safe.
    async fn next(&mut self) -> Seen {
        loop {
            match self.seen.recv().await {
                Some(seen) if seen.revision > self.known.revision => {
                    self.known = Known {
                        revision: seen.revision,
                        index: seen.head.index,
                        generation: seen.head.generation.clone(),
                        commit: seen.head.commit().id,
                    };
                    return seen;
                }
                // A commit of this server.
                Some(_) => {}
                // The server stops.
                None => std::future::pending().await,
            }
        }
    }

    /// The deadline of a write. Fails at once if etcd has been away for longer than the timeout.
    fn deadline(&self) -> Result<Instant, NotCommitted> {
        let now = Instant::now();
        match &*self.health.borrow() {
            None => Ok(now + WRITE),
            Some(away) if now < away.since + WRITE => Ok(away.since + WRITE),
            Some(away) => Err(self.away(&away.reason)),
        }
    }

    fn away(&self, reason: &str) -> NotCommitted {
        NotCommitted::Unavailable(Unavailable::new(format!(
            "etcd cannot store it ({reason}); reads still work; check its members, {}",
            self.members
        )))
    }

    fn not_committed(&self, started: Instant, failed: Failed) -> NotCommitted {
        match failed {
            Failed::Away(reason) => {
                mark_away(&self.health, started, &reason);
                self.away(&reason)
            }
            Failed::TooLarge(reason) => NotCommitted::TooLarge(Unavailable::new(format!(
                "the change exceeds etcd's limits for one request ({reason}): divide it, or \
                 raise --max-request-bytes and --max-txn-ops of all members"
            ))),
            failed => self.away(&failed.into_reason()),
        }
    }

    /// Commits a transaction with a new head, and determines its outcome.
    async fn make(
        &mut self,
        deadline: Instant,
        head: Head,
        request: &api::TxnRequest,
    ) -> Result<(), NotCommitted> {
        let started = Instant::now();
        let mut attempts = 0;
        let answer = self.client.txn(deadline, &mut attempts, request).await;
        let answer = answer.map_err(|failed| self.not_committed(started, failed))?;
        if answer.succeeded {
            self.known = Known {
                revision: answer.header.unwrap_or_default().revision,
                index: head.index,
                commit: head.commit().id,
                generation: head.generation,
            };
            return Ok(());
        }
        // The head has changed: another server was faster, or an attempt whose response was lost.
        let Ok(seen) = timeout_at(deadline, self.next()).await else {
            let reason = "what another server wrote does not arrive";
            return Err(self.not_committed(started, Failed::Away(reason.to_owned())));
        };
        if seen.head.commit == head.commit {
            return Ok(());
        }
        let unknown = attempts > 1 && matches!(seen.change, Change::Everything(_));
        self.found.push_back(seen.change);
        if unknown {
            return Err(self.away("the answer was lost, and it is not known whether it was made"));
        }
        Err(NotCommitted::Lost)
    }

    fn check_base(&self, base: u64) -> Result<(), NotCommitted> {
        if !self.found.is_empty() {
            return Err(NotCommitted::Lost);
        }
        if base != self.known.index {
            let reason = format!("etcd holds index {}, not {base}", self.known.index);
            return Err(self.away(&reason));
        }
        Ok(())
    }

    /// Writes rows to a generation that is not active yet.
    async fn write_generation(&self, generation: &str, contents: &Loaded) -> Result<(), Failed> {
        let header = (self.layout.header(generation), contents.header.clone());
        let rows = contents.rows.iter();
        let rows = rows.map(|(key, value)| (self.layout.row(generation, key), value.clone()));
        let mut chunk = Vec::new();
        let mut bytes = 0;
        for (key, value) in std::iter::once(header).chain(rows) {
            let size = key.len() + value.len();
            if chunk.len() >= ROWS || bytes + size > CHUNK {
                self.write_chunk(std::mem::take(&mut chunk)).await?;
                bytes = 0;
            }
            bytes += size;
            chunk.push(layout::put(key, value));
        }
        self.write_chunk(chunk).await
    }

    async fn write_chunk(&self, chunk: Vec<api::RequestOp>) -> Result<(), Failed> {
        if chunk.is_empty() {
            return Ok(());
        }
        let request = api::TxnRequest {
            success: chunk,
            ..api::TxnRequest::default()
        };
        let deadline = Instant::now() + WRITE;
        self.client.txn(deadline, &mut 0, &request).await.map(drop)
    }
}

impl Etcd {
    /// Revokes the lease and stops the tasks. The error names tasks that did not stop in time.
    pub(crate) async fn end(self) -> Result<(), StopError> {
        let Self {
            client,
            lease,
            scope,
            seen,
            ..
        } = self;
        lease.cancel();
        drop((client, seen));
        scope.stop(STOP).await
    }
}

impl Backend for Etcd {
    fn rows_at_once(&self) -> usize {
        ROWS
    }

    async fn commit(&mut self, batch: Arc<Batch>) -> Result<(), NotCommitted> {
        self.check_base(batch.base)?;
        let deadline = self.deadline()?;
        let head = Head {
            index: batch.index,
            base: batch.base,
            generation: self.known.generation.clone(),
            commit: batch.commit.id.to_string(),
            turns: batch.commit.turns.iter().map(Uuid::to_string).collect(),
        };
        let request = self.layout.commit(self.known.revision, &head, &batch.rows);
        let Some(request) = request else {
            let reason = format!("{} rows, more than {MOST_ROWS}", batch.rows.len());
            return Err(self.not_committed(Instant::now(), Failed::TooLarge(reason)));
        };
        self.make(deadline, head, &request).await
    }

    async fn replace(&mut self, base: u64, contents: Arc<Loaded>) -> Result<(), NotCommitted> {
        self.check_base(base)?;
        self.deadline()?;
        let generation = Uuid::new_v4().to_string();
        let started = Instant::now();
        let written = self.write_generation(&generation, &contents).await;
        let replaced = match written {
            Ok(()) => {
                let head = Head {
                    index: contents.index,
                    base,
                    generation: generation.clone(),
                    commit: Uuid::new_v4().to_string(),
                    turns: Vec::new(),
                };
                let request = self.layout.switch(self.known.revision, &head);
                self.make(Instant::now() + WRITE, head, &request).await
            }
            Err(failed) => Err(self.not_committed(started, failed)),
        };
        if replaced == Err(NotCommitted::Lost) {
            // In other cases the generation may be active, or the next switch removes it.
            let request = self.layout.remove(&generation);
            let deadline = Instant::now() + WRITE;
            drop(self.client.txn(deadline, &mut 0, &request).await);
        }
        replaced
    }

    async fn changed(&mut self) -> Change {
        match self.found.pop_front() {
            Some(change) => change,
            None => self.next().await.change,
        }
    }

    fn last_commit(&self) -> Uuid {
        self.known.commit
    }

    async fn close(self) {
        if let Err(error) = self.end().await {
            tracing::debug!(%error, "connections to etcd were dropped");
        }
    }
}
