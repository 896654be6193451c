//! Results of runs, and truncation of outputs: the end is retained for programs, the start for all
//! other checks.

use std::collections::VecDeque;
use std::time::Duration;

use legate_model::{CheckStatus, CheckType};

use crate::settings::Settings;

/// The result of a run.
pub(crate) type RunResult = (CheckStatus, String);

/// The end of a program's output.
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

    /// The result of a program that exceeded its timeout.
    pub(super) fn timed_out(self, limit: Duration) -> RunResult {
        let text = format!("Timed out ({limit:?}) running check\n\n{}", self.text());
        (CheckStatus::Critical, text.trim_end().to_owned())
    }
}

/// The maximum size of stored output in bytes: the agent's limit, or the check's if that is lower.
pub(crate) fn size(check: &CheckType, settings: &Settings) -> usize {
    let size = match check.output_max_size {
        0 => settings.output_max_size,
        own => own.min(settings.output_max_size),
    };
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Truncates the output of a report for a check.
pub fn shortened(mut output: String, check: &CheckType, settings: &Settings) -> String {
    let (whole, size) = (output.len(), size(check, settings));
    if whole > size {
        cut(&mut output, size);
        output = format!("{output} ... (captured {size} of {whole} bytes)");
    }
    output
}

/// Truncates a text to at most this many bytes, at a character boundary.
pub(crate) fn cut(text: &mut String, size: usize) {
    if text.len() > size {
        let end = (0..=size).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
    }
}
