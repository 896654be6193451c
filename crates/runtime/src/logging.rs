//! Log lines in the form of HashiCorp's `hclog`, as text or as JSON, on standard error.
//!
//! ```text
//! 2026-11-21T01:42:14.847Z [INFO]  legate-dataplane.client: connected: address=10.0.0.7:8502
//! ```
//!
//! The logger's name (`@module` in JSON) is the program's name and, after a dot, the target of the
//! event. An explicit `target: "dns-proxy.udp"` is taken as it is; of a default target only the
//! crate counts, without `legate_`. Fields of enclosing spans stand before those of the event.
//!
//! Times are UTC: the zone of a container is hardly ever anything else. Events of other crates
//! appear from INFO upwards only, whatever the level, because their debug output can hold header
//! values, tokens among them. Nothing here rotates or ships logs.

mod format;
mod layer;

use std::str::FromStr;

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

/// From which weight on events are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything.
    Trace,
    /// What helps to find a fault.
    Debug,
    /// What an operator wants to see; the default of every program.
    #[default]
    Info,
    /// Something is wrong, the program carries on.
    Warn,
    /// Something that was asked for cannot be done.
    Error,
}

impl Level {
    fn filter(self) -> tracing::Level {
        match self {
            Level::Trace => tracing::Level::TRACE,
            Level::Debug => tracing::Level::DEBUG,
            Level::Info => tracing::Level::INFO,
            Level::Warn => tracing::Level::WARN,
            Level::Error => tracing::Level::ERROR,
        }
    }
}

impl FromStr for Level {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Level, LogError> {
        match text.to_ascii_lowercase().as_str() {
            "trace" => Ok(Level::Trace),
            "debug" => Ok(Level::Debug),
            "info" => Ok(Level::Info),
            "warn" => Ok(Level::Warn),
            "error" => Ok(Level::Error),
            _ => Err(LogError::UnknownLevel(text.to_owned())),
        }
    }
}

/// What is logged and how.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Name of the program, first part of every logger's name.
    pub name: &'static str,
    /// From which weight on.
    pub level: Level,
    /// One JSON object a line instead of text.
    pub json: bool,
}

/// Logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The name of a level is none of the five.
    #[error("unknown log level {0:?}: use trace, debug, info, warn or error")]
    UnknownLevel(String),
    /// A process has one log, set up once by its main function.
    #[error("the log of this process has been set up before")]
    AlreadySet(#[source] tracing::dispatcher::SetGlobalDefaultError),
}

/// Sends the events of the whole process to standard error. To be called once, by `main`.
///
/// # Errors
///
/// [`LogError::AlreadySet`] on a second call.
pub fn init(options: LogOptions) -> Result<(), LogError> {
    let subscriber = subscriber(options, std::io::stderr);
    tracing::subscriber::set_global_default(subscriber).map_err(LogError::AlreadySet)
}

/// The same log written elsewhere, for one thread or one test: see `tracing::subscriber`.
pub fn subscriber<W>(options: LogOptions, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    tracing_subscriber::registry().with(layer::LineLayer::new(options, writer))
}

#[cfg(test)]
mod tests;
