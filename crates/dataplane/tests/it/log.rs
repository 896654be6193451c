//! Captures the log of the code under test.

use std::io::Write;
use std::sync::{Arc, Mutex};

/// The log of this thread, captured until it is dropped.
pub(crate) struct Log {
    text: Arc<Mutex<Vec<u8>>>,
    _guard: tracing::subscriber::DefaultGuard,
}

struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(crate) fn start() -> Log {
        let text = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&text);
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || Sink(Arc::clone(&sink)))
            .with_ansi(false)
            .finish();
        Log {
            text,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// Lines that contain all of these words.
    pub(crate) fn lines(&self, words: &[&str]) -> Vec<String> {
        let text = String::from_utf8(self.text.lock().unwrap().clone()).unwrap();
        let found = text
            .lines()
            .filter(|line| words.iter().all(|word| line.contains(word)));
        found.map(str::to_owned).collect()
    }
}
