//! A process that runs, whoever started it, as its supervisor deals with it.

use std::fmt::Debug;
use std::io;

use futures_util::future::BoxFuture;
use rustix::process::{Pid, Signal};

use super::exit::ExitReason;
use super::identity::Identity;

/// A process that can be supervised. Dropping it ends it.
pub trait Process: Debug + Send {
    /// Its number.
    fn pid(&self) -> u32;
    /// What it can be found by again; nothing when it cannot be looked at.
    fn identity(&self) -> Option<Identity>;
    /// Waits for its end. Cancel safe.
    fn wait(&mut self) -> BoxFuture<'_, ExitReason>;
    /// Sends it a signal. One that has ended is no error, and nobody else gets the signal.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    fn signal(&mut self, signal: Signal) -> io::Result<()>;
    /// The last line that it wrote and that may tell what is wrong, as far as that is known, once it
    /// has ended.
    fn last_words(&self) -> Option<String>;
    /// Lets go of it without ending it, where it can live on.
    fn detach(self: Box<Self>);
}

/// A process id as the system takes it.
pub(super) fn number(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// A process that has ended needs no signal.
pub(super) fn gone_is_fine(sent: rustix::io::Result<()>) -> io::Result<()> {
    match sent {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
