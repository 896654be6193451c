//! What Envoy is started with.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use legate_runtime::logging::Level;

/// How to start Envoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program, see [`crate::find_executable`].
    pub executable: PathBuf,
    /// The bootstrap document, see [`crate::bootstrap::build`].
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

/// The place of an Envoy in a hot restart: it takes over from the epoch below its own, and hands over
/// to the one above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Number of its epoch (`--restart-epoch`), one above that of its parent.
    pub epoch: u32,
    /// What parent and child share (`--base-id`). At first nothing, in epoch 0: Envoy chooses a
    /// number (`--use-dynamic-base-id`).
    pub base_id: Option<u32>,
    /// Where Envoy writes the number that it chooses (`--base-id-path`).
    pub base_id_file: PathBuf,
    /// When the parent ends after the child took over, in whole seconds
    /// (`--parent-shutdown-time-s`).
    pub parent_shutdown: Duration,
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
pub struct SpawnError(pub(super) String);
