//! Parameters of supervision, and the tables of waits. Values only, no clock.

use std::path::PathBuf;
use std::time::Duration;

use super::files::Owner;

/// See [`Options::on_restart`].
pub(super) type OnRestart = Box<dyn FnMut(RestartKind) + Send>;

/// Why a process was started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartKind {
    /// It takes over from the serving one.
    Hot,
    /// The previous one was ended for it.
    Cold,
    /// The previous one ended by itself, or could not be taken over from.
    Crash,
}

/// Parameters of supervision. The default has the default policy and no files.
#[derive(Default)]
pub struct Options {
    /// Times and limits.
    pub policy: Policy,
    /// Path of the pid file with the serving process. Write errors are logged.
    pub pid_file: Option<PathBuf>,
    /// Path of the snapshot from which a successor adopts processes.
    pub snapshot: Option<PathBuf>,
    /// The owner of the processes, for the snapshot.
    pub owner: Option<Owner>,
    /// Called for every start of a process except the first. Must not block.
    pub on_restart: Option<OnRestart>,
}

/// Age of a process at which earlier failures are forgotten.
pub(super) const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// Number of retries after failed starts.
pub(super) const RETRIES: u32 = 10;
/// The wait after the first failed replacement; it doubles with each further one.
pub(super) const RETRY_INITIAL: Duration = Duration::from_millis(200);
/// Number of consecutive starts without a wait.
pub(super) const IMMEDIATE_STARTS: u32 = 3;
/// Longest wait before a crashed process is started again.
pub(super) const CRASH_WAIT_CAP: Duration = Duration::from_secs(60);
/// Time limit for a replacement to become ready while an older epoch serves.
pub(super) const START_WITHIN: Duration = Duration::from_secs(60);
/// Time limit for a process to end after SIGTERM, before SIGKILL.
pub(super) const ABORT_WAIT: Duration = Duration::from_secs(5);
/// Time limit for the kernel to end a process after SIGKILL.
pub(super) const REAP_WAIT: Duration = Duration::from_secs(5);

/// The usual [`Policy::min_drain`], as in Istio.
pub const MIN_DRAIN: Duration = Duration::from_secs(5);

/// Behaviour of the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Whether to drain inbound listeners during the grace period of a stop.
    pub drain: bool,
    /// How long a ready process keeps serving after a stop was requested.
    pub grace: Duration,
    /// With `drain`: end the grace period as soon as there are no client connections, but not
    /// before this time, in which clients learn that this instance is about to end, unless they were
    /// told before ([`Handle::drained`](super::Handle::drained)). `None` disables this: an application
    /// that stops at the same time may still call others.
    pub min_drain: Option<Duration>,
    /// Time limit for processes to quit after the grace period, before they are killed.
    pub kill_after: Duration,
    /// Time limit for an older epoch after its handover. Must be longer than the parent shutdown
    /// time, after which Envoy ends it.
    pub hand_over: Duration,
    /// How long a process drains before a cold restart; zero disables the drain.
    pub cold_restart_grace: Duration,
}

impl Default for Policy {
    /// No drain and no grace period. An older epoch gets 5 s more than Envoy's default of a minute.
    fn default() -> Self {
        Self {
            drain: false,
            grace: Duration::ZERO,
            min_drain: None,
            kill_after: Duration::from_secs(10),
            hand_over: Duration::from_secs(65),
            cold_restart_grace: Duration::ZERO,
        }
    }
}

/// The wait before the `attempt`-th start (from 1) since a process was last healthy, if no other
/// process serves: 0, 0, 0, 2, 4, 8, 16, 32, 60, 60 … seconds.
pub(super) fn crash_wait(attempt: u32) -> Duration {
    match attempt.checked_sub(IMMEDIATE_STARTS) {
        None | Some(0) => Duration::ZERO,
        Some(exponent) => Duration::from_secs(2_u64.saturating_pow(exponent)).min(CRASH_WAIT_CAP),
    }
}

/// The wait after the `failure`-th failure (from 1) of a replacement while an older epoch serves:
/// 0.2, 0.4, 0.8 … 102.4 seconds.
pub(super) fn retry_wait(failure: u32) -> Duration {
    RETRY_INITIAL * 2_u32.saturating_pow(failure.saturating_sub(1).min(RETRIES - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_as_documented() {
        let seconds: Vec<u64> = (1..=12).map(|n| crash_wait(n).as_secs()).collect();
        assert_eq!(seconds, [0, 0, 0, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert_eq!(crash_wait(u32::MAX), CRASH_WAIT_CAP);
        let millis: Vec<u128> = (1..=10).map(|n| retry_wait(n).as_millis()).collect();
        let expected = [
            200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400,
        ];
        assert_eq!(millis, expected);
        assert_eq!(retry_wait(u32::MAX), retry_wait(RETRIES));
    }
}
