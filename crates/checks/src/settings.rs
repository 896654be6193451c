//! What the agent of a node permits its checks.

use std::time::Duration;

use legate_model::OUTPUT_MAX_SIZE;
use legate_store::Source;

/// The settings of all checks of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Which checks may run programs. Default: none.
    pub scripts: Scripts,
    /// How many bytes of an output are kept at most. Default 4096.
    pub output_max_size: u64,
    /// How often a new output of the same status is written. Default 5 minutes.
    pub output_interval: Duration,
    /// Where Docker is asked to run programs in containers: `unix:///PATH` or `tcp://HOST:PORT`. Default:
    /// `unix:///var/run/docker.sock`.
    pub docker_host: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scripts: Scripts::default(),
            output_max_size: OUTPUT_MAX_SIZE,
            output_interval: Duration::from_secs(300),
            docker_host: "unix:///var/run/docker.sock".to_owned(),
        }
    }
}

/// Which checks may run programs: whoever defines one decides what the agent executes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scripts {
    /// None.
    #[default]
    Off,
    /// Those of the configuration files. Consul's `enable_local_script_checks`.
    OfFiles,
    /// All. Consul's `enable_script_checks`.
    All,
}

impl Scripts {
    /// Whether a check that was defined there may run a program.
    pub fn permit(self, source: Source) -> bool {
        match self {
            Self::Off => false,
            Self::OfFiles => source == Source::Files,
            Self::All => true,
        }
    }
}
