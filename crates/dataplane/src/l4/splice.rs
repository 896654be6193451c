//! Moves bytes from one TCP socket to another one through a pipe of the kernel, without a copy in this process. A pipe
//! belongs to a thread; a connection has it only while there are bytes in it.
//!
//! It decides nothing: whether bytes are moved or copied is up to `copy`.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use nix::fcntl::{OFlag, SpliceFFlags, splice};
use nix::unistd::pipe2;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// The most that is moved at once, and that waits in a pipe, in bytes: the capacity of a pipe (pipe(7)).
const MOST: usize = 64 * 1024;

/// The most pipes that a thread keeps for the next connection.
const SPARE: usize = 2;

thread_local! {
    static PIPES: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// A pipe, with the number of bytes in it.
#[derive(Debug)]
pub(super) struct Pipe {
    end: OwnedFd,
    start: OwnedFd,
    held: usize,
}

impl Pipe {
    /// An empty pipe.
    ///
    /// # Errors
    /// If there are too many open files, or pipes of this user.
    pub(super) fn take() -> io::Result<Pipe> {
        if let Some(pipe) = PIPES.with_borrow_mut(Vec::pop) {
            return Ok(pipe);
        }
        let (end, start) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)?;
        Ok(Pipe {
            end,
            start,
            held: 0,
        })
    }

    /// Keeps it for another connection, if it is empty.
    pub(super) fn give_back(self) {
        PIPES.with_borrow_mut(|pipes| {
            if self.held == 0 && pipes.len() < SPARE {
                pipes.push(self);
            }
        });
    }

    /// Moves bytes of a socket into the pipe, which is empty. Returns their number; 0 is the end of the stream.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(from.poll_read_ready(cx))?;
            match from.try_io(Interest::READABLE, || transfer(from, &self.start, MOST)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(count) => {
                    self.held = count;
                    return Poll::Ready(Ok(count));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Moves what is in the pipe to a socket.
    pub(super) fn poll_drain(
        &mut self,
        cx: &mut Context<'_>,
        to: &TcpStream,
    ) -> Poll<io::Result<()>> {
        while self.held > 0 {
            ready!(to.poll_write_ready(cx))?;
            match to.try_io(Interest::WRITABLE, || transfer(&self.end, to, self.held)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => self.held -= count,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn transfer(
    from: &impl std::os::fd::AsFd,
    to: &impl std::os::fd::AsFd,
    most: usize,
) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK;
    Ok(splice(from, None, to, None, most, flags)?)
}
