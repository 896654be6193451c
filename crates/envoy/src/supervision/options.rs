//! How to supervise, with the tables of waits. Values only; nothing here has a clock.

use std::path::PathBuf;
use std::time::Duration;

use super::files::Owner;

/// See [`Options::on_restart`].
pub(super) type OnRestart = Box<dyn FnMut(RestartKind) + Send>;

/// How it came that a process was started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartKind {
    /// It takes over from the one that serves.
    Hot,
    /// The one before it was ended to make room for it.
    Cold,
    /// The one before it ended by itself, or could not be taken over from.
    Crash,
}

/// How to supervise; by default with the default policy and without files.
#[derive(Default)]
pub struct Options {
    /// Times and tables.
    pub policy: Policy,
    /// Where the number of the process that serves is kept. Trouble with it is logged.
    pub pid_file: Option<PathBuf>,
    /// Where the snapshot is kept that a successor adopts from.
    pub snapshot: Option<PathBuf>,
    /// Who is named in the snapshot as the owner of the processes.
    pub owner: Option<Owner>,
    /// Called whenever a process is started after the first one. Must not block.
    pub on_restart: Option<OnRestart>,
}

/// How long a process has to live until its earlier failures are forgotten.
pub(super) const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// How many times a failed start is tried again until the hook for a spent budget decides.
pub(super) const RETRIES: u32 = 10;
/// The first wait after a failed replacement; each further one is twice as long.
pub(super) const RETRY_INITIAL: Duration = Duration::from_millis(200);
/// How many starts after one another need no wait.
pub(super) const IMMEDIATE_STARTS: u32 = 3;
/// The longest wait before a process that crashed is started again.
pub(super) const CRASH_WAIT_CAP: Duration = Duration::from_secs(60);
/// How long a replacement may take to become ready while an older epoch serves.
pub(super) const START_WITHIN: Duration = Duration::from_secs(60);
/// How long an abandoned process may take to end after SIGTERM before it is sent SIGKILL.
pub(super) const ABORT_WAIT: Duration = Duration::from_secs(5);
/// How long the kernel may take to end a process that was sent SIGKILL.
pub(super) const REAP_WAIT: Duration = Duration::from_secs(5);

/// The usual [`Policy::min_drain`]: what Istio's proxies do.
pub const MIN_DRAIN: Duration = Duration::from_secs(5);

/// How the supervisor behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Drain inbound listeners during the grace period of a stop.
    pub drain: bool,
    /// How long a ready process keeps serving after a stop was asked for.
    pub grace: Duration,
    /// With `drain`: end the grace period as soon as nobody is connected, but not before this time,
    /// in which clients hear that this instance goes away. `None` for never: an application that
    /// stops at the same time may still call others later.
    pub min_drain: Option<Duration>,
    /// How long processes may take to quit after the grace period, before they are killed.
    pub kill_after: Duration,
    /// How long an older epoch may live after it handed over. Envoy ends it after its parent
    /// shutdown time, so this has to be longer.
    pub hand_over: Duration,
    /// How long a process drains before a plain restart ends it; zero for not at all.
    pub cold_restart_grace: Duration,
}

impl Default for Policy {
    /// Without drains and grace; an older epoch has 5 s more than a minute after the hand-over.
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

/// The wait before the `attempt`-th start (from 1) since a process was last healthy, when nothing
/// else serves: 0, 0, 0, 2, 4, 8, 16, 32, 60, 60 … seconds.
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
