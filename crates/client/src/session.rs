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

/// Reports that wait for the session. More of them would say the same.
pub(crate) const REPORTS: usize = 16;

/// Whether a session is connected.
#[derive(Clone, Debug)]
pub enum SessionState {
    /// There is no usable connection; one is being looked for.
    Connecting {
        /// The last error, if there was one.
        last_error: Option<SessionError>,
    },
    /// Connected.
    Connected(Connection),
    /// Only a change of the configuration can help. Never follows a connection.
    Failed(SessionError),
    /// Closed by its owner.
    Closed,
}

/// A session with the servers. All clones are the same session.
///
/// It looks for a server, logs in, and moves to another server when this one fails. Callers take
/// the current [`Connection`], [`report`](Session::report) calls that fail, and then take the next
/// connection.
#[derive(Clone)]
pub struct Session {
    pub(crate) state: watch::Receiver<SessionState>,
    pub(crate) reports: mpsc::Sender<Event>,
    /// Cancelled when the proxy has its configuration.
    pub(crate) configured: CancellationToken,
    /// Asks for the end.
    pub(crate) close: CancellationToken,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) snapshot: watch::Sender<SessionSnapshot>,
}

impl Session {
    /// The current connection, or the next one.
    ///
    /// A caller whose calls fail waits before it calls again: it gets the same connection when the
    /// error says nothing about the connection.
    ///
    /// # Errors
    ///
    /// When the session has failed for good, or is closed.
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

    /// The state now.
    #[must_use]
    pub fn state(&self) -> SessionState {
        self.state.borrow().clone()
    }

    /// Details of the state now, for status pages and metrics.
    #[must_use]
    pub fn snapshot(&self) -> SessionSnapshot {
        self.snapshot.borrow().clone()
    }

    /// The state now and its changes. The channel is closed when the session has ended.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<SessionState> {
        self.state.clone()
    }

    /// Reports that a call on this connection failed, or that a stream ended, with this status. The
    /// session decides what follows; see [`ErrorClass`]. Reports about earlier connections are
    /// counted and change nothing.
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
        // Nothing is lost: a full queue has enough reports, a closed one has no session any more.
        let _ = self.reports.try_send(report);
    }

    /// The proxy has its configuration, and serves without servers from now on. Until then the
    /// session waits 4.5 s at most between attempts to connect, afterwards up to 90 s.
    pub fn configured(&self) {
        self.configured.cancel();
    }

    /// Ends the session, with a logout if it has logged in. Returns when it has ended, or at the
    /// deadline; the logout takes 5 s at most.
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
