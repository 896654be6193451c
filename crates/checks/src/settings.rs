//! Agent settings for the checks of its node.

use std::time::Duration;

use legate_model::OUTPUT_MAX_SIZE;
use legate_store::Source;

/// Settings for all checks of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Checks that may run programs. Default: none.
    pub scripts: Scripts,
    /// The maximum size of stored output in bytes. Default 4096.
    pub output_max_size: u64,
    /// The minimum interval for writing a changed output without a change of status. Default 5
    /// minutes.
    pub output_interval: Duration,
    /// Address of the Docker daemon for programs in containers: `unix:///PATH` or `tcp://HOST:PORT`.
    /// Default: `unix:///var/run/docker.sock`.
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

/// Checks that may run programs. Clients that define such checks can execute commands on the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scripts {
    /// None.
    #[default]
    Off,
    /// Those in configuration files. Consul's `enable_local_script_checks`.
    OfFiles,
    /// All. Consul's `enable_script_checks`.
    All,
}

impl Scripts {
    /// Whether a check from this source may run a program.
    pub fn permit(self, source: Source) -> bool {
        match self {
            Self::Off => false,
            Self::OfFiles => source == Source::Files,
            Self::All => true,
        }
    }
}
