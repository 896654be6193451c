//! The Envoy process: its command line, its start in a process group of its own, and how it
//! ended. Decides nothing about when to stop; that is the supervisor's.

mod arguments;
mod child;
mod document;
mod exit;
mod parent_death;
mod words;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use legate_runtime::logging::Level;

pub(crate) use arguments::hot_restart_option;
pub use child::EnvoyProcess;
pub(crate) use child::ValidationError;
pub(crate) use child::run_short;
pub use exit::{ExitReason, OutOfMemory};
pub use parent_death::tie;
pub(crate) use words::LogTail;

/// Variables that hold secrets of the dataplane and never reach Envoy.
const SECRET_VARIABLES: [&str; 2] = [
    "DP_CREDENTIAL_STATIC_TOKEN",
    "DP_CREDENTIAL_LOGIN_BEARER_TOKEN",
];

/// How to start Envoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program, see [`crate::find_executable`].
    pub executable: PathBuf,
    /// The bootstrap document, see [`crate::bootstrap::Bootstrap::to_json`].
    pub bootstrap: String,
    /// Level and format of Envoy's own log.
    pub log: EnvoyLog,
    /// Worker threads.
    pub concurrency: u32,
    /// How long Envoy's listeners drain; whole seconds count.
    pub drain_time: Duration,
    /// How clients are asked to close their connections during that time.
    pub drain_strategy: DrainStrategy,
    /// The user's own arguments; they win over the settings above.
    pub extra_args: Vec<OsString>,
}

/// The place of an Envoy in a hot restart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Restart {
    /// It shares nothing with any other (`--disable-hot-restart`).
    #[default]
    Disabled,
    /// It takes over from the epoch below its own, and hands over to the one above.
    Hot(HotRole),
}

/// The options of a hot restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotRole {
    /// Number of its epoch (`--restart-epoch`), one above that of its parent.
    pub epoch: u32,
    /// What parent and child share.
    pub family: Family,
    /// When the parent ends after the child took over, in whole seconds
    /// (`--parent-shutdown-time-s`).
    pub parent_shutdown: Duration,
}

/// What parent and child share in a hot restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Family {
    /// This base id (`--base-id`).
    Known(u32),
    /// One that Envoy chooses and writes to this file (`--use-dynamic-base-id`,
    /// `--base-id-path`); only for epoch 0.
    Chosen(PathBuf),
}

/// Envoy's own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvoyLog {
    /// Least level that is written.
    pub level: Level,
    /// One JSON object a line, with the field names of the dataplane's own JSON log.
    pub json: bool,
}

/// How clients are asked to close their connections while Envoy drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DrainStrategy {
    /// All at once (the dataplane's default).
    #[default]
    Immediate,
    /// With a probability that grows over the drain time.
    Gradual,
}

impl DrainStrategy {
    /// The word that Envoy's `--drain-strategy` takes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Immediate => "immediate",
            Self::Gradual => "gradual",
        }
    }

    /// Reads the word that Envoy's `--drain-strategy` takes.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Immediate, Self::Gradual]
            .into_iter()
            .find(|strategy| strategy.as_str() == word)
    }
}

/// Why Envoy could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The operating system refused to start the program.
    #[error("cannot start Envoy ({executable:?}): {source}{advice}")]
    Start {
        /// The program.
        executable: PathBuf,
        /// What to look at, when the error is a known one.
        advice: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A user's argument gets in the way of the bootstrap document.
    #[error(
        "the Envoy argument {argument} cannot be combined with the generated bootstrap document{because}; remove it from what follows --"
    )]
    Reserved {
        /// The argument.
        argument: String,
        /// Why, when it is not always so.
        because: &'static str,
    },
    /// There is no place for Envoy's log.
    #[error("Envoy's log {path:?} cannot be written: {source}")]
    Log {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The bootstrap document is too large for an argument, and no memory file can be had.
    #[error(
        "the bootstrap document has {bytes} bytes, too many for an argument, and the memory file for it failed: {source}"
    )]
    MemoryFile {
        /// Its size.
        bytes: usize,
        /// What the operating system said.
        source: std::io::Error,
    },
}
