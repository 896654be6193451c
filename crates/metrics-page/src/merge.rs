//! Merges the pages of several sources.
//!
//! Samples are passed through unchanged: only the shape of their lines is checked, not the content of the
//! braces. Memory is bounded whatever the sources send: one partial line, and a few bytes for each of
//! [`FAMILIES`] families.
//!
//! * Readers reject a whole page because of one invalid line. A source is therefore cut at its first invalid
//!   line (text, HTML, JSON, invalid UTF-8); the others are unaffected.
//! * `HELP` and `TYPE` of a family are written once, from the first source that has one of them. Other comments
//!   and blank lines are dropped.
//! * The samples of a family in two sources are not grouped, which would need all of them in memory. Those of
//!   the second source follow without metadata, and readers assign them to the known family.
//! * Metadata of families beyond [`FAMILIES`] is dropped; these families are untyped.
//! * Series in two sources stay duplicated; the reader chooses one.
//! * OpenMetrics sources are converted to text (`openmetrics`).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use memchr::{memchr, memrchr};

use crate::format::Format;
use crate::metadata::{BLANKS, Metadata};
use crate::openmetrics::Converter;
use crate::samples::{LINE_LIMIT, is_sample, samples};

/// Maximum number of families with metadata.
pub const FAMILIES: usize = 28_000;

/// Maximum size of one source's page, 64 MiB.
pub const SOURCE_LIMIT: usize = 64 * 1024 * 1024;

/// Maximum length of a remark, in characters.
const REMARK_LIMIT: usize = 128;

/// Why a source was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It contains something other than metrics.
    #[error("line {0} is not a metric")]
    Line(u64),
    /// A line is too long.
    #[error("line {0} has more than {LINE_LIMIT} bytes")]
    LongLine(u64),
    /// It is too large.
    #[error("more than {SOURCE_LIMIT} bytes")]
    TooLarge,
    /// An OpenMetrics page ended without `# EOF`, so it is incomplete.
    #[error("the page ends before its `# EOF`")]
    NoEnd,
}

/// A page that is being merged: call [`begin`](Merge::begin), [`push`](Merge::push) and [`end`](Merge::end) for
/// each source.
#[derive(Debug, Default)]
pub struct Merge {
    hasher: RandomState,
    /// Metadata written so far, by the hash of the family's name.
    families: HashMap<u64, Written>,
    /// Number of sources so far.
    sources: u32,
    /// Set if the current source sends OpenMetrics.
    converter: Option<Converter>,
    /// The current partial line.
    partial: Vec<u8>,
    lines: u64,
    bytes: usize,
    /// Whether the rest of the source is ignored.
    closed: bool,
}

/// The metadata of a family that was written, and its source.
#[derive(Debug)]
struct Written {
    source: u32,
    help: bool,
    kind: bool,
}

impl Merge {
    /// Starts the next source. A partial line of the previous one is dropped.
    pub fn begin(&mut self, format: Format) {
        self.sources += 1;
        self.converter = (format == Format::OpenMetrics).then(Converter::default);
        self.partial.clear();
        (self.lines, self.bytes, self.closed) = (0, 0, false);
    }

