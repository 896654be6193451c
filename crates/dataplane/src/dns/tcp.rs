//! DNS over TCP: one task accepts; one task per connection reads queries and writes each reply as
//! soon as it is ready. Each message is preceded by its length in two bytes (RFC 1035, 4.2.2).
//!
//! A connection uses a bounded amount of memory, whatever its client does.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{SinkExt, StreamExt};
use legate_runtime::net::accept;
use legate_runtime::{CancellationToken, Spawner};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::answer::Answerer;
use super::message::Transport;

/// Initial buffer in each direction, in bytes; large enough for most messages.
const TYPICAL: usize = 512;

/// Accepts connections until the scope stops.
pub(super) async fn serve(
    listener: TcpListener,
    answerer: Arc<Answerer>,
    spawner: Spawner,
) -> Result<(), Infallible> {
    let stop = spawner.token();
    let places = Arc::new(Semaphore::new(answerer.limits.tcp_connections));
    let next = || accept("DNS over TCP", || listener.accept());
    while let Some((stream, client)) = stop.run_until_cancelled(next()).await {
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            // Closing is a clear signal to the client; leaving the connection in the queue would
            // look like a hang.
            tracing::debug!(target: "dns-proxy.tcp", %client, "refused: too many connections");
            continue;
        };
        let (answerer, stop) = (Arc::clone(&answerer), stop.clone());
        spawner.spawn("dns tcp connection", async move {
            if let Err(error) = serve_client(stream, &answerer, stop).await {
                tracing::debug!(target: "dns-proxy.tcp", %client, %error, "connection lost");
            }
            drop(place);
            Ok::<_, Infallible>(())
        });
    }
    Ok(())
}

/// Serves a client until it has its replies and disconnects, is idle for too long, or violates the
/// protocol.
async fn serve_client(
    stream: TcpStream,
    answerer: &Arc<Answerer>,
    stop: CancellationToken,
) -> io::Result<()> {
    let limits = &answerer.limits;
    stream.set_nodelay(true)?;
    let mut codec = LengthDelimitedCodec::builder();
    let codec = codec.length_field_type::<u16>().new_codec();
    let mut messages = Framed::with_capacity(stream, codec, TYPICAL);
    let mut in_flight = FuturesUnordered::new();
    // False once no further queries are accepted; replies are still written.
    let mut reading = true;
    let mut idle_at = Instant::now() + limits.idle;
    while reading || !in_flight.is_empty() {
        let has_room = in_flight.len() < limits.pipeline;
        tokio::select! {
            Some(reply) = in_flight.next() => {
                tokio::select! {
                    // The last replies become ready when the time is over, and most clients read
                    // them at once.
                    biased;
                    written = timeout(limits.idle, messages.send(reply)) => written??,
                    () = answerer.drained() => return Err(io::ErrorKind::TimedOut.into()),
                }
                idle_at = Instant::now() + limits.idle;
            }
            message = messages.next(), if reading && has_room => {
                let message = match message {
                    // The codec reports the end of the stream within a message like this.
                    Some(Err(error)) if error.kind() == io::ErrorKind::Other => None,
                    // A copy, so that a small waiting message does not keep a large buffer alive.
                    message => message.transpose()?.map(|message| Bytes::copy_from_slice(&message)),
                };
                idle_at = Instant::now() + limits.idle;
                // A message that is not a query can only be answered by closing.
                let query = message.and_then(|message| answerer.read(message, Transport::Tcp));
                reading = query.is_some();
                if let Some(query) = query {
                    let slot = answerer.admit(Transport::Tcp);
                    in_flight.push(async move { answerer.answer(&query, slot).await });
                }
            }
            () = stop.cancelled(), if reading => reading = false,
            () = sleep_until(idle_at), if in_flight.is_empty() => reading = false,
        }
    }
    messages.into_inner().shutdown().await
}
