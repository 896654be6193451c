//! Connections to Envoy's port: how many there may be, and how long one may be there without an xDS
//! stream. Any process of the pod can connect, so that one in use is never given up for a new one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use legate_runtime::CancellationToken;
use tokio::sync::watch;
use tokio::time::timeout;

use super::limits::MAX_STREAMS;

/// Connections at one time. Of so many at least half have no stream, and the oldest of those makes
/// room for a new one.
const MAX_CONNECTIONS: usize = 2 * MAX_STREAMS;

/// How long a connection may be without a stream: from when it was opened, its handshake included,
/// or from the end of its last stream.
const IDLE: Duration = Duration::from_secs(10);

/// The connections that there are, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Connections(VecDeque<Connection>);

impl Connections {
    /// Takes in a new connection, which ends with `stop`. With as many as there may be, another one
    /// ends.
    pub(super) fn open(&mut self, stop: &CancellationToken) -> Connection {
        self.0.retain(|one| !one.ended.is_cancelled());
        if self.0.len() >= MAX_CONNECTIONS
            && let Some(place) = self.0.iter().position(|one| *one.streams.borrow() == 0)
            && let Some(oldest) = self.0.remove(place)
        {
            oldest.ended.cancel();
        }
        let connection = Connection {
            streams: watch::Sender::new(0),
            ended: stop.child_token(),
        };
        self.0.push_back(connection.clone());
        connection
    }
}

/// One connection. Copies are the same one.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    /// How many xDS streams it has.
    streams: watch::Sender<usize>,
    ended: CancellationToken,
}

impl Connection {
    /// Keeps the connection for as long as the result exists.
    pub(super) fn open_stream(&self) -> OpenStream {
        self.streams.send_modify(|streams| *streams += 1);
        OpenStream(self.streams.clone())
    }

    /// Cancelled when the connection has to end; whoever serves it cancels it when it has ended.
    pub(super) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Ends the connection when it has been without a stream for too long. A task of its own: one
    /// that serves the connection would look at the time with every message.
    pub(super) async fn end_when_unused(self) -> Result<(), Infallible> {
        let mut streams = self.streams.subscribe();
        let idle = async {
            // Waiting does not fail: the sender is here.
            loop {
                let _ = streams.wait_for(|streams| *streams == 0).await;
                let used = streams.wait_for(|streams| *streams > 0);
                if timeout(IDLE, used).await.is_err() {
                    return;
                }
            }
        };
        if self.ended.run_until_cancelled(idle).await.is_some() {
            self.ended.cancel();
        }
        Ok(())
    }
}

/// An xDS stream of a connection.
#[derive(Debug)]
pub(super) struct OpenStream(watch::Sender<usize>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|streams| *streams -= 1);
    }
}
