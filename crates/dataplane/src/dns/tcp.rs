//! DNS over TCP: one task accepts, one task per connection reads queries and writes replies in
//! the order in which they come.
//!
//! A connection costs a bounded amount of memory however its client behaves.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use legate_runtime::{CancellationToken, Spawner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use super::Limits;
use super::answer::{Answerer, Slot};
use super::framing::{Deframer, frame};
use super::message::{Query, Transport};

/// How long the listener rests when the machine has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until the scope stops.
pub(super) async fn serve(
    listener: TcpListener,
    answerer: Arc<Answerer>,
    limits: Limits,
    spawner: Spawner,
) -> Result<(), Infallible> {
    let stop = spawner.token();
    let places = Arc::new(Semaphore::new(limits.tcp_connections));
    let mut failing = false;
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let (stream, client) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if !failing {
                    tracing::warn!(target: "dns-proxy.tcp", %error, "cannot accept connections");
                }
                failing = true;
                stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                continue;
            }
        };
        failing = false;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            // Closing tells the client at once; leaving it in the queue would look like a hang.
            tracing::debug!(target: "dns-proxy.tcp", %client, "refused: too many connections");
            continue;
        };
        let connection = Connection {
            stream,
            answerer: Arc::clone(&answerer),
            limits: limits.clone(),
            deframer: Deframer::default(),
            reading: true,
            idle_at: Instant::now() + limits.idle,
        };
        let stop = stop.clone();
        spawner.spawn("dns tcp connection", async move {
            if let Err(error) = connection.run(stop).await {
                tracing::debug!(target: "dns-proxy.tcp", %client, %error, "connection lost");
            }
            drop(place);
            Ok::<_, Infallible>(())
        });
    }
    Ok(())
}

struct Connection {
    stream: TcpStream,
    answerer: Arc<Answerer>,
    limits: Limits,
    deframer: Deframer,
    /// False once no further query is taken; replies are still written.
    reading: bool,
    /// When the connection is closed if nothing is in flight then.
    idle_at: Instant,
}

impl Connection {
    /// Until the client has what it asked for and goes, is silent for too long, or misbehaves.
    async fn run(mut self, stop: CancellationToken) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        let answerer = Arc::clone(&self.answerer);
        let mut in_flight = FuturesUnordered::new();
        loop {
            let room = self.limits.pipeline - in_flight.len();
            in_flight.extend(
                self.take(room)
                    .into_iter()
                    .map(|asked| asked.answer(&answerer)),
            );
            if !self.reading && in_flight.is_empty() {
                return self.stream.shutdown().await;
            }
            let wanted = self.reading && in_flight.len() < self.limits.pipeline;
            tokio::select! {
                Some(reply) = in_flight.next() => self.write(reply).await?,
                read = self.stream.read_buf(self.deframer.buffer()), if wanted => {
                    self.reading = read? > 0;
                }
                () = stop.cancelled(), if self.reading => self.reading = false,
                () = sleep_until(self.idle_at), if in_flight.is_empty() => self.reading = false,
            }
        }
    }

    /// Up to `room` queries of those that are here completely.
    fn take(&mut self, room: usize) -> Vec<Asked> {
        let mut asked = Vec::new();
        while self.reading && asked.len() < room {
            let Some(message) = self.deframer.message() else {
                break;
            };
            self.touch();
            match self.answerer.read(message, Transport::Tcp) {
                Some(query) => asked.push(Asked {
                    query,
                    slot: self.answerer.admit(Transport::Tcp),
                }),
                // Closing is the only answer that there is to something that is no query.
                None => self.reading = false,
            }
        }
        asked
    }

    async fn write(&mut self, reply: Bytes) -> io::Result<()> {
        // The answerer keeps to the limit of this transport.
        let framed = frame(&reply).ok_or(io::ErrorKind::InvalidData)?;
        tokio::select! {
            // The last replies are ready when the time is over, and most clients take them at once.
            biased;
            written = timeout(self.limits.idle, self.stream.write_all(&framed)) => written??,
            () = self.answerer.drained() => return Err(io::ErrorKind::TimedOut.into()),
        }
        self.touch();
        Ok(())
    }

    fn touch(&mut self) {
        self.idle_at = Instant::now() + self.limits.idle;
    }
}

/// A query and, unless there are too many, its place among those that are answered.
struct Asked {
    query: Query,
    slot: Option<Slot>,
}

impl Asked {
    async fn answer(self, answerer: &Arc<Answerer>) -> Bytes {
        match self.slot {
            Some(slot) => answerer.answer(&self.query, slot).await,
            None => answerer.overloaded(&self.query, Transport::Tcp),
        }
    }
}
