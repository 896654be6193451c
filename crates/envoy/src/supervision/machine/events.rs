//! Interface of the machine: events, timers, actions, and the states of an epoch.

use std::time::Duration;

use crate::process::ExitReason;

/// Identifies one start of a process. Unlike the number of an epoch it is never reused.
pub(crate) type Run = u64;

/// State of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpochState {
    /// Started, but not ready yet.
    Starting,
    /// Ready and serving.
    Serving,
    /// Serving, and old enough for earlier failures to be forgotten.
    Healthy,
    /// No longer serves new connections; existing ones may end.
    Draining,
    /// Asked to end.
    Stopping,
    /// Sent SIGKILL.
    Killed,
}

impl EpochState {
    /// Whether it serves new connections.
    pub fn serves(self) -> bool {
        matches!(self, Self::Serving | Self::Healthy)
    }

    /// Whether its end is expected.
    pub fn leaves(self) -> bool {
        matches!(self, Self::Draining | Self::Stopping | Self::Killed)
    }

    /// The state in words.
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
    /// By ending it before the new one is started.
    Cold,
    /// Not now: only a cold restart is possible, which this configuration does not allow.
    Deferred,
}

/// An event of a process or a request to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event<D> {
    /// Run this configuration from now on.
    Update(D),
    /// Run the same configuration in a new process.
    Restart,
    /// Clients of the serving process were told that it is about to end.
    Drained,
    /// End all processes gracefully. Final.
    Stop,
    /// Kill all processes. Final.
    Kill,
    /// End supervision without ending the processes. Final.
    Release,
    /// Result of checking a configuration while another process is running: how that can be
    /// replaced, or why the configuration is refused.
    Checked(u64, Result<RestartMode, String>),
    /// A process could not be started.
    SpawnFailed(Run),
    /// A process reports that it serves.
    Ready(Run),
    /// A process has ended.
    Exited(Run, ExitReason),
    /// Result of validating a configuration: an error only if Envoy rejects it.
    Validated(u64, Result<(), String>),
    /// A process did not confirm the request to quit.
    QuitFailed(Run),
    /// A draining process has no client connections left.
    Idle(Run),
    /// A timer has fired.
    Elapsed(Timer),
}

/// Timers that the machine arms. [`super::Machine::waits_for`] tells whether one is still relevant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The process is old enough to be healthy.
    Healthy(Run),
    /// The process has been in this state for the maximum time.
    Over(Run, EpochState),
    /// The wait after a crash has ended.
    Crash,
    /// The wait after a failed replacement has ended.
    Retry,
    /// Clients have had time to learn that the process is about to end.
    MinDrain,
    /// The grace period of the stop has ended.
    Grace,
    /// Grace period and time to quit have both ended.
    Deadline,
    /// The kernel has had time to end everything.
    Last,
}

/// An action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action<D> {
    /// Check the configuration without affecting the running process. Results in [`Event::Checked`]
    /// with this number. Only the last requested check counts.
    Check(u64, D),
    /// Make Envoy validate the configuration while no process serves. Results in
    /// [`Event::Validated`] with this number.
    Validate(u64, D),
    /// Start a process as this epoch, one above the highest that is running, or 0. Results in
    /// [`Event::SpawnFailed`], [`Event::Ready`], [`Event::Exited`].
    Start(Run, u32, D),
    /// Request the serving process to drain its inbound listeners. A failure is ignored.
    Drain(Run),
    /// Watch for the end of the last client connection. Results in [`Event::Idle`].
    AwaitIdle(Run),
    /// Request the serving process to quit. May result in [`Event::QuitFailed`].
    Quit(Run),
    /// Send SIGTERM.
    Terminate(Run),
    /// Send SIGKILL.
    Kill(Run),
    /// Clean up after an epoch that has ended.
    CleanUp(u32),
    /// Deliver [`Event::Elapsed`] after this time. A timer that is armed twice fires once, at the
    /// earlier time.
    Arm(Timer, Duration),
    /// Report that all retries are exhausted. A serving process continues; without one, supervision
    /// ends.
    Spent,
}

/// How supervision ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// On request.
    Stopped {
        /// Whether a process had to be killed.
        forced: bool,
    },
    /// The process exited by itself with code 0.
    Ended,
    /// All retries were exhausted.
    Spent,
    /// The processes continue without supervision.
    Released,
    /// A process that survives SIGKILL prevents further starts.
    Unkillable,
}

/// A process that a former supervisor left running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Adopted {
    /// Its epoch.
    pub epoch: u32,
    /// Whether it runs the wanted configuration.
    pub current: bool,
}
