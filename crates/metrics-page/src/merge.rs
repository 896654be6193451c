//! Puts the pages of several sources together.
//!
//! Samples are passed on as they came: only the shape of their line is looked at, and not what is
//! between the braces. State is bounded whatever the sources send: the beginning of one line, and a
//! few bytes for each of [`FAMILIES`] families.
//!
//! * Readers refuse a whole page for one line that is no metric. So a source is cut at the first
//!   such line (text, HTML, JSON, bytes that are not UTF-8); the others stay whole.
//! * `HELP` and `TYPE` of a family are passed on once, from the first source that has one of them.
//!   What else begins with `#`, and blank lines, are left out.
//! * A family of two sources is not gathered at one place, which would need all of it in memory.
//!   The samples of the second one follow without metadata, and readers count them to the family
//!   that they know.
//! * The metadata of families beyond [`FAMILIES`] is left out: they read as untyped.
//! * Series that two sources both have stay twice; the reader chooses.
//! * Sources that send OpenMetrics are written as text (`openmetrics`).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use memchr::{memchr, memrchr};

use crate::format::Format;
use crate::metadata::{BLANKS, Metadata};
use crate::openmetrics::Converter;
use crate::samples::{LINE_LIMIT, is_sample, samples};

/// Of how many families a page says what they are.
pub const FAMILIES: usize = 28_000;

/// Largest page that is taken from one source, 64 MiB.
pub const SOURCE_LIMIT: usize = 64 * 1024 * 1024;

/// Longest remark that is written, in characters.
const REMARK_LIMIT: usize = 128;

/// Why a source was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It sends something else than metrics.
    #[error("line {0} is no metric")]
    Line(u64),
    /// A line has no end.
    #[error("line {0} has more than {LINE_LIMIT} bytes")]
    LongLine(u64),
    /// It is too large, or has no end.
    #[error("more than {SOURCE_LIMIT} bytes")]
    TooLarge,
    /// An OpenMetrics page without its end is not whole.
    #[error("the page ends before its `# EOF`")]
    NoEnd,
}

/// A page that is being put together: [`begin`](Merge::begin), [`push`](Merge::push) and
/// [`end`](Merge::end) for each source.
#[derive(Debug, Default)]
pub struct Merge {
    hasher: RandomState,
    /// What was said of families, by the hash of their names.
    families: HashMap<u64, Said>,
    /// How many sources have begun.
    sources: u32,
    /// Where the source that is being read sends OpenMetrics.
    converter: Option<Converter>,
    /// The line that has begun.
    begun: Vec<u8>,
    lines: u64,
    bytes: usize,
    /// Nothing more is taken from the source.
    closed: bool,
}

/// What was said of a family, and by which source.
#[derive(Debug)]
struct Said {
    source: u32,
    help: bool,
    kind: bool,
}

impl Merge {
    /// What comes from now on is of another source. What the last one left unfinished is dropped.
    pub fn begin(&mut self, format: Format) {
        self.sources += 1;
        self.converter = (format == Format::OpenMetrics).then(Converter::default);
        self.begun.clear();
        (self.lines, self.bytes, self.closed) = (0, 0, false);
    }

    /// Takes what a source sends, cut into pieces anywhere. After an error nothing more is taken
    /// from this source, and what it sent before is on the page.
    ///
    /// # Errors
    /// When the source has to be cut.
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
        if !self.begun.is_empty() {
            let first = memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
            let (line, next) = rest.split_at(first);
            self.begun.extend_from_slice(line);
            rest = next;
            if line.ends_with(b"\n") {
                let whole = std::mem::take(&mut self.begun);
                self.whole_lines(&whole, out)?;
            }
        }
        let whole = memrchr(b'\n', rest).map_or(0, |end| end + 1);
        self.whole_lines(&rest[..whole], out)?;
        self.begun.extend_from_slice(&rest[whole..]);
        if self.closed {
            Ok(())
        } else if self.begun.len() > LINE_LIMIT {
            Err(Broken::LongLine(self.lines + 1))
        } else if piece.len() > room {
            Err(Broken::TooLarge)
        } else {
            Ok(())
        }
    }

    /// The source has ended in order; its last line may lack its end.
    ///
    /// # Errors
    /// When that last line is no metric, or an OpenMetrics page lacks its end.
    pub fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Broken> {
        if !self.begun.is_empty() {
            self.push(b"\n", out)?;
        }
        match self.converter.is_some() && !self.closed {
            true => Err(Broken::NoEnd),
            false => Ok(()),
        }
    }

    /// Passes lines on, each with its end. Those that stay as they are are copied together.
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

    /// A line that is not passed on as it is.
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
            let said = Metadata::parse(comment).filter(|said| self.is_new(said));
            if let Some(Metadata { word, family, text }) = said {
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

    /// Whether metadata goes on the page, and notes that it does.
    fn is_new(&mut self, said: &Metadata<'_>) -> bool {
        let key = self.hasher.hash_one(said.family);
        if self.families.len() >= FAMILIES && !self.families.contains_key(&key) {
            return false;
        }
        let known = self.families.entry(key).or_insert(Said {
            source: self.sources,
            help: false,
            kind: false,
        });
        let word = match said.word {
            "HELP" => &mut known.help,
            _ => &mut known.kind,
        };
        known.source == self.sources && !std::mem::replace(word, true)
    }
}

/// A remark for people, between two sources: one line.
pub fn remark(text: &str, out: &mut Vec<u8>) {
    let text = text.replace(char::is_control, " ");
    let shown: String = text.chars().take(REMARK_LIMIT).collect();
    out.extend_from_slice(format!("# {shown}\n").as_bytes());
}

#[cfg(test)]
mod tests;
