//! Copies between the two streams of a connection. A connection that waits holds no buffer: bytes are read into a
//! buffer of the thread and written at once. What the other side does not take then is kept, and this direction is not
//! read before it is gone. Where neither side has TLS, as in a gateway that passes it through, much at once is moved in
//! the kernel ([`Pipe`]), which takes less CPU time.
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
use super::splice::Pipe;

/// Size of the buffer of a thread, in bytes. The most that one direction of a connection keeps.
const BUFFER: usize = 64 * 1024;

/// Fewer bytes at once are copied: to move them would take as long.
const LITTLE: usize = 16 * 1024;

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
    /// Bytes that were moved and not taken.
    piped: Option<Pipe>,
    /// Much came at once, and is moved rather than copied if it can be.
    much: bool,
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
            if let Err(error) = ready!(self.poll_piped(cx, writer)) {
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
            if self.much {
                match ready!(self.poll_move(cx, reader, writer, copied)) {
                    Ok(()) => continue,
                    Err(end) => return Poll::Ready(end),
                }
            }
            let tcp = reader.tcp().is_some() && writer.tcp().is_some();
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
                self.much = tcp && bytes.len() == BUFFER;
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

    /// Moves what is in the pipe.
    fn poll_piped(&mut self, cx: &mut Context<'_>, writer: &Io) -> Poll<io::Result<()>> {
        let (Some(pipe), Some(writer)) = (&mut self.piped, writer.tcp()) else {
            return Poll::Ready(Ok(()));
        };
        ready!(pipe.poll_drain(cx, writer))?;
        if let Some(pipe) = self.piped.take() {
            pipe.give_back();
        }
        Poll::Ready(Ok(()))
    }

    /// Moves what the reader has. Without a pipe, nothing is moved any more, until much is read again.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        reader: &Io,
        writer: &Io,
        moved: &mut dyn FnMut(usize),
    ) -> Poll<Result<(), End>> {
        let (Some(from), Some(to), Ok(mut pipe)) = (reader.tcp(), writer.tcp(), Pipe::take())
        else {
            self.much = false;
            return Poll::Ready(Ok(()));
        };
        let count = match pipe.poll_fill(cx, from) {
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(End::Read(error))),
            Poll::Pending => {
                pipe.give_back();
                return Poll::Pending;
            }
        };
        moved(count);
        self.eof = count == 0;
        self.much = count >= LITTLE;
        match pipe.poll_drain(cx, to) {
            Poll::Ready(Ok(())) => pipe.give_back(),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(End::Write(error))),
            Poll::Pending => self.piped = Some(pipe),
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::{Duration, timeout};

    use super::*;
    use crate::l4::io::Socket;

    const LIMIT: Duration = Duration::from_secs(30);
    /// More than sockets and a pipe hold.
    const MUCH: usize = 64 * 1024 * 1024;

    /// A connection: the proxy's side, and the other one.
    async fn connection() -> (Io, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (ours, theirs) = tokio::join!(listener.accept(), TcpStream::connect(address));
        (Io::Plain(Socket::Tcp(ours.unwrap().0)), theirs.unwrap())
    }

    #[tokio::test]
    async fn much_is_moved_and_arrives_as_it_was_sent() {
        let ((mut from, mut sender), (mut to, mut receiver)) =
            (connection().await, connection().await);
        let bytes: Vec<u8> = (0..MUCH).map(|at| (at / 7 % 251) as u8).collect();
        let sent = bytes.clone();
        let mut sending = pin!(async {
            sender.write_all(&sent).await.unwrap();
            sender.shutdown().await.unwrap();
        });
        let mut direction = Direction::default();
        let mut count = 0;
        // Nobody reads: what was moved last waits in a pipe.
        let blocked = poll_fn(|cx| {
            let copied = &mut |more| count += more;
            match direction.poll(cx, &mut from, &mut to, copied) {
                _ if direction.piped.is_some() => Poll::Ready(()),
                Poll::Ready(end) => panic!("{end:?}"),
                Poll::Pending => Poll::Pending,
            }
        });
        let first = async {
            tokio::select! {
                () = blocked => {}
                () = &mut sending => panic!("everything was taken"),
            }
        };
        timeout(LIMIT, first).await.unwrap();
        assert!(direction.left.is_none());
        let mut received = Vec::new();
        let copying = poll_fn(|cx| {
            let copied = &mut |more| count += more;
            direction.poll(cx, &mut from, &mut to, copied)
        });
        let all = async { tokio::join!(copying, receiver.read_to_end(&mut received), sending) };
        let (end, read, ()) = timeout(LIMIT, all).await.unwrap();
        assert!(matches!(end, End::Done), "{end:?}");
        read.unwrap();
        assert!(received == bytes);
        assert_eq!(count, MUCH);
        assert!(direction.piped.is_none());
    }

    #[tokio::test]
    async fn a_connection_that_moved_much_goes_on_with_little() {
        let ((mut from, mut sender), (mut to, mut receiver)) =
            (connection().await, connection().await);
        let mut direction = Direction {
            much: true,
            ..Direction::default()
        };
        let exchange = async {
            for _ in 0..3 {
                sender.write_all(b"hello").await.unwrap();
                let mut read = [0; 5];
                receiver.read_exact(&mut read).await.unwrap();
                assert_eq!(&read, b"hello");
            }
            drop(sender);
            assert_eq!(receiver.read(&mut [0; 5]).await.unwrap(), 0);
        };
        let copying = poll_fn(|cx| direction.poll(cx, &mut from, &mut to, &mut |_| ()));
        let (end, ()) = timeout(LIMIT, async { tokio::join!(copying, exchange) })
            .await
            .unwrap();
        assert!(matches!(end, End::Done), "{end:?}");
        assert!(!direction.much);
    }

    #[tokio::test]
    async fn a_peer_that_has_gone_ends_what_is_moved() {
        let ((mut from, mut sender), (mut to, receiver)) = (connection().await, connection().await);
        let mut direction = Direction {
            much: true,
            ..Direction::default()
        };
        drop(receiver);
        let bytes = vec![1; MUCH];
        let copying = poll_fn(|cx| direction.poll(cx, &mut from, &mut to, &mut |_| ()));
        let end = async {
            tokio::select! {
                end = copying => end,
                sent = sender.write_all(&bytes) => panic!("everything was taken: {sent:?}"),
            }
        };
        let end = timeout(LIMIT, end).await.unwrap();
        assert!(matches!(end, End::Write(_)), "{end:?}");
    }
}
