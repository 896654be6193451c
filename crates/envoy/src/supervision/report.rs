//! The supervisor's state as others see it: epochs, last exits, the obstacle to hot restarts, and the
//! outcome.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::machine::{EpochState, Outcome};
use crate::process::ExitReason;

/// Maximum number of exits in a report.
pub(super) const EXITS: usize = 16;

/// The current state of the supervisor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Running epochs, newest last.
    pub epochs: Vec<EpochReport>,
    /// The last `EXITS` exits, newest last.
    pub exits: VecDeque<ExitRecord>,
    /// Number of started processes.
    pub starts: u64,
    /// When the next start is due; `None` unless one is scheduled.
    pub next_start: Option<Instant>,
    /// Why the last start or configuration was refused; `None` once a process has become ready.
    pub refusal: Option<String>,
    /// Number of refused starts and configurations.
    pub refusals: u64,
    /// Why processes cannot be replaced without a gap, if there is a reason.
    pub obstacle: Option<String>,
    /// Whether supervision is ending.
    pub stopping: bool,
}

/// A running epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochReport {
    /// Its number.
    pub epoch: u32,
    /// Its process id.
    pub pid: u32,
    /// Its state.
    pub state: EpochState,
    /// When it was started or adopted.
    pub since: Instant,
    /// Whether a former supervisor started it.
    pub adopted: bool,
}

/// An epoch that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitRecord {
    /// Its number.
    pub epoch: u32,
    /// Its process id.
    pub pid: u32,
    /// How it ended.
    pub reason: ExitReason,
    /// Whether it had been asked to end, or had handed over.
    pub expected: bool,
    /// Its lifetime.
    pub lived: Duration,
    /// When it ended.
    pub at: Instant,
}

impl Report {
    pub(super) fn refuse(&mut self, reason: String) {
        self.refusal = Some(reason);
        self.refusals += 1;
    }

    /// Whether an epoch serves and supervision is not ending.
    pub fn ready(&self) -> bool {
        !self.stopping && self.epochs.iter().any(|epoch| epoch.state.serves())
    }

    /// The serving epoch, or else the newest one.
    pub fn current(&self) -> Option<&EpochReport> {
        let serving = self.epochs.iter().rev().find(|epoch| epoch.state.serves());
        serving.or_else(|| self.epochs.last())
    }
}

/// How supervision ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The outcome.
    pub outcome: Outcome,
    /// The last exit of a process.
    pub last: Option<ExitRecord>,
    /// Why the last start or configuration was refused; `None` if a process has become ready since.
    pub refusal: Option<String>,
    /// Whether supervision ended early because the program rejects the configuration, with the message in
    /// `refusal`.
    pub refused: bool,
}
