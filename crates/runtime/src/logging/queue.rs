//! A queue of lines for an output that may be slow or blocked. Writers never wait: lines that do not
//! fit are dropped and counted.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// The maximum number of queued bytes, 1 MiB: minutes of an ordinary log.
const CAPACITY: usize = 1024 * 1024;

/// Lines that wait to be written. Clones share the queue.
#[derive(Clone, Debug)]
pub struct LineQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when there is something to write.
    filled: Condvar,
    /// Notified when everything has been written.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<u8>,
    /// Number of lines dropped after the queued ones.
    lost: u64,
    /// Whether lines that were taken from the queue are being written.
    writing: bool,
}

impl LineQueue {
    /// Starts the thread that writes to `output`; `note` formats the line with the number of dropped
    /// lines.
    ///
    /// The thread runs until the process ends. It may block indefinitely, so it is never joined.
    ///
    /// # Errors
    ///
    /// When the system cannot start another thread.
    pub fn start(
        output: impl Write + Send + 'static,
        note: impl Fn(u64) -> String + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            filled: Condvar::new(),
            emptied: Condvar::new(),
        });
        let writer = Arc::clone(&shared);
        thread::Builder::new()
            .name("log".to_owned())
            .stack_size(128 * 1024)
            .spawn(move || writer.write(output, note))?;
        Ok(Self(shared))
    }

    /// Appends a line, as a whole or not at all.
    pub fn push(&self, line: &[u8]) {
        let mut state = self.0.state();
        // Lines after dropped ones are dropped as well, so that the note is at the right position.
        if state.lost > 0 || state.lines.len() + line.len() > CAPACITY {
            state.lost += 1;
            return;
        }
        state.lines.extend_from_slice(line);
        self.0.filled.notify_one();
    }

    /// Waits until everything has been written; returns whether that was within `time`.
    pub fn flush(&self, time: Duration) -> bool {
        let waited = self
            .0
            .emptied
            .wait_timeout_while(self.0.state(), time, |state| state.is_busy());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.is_busy()
    }
}

impl State {
    fn is_busy(&self) -> bool {
        self.writing || self.lost > 0 || !self.lines.is_empty()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, mut output: impl Write, note: impl Fn(u64) -> String) {
        let mut state = self.state();
        loop {
            let waited = self
                .filled
                .wait_while(state, |state| state.lines.is_empty() && state.lost == 0);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            let mut lines = std::mem::take(&mut state.lines);
            let lost = std::mem::take(&mut state.lost);
            state.writing = true;
            drop(state);
            if lost > 0 {
                lines.extend_from_slice(note(lost).as_bytes());
            }
            // There is nowhere to report that the log itself cannot be written.
            let _ = output.write_all(&lines).and_then(|()| output.flush());
            state = self.state();
            state.writing = false;
            if !state.is_busy() {
                self.emptied.notify_all();
            }
        }
    }
}

impl<'a> MakeWriter<'a> for LineQueue {
    type Writer = &'a LineQueue;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &LineQueue {
    /// Accepts one whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Blocks until the test releases a line.
    struct Gate {
        open: mpsc::Receiver<()>,
        seen: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.open.recv().map_err(io::Error::other)?;
            self.seen.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_blocked_output_never_blocks_and_lost_lines_are_counted_in_place() {
        let ((open, opened), (seen, written)) = (mpsc::channel(), mpsc::channel());
        let gate = Gate { open: opened, seen };
        let queue = LineQueue::start(gate, |lost| format!("lost {lost}\n")).unwrap();
        let line = |number: usize| format!("{number:01000}\n");
        // The writer holds the first line and is blocked before the queue overflows.
        queue.push(line(0).as_bytes());
        while !queue.0.state().writing {
            thread::yield_now();
        }
        let count = 3 * CAPACITY / line(0).len();
        for number in 1..count {
            queue.push(line(number).as_bytes());
        }
        assert!(!queue.flush(Duration::from_millis(10)), "it is blocked");
        let mut text = Vec::new();
        while !String::from_utf8_lossy(&text).contains("lost ") {
            open.send(()).unwrap();
            text.extend(written.recv().unwrap());
        }
        assert!(queue.flush(Duration::from_secs(60)));
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let (last, whole) = lines.split_last().unwrap();
        for (number, found) in whole.iter().enumerate() {
            assert_eq!(*found, line(number).trim_end());
        }
        assert_eq!(*last, format!("lost {}", count - whole.len()));
        assert!(
            text.len() < 2 * CAPACITY + 2 * line(0).len(),
            "it is bounded"
        );
        queue.push(b"next\n");
        open.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), b"next\n");
    }

    #[test]
    fn the_queue_is_flushed_before_the_end() {
        let (seen, written) = mpsc::channel();
        let (open, opened) = mpsc::channel();
        let queue = LineQueue::start(Gate { open: opened, seen }, |_| String::new()).unwrap();
        for _ in 0..100 {
            open.send(()).unwrap();
        }
        for _ in 0..100 {
            queue.push(b"x\n");
        }
        assert!(queue.flush(Duration::from_secs(60)));
        assert_eq!(written.try_iter().flatten().count(), 200);
    }
}
