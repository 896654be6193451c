//! What others can see of the supervisor: epochs, the last exits, what stands in the way, and how it ended.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::machine::{EpochState, Outcome};
use crate::process::ExitReason;

/// How many exits are remembered.
pub(super) const EXITS: usize = 16;

/// What the supervisor knows at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The living epochs, the newest last.
    pub epochs: Vec<EpochReport>,
    /// The last `EXITS` exits, the newest last.
    pub exits: VecDeque<ExitRecord>,
    /// How many processes were started.
    pub starts: u64,
    /// When the next start is due, while one is waited for.
    pub next_start: Option<Instant>,
    /// Why the last start or configuration was refused, until one is ready.
    pub refusal: Option<String>,
    /// How many starts and configurations were refused.
    pub refusals: u64,
    /// Why processes cannot be replaced without a gap, when they cannot.
    pub obstacle: Option<String>,
    /// Whether everything is about to end.
    pub stopping: bool,
}

/// A living epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochReport {
    /// Its number.
    pub epoch: u32,
    /// Its process.
    pub pid: u32,
    /// Where it is in its life.
    pub state: EpochState,
    /// When it was started, or adopted.
    pub since: Instant,
    /// Whether a former supervisor started it.
    pub adopted: bool,
}

/// An epoch that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitRecord {
    /// Its number.
    pub epoch: u32,
    /// The process it was.
    pub pid: u32,
    /// How it ended.
    pub reason: ExitReason,
    /// Whether it had been asked to end, or had handed over.
    pub expected: bool,
    /// How long it lived.
    pub lived: Duration,
    /// When it ended.
    pub at: Instant,
}

impl Report {
    pub(super) fn refuse(&mut self, reason: String) {
        self.refusal = Some(reason);
        self.refusals += 1;
    }

    /// Whether an epoch serves, and none is wanted to end.
    pub fn ready(&self) -> bool {
        !self.stopping && self.epochs.iter().any(|epoch| epoch.state.serves())
    }

    /// The epoch that serves, else the newest one.
    pub fn current(&self) -> Option<&EpochReport> {
        let serving = self.epochs.iter().rev().find(|epoch| epoch.state.serves());
        serving.or_else(|| self.epochs.last())
    }
}

/// How supervision ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Why.
    pub outcome: Outcome,
    /// The last exit of a process.
    pub last: Option<ExitRecord>,
    /// Why the last start or configuration was refused, if no process was ready since.
    pub refusal: Option<String>,
    /// Whether it ended early because the program refuses the configuration, in the words of
    /// `refusal`.
    pub refused: bool,
}
