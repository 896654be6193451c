//! Leaf certificates: one per holder and host names, shared by all watchers and renewed in time.
//!
//! The task of a certificate is its only writer, and exists as long as the certificate is watched.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use legate_runtime::{CancellationToken, Spawner};
use tokio::sync::{Notify, watch};
use tracing::{debug, warn};

use crate::leaf::{Leaf, LeafId};
use crate::renewal::{Action, Event, Renewal};
use crate::{Ca, LeafEnded};

/// The maximum interval between checks of the wall clock, which can be set and continues while a
/// machine sleeps, unlike timers.
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);

/// State that the task of a certificate and its watchers share.
struct Published {
    leaf: watch::Sender<Option<Arc<Leaf>>>,
    /// Notified to renew the certificate immediately.
    renew_now: Notify,
}

/// All watched certificates. Clones are handles to the same store.
#[derive(Clone)]
pub struct LeafStore {
    shared: Arc<Shared>,
}

struct Shared {
    ca: Ca,
    spawner: Spawner,
    /// Each sender is owned by its task, so that watchers notice when the task ends.
    watched: Mutex<HashMap<LeafId, Weak<Published>>>,
}

impl Ca {
    /// A leaf store whose tasks run in the spawner's scope.
    #[must_use]
    pub fn leaves(&self, spawner: &Spawner) -> LeafStore {
        LeafStore::new(self.clone(), spawner.clone())
    }
}

impl LeafStore {
    fn new(ca: Ca, spawner: Spawner) -> LeafStore {
        LeafStore {
            shared: Arc::new(Shared {
                ca,
                spawner,
                watched: Mutex::default(),
            }),
        }
    }

    /// Watches a certificate, which is issued unless it is already watched.
    #[must_use]
    pub fn watch(&self, id: impl Into<LeafId>) -> LeafWatch {
        let id = id.into();
        let mut watched = self.shared.lock();
        let known = watched.get(&id).and_then(Weak::upgrade);
        let leaf = match known {
            Some(published) => published.leaf.subscribe(),
            None => {
                let (sender, leaf) = watch::channel(None);
                let published = Arc::new(Published {
                    leaf: sender,
                    renew_now: Notify::new(),
                });
                watched.insert(id.clone(), Arc::downgrade(&published));
                let task = Task {
                    shared: Arc::clone(&self.shared),
                    name: format!("leaf of {id}"),
                    id: id.clone(),
                    published,
                };
                drop(watched);
                let spawner = &self.shared.spawner;
                spawner.spawn(task.name.clone(), task.run(spawner.token()));
                leaf
            }
        };
        LeafWatch { id, leaf }
    }

    /// The current certificate, if it is watched.
    #[must_use]
    pub fn current(&self, id: &LeafId) -> Option<Arc<Leaf>> {
        let known = self.shared.lock().get(id).and_then(Weak::upgrade)?;
        known.leaf.borrow().clone()
    }

    /// Renews a certificate immediately, unless the last attempt has just failed.
    pub(crate) fn renew_now(&self, id: &LeafId) {
        let known = self.shared.lock().get(id).and_then(Weak::upgrade);
        if let Some(published) = known {
            published.renew_now.notify_one();
        }
    }

    /// Whether a certificate is watched.
    pub(crate) fn has(&self, id: &LeafId) -> bool {
        self.shared.lock().contains_key(id)
    }

    /// The watched certificates, in no particular order.
    #[must_use]
    pub fn watched(&self) -> Vec<LeafId> {
        let watched = self.shared.lock();
        watched.keys().cloned().collect()
    }
}

impl fmt::Debug for LeafStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeafStore")
            .field("watched", &self.watched())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<LeafId, Weak<Published>>> {
        // Every change of the map is complete before a panic is possible.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A watch on a certificate. Dropping the last watch ends the renewal. A clone has seen the
/// same certificates as the original.
#[derive(Debug, Clone)]
pub struct LeafWatch {
    id: LeafId,
    leaf: watch::Receiver<Option<Arc<Leaf>>>,
}

impl LeafWatch {
    /// The current certificate; `None` until the first one has been issued.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Leaf>> {
        self.leaf.borrow().clone()
    }

    /// Waits for a certificate newer than the creation of this watch or the last return of this
    /// method. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`LeafEnded`] when there will be no further certificate because the tasks' scope has stopped.
    pub async fn changed(&mut self) -> Result<(), LeafEnded> {
        self.leaf.changed().await.map_err(|_| LeafEnded {
            leaf: self.id.to_string(),
        })
    }
}

/// The task that renews one certificate.
struct Task {
    shared: Arc<Shared>,
    name: String,
    id: LeafId,
    published: Arc<Published>,
}

impl Task {
    async fn run(self, stop: CancellationToken) -> Result<(), Infallible> {
        let mut renewal = Renewal::Missing;
        let mut was_missing = false;
        loop {
            let now = self.shared.ca.clock().now();
            let (key_id, mut signer) = self.shared.ca.watch_signing_key();
            if was_missing && key_id.is_some() {
                // The CA has just been created: earlier failures say nothing.
                renewal = Renewal::Missing;
            }
            was_missing = key_id.is_none();
            if let Some(key_id) = key_id {
                renewal.handle(Event::Signer {
                    key_id: &key_id,
                    now,
                    random: rand::random(),
                });
            }
            let wait = match renewal.action(now) {
                Action::Issue => {
                    // The signer may be remote.
                    tokio::select! {
                        () = self.issue(&mut renewal) => continue,
                        () = stop.cancelled() => return Ok(()),
                    }
                }
                Action::Wait(wait) => wait.min(LONGEST_WAIT),
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = signer.changed() => {}
                () = self.published.renew_now.notified() => {
                    if matches!(renewal, Renewal::Held { .. }) {
                        renewal = Renewal::Missing;
                    }
                }
                () = self.published.leaf.closed() => {
                    if self.leave() {
                        return Ok(());
                    }
                }
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    async fn issue(&self, renewal: &mut Renewal) {
        let ca = &self.shared.ca;
        match ca.issue(&self.id).await {
            Ok(leaf) => {
                debug!(leaf = %self.id, serial = leaf.serial, "issued a certificate");
                renewal.handle(Event::Issued {
                    valid_after: leaf.valid_after,
                    valid_before: leaf.valid_before,
                    authority_key_id: &leaf.authority_key_id,
                    random: rand::random(),
                });
                self.published.leaf.send_replace(Some(Arc::new(leaf)));
            }
            Err(error) => {
                warn!(leaf = %self.id, %error, "cannot issue a certificate, trying again");
                renewal.handle(Event::Failed {
                    now: ca.clock().now(),
                    random: rand::random(),
                });
            }
        }
    }

    /// Removes the certificate unless a watcher was added meanwhile.
    fn leave(&self) -> bool {
        let mut watched = self.shared.lock();
        // Watchers are added under the same lock, so none can be missed.
        let unwatched = self.published.leaf.receiver_count() == 0;
        if unwatched {
            watched.remove(&self.id);
        }
        unwatched
    }
}

impl Drop for Task {
    /// Runs also when the task is dropped with its scope; the next watcher then gets a new entry.
    fn drop(&mut self) {
        let mut watched = self.shared.lock();
        let own = Arc::downgrade(&self.published);
        if watched
            .get(&self.id)
            .is_some_and(|other| other.ptr_eq(&own))
        {
            watched.remove(&self.id);
        }
    }
}
