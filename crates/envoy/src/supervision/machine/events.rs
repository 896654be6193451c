//! What the machine takes and gives: events, timers, actions, and the states of an epoch.

use std::time::Duration;

use crate::process::ExitReason;

/// One start of a process; never used twice, other than the number of an epoch.
pub(crate) type Run = u64;

/// Where an epoch is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpochState {
    /// Started, and not ready yet.
    Starting,
    /// Ready; it serves.
    Serving,
    /// Serves, and has lived long enough for earlier failures to be forgotten.
    Healthy,
    /// No longer serves what is new; connections that it has may end.
    Draining,
    /// Asked to end.
    Stopping,
    /// Sent SIGKILL.
    Killed,
}

impl EpochState {
    /// Whether it serves what is new.
    pub fn serves(self) -> bool {
        matches!(self, Self::Serving | Self::Healthy)
    }

    /// Whether its end is expected.
    pub fn leaves(self) -> bool {
        matches!(self, Self::Draining | Self::Stopping | Self::Killed)
    }

    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Healthy => "healthy",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
            Self::Killed => "being killed",
        }
    }
}

/// How a running process is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartMode {
    /// By an epoch that takes over its sockets.
    Hot,
    /// By ending it first.
    Cold,
    /// Not now: it could only be ended first, which this configuration does not allow.
    Deferred,
}

/// What happens to processes or to their supervision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event<D> {
    /// This configuration shall run from now on.
    Update(D),
    /// The same configuration shall run in a new process.
    Restart,
    /// Everything shall end in order. Final.
    Stop,
    /// Everything shall end now. Final.
    Kill,
    /// Supervision ends and the processes live on. Final.
    Release,
    /// A configuration was checked while another process runs: how that can be replaced, or why the
    /// configuration is refused.
    Checked(u64, Result<RestartMode, String>),
    /// A process could not be started.
    SpawnFailed(Run),
    /// A process says that it serves.
    Ready(Run),
    /// A process has ended.
    Exited(Run, ExitReason),
    /// Why Envoy does not take a configuration, unless it does or that cannot be known.
    Validated(u64, Result<(), String>),
    /// A process did not confirm that it quits.
    QuitFailed(Run),
    /// Nobody is connected any more to a process that drains.
    Idle(Run),
    /// A timer has run out.
    Elapsed(Timer),
}

/// Timers that the machine asks for, and can tell when they mean nothing any more, see
/// [`super::Machine::waits_for`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The process has lived long enough.
    Healthy(Run),
    /// The process has been in this state for as long as it may.
    Over(Run, EpochState),
    /// The wait after a crash is over.
    Crash,
    /// The wait after a failed replacement is over.
    Retry,
    /// Clients had the time to hear that the process goes away.
    MinDrain,
    /// The grace period of the stop is over.
    Grace,
    /// Grace period and time to quit are both over.
    Deadline,
    /// The kernel had its time to end everything.
    Last,
}

/// What has to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action<D> {
    /// Check the configuration without touching what runs; brings [`Event::Checked`] with this
    /// number. Only the last check that was asked for matters.
    Check(u64, D),
    /// Ask Envoy whether it takes the configuration, while nothing serves; brings
    /// [`Event::Validated`] with this number.
    Validate(u64, D),
    /// Start a process as this epoch, one above the highest that runs or 0; brings
    /// [`Event::SpawnFailed`], [`Event::Ready`], [`Event::Exited`].
    Start(Run, u32, D),
    /// Ask the process that serves to drain its inbound listeners. A failure changes nothing.
    Drain(Run),
    /// Watch for the moment when nobody is connected any more; brings [`Event::Idle`].
    AwaitIdle(Run),
    /// Ask the process that serves to quit; may bring [`Event::QuitFailed`].
    Quit(Run),
    /// Send SIGTERM.
    Terminate(Run),
    /// Send SIGKILL.
    Kill(Run),
    /// Clean up behind an epoch that has ended.
    CleanUp(u32),
    /// Bring [`Event::Elapsed`] after this time. A timer that is armed twice runs out once, at the
    /// earlier time.
    Arm(Timer, Duration),
    /// Say that all retries are spent: what serves goes on; where nothing does, supervision ends.
    Spent,
}

/// How supervision ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As asked.
    Stopped {
        /// Whether a process had to be killed.
        forced: bool,
    },
    /// The process ended by itself with code 0.
    Ended,
    /// All retries are spent.
    Spent,
    /// The processes live on without supervision.
    Released,
    /// A process is still there after SIGKILL and stands in the way.
    Unkillable,
}

/// A process that a former supervisor left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Adopted {
    /// Its epoch.
    pub epoch: u32,
    /// Whether it runs what is wanted.
    pub current: bool,
}
