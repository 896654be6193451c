//! Parameters of a start of Envoy.

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
    /// Drain time of Envoy's listeners, in whole seconds.
    pub drain_time: Duration,
    /// How clients are asked to close their connections during that time.
    pub drain_strategy: DrainStrategy,
    /// The user's own arguments, which take precedence over the settings above.
    pub extra_args: Vec<OsString>,
}

/// The place of an Envoy in a hot restart family: it takes over from the previous epoch and hands
/// over to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotRestartRole {
    /// Its epoch (`--restart-epoch`), one above that of its parent.
    pub epoch: u32,
    /// The id that parent and child share (`--base-id`). `None` for the first Envoy, which chooses it
    /// (`--use-dynamic-base-id`).
    pub base_id: Option<u32>,
    /// The file that Envoy writes the chosen id to (`--base-id-path`).
    pub base_id_file: PathBuf,
    /// When the parent ends after the takeover, in whole seconds (`--parent-shutdown-time-s`).
    pub parent_shutdown: Duration,
}

/// Envoy's own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvoyLog {
    /// Lowest level that is logged.
    pub level: Level,
    /// Whether to log one JSON object per line, with the field names of the dataplane's JSON log.
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
    /// The value for Envoy's `--drain-strategy`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Immediate => "immediate",
            Self::Gradual => "gradual",
        }
    }

    /// Parses a value of Envoy's `--drain-strategy`.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Immediate, Self::Gradual]
            .into_iter()
            .find(|strategy| strategy.as_str() == word)
    }
}

/// Why Envoy could not be started, with advice.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SpawnError(pub(super) String);
