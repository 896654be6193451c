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
//!
//! A thread of its own writes the lines, so that a reader which does not keep up, or a full disk,
//! holds up nothing else. What does not fit into its queue is lost, and counted in a line of its own
//! as soon as the log is taken again.

mod follow;
mod format;
mod layer;
mod queue;

use std::io::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

pub use self::follow::{Lines, TooManyFollowers, follow};
pub use self::queue::LineQueue;

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
    /// The level's name in settings, ours and Envoy's.
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

    /// All of them; the place of each is its number.
    const ALL: [Level; 5] = [
        Level::Trace,
        Level::Debug,
        Level::Info,
        Level::Warn,
        Level::Error,
    ];

    /// The level that is kept in a number.
    fn of(number: &AtomicU8) -> Level {
        let number = usize::from(number.load(Ordering::Relaxed));
        Level::ALL.get(number).copied().unwrap_or_default()
    }

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
    /// There is no room for the thread that writes.
    #[error("no thread can be started that writes the log: {0}")]
    Thread(io::Error),
}

/// The log of the process. Dropping it waits until everything has been written, for a second at
/// most: whoever ends the process keeps it until then.
#[must_use = "what waits to be written is lost when the process ends without it"]
#[derive(Debug)]
pub struct Log {
    queue: LineQueue,
    level: Arc<AtomicU8>,
}

/// How long the end of the process waits for whoever reads the log.
const FLUSH: Duration = Duration::from_secs(1);

impl Log {
    /// Writes a line as it is, behind those that were logged before. It takes no time.
    pub fn line(&self, line: &str) {
        self.queue.push(format!("{line}\n").as_bytes());
    }

    /// What changes from which weight on events are logged.
    #[must_use]
    pub fn level(&self) -> LogLevel {
        LogLevel(Arc::clone(&self.level))
    }
}

/// From which weight on the events of a running process are logged.
#[derive(Clone, Debug)]
pub struct LogLevel(Arc<AtomicU8>);

impl LogLevel {
    /// Logs events from this weight on, from now on.
    pub fn set(&self, level: Level) {
        self.0.store(level as u8, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue.flush(FLUSH);
    }
}

/// Sends the events of the whole process to standard error. To be called once, by `main`, which
/// keeps what it returns until the process ends.
///
/// # Errors
///
/// [`LogError::AlreadySet`] on a second call; [`LogError::Thread`] where no thread can be started.
pub fn init(options: LogOptions) -> Result<Log, LogError> {
    init_to(options, io::stderr())
}

/// The same to another output.
///
/// # Errors
///
/// As of [`init`].
pub fn init_to(options: LogOptions, output: impl Write + Send + 'static) -> Result<Log, LogError> {
    let note = move |lost| layer::lost_lines(options.name, options.json, lost);
    let queue = LineQueue::start(output, note).map_err(LogError::Thread)?;
    let layer = layer::LineLayer::new(options, queue.clone());
    let level = layer.level();
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).map_err(LogError::AlreadySet)?;
    Ok(Log { queue, level })
}

/// The same log written elsewhere, for one thread or one test: see `tracing::subscriber`.
pub fn subscriber<W>(options: LogOptions, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    tracing_subscriber::registry().with(layer::LineLayer::new(options, writer))
}

/// An output of two: the second one gets all that the first one gets, and its failures are the first
/// one's lines.
pub struct Both<A, B>(pub A, pub B);

impl<A: Write, B: Write> Write for Both<A, B> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let first = self.0.write_all(bytes);
        if let Err(error) = self.1.write_all(bytes) {
            writeln!(self.0, "the log file cannot be written: {error}")?;
        }
        first
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()?;
        self.1.flush()
    }
}

#[cfg(test)]
mod tests;
