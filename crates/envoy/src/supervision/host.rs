//! The driver's interface to processes: starting, checking and ending them. The real implementation
//! is [`super::EnvoyHost`]; tests have others.

use futures_util::future::BoxFuture;

use super::files::Entry;
use super::machine::RestartMode;
use crate::admin::AdminError;
use crate::process::{Identity, Process};

/// A future returned by a host.
pub(super) type Work<T> = BoxFuture<'static, T>;

/// Runs processes. The returned futures must complete in bounded time, except for [`Host::ready`]
/// and [`Host::idle`].
pub trait Host: Send {
    /// Configuration of a process. Equal configurations need no new process.
    type Config: Clone + PartialEq + Send + Sync + 'static;

    /// Starts a process as this epoch. If other epochs are running, it takes over from the highest
    /// of them.
    ///
    /// # Errors
    /// A description of the failure, for humans.
    fn start(&mut self, epoch: u32, config: &Self::Config) -> Result<Box<dyn Process>, String>;

    /// Checks whether a configuration is valid while a process is running, and how the running
    /// process can be replaced by one with it.
    fn check(
        &mut self,
        config: &Self::Config,
        running: Option<Identity>,
    ) -> Work<Result<RestartMode, String>>;

    /// Checks whether a configuration is valid while no process serves. Passes if that cannot be
    /// determined.
    ///
    /// # Errors
    /// The program's message.
    fn validate(&self, config: &Self::Config) -> Work<Result<(), String>>;

    /// Completes when the process of this epoch serves.
    fn ready(&self, epoch: u32) -> Work<()>;

    /// Requests the serving process to drain its inbound listeners.
    fn drain(&self) -> Work<Result<(), AdminError>>;

    /// Completes when the serving process has no client connections left, as far as that can be
    /// determined. Connections to its own admin, metrics and readiness listeners do not count.
    fn idle(&self) -> Work<()>;

    /// Requests the serving process to quit.
    fn quit(&self) -> Work<Result<(), AdminError>>;

    /// Called when the process of this epoch has become ready.
    fn serves(&mut self, epoch: u32);

    /// Called when the process of this epoch has ended. `idle`: no other process is running. Must
    /// not block.
    fn clean_up(&mut self, epoch: u32, idle: bool);

    /// A digest of a configuration, stable across runs of the program.
    fn fingerprint(&self, config: &Self::Config) -> String;

    /// The base id of the hot restart family, if it is known.
    fn base_id(&self) -> Option<u32>;

    /// The epoch that reports that it serves, if there is one.
    fn serving(&self) -> Work<Option<u32>>;

    /// Adopts a process that a former supervisor started.
    ///
    /// # Errors
    /// When the process is gone.
    fn adopt(&mut self, entry: &Entry) -> Result<Box<dyn Process>, String>;

    /// Called after processes with this base id were adopted, so that hot restarts can continue
    /// with them.
    fn adopted(&mut self, base_id: Option<u32>);

    /// Why processes cannot be replaced without a gap, if there is a reason.
    fn obstacle(&self) -> Option<String>;
}
