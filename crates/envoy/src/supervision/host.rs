//! What the driver needs of the world: starting, checking and ending processes. The real one is
//! [`super::EnvoyHost`]; tests have others.

use futures_util::future::BoxFuture;

use super::files::Entry;
use super::machine::RestartMode;
use crate::admin::AdminError;
use crate::process::{Identity, Process};

/// A future that a host hands out.
pub(super) type Work<T> = BoxFuture<'static, T>;

/// Where processes run. The futures it hands out have to be bounded in time, except
/// [`Host::ready`] and [`Host::idle`].
pub trait Host: Send {
    /// What a process runs. Equal configurations need no new process.
    type Config: Clone + PartialEq + Send + Sync + 'static;

    /// Starts a process as that epoch. When other epochs run, it takes over from the highest of
    /// them.
    ///
    /// # Errors
    /// What went wrong, for people.
    fn start(&mut self, epoch: u32, config: &Self::Config) -> Result<Box<dyn Process>, String>;

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
    fn drain(&self) -> Work<Result<(), AdminError>>;

    /// Done when nobody is connected any more to the process that serves, as far as that can be
    /// known; connections to its own admin, metrics and readiness listeners do not count.
    fn idle(&self) -> Work<()>;

    /// Asks the process that serves to quit.
    fn quit(&self) -> Work<Result<(), AdminError>>;

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
    fn adopt(&mut self, entry: &Entry) -> Result<Box<dyn Process>, String>;

    /// Hot restarts go on from adopted processes, which share this number.
    fn adopted(&mut self, base_id: Option<u32>);

    /// Why processes cannot be replaced without a gap, when they cannot.
    fn obstacle(&self) -> Option<String>;
}
