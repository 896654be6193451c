//! Limits connections to Envoy's port: their number, and how long one may exist without an xDS
//! stream. Any process of the pod can connect, so a connection with a stream is never closed in
//! favour of a new one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use legate_runtime::CancellationToken;
use tokio::sync::watch;
use tokio::time::timeout;

use super::limits::MAX_STREAMS;

/// Maximum number of connections. At the limit at least half of them have no stream; the oldest of
/// those is closed to admit a new one.
const MAX_CONNECTIONS: usize = 2 * MAX_STREAMS;

/// How long a connection may be without a stream: since it was opened, handshake included, or since
/// its last stream ended.
const IDLE: Duration = Duration::from_secs(10);

/// All open connections, oldest first.
#[derive(Debug, Default)]
pub(super) struct Connections(VecDeque<Connection>);

impl Connections {
    /// Registers a new connection, which ends with `stop`. At the limit, another one is closed.
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

/// A connection. Clones refer to the same one.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    /// Number of its xDS streams.
    streams: watch::Sender<usize>,
    ended: CancellationToken,
}

impl Connection {
    /// Counts a stream for as long as the result exists.
    pub(super) fn open_stream(&self) -> OpenStream {
        self.streams.send_modify(|streams| *streams += 1);
        OpenStream(self.streams.clone())
    }

    /// Cancelled when the connection has to end, and by the serving task once it has ended.
    pub(super) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Ends the connection when it has been without a stream for too long. This is a separate task:
    /// the serving task would have to check the time for every message.
    pub(super) async fn end_when_unused(self) -> Result<(), Infallible> {
        let mut streams = self.streams.subscribe();
        let idle = async {
            // Waiting cannot fail: `self` holds the sender.
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

/// An open xDS stream of a connection.
#[derive(Debug)]
pub(super) struct OpenStream(watch::Sender<usize>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|streams| *streams -= 1);
    }
}
