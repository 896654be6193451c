//! How to supervise, what the owner decides meanwhile, and how it ended. Values and hooks only.

use std::path::PathBuf;

use super::files::{FileError, Owner};
use super::machine::{Outcome, Verdict};
use super::policy::Policy;
use super::report::ExitRecord;

/// What is decided by whoever owns the supervisor. Hooks must not block.
pub struct Hooks {
    /// Called after each exit.
    pub exited: Box<dyn FnMut(&ExitRecord) + Send>,
    /// Called when all retries are spent; the argument tells whether an older epoch still serves.
    pub spent: Box<dyn FnMut(bool) -> Verdict + Send>,
}

impl Default for Hooks {
    /// Nothing after an exit. With spent retries, what serves goes on serving; when nothing does,
    /// supervision ends.
    fn default() -> Self {
        Self {
            exited: Box::new(|_| {}),
            spent: Box::new(|serving| {
                if serving {
                    Verdict::Keep
                } else {
                    Verdict::Exit
                }
            }),
        }
    }
}

/// How to supervise.
pub struct Options {
    /// Times and tables.
    pub policy: Policy,
    /// Where the number of the process that serves is kept. Trouble with it is told in the log.
    pub pid_file: Option<PathBuf>,
    /// Where the snapshot is kept that a successor adopts from.
    pub snapshot: Option<PathBuf>,
    /// Who is named in the snapshot as the owner of the processes.
    pub owner: Option<Owner>,
    /// Whether processes may run as root.
    pub allow_root: bool,
    /// What the owner decides.
    pub hooks: Hooks,
}

impl Default for Options {
    /// The default policy and hooks, no files, also as root.
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            pid_file: None,
            snapshot: None,
            owner: None,
            allow_root: true,
            hooks: Hooks::default(),
        }
    }
}

/// Why supervision cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The process would run as root.
    #[error("Envoy would run as root, which is not allowed here; run as another user or allow it")]
    Root,
    /// The snapshot cannot be read or written.
    #[error(transparent)]
    Snapshot(#[from] FileError),
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
