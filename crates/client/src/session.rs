//! The handle to a session, for everything that calls servers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use legate_runtime::CancellationToken;
use tokio::sync::{mpsc, watch};
use tonic::Status;

use crate::connection::Connection;
use crate::error::{ErrorClass, ErrorKind, SessionError, classify};
use crate::machine::Event;
use crate::metrics::Metrics;
use crate::snapshot::SessionSnapshot;

/// Capacity of the queue of reports. More of them would add no information.
pub(crate) const REPORTS: usize = 16;

/// Connection state of a session.
#[derive(Clone, Debug)]
pub enum SessionState {
    /// There is no usable connection; the session is looking for one.
    Connecting {
        /// The last error, if there was one.
        last_error: Option<SessionError>,
    },
    /// Connected.
    Connected(Connection),
    /// Only a change of the configuration can help. Never follows `Connected`.
    Failed(SessionError),
    /// Closed by its owner.
    Closed,
}

/// A session with the servers. Clones refer to the same session.
///
/// It finds a server, logs in, and switches to another server when this one fails. Callers take the
/// current [`Connection`], [`report`](Session::report) calls that fail, and then take the next
/// connection.
#[derive(Clone)]
pub struct Session {
    pub(crate) state: watch::Receiver<SessionState>,
    pub(crate) reports: mpsc::Sender<Event>,
    /// Cancelled when the proxy has its configuration.
    pub(crate) configured: CancellationToken,
    /// Cancelled to end the session.
    pub(crate) close: CancellationToken,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) snapshot: watch::Sender<SessionSnapshot>,
}

impl Session {
    /// The current connection, or the next one.
    ///
    /// A caller whose calls fail must wait before it retries: it gets the same connection again if
    /// the error does not concern the connection.
    ///
    /// # Errors
    ///
    /// When the session has failed permanently, or is closed.
    pub async fn connected(&self) -> Result<Connection, SessionError> {
        let mut state = self.state.clone();
        loop {
            match &*state.borrow_and_update() {
                SessionState::Connected(connection) => return Ok(connection.clone()),
                SessionState::Failed(error) => return Err(error.clone()),
                SessionState::Closed => return Err(SessionError::closed()),
                SessionState::Connecting { .. } => {}
            }
            if state.changed().await.is_err() {
                return Err(SessionError::closed());
            }
        }
    }

    /// The current state.
    #[must_use]
    pub fn state(&self) -> SessionState {
        self.state.borrow().clone()
    }

    /// Details of the current state, for status pages and metrics.
    #[must_use]
    pub fn snapshot(&self) -> SessionSnapshot {
        self.snapshot.borrow().clone()
    }

    /// A receiver for the state and its changes. The channel is closed when the session has ended.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<SessionState> {
        self.state.clone()
    }

    /// Reports that a call on this connection failed, or that a stream ended, with this status. The
    /// session decides how to react; see [`ErrorClass`]. Reports about earlier connections only
    /// affect metrics.
    pub fn report(&self, connection: &Connection, status: &Status) {
        self.metrics.error(status.code());
        let mut error = SessionError::call(connection.server, "a call", status);
        self.snapshot
            .send_modify(|snapshot| snapshot.failed(&error));
        error.kind = match classify(status) {
            ErrorClass::Credentials => ErrorKind::Rejected,
            ErrorClass::ThisServer => ErrorKind::Server,
            ErrorClass::Permanent | ErrorClass::Transient => return,
        };
        let generation = connection.generation;
        let report = Event::CallFailed { generation, error };
        // Nothing is lost: if the queue is full there are enough reports, and if it is closed the
        // session has ended.
        let _ = self.reports.try_send(report);
    }

    /// Marks the proxy as configured: from now on it can serve without servers. Until then the
    /// session waits at most 4.5 s between connection attempts, afterwards up to 90 s.
    pub fn configured(&self) {
        self.configured.cancel();
    }

    /// Ends the session, with a logout if it has logged in. Returns when it has ended, or at the
    /// deadline. The logout takes at most 5 s.
    pub async fn close(&self, deadline: Duration) {
        self.close.cancel();
        let mut state = self.state.clone();
        let ended = async { while state.changed().await.is_ok() {} };
        if tokio::time::timeout(deadline, ended).await.is_err() {
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
