//! A running Envoy as its supervisor sees it, whether or not this process started it.

use std::fmt::Debug;
use std::io;

use futures_util::future::BoxFuture;
use rustix::process::{Pid, Signal};

use super::exit::ExitReason;
use super::identity::Identity;

/// A process that can be supervised. Dropping it kills it.
pub trait Process: Debug + Send {
    /// The process id.
    fn pid(&self) -> u32;
    /// Its identity; `None` if it cannot be inspected.
    fn identity(&self) -> Option<Identity>;
    /// Waits until it ends. Cancel safe.
    fn wait(&mut self) -> BoxFuture<'_, ExitReason>;
    /// Sends a signal. If the process has ended, this is a no-op; no other process gets the signal.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    fn signal(&mut self, signal: Signal) -> io::Result<()>;
    /// The last line of its output that may explain a failure, if there is one. Complete once the
    /// process has ended.
    fn last_message(&self) -> Option<String>;
    /// Releases it without killing it, if it can outlive this program.
    fn detach(self: Box<Self>);
}

/// A process id in the type of the system calls.
pub(super) fn number(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// Treats a signal to a process that has ended as success.
pub(super) fn ignore_missing(sent: rustix::io::Result<()>) -> io::Result<()> {
    match sent {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
