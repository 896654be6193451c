//! Renewals of sessions, in the memory of the server that leads. They are not stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use legate_model::{Session, Tenancy};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::outcome::Unavailable;
use crate::sessions::Expiring;
use crate::state::State;

/// A session, by its tenancy and id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionKey {
    /// The tenancy of the session.
    pub tenancy: Tenancy,
    /// Its id.
    pub id: String,
}

impl SessionKey {
    fn find(&self, state: &State) -> Option<Arc<Session>> {
        let txn = state.read();
        txn.in_tenancy(&self.tenancy, |txn| txn.session(&self.id))
    }
}

/// The last renewal of each session that was renewed while this server leads. Renewals at other
/// servers are sent to this one. Whoever expires sessions takes them from here. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Renewals {
    last: Arc<Mutex<HashMap<SessionKey, Instant>>>,
}

impl Renewals {
    /// Renews a session if it exists. Returns whether it does.
    pub(crate) fn renew(&self, session: &SessionKey, state: &State, now: Instant) -> bool {
        let Some(found) = session.find(state) else {
            return false;
        };
        if found.time_to_live().is_some() {
            self.lock().insert(session.clone(), now);
        }
        true
    }

    /// Whether a session was renewed and the renewal was not taken yet.
    pub fn contains(&self, session: &Expiring) -> bool {
        self.lock().contains_key(&session.key())
    }

    /// Removes and returns the last renewal of a session.
    pub fn take(&self, session: &Expiring) -> Option<Instant> {
        self.lock().remove(&session.key())
    }

    /// Removes all renewals.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Removes the renewals of sessions that do not exist.
    pub fn sweep(&self, state: &State) {
        self.lock()
            .retain(|session, _| session.find(state).is_some());
    }

    /// The number of renewals.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, Instant>> {
        // Each change of the map is one call.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A renewal that the server that leads has to confirm.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) session: SessionKey,
    /// Receives whether the session exists.
    pub(crate) answer: oneshot::Sender<Result<bool, Unavailable>>,
}

impl Renewal {
    pub(crate) fn done(self, result: Result<bool, Unavailable>) {
        // The caller may be gone.
        drop(self.answer.send(result));
    }
}
