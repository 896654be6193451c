//! The committer: the only task that writes to a backend. It also follows the commits of other
//! servers.
//!
//! It decides the order of operations. Transactions contain the logic, and the backend stores rows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use legate_runtime::CancellationToken;

use crate::backend::{Backend, Batch, Change, Loaded, NotCommitted};
use crate::codec::{Codec, FORMAT, Header};
use crate::commit::{Attempt, Group, Restore, Waiting, Work};
use crate::key::Key;
use crate::open_error::OpenError;
use crate::origin::Origin;
use crate::outcome::{Applied, Unavailable};
use crate::reader::Tables;
use crate::stored_tables::BadRow;
use crate::upgrade::upgraded;
use crate::write::replay;

/// The maximum number of attempts of a group after conflicts, each on the new state.
const ATTEMPTS: usize = 100;

/// The state of the task.
pub(crate) struct Committer<B> {
    pub(crate) backend: B,
    pub(crate) codec: Codec,
    /// The source of the rows, with their key.
    pub(crate) origin: Origin,
    /// The header that is stored with the rows.
    pub(crate) header: Vec<u8>,
    pub(crate) tables: Arc<Tables>,
}

/// Another server wrote data that this one cannot read: it must not continue with a partial state.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    /// One row.
    #[error(
        "a row that another server stored cannot be read ({0}): is that server newer? Restart this \
         one with the same version and key file"
    )]
    Row(#[from] BadRow),
    /// Everything was replaced.
    #[error("another server replaced the store: {0}")]
    Header(#[from] OpenError),
}

impl<B: Backend> Committer<B> {
    /// Rewrites a store of an older format, so that older servers refuse it from now on.
    pub(crate) async fn upgrade(&mut self) -> Result<(), OpenError> {
        let failed = |reason: String| OpenError::NotUpgraded { reason };
        let mut attempts = 0;
        while self.origin.check(&self.header)? < FORMAT {
            let state = self.tables.state();
            let (next, changes) = upgraded(&state);
            let header = Header::new(&self.codec.key).map_err(|error| failed(error.to_string()))?;
            let contents = Loaded {
                header: serde_json::to_vec(&header).map_err(|error| failed(error.to_string()))?,
                index: next.index(),
                rows: self.codec.encode_all(&next).map_err(not_upgraded)?,
            };
            let contents = Arc::new(contents);
            let replaced = self.backend.replace(state.index(), Arc::clone(&contents));
            match replaced.await {
                Ok(()) => {
                    self.header.clone_from(&contents.header);
                    self.tables.publish(next, &changes);
                }
                // Another server has written in the meantime, or has rewritten the store itself.
                Err(NotCommitted::Lost) if attempts < ATTEMPTS => {
                    attempts += 1;
                    let change = self.backend.changed().await;
                    self.follow(&change)
                        .map_err(|error| failed(error.to_string()))?;
                }
                Err(error) => return Err(not_upgraded(why(error))),
            }
        }
        Ok(())
    }

    /// Commits until the token is cancelled or all handles of the store are dropped.
    pub(crate) async fn run(
        mut self,
        mut waiting: Waiting,
        token: CancellationToken,
    ) -> Result<(), Unreadable> {
        let ended = self.serve(&mut waiting, &token).await;
        waiting.refuse_all().await;
        self.backend.close().await;
        ended
    }

    async fn serve(
        &mut self,
        waiting: &mut Waiting,
        token: &CancellationToken,
    ) -> Result<(), Unreadable> {
        loop {
            // Commits of other servers come first: without them, a commit would conflict anyway.
            tokio::select! {
                biased;
                () = token.cancelled() => return Ok(()),
                change = self.backend.changed() => self.follow(&change)?,
                work = waiting.next() => match work {
                    Some(Work::Write(jobs)) => self.write(jobs.into()).await?,
                    Some(Work::Restore(restore)) => self.restore(restore).await?,
                    None => return Ok(()),
                },
            }
        }
    }

    /// Commits transactions, in as many steps as their rows need.
    async fn write(&mut self, mut jobs: VecDeque<Box<dyn Attempt>>) -> Result<(), Unreadable> {
        let mut attempts = 0;
        let mut rows = self.backend.rows_at_once();
        while !jobs.is_empty() {
            let base = self.tables.state();
            let group = Group::run(&base, &mut jobs, rows);
            let stored = match self.batch(base.index(), &group) {
                Ok(None) => Ok(()),
                Ok(Some(batch)) => self.backend.commit(Arc::new(batch)).await,
                Err(unavailable) => Err(NotCommitted::Unavailable(unavailable)),
            };
            attempts += 1;
            let stored = match stored {
                Err(NotCommitted::Lost) if attempts < ATTEMPTS => {
                    let change = self.backend.changed().await;
                    self.follow(&change)?;
                    for job in group.into_jobs().rev() {
                        jobs.push_front(job);
                    }
                    continue;
                }
                Err(NotCommitted::TooLarge(_)) if group.can_be_divided() => {
                    rows = group.changes.rows.len() / 2;
                    for job in group.into_jobs().rev() {
                        jobs.push_front(job);
                    }
                    continue;
                }
                stored => stored.map_err(why),
            };
            attempts = 0;
            rows = self.backend.rows_at_once();
            group.finish(&self.tables, stored);
        }
        Ok(())
    }

    /// The changed rows of a group in stored form.
    fn batch(&self, base: u64, group: &Group) -> Result<Option<Batch>, Unavailable> {
        if group.changes.is_empty() {
            return Ok(None);
        }
        let mut rows = BTreeMap::new();
        for key in group.changes.rows.keys() {
            let row = group.state.get(key);
            let value = row.map(|row| self.codec.encode(key, row)).transpose()?;
            rows.insert(key.to_bytes(), value);
        }
        Ok(Some(Batch {
            base,
            index: group.state.index(),
            rows,
        }))
    }

    async fn restore(&mut self, restore: Restore) -> Result<(), Unreadable> {
        let Restore { snapshot, answer } = restore;
        let mut contents = Arc::new(Loaded {
            header: Vec::new(),
            index: 0,
            rows: snapshot.stored,
        });
        for _ in 0..ATTEMPTS {
            let state = self.tables.state();
            let index = state.index().max(snapshot.index) + 1;
            let filled = Arc::make_mut(&mut contents);
            filled.index = index;
            filled.header.clone_from(&self.header);
            let replaced = self.backend.replace(state.index(), Arc::clone(&contents));
            match replaced.await {
                Ok(()) => {
                    let (next, changes) = state.replaced(index, snapshot.rows);
                    self.tables.publish(next, &changes);
                    let applied = Applied {
                        index,
                        changed: true,
                    };
                    drop(answer.send(Ok(applied)));
                    return Ok(());
                }
                Err(NotCommitted::Lost) => {
                    let change = self.backend.changed().await;
                    self.follow(&change)?;
                }
                Err(
                    NotCommitted::Unavailable(unavailable) | NotCommitted::TooLarge(unavailable),
                ) => {
                    drop(answer.send(Err(unavailable)));
                    return Ok(());
                }
            }
        }
        drop(answer.send(Err(why(NotCommitted::Lost))));
        Ok(())
    }

    /// Applies a commit of another server.
    fn follow(&mut self, change: &Change) -> Result<(), Unreadable> {
        let state = self.tables.state();
        let (next, changes) = match change {
            Change::Batch(batch) => {
                let rows = batch.rows.iter().map(|(key, value)| match value {
                    Some(value) => {
                        let (key, row) = self.codec.decode(Arc::clone(key), value)?;
                        Ok((key, Some(row)))
                    }
                    None => Ok((Key::from_bytes(Arc::clone(key)), None)),
                });
                let rows: Vec<_> = rows.collect::<Result<_, BadRow>>()?;
                replay(&state, batch.index, rows)
            }
            Change::Everything(loaded) => {
                self.origin.check(&loaded.header)?;
                let rows = loaded.rows.iter();
                let rows = rows.map(|(key, value)| self.codec.decode(Arc::clone(key), value));
                let rows: Vec<_> = rows.collect::<Result<_, BadRow>>()?;
                self.header = loaded.header.clone();
                state.replaced(loaded.index, rows)
            }
        };
        self.tables.publish(next, &changes);
        Ok(())
    }
}

fn not_upgraded(unavailable: Unavailable) -> OpenError {
    OpenError::NotUpgraded {
        reason: unavailable.reason.to_string(),
    }
}

fn why(not_committed: NotCommitted) -> Unavailable {
    match not_committed {
        NotCommitted::Unavailable(unavailable) | NotCommitted::TooLarge(unavailable) => unavailable,
        NotCommitted::Lost => {
            Unavailable::new("other servers always committed first; try again later")
        }
    }
}
