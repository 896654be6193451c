//! What one connection is doing, and until when it may: kept up to date by the connection's
//! reads and writes, and by the service that answers on it. It closes nothing itself.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Limits;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no whole request. Since when.
    Idle(Instant),
    /// A request is being answered.
    Answering,
    /// The answer waits for its reader. Since when.
    Unread(Instant),
}

impl Phase {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Phase::Idle(_) => "idle",
            Phase::Answering => "being answered",
            Phase::Unread(_) => "not reading its answer",
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct State {
    phase: Phase,
    /// When the connection is to be closed unless something happens.
    deadline: Option<Instant>,
    /// Whether the head of a request has begun, or has to begin in the time for a head.
    head: bool,
    /// Whether the answer is complete but for what waits in the connection.
    complete: bool,
    /// For how long this answer may still wait for its reader.
    patience: Duration,
    closed: bool,
}

/// The activity of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    limits: Limits,
    state: watch::Sender<State>,
}

impl Activity {
    /// A connection that was just accepted.
    pub(super) fn new(limits: Limits) -> Self {
        let now = Instant::now();
        let state = State {
            phase: Phase::Idle(now),
            deadline: Some(now + limits.head),
            head: true,
            complete: false,
            patience: limits.unread,
            closed: false,
        };
        Self {
            limits,
            state: watch::Sender::new(state),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.state.borrow().phase
    }

    /// Lets [`Activity::overdue`] return.
    pub(super) fn close(&self) {
        self.state.send_modify(|state| state.closed = true);
    }

    /// Waits until the connection has taken longer than it may, or was closed. Cancel safe.
    pub(super) async fn overdue(&self) {
        let mut changes = self.state.subscribe();
        loop {
            let State {
                deadline, closed, ..
            } = *changes.borrow_and_update();
            if closed {
                return;
            }
            // The sender is `self`, so that there is always a next change to wait for.
            match deadline {
                Some(deadline) => {
                    if timeout_at(deadline, changes.changed()).await.is_err() {
                        return;
                    }
                }
                None => _ = changes.changed().await,
            }
        }
    }

    /// A request has arrived; it is being answered until what this returns is dropped.
    pub(super) fn answering(self: &Arc<Self>) -> Answering {
        self.state.send_modify(|state| {
            state.phase = Phase::Answering;
            state.deadline = None;
            state.head = false;
            state.complete = false;
            state.patience = self.limits.unread;
        });
        Answering(Arc::clone(self))
    }

    /// Bytes have arrived.
    fn received(&self) {
        self.state.send_if_modified(|state| {
            let begins = matches!(state.phase, Phase::Idle(_)) && !state.head;
            if begins {
                state.head = true;
                state.deadline = Some(Instant::now() + self.limits.head);
            }
            begins
        });
    }

    /// The peer takes no bytes now.
    fn blocked(&self) {
        self.state.send_if_modified(|state| {
            let begins = state.phase == Phase::Answering;
            if begins {
                let now = Instant::now();
                state.phase = Phase::Unread(now);
                state.deadline = Some(now + state.patience);
            }
            begins
        });
    }

    /// The peer has taken bytes.
    fn taken(&self) {
        self.state.send_if_modified(|state| {
            let Phase::Unread(since) = state.phase else {
                return false;
            };
            state.patience = state.patience.saturating_sub(since.elapsed());
            state.phase = Phase::Answering;
            state.deadline = None;
            true
        });
    }

    /// Everything that was written so far has been taken.
    fn flushed(&self) {
        self.state.send_if_modified(|state| {
            let ends = state.complete && state.phase == Phase::Answering;
            if ends {
                let now = Instant::now();
                state.phase = Phase::Idle(now);
                state.deadline = Some(now + self.limits.idle);
                state.complete = false;
            }
            ends
        });
    }
}

/// Lasts as long as an answer is being made.
#[derive(Debug)]
pub(super) struct Answering(Arc<Activity>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| state.complete = true);
    }
}

/// A stream that tells of its reads and writes.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }

    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Pending => self.activity.blocked(),
            Poll::Ready(_) => self.activity.taken(),
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.received();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.activity.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
