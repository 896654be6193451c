//! How to supervise, and how it ended. Values only.

use std::path::PathBuf;

use super::files::Owner;
use super::machine::Outcome;
use super::policy::Policy;
use super::report::ExitRecord;

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
    /// Where the number of the process that serves is kept. Trouble with it is told in the log.
    pub pid_file: Option<PathBuf>,
    /// Where the snapshot is kept that a successor adopts from.
    pub snapshot: Option<PathBuf>,
    /// Who is named in the snapshot as the owner of the processes.
    pub owner: Option<Owner>,
    /// Called whenever a process is started after the first one. Must not block.
    pub on_restart: Option<OnRestart>,
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
