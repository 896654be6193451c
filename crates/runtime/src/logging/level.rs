//! Log levels.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Minimum level of logged events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything.
    Trace,
    /// Details for debugging.
    Debug,
    /// Information for operators; the default of every program.
    #[default]
    Info,
    /// Something is wrong, but the program continues.
    Warn,
    /// An operation failed.
    Error,
}

impl Level {
    /// The level's name in settings of Legate and Envoy.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Trace => "trace",
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }

    /// All levels; the index of each is its number.
    const ALL: [Level; 5] = [
        Level::Trace,
        Level::Debug,
        Level::Info,
        Level::Warn,
        Level::Error,
    ];

    pub(super) fn filter(self) -> tracing::Level {
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
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Level, UnknownLevel> {
        match text.to_ascii_lowercase().as_str() {
            "trace" => Ok(Level::Trace),
            "debug" => Ok(Level::Debug),
            "info" => Ok(Level::Info),
            "warn" => Ok(Level::Warn),
            "error" => Ok(Level::Error),
            _ => Err(UnknownLevel(text.to_owned())),
        }
    }
}

/// A text that is not the name of a level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown log level {0:?}: use trace, debug, info, warn or error")]
pub struct UnknownLevel(String);

/// The current level of a running process. Clones share it.
#[derive(Clone, Debug)]
pub struct LogLevel(Arc<AtomicU8>);

impl LogLevel {
    /// A level that no log has yet.
    #[must_use]
    pub fn new(level: Level) -> LogLevel {
        LogLevel(Arc::new(AtomicU8::new(level as u8)))
    }

    /// The level now.
    #[must_use]
    pub fn get(&self) -> Level {
        let number = usize::from(self.0.load(Ordering::Relaxed));
        Level::ALL.get(number).copied().unwrap_or_default()
    }

    /// Changes the level.
    pub fn set(&self, level: Level) {
        self.0.store(level as u8, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }
}
