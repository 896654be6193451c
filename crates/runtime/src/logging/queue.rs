//! Lines on their way to an output that may be slow or blocked. Whoever logs never waits; what
//! finds no room is counted and lost.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// How many bytes of lines may wait, 1 MiB: minutes of an ordinary log.
const ROOM: usize = 1024 * 1024;

/// Lines that wait to be written. Copies share them.
#[derive(Clone, Debug)]
pub struct LineQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write.
    filled: Condvar,
    /// Everything has been written.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<u8>,
    /// Lines that found no room behind those.
    lost: u64,
    /// Whether lines are being written that are not in the queue any more.
    writing: bool,
}

impl LineQueue {
    /// Starts the thread that writes to `output`; `note` makes the line that tells how many are
    /// missing.
    ///
    /// The thread ends with the process and not before: it may be blocked, and nothing can be
    /// done about that, so that nobody waits for it.
    ///
    /// # Errors
    ///
    /// When the system has no thread left.
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

    /// Appends what is written as a whole or not at all.
    pub fn push(&self, line: &[u8]) {
        let mut state = self.0.state();
        // Nothing passes what was lost, so that the note stands at its place.
        if state.lost > 0 || state.lines.len() + line.len() > ROOM {
            state.lost += 1;
            return;
        }
        state.lines.extend_from_slice(line);
        self.0.filled.notify_one();
    }

    /// Waits until everything has been written; answers whether that was in time.
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
            // There is no place left to report that the log itself cannot be written.
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
    /// Takes one line, whole.
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

    /// Takes a line only when the test lets it.
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
    fn a_blocked_output_blocks_nobody_and_what_is_lost_is_counted_at_its_place() {
        let ((open, opened), (seen, written)) = (mpsc::channel(), mpsc::channel());
        let gate = Gate { open: opened, seen };
        let queue = LineQueue::start(gate, |lost| format!("lost {lost}\n")).unwrap();
        let line = |number: usize| format!("{number:01000}\n");
        // The writer has the first and is stuck with it, before there is more than there is room for.
        queue.push(line(0).as_bytes());
        while !queue.0.state().writing {
            thread::yield_now();
        }
        let count = 3 * ROOM / line(0).len();
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
        assert!(text.len() < 2 * ROOM + 2 * line(0).len(), "it is bounded");
        queue.push(b"next\n");
        open.send(()).unwrap();
        assert_eq!(written.recv().unwrap(), b"next\n");
    }

    #[test]
    fn everything_is_written_before_the_end() {
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
