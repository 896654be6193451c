//! Log lines in the form of HashiCorp's `hclog`, as text or as JSON, on standard error.
//!
//! ```text
//! 2026-11-21T01:42:14.847Z [INFO]  legate-dataplane.client: connected: address=10.0.0.7:8502
//! ```
//!
//! The logger's name (`@module` in JSON) is the program's name and, after a dot, the target of the
//! event. An explicit `target: "dns-proxy.udp"` is used verbatim; of a default target only the
//! crate's name is used, without `legate_`. Fields of enclosing spans precede those of the event.
//!
//! Times are in UTC, as in nearly all containers. Events of other crates are logged from INFO upwards
//! only, whatever the level, because their debug output can contain header values such as tokens.
//! Nothing here rotates or ships logs.
//!
//! A separate thread writes the lines, so that a slow reader or a full disk does not block the
//! program. Lines that do not fit into its queue are dropped, and a line with their number follows
//! once the output accepts data again.

mod follow;
mod format;
mod layer;
mod level;
mod lost;
mod queue;

use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

pub use self::follow::{Lines, TooManyFollowers, follow};
pub use self::layer::LogOptions;
pub use self::level::{Level, LogLevel, UnknownLevel};
pub use self::queue::LineQueue;

/// Logging cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log is already set up; `main` does this once per process.
    #[error("the log of this process has been set up before")]
    AlreadySet(#[source] tracing::dispatcher::SetGlobalDefaultError),
    /// The thread that writes the log cannot be started.
    #[error("no thread can be started that writes the log: {0}")]
    Thread(io::Error),
}

/// The log of the process. Dropping it flushes the log, for at most a second, so `main` holds it
/// until the process ends.
#[must_use = "what waits to be written is lost when the process ends without it"]
#[derive(Debug)]
pub struct Log {
    queue: LineQueue,
    level: LogLevel,
}

/// The maximum duration of the flush at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

impl Log {
    /// Writes a line verbatim, after those that were logged before. Never blocks.
    pub fn line(&self, line: &str) {
        self.queue.push(format!("{line}\n").as_bytes());
    }

    /// Handle for changing the log level.
    #[must_use]
    pub fn level(&self) -> LogLevel {
        self.level.clone()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue.flush(FLUSH_TIMEOUT);
    }
}

/// The level of the log of the process, which is one for the whole process as the log is.
static PROCESS: OnceLock<LogLevel> = OnceLock::new();

/// Handle for changing the level of the log of the process; `None` before [`init`].
pub fn process_level() -> Option<&'static LogLevel> {
    PROCESS.get()
}

/// Logs the events of the whole process to standard error. Called once, by `main`, which holds the
/// result until the process ends.
///
/// # Errors
///
/// [`LogError::AlreadySet`] on a second call; [`LogError::Thread`] when no thread can be started.
pub fn init(options: LogOptions) -> Result<Log, LogError> {
    init_to(options, io::stderr())
}

/// As [`init`], but with another output.
///
/// # Errors
///
/// As for [`init`].
pub fn init_to(options: LogOptions, output: impl Write + Send + 'static) -> Result<Log, LogError> {
    let note = move |lost| lost::lost_lines(options.name, options.json, lost);
    let queue = LineQueue::start(output, note).map_err(LogError::Thread)?;
    let layer = layer::LineLayer::new(options, queue.clone());
    let level = layer.level();
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).map_err(LogError::AlreadySet)?;
    // Succeeds where the line before it does.
    let _ = PROCESS.set(level.clone());
    Ok(Log { queue, level })
}

/// A subscriber that logs to a writer, for one thread or test: see `tracing::subscriber`.
pub fn subscriber<W>(options: LogOptions, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    tracing_subscriber::registry().with(layer::LineLayer::new(options, writer))
}

/// Combines two outputs. Both get the same bytes, and failures of the second are logged to the first.
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
