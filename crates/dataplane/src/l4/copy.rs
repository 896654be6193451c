//! Copies between the two streams of a connection. A connection that waits holds no buffer: bytes are read into a
//! buffer of the thread and written at once. What the other side does not take then is kept, and this direction is not
//! read before it is gone.
//!
//! It knows nothing about where the streams lead, and has no clock.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::io::Io;
use super::registry::Open;

/// Size of the buffer of a thread, in bytes. The most that one direction of a connection keeps.
const BUFFER: usize = 64 * 1024;

/// After so many rounds without waiting, other connections of the thread have their turn.
const ROUNDS: usize = 16;

thread_local! {
    static SHARED: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER].into_boxed_slice());
}

/// How one direction has ended.
#[derive(Debug)]
pub(super) enum End {
    /// The reader ended its direction, and the writer has got everything.
    Done,
    /// Reading failed.
    Read(io::Error),
    /// Writing failed.
    Write(io::Error),
}

/// How the copying has ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Both directions have ended by themselves.
    Done,
    /// The caller's stream failed.
    Caller(io::Error),
    /// The host's stream failed.
    Host(io::Error),
    /// Somebody else closed it.
    Closed,
}

/// One direction.
#[derive(Debug, Default)]
struct Direction {
    /// Bytes that were read and not taken, and how many of them are written.
    left: Option<(Box<[u8]>, usize)>,
    /// Whether something may wait in the writer.
    unflushed: bool,
    eof: bool,
    done: bool,
}

impl Direction {
    /// Copies until one of the two has to wait, or the direction ends. `copied` gets the number of bytes that were
    /// read.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut Io,
        writer: &mut Io,
        copied: &mut dyn FnMut(usize),
    ) -> Poll<End> {
        for _ in 0..ROUNDS {
            if let Err(error) = ready!(self.poll_left(cx, writer)) {
                return Poll::Ready(End::Write(error));
            }
            if self.eof {
                // A peer that has gone needs no notice of the end.
                return match ready!(Pin::new(writer).poll_shutdown(cx)) {
                    Err(error) if error.kind() != io::ErrorKind::NotConnected => {
                        Poll::Ready(End::Write(error))
                    }
                    _ => Poll::Ready(End::Done),
                };
            }
            let read = SHARED.with_borrow_mut(|buffer| {
                let mut buffer = ReadBuf::new(buffer);
                let read = Pin::new(&mut *reader).poll_read(cx, &mut buffer);
                match ready!(read) {
                    Ok(()) => {}
                    // The end of a TLS stream without a `close_notify`. As in Envoy, the other side sees a usual end.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                    Err(error) => return Poll::Ready(Err(End::Read(error))),
                }
                let bytes = buffer.filled();
                copied(bytes.len());
                self.eof = bytes.is_empty();
                Poll::Ready(self.write(cx, writer, bytes).map_err(End::Write))
            });
            match read {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Pending => {
                    if self.unflushed {
                        match Pin::new(&mut *writer).poll_flush(cx) {
                            Poll::Ready(Ok(())) => self.unflushed = false,
                            Poll::Ready(Err(error)) => return Poll::Ready(End::Write(error)),
                            Poll::Pending => {}
                        }
                    }
                    return Poll::Pending;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what was left.
    fn poll_left(&mut self, cx: &mut Context<'_>, writer: &mut Io) -> Poll<io::Result<()>> {
        while let Some((bytes, written)) = &mut self.left {
            let count = ready!(Pin::new(&mut *writer).poll_write(cx, &bytes[*written..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *written += count;
            if *written == bytes.len() {
                self.left = None;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes as much as is taken, and keeps the rest.
    fn write(&mut self, cx: &mut Context<'_>, writer: &mut Io, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        self.unflushed |= !bytes.is_empty();
        while written < bytes.len() {
            match Pin::new(&mut *writer).poll_write(cx, &bytes[written..]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => written += count,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    self.left = Some((bytes[written..].into(), 0));
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Copies in both directions until both have ended, one fails, or the connection is closed by `open`. Counts bytes and
/// activity in `open`.
pub(super) async fn copy(mut caller: Io, mut host: Io, open: &Arc<Open>) -> Outcome {
    let (mut to_host, mut to_caller) = (Direction::default(), Direction::default());
    poll_fn(|cx| {
        if open.poll_closed(cx).is_ready() {
            return Poll::Ready(Outcome::Closed);
        }
        if !to_host.done {
            let copied = &mut |count| open.received(count);
            match to_host.poll(cx, &mut caller, &mut host, copied) {
                Poll::Ready(End::Done) => to_host.done = true,
                Poll::Ready(End::Read(error)) => return Poll::Ready(Outcome::Caller(error)),
                Poll::Ready(End::Write(error)) => return Poll::Ready(Outcome::Host(error)),
                Poll::Pending => {}
            }
        }
        if !to_caller.done {
            let copied = &mut |count| open.sent(count);
            match to_caller.poll(cx, &mut host, &mut caller, copied) {
                Poll::Ready(End::Done) => to_caller.done = true,
                Poll::Ready(End::Read(error)) => return Poll::Ready(Outcome::Host(error)),
                Poll::Ready(End::Write(error)) => return Poll::Ready(Outcome::Caller(error)),
                Poll::Pending => {}
            }
        }
        if to_host.done != to_caller.done {
            open.half_closed();
        }
        match to_host.done && to_caller.done {
            true => Poll::Ready(Outcome::Done),
            false => Poll::Pending,
        }
    })
    .await
}
