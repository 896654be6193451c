//! The last error message of an Envoy. Its standard error is forwarded unchanged; of a log file only
//! the end is read. At most one line is stored.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread::Builder;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Maximum number of characters of a message.
const LENGTH: usize = 2_000;
/// Maximum length of a line that is forwarded as a unit, and length of the end of a log file that is
/// read, in bytes.
const LIMIT: u64 = 64 * 1024;
/// Stack size of the forwarding thread, which needs little more than a line.
const STACK: usize = 64 * 1024;
/// How long to wait for the last output after the end of the process. The reader of the dataplane's
/// output may be slow.
const PATIENCE: Duration = Duration::from_millis(500);

/// Levels of log lines that do not report errors.
const HARMLESS: [&str; 4] = ["trace", "debug", "info", "warning"];

/// Whether `line` is a log line of this level, in either format.
fn has_level(line: &str, level: &str) -> bool {
    line.contains(&format!("[{level}]")) || line.contains(&format!(r#""@level":"{level}""#))
}

/// `line`, if it may explain a failure. The last line of a failing Envoy is just the reason, without
/// a log prefix.
fn complaint(line: &str) -> Option<String> {
    let line = line.trim();
    // Backtraces help developers only.
    let harmless = line.is_empty() || line.contains("envoy.backtrace");
    if harmless || HARMLESS.iter().any(|level| has_level(line, level)) {
        return None;
    }
    Some(line.chars().take(LENGTH).collect())
}

/// The last line of level critical, or else the last line.
pub(super) fn refusal(text: &str) -> Option<String> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty()).rev();
    let critical = lines.clone().find(|line| has_level(line, "critical"));
    let line = critical.or_else(|| lines.next())?;
    Some(line.chars().take(LENGTH).collect())
}

/// Forwards the standard error of an Envoy, in a thread that ends with it. If the reader of the
/// dataplane's standard error is slow, only this thread waits.
#[derive(Debug)]
pub(super) struct ForwardedStderr {
    /// The last message; the thread has the sender.
    last: watch::Receiver<Option<String>>,
    /// When to stop waiting for the thread.
    until: Option<Instant>,
}

impl ForwardedStderr {
    /// Starts forwarding the standard error of the future child.
    pub(super) fn of(command: &mut Command) -> io::Result<Self> {
        let (errors, writer) = io::pipe()?;
        command.stderr(writer);
        Self::start(errors)
    }

    fn start(errors: impl Read + Send + 'static) -> io::Result<Self> {
        let (seen, last) = watch::channel(None);
        // The thread ends with the last process that can write to the pipe; all of them are killed by
        // Envoy's owner.
        let pass = move || forward(BufReader::new(errors), &mut io::stderr(), &seen);
        let thread = Builder::new().name("envoy stderr".to_owned());
        thread.stack_size(STACK).spawn(pass)?;
        Ok(Self { last, until: None })
    }

    /// Waits briefly until everything has been forwarded. Cancel safe.
    pub(super) async fn all(&mut self) {
        let until = *self.until.get_or_insert_with(|| Instant::now() + PATIENCE);
        let ended = async { while self.last.changed().await.is_ok() {} };
        let _ = timeout_at(until, ended).await;
    }

    pub(super) fn last_message(&self) -> Option<String> {
        self.last.borrow().clone()
    }
}

fn forward(mut errors: impl BufRead, out: &mut impl Write, last: &watch::Sender<Option<String>>) {
    let mut line = Vec::new();
    // Whole lines, so that they are not interleaved with the dataplane's own.
    while let Ok(1..) = (&mut errors).take(LIMIT).read_until(b'\n', &mut line) {
        // Reading continues even if writing fails, because Envoy would block otherwise.
        let _ = out.write_all(&line);
        if let Some(complaint) = complaint(&String::from_utf8_lossy(&line)) {
            last.send_replace(Some(complaint));
        }
        line.clear();
    }
}

/// The end of a log file that an Envoy appends to.
#[derive(Debug)]
pub(super) struct LogTail {
    path: PathBuf,
    /// Offset at the start of this Envoy; earlier output is not its own.
    from: u64,
}

impl LogTail {
    /// Everything that is appended from now on.
    pub(super) fn from_now(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            from: std::fs::metadata(path).map_or(0, |file| file.len()),
        }
    }

    pub(super) fn last_message(&self) -> Option<String> {
        let mut file = File::open(&self.path).ok()?;
        let length = file.metadata().ok()?.len();
        let from = self.from.max(length.saturating_sub(LIMIT));
        file.seek(SeekFrom::Start(from)).ok()?;
        let mut end = Vec::new();
        file.take(LIMIT).read_to_end(&mut end).ok()?;
        String::from_utf8_lossy(&end)
            .lines()
            .rev()
            .find_map(complaint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "[2026][info][main] starting\n\
        [2026][critical][main] error `cannot bind` initializing config '{\n}'\n\
        [2026][info][main] exiting\n\
        cannot bind '127.0.0.1:19000': Address already in use\n";

    #[test]
    fn everything_is_passed_on_and_the_reason_is_kept() {
        let (mut out, (seen, last)) = (Vec::new(), watch::channel(None));
        forward(SAID.as_bytes(), &mut out, &seen);
        assert_eq!(out, SAID.as_bytes());
        let reason = "cannot bind '127.0.0.1:19000': Address already in use";
        assert_eq!(last.borrow().as_deref(), Some(reason));
        // A line without an end, and one that does not explain a failure.
        let mut out = Vec::new();
        let long = vec![b'x'; 1024 * 1024];
        forward(long.as_slice(), &mut out, &seen);
        assert_eq!(out, long);
        assert_eq!(last.borrow().as_ref().unwrap().len(), LENGTH);
        for harmless in ["[info] all is well", r#"{"@level":"debug"}"#, "  \n"] {
            assert_eq!(complaint(harmless), None);
        }
    }

    #[test]
    fn only_new_lines_of_a_log_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("envoy.log");
        std::fs::write(&path, "what another said\n").unwrap();
        let log = LogTail::from_now(&path);
        assert_eq!(log.last_message(), None);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(SAID.as_bytes()).unwrap();
        let message = log.last_message().unwrap();
        assert!(message.starts_with("cannot bind"), "{message}");
    }

    #[tokio::test]
    async fn the_wait_for_output_is_bounded() {
        let (errors, writer) = io::pipe().unwrap();
        let mut passed = ForwardedStderr::start(errors).unwrap();
        passed.all().await;
        drop(writer);
        assert_eq!(passed.last_message(), None);
    }
}
