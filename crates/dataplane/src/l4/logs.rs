//! Where the lines of access logs go. Each output has a queue and a thread of its own, so that one that does not take
//! lines delays no connection; lines that do not fit are dropped and counted in a line of their own.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use legate_l4::access_log::Sink;
use legate_runtime::logging::LineQueue;

/// The outputs that are in use.
#[derive(Debug, Default)]
pub(super) struct Logs(Mutex<HashMap<Sink, Option<LineQueue>>>);

impl Logs {
    /// Writes a line. Never waits.
    pub(super) fn write(&self, sink: &Sink, line: &str) {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !queues.contains_key(sink) {
            let queue = start(sink)
                .inspect_err(|error| {
                    tracing::error!(?sink, %error, "an access log cannot be written");
                })
                .ok();
            queues.insert(sink.clone(), queue);
        }
        if let Some(Some(queue)) = queues.get(sink) {
            queue.push(line.as_bytes());
        }
    }
}

fn start(sink: &Sink) -> io::Result<LineQueue> {
    let output: Box<dyn Write + Send> = match sink {
        Sink::Stdout => Box::new(io::stdout()),
        Sink::Stderr => Box::new(io::stderr()),
        Sink::File(path) => Box::new(OpenOptions::new().append(true).create(true).open(path)?),
    };
    LineQueue::start(output, |lost| {
        format!("access log: {lost} lines were dropped, because the output did not take them\n")
    })
}
