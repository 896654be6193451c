//! Connections to Envoy's port: how many there may be, and how long one may be there without an xDS
//! stream. Any process of the pod can connect, so that one in use is never given up for a new one.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream;
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tonic::transport::server::Connected;

use super::limits::MAX_STREAMS;
use super::listen::Socket;

/// Connections at one time. Of so many at least half have no stream, and the oldest of those makes
/// room for a new one.
const MAX_CONNECTIONS: usize = 2 * MAX_STREAMS;

/// How long a connection may be without a stream: from when it was opened, its handshake included,
/// or from the end of its last stream.
const IDLE: Duration = Duration::from_secs(10);

/// How long the listener rests when the machine has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections that there are, the oldest first.
#[derive(Debug, Clone, Default)]
struct Connections(Arc<Mutex<VecDeque<Arc<State>>>>);

/// What is known of a connection.
#[derive(Debug)]
struct State {
    usage: Mutex<Usage>,
    /// The task that serves the connection.
    task: AtomicWaker,
}

#[derive(Debug)]
struct Usage {
    streams: usize,
    idle_since: Instant,
    /// It has to make room.
    given_up: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    /// Takes in a new connection. With as many as there may be, another one ends.
    fn enter<IO>(&self, io: IO) -> Guarded<IO> {
        let now = Instant::now();
        let usage = Usage {
            streams: 0,
            idle_since: now,
            given_up: false,
        };
        let state = Arc::new(State {
            usage: Mutex::new(usage),
            task: AtomicWaker::new(),
        });
        let mut all = lock(&self.0);
        all.push_back(Arc::clone(&state));
        if all.len() > MAX_CONNECTIONS
            && let Some(place) = all.iter().position(|one| lock(&one.usage).streams == 0)
            && let Some(oldest) = all.remove(place)
        {
            lock(&oldest.usage).given_up = true;
            oldest.task.wake();
        }
        Guarded {
            io,
            state,
            timer: Box::pin(sleep_until(now + IDLE)),
            connections: self.clone(),
        }
    }

    fn leave(&self, state: &Arc<State>) {
        lock(&self.0).retain(|one| !Arc::ptr_eq(one, state));
    }
}

/// The connection that a call came over.
#[derive(Debug, Clone)]
pub(super) struct Handle(Arc<State>);

impl Handle {
    /// Keeps the connection for as long as the result exists.
    pub(super) fn open_stream(self) -> OpenStream {
        lock(&self.0.usage).streams += 1;
        OpenStream(self.0)
    }
}

/// An xDS stream of a connection.
#[derive(Debug)]
pub(super) struct OpenStream(Arc<State>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut usage = lock(&self.0.usage);
        usage.streams -= 1;
        usage.idle_since = Instant::now();
        drop(usage);
        self.0.task.wake();
    }
}

/// A connection that fails when it has been without a stream for too long. Whatever was to be sent
/// over it is let go with it.
pub(super) struct Guarded<IO> {
    io: IO,
    state: Arc<State>,
    timer: Pin<Box<Sleep>>,
    connections: Connections,
}

impl<IO> Guarded<IO> {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.state.task.register(cx.waker());
        let due = {
            let usage = lock(&self.state.usage);
            if usage.streams > 0 {
                return Ok(());
            }
            if usage.given_up {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            usage.idle_since + IDLE
        };
        if self.timer.deadline() != due {
            self.timer.as_mut().reset(due);
        }
        match self.timer.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<IO> Drop for Guarded<IO> {
    fn drop(&mut self) {
        self.connections.leave(&self.state);
    }
}

impl<IO> Connected for Guarded<IO> {
    type ConnectInfo = Handle;

    fn connect_info(&self) -> Handle {
        Handle(Arc::clone(&self.state))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Guarded<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Guarded<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// A connection of either kind.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Connections as they come. A machine without descriptors ends nothing.
pub(super) fn accept(socket: Socket) -> impl Stream<Item = io::Result<Guarded<Box<dyn Io>>>> {
    let connections = Connections::default();
    stream::unfold((socket, connections), async |(socket, connections)| {
        loop {
            match socket.accept().await {
                Ok(accepted) => {
                    let guarded = connections.enter(accepted);
                    return Some((Ok(guarded), (socket, connections)));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection of Envoy");
                    sleep(PAUSE).await;
                }
            }
        }
    })
}
