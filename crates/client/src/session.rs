//! The handle to a session, for everybody who talks to servers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use legate_runtime::CancellationToken;
use tokio::sync::{mpsc, watch};
use tonic::Status;

use crate::connection::Connection;
use crate::error::{ErrorClass, SessionError, classify};
use crate::facts::{Facts, SessionSnapshot};
use crate::machine::{Failure, FailureKind};
use crate::metrics::Metrics;

/// Reports that wait for the session; it needs one of many alike.
pub(crate) const REPORTS: usize = 16;

/// How a session stands.
#[derive(Clone, Debug)]
pub enum SessionState {
    /// There is no usable connection; one is being looked for.
    Connecting {
        /// What went wrong last, if anything has.
        last_error: Option<Arc<SessionError>>,
    },
    /// Usable.
    Connected(Connection),
    /// Only a change of the configuration can help. Never follows a connection.
    Failed(Arc<SessionError>),
    /// Closed by its owner.
    Closed,
}

pub(crate) struct Report {
    pub(crate) generation: u64,
    pub(crate) failure: Failure,
}

/// A session with the servers. All clones are the same session.
///
/// It looks for a server, logs in, and moves to another server when this one fails; callers take
/// the [`Connection`] of the moment, tell what they see with [`report`](Session::report), and come
/// back for the next one.
#[derive(Clone)]
pub struct Session {
    pub(crate) state: watch::Receiver<SessionState>,
    pub(crate) reports: mpsc::Sender<Report>,
    /// Cancelled when the proxy has its configuration.
    pub(crate) configured: CancellationToken,
    /// Asks for the end.
    pub(crate) close: CancellationToken,
    /// Cancelled at the end.
    pub(crate) ended: CancellationToken,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) facts: Arc<Facts>,
}

impl Session {
    /// The current connection, or the next one.
    ///
    /// Whoever fails with it waits a moment of their own before they call again: an error that
    /// concerns only them gets them the same connection.
    ///
    /// # Errors
    ///
    /// When the session has failed for good, or is closed.
    pub async fn connected(&self) -> Result<Connection, SessionError> {
        let mut state = self.state.clone();
        loop {
            match &*state.borrow_and_update() {
                SessionState::Connected(connection) => return Ok(connection.clone()),
                SessionState::Failed(error) => return Err(SessionError::clone(error)),
                SessionState::Closed => return Err(SessionError::Closed),
                SessionState::Connecting { .. } => {}
            }
            if state.changed().await.is_err() {
                return Err(SessionError::Closed);
            }
        }
    }

    /// How the session stands now.
    #[must_use]
    pub fn state(&self) -> SessionState {
        self.state.borrow().clone()
    }

    /// Everything that the session tells of itself, at this moment; see [`SessionSnapshot`].
    #[must_use]
    pub fn snapshot(&self) -> SessionSnapshot {
        self.facts.snapshot()
    }

    /// How the session stands, now and later. Its sender is gone when the session has ended.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<SessionState> {
        self.state.clone()
    }

    /// Tells that a call on this connection failed, for a stream also that it ended with this
    /// status. The session decides what follows from it; see [`ErrorClass`]. Reports about earlier
    /// connections are counted and change nothing.
    pub fn report(&self, connection: &Connection, status: &Status) {
        self.metrics.error(status.code());
        let error = Arc::new(SessionError::call(connection.server, "a call", status));
        self.facts.failed(&error);
        let kind = match classify(status) {
            ErrorClass::Credentials => FailureKind::Rejected,
            ErrorClass::ThisServer => FailureKind::Server,
            ErrorClass::Permanent | ErrorClass::Transient => return,
        };
        let report = Report {
            generation: connection.generation,
            failure: Failure { kind, error },
        };
        // A full queue holds enough of them, a closed one belongs to a session that has ended.
        let _ = self.reports.try_send(report);
    }

    /// Tells that the proxy has its configuration, and serves without servers from now on. Until
    /// then the session waits 4.5 s at most between attempts to connect, afterwards up to 90 s.
    pub fn configured(&self) {
        self.configured.cancel();
    }

    /// Ends the session, with a logout if it has logged in; returns when it has ended, or at the
    /// deadline. A logout takes 5 s at most.
    pub async fn close(&self, deadline: Duration) {
        self.close.cancel();
        if tokio::time::timeout(deadline, self.ended.cancelled())
            .await
            .is_err()
        {
            tracing::warn!(
                target: "server-connection-manager",
                ?deadline,
                "the session with the servers did not end in time"
            );
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
