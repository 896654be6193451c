//! How to supervise, and how it ended. Values only.

use std::path::PathBuf;

use super::files::Owner;
use super::machine::Outcome;
use super::policy::Policy;
use super::report::ExitRecord;

/// How to supervise; by default with the default policy and without files.
#[derive(Debug, Default)]
pub struct Options {
    /// Times and tables.
    pub policy: Policy,
    /// Where the number of the process that serves is kept. Trouble with it is told in the log.
    pub pid_file: Option<PathBuf>,
    /// Where the snapshot is kept that a successor adopts from.
    pub snapshot: Option<PathBuf>,
    /// Who is named in the snapshot as the owner of the processes.
    pub owner: Option<Owner>,
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
