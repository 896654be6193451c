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
pub use exit::ExitReason;
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
    Hot {
        /// Number of its epoch (`--restart-epoch`), one above that of its parent.
        epoch: u32,
        /// What parent and child share.
        family: Family,
        /// When the parent ends after the child took over, in whole seconds
        /// (`--parent-shutdown-time-s`).
        parent_shutdown: Duration,
    },
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

/// Why Envoy could not be started, and what to look at.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SpawnError(String);
