//! What the driver needs of the world: starting, checking and ending processes. The real one is
//! [`super::EnvoyHost`]; tests have others.

use std::future::Future;
use std::io;
use std::pin::Pin;

use super::files::Entry;
use super::identity::Identity;
use super::machine::{RestartMode, Start};
use crate::process::ExitReason;

/// A future that a host hands out.
pub(super) type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A process that can be supervised.
pub trait Process: Send {
    /// Its number.
    fn pid(&self) -> u32;
    /// What it can be found by again; nothing when it cannot be looked at.
    fn identity(&self) -> Option<Identity>;
    /// Waits for its end. Has to be cancel safe.
    fn wait(&mut self) -> impl Future<Output = ExitReason> + Send;
    /// Asks it to end by signal.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    fn terminate(&mut self) -> io::Result<()>;
    /// Kills it.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    fn kill(&mut self) -> io::Result<()>;
    /// What it said last of what is wrong, as far as that is known, once it has ended.
    fn last_words(&self) -> Option<String> {
        None
    }
    /// Lets go of it without ending it.
    fn detach(self);
}

/// Where processes run. The futures it hands out have to be bounded in time, except
/// [`Host::ready`] and [`Host::idle`].
pub trait Host: Send {
    /// What a process runs. Equal configurations need no new process.
    type Config: Clone + PartialEq + Send + Sync + 'static;
    /// A running process.
    type Process: Process;

    /// Starts a process. When other epochs run, it takes over from the highest of them.
    ///
    /// # Errors
    /// What went wrong, for people.
    fn start(&mut self, start: &Start<Self::Config>) -> Result<Self::Process, String>;

    /// Checks while a process runs whether a configuration can work, and how the running
    /// process can be replaced by one with it.
    fn check(
        &mut self,
        config: &Self::Config,
        running: Option<Identity>,
    ) -> Work<Result<RestartMode, String>>;

    /// Checks while nothing serves whether a configuration can work. Where that cannot be found
    /// out, it passes.
    ///
    /// # Errors
    /// In which words the program refuses it.
    fn validate(&self, config: &Self::Config) -> Work<Result<(), String>>;

    /// Done when the process of that epoch serves.
    fn ready(&self, epoch: u32) -> Work<()>;

    /// Asks the process that serves to drain its inbound listeners.
    fn drain(&self) -> Work<Result<(), String>>;

    /// Done when nobody is connected any more to the process that serves, as far as that can be
    /// known; connections to its own admin, metrics and readiness listeners do not count.
    fn idle(&self) -> Work<()>;

    /// Asks the process that serves to quit.
    fn quit(&self) -> Work<Result<(), String>>;

    /// The process of that epoch has become ready.
    fn serves(&mut self, epoch: u32);

    /// The process of that epoch has ended; `idle` when no other runs. Must not block.
    fn clean_up(&mut self, epoch: u32, idle: bool);

    /// A digest of a configuration that is the same in every run of the program.
    fn fingerprint(&self, config: &Self::Config) -> String;

    /// The number that parent and child of a hot restart share, once it is known.
    fn base_id(&self) -> Option<u32>;

    /// The epoch that says of itself that it serves; nothing when none does.
    fn serving(&self) -> Work<Option<u32>>;

    /// Takes over a process that a former supervisor started.
    ///
    /// # Errors
    /// When it is not that process any more.
    fn adopt(&mut self, entry: &Entry) -> Result<Self::Process, String>;

    /// Hot restarts go on from adopted processes, which share this number.
    fn adopted(&mut self, base_id: Option<u32>);

    /// Why processes cannot be replaced without a gap, when they cannot.
    fn obstacle(&self) -> Option<String>;
}
