//! What programs print, of which the end is kept.

use std::collections::VecDeque;
use std::time::Duration;

use legate_model::CheckStatus;

use super::Found;

/// The end of what a program prints.
pub(super) struct Output {
    kept: VecDeque<u8>,
    size: usize,
    whole: u64,
}

impl Output {
    pub(super) fn new(size: usize) -> Self {
        Self {
            kept: VecDeque::new(),
            size,
            whole: 0,
        }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.whole += bytes.len() as u64;
        let bytes = &bytes[bytes.len().saturating_sub(self.size)..];
        let over = (self.kept.len() + bytes.len()).saturating_sub(self.size);
        self.kept.drain(..over);
        self.kept.extend(bytes);
    }

    pub(super) fn text(mut self) -> String {
        let kept = self.kept.len();
        let text = String::from_utf8_lossy(self.kept.make_contiguous()).into_owned();
        if self.whole > kept as u64 {
            return format!("Captured {kept} of {} bytes\n...\n{text}", self.whole);
        }
        text
    }
    /// What is found when the program took longer than it may.
    pub(super) fn timed_out(self, limit: Duration) -> Found {
        let text = format!("Timed out ({limit:?}) running check\n\n{}", self.text());
        (CheckStatus::Critical, text.trim_end().to_owned())
    }
}
