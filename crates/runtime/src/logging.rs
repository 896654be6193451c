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
mod level;
mod lost;
mod queue;

use std::io::{self, Write};
use std::time::Duration;

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

pub use self::follow::{Lines, TooManyFollowers, follow};
pub use self::layer::LogOptions;
pub use self::level::{Level, LogLevel, UnknownLevel};
pub use self::queue::LineQueue;

/// Logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
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
    level: LogLevel,
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
        self.level.clone()
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
    let note = move |lost| lost::lost_lines(options.name, options.json, lost);
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