    /// Takes a chunk of a source; chunks may be cut anywhere. After an error the rest of the source is ignored, and
    /// its earlier lines stay on the page.
    ///
    /// # Errors
    /// If the source must be cut.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
        if self.closed {
            return Ok(());
        }
        let taken = self.take(piece, out);
        self.closed |= taken.is_err();
        taken
    }

    fn take(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
        let room = SOURCE_LIMIT - self.bytes;
        let mut rest = &piece[..piece.len().min(room)];
        self.bytes += rest.len();
        if !self.partial.is_empty() {
            let first = memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
            let (line, next) = rest.split_at(first);
            self.partial.extend_from_slice(line);
            rest = next;
            if line.ends_with(b"\n") {
                let whole = std::mem::take(&mut self.partial);
                self.whole_lines(&whole, out)?;
            }
        }
        let whole = memrchr(b'\n', rest).map_or(0, |end| end + 1);
        self.whole_lines(&rest[..whole], out)?;
        self.partial.extend_from_slice(&rest[whole..]);
        if self.closed {
            Ok(())
        } else if self.partial.len() > LINE_LIMIT {
            Err(Broken::LongLine(self.lines + 1))
        } else if piece.len() > room {
            Err(Broken::TooLarge)
        } else {
            Ok(())
        }
    }

    /// Ends a source; its last line may lack the line end.
    ///
    /// # Errors
    /// If the last line is invalid, or an OpenMetrics page lacks its `# EOF`.
    pub fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Broken> {
        if !self.partial.is_empty() {
            self.push(b"\n", out)?;
        }
        match self.converter.is_some() && !self.closed {
            true => Err(Broken::NoEnd),
            false => Ok(()),
        }
    }

    /// Passes complete lines on. Runs of unchanged lines are copied at once.
    fn whole_lines(&mut self, block: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
        out.reserve(block.len());
        let mut rest = block;
        while !rest.is_empty() && !self.closed {
            if self.converter.is_none() {
                let (length, lines) = samples(rest);
                out.extend_from_slice(&rest[..length]);
                self.lines += lines;
                rest = &rest[length..];
            }
            if let Some(end) = memchr(b'\n', rest) {
                self.lines += 1;
                self.other_line(&rest[..end], out)?;
                rest = &rest[end + 1..];
            }
        }
        Ok(())
    }

    /// Handles a line that is not passed through unchanged.
    fn other_line(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
        let line = std::str::from_utf8(line).map_err(|_| Broken::Line(self.lines))?;
        if line.len() > LINE_LIMIT {
            return Err(Broken::LongLine(self.lines));
        }
        let line = line.trim_end_matches('\r');
        let Some(converter) = &mut self.converter else {
            return self.text_line(line, out);
        };
        self.closed = line.trim_end_matches(BLANKS) == "# EOF";
        let text = converter.convert(line).ok_or(Broken::Line(self.lines))?;
        text.lines().try_for_each(|line| self.text_line(line, out))
    }

    fn text_line(&mut self, line: &str, out: &mut Vec<u8>) -> Result<(), Broken> {
        let line = line.trim_start_matches(BLANKS);
        if let Some(comment) = line.strip_prefix('#') {
            let metadata = Metadata::parse(comment).filter(|metadata| self.is_new(metadata));
            if let Some(Metadata { word, family, text }) = metadata {
                for part in ["# ", word, " ", family, " ", text, "\n"] {
                    out.extend_from_slice(part.as_bytes());
                }
            }
        } else if is_sample(line.as_bytes()) {
            out.extend_from_slice(line.as_bytes());
            out.push(b'\n');
        } else if !line.is_empty() {
            return Err(Broken::Line(self.lines));
        }
        Ok(())
    }

    /// Whether to write this metadata; records it if so.
    fn is_new(&mut self, metadata: &Metadata<'_>) -> bool {
        let key = self.hasher.hash_one(metadata.family);
        if self.families.len() >= FAMILIES && !self.families.contains_key(&key) {
            return false;
        }
        let known = self.families.entry(key).or_insert(Written {
            source: self.sources,
            help: false,
            kind: false,
        });
        let word = match metadata.word {
            "HELP" => &mut known.help,
            _ => &mut known.kind,
        };
        known.source == self.sources && !std::mem::replace(word, true)
    }
}

/// A comment between two sources, on one line.
pub fn remark(text: &str, out: &mut Vec<u8>) {
    let text = text.replace(char::is_control, " ");
    let shown: String = text.chars().take(REMARK_LIMIT).collect();
    out.extend_from_slice(format!("# {shown}\n").as_bytes());
}

#[cfg(test)]
mod tests;
