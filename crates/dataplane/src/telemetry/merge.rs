//! Joins the metrics pages of several sources into one page in the Prometheus text format 0.0.4.
//! Bytes in, bytes out, without IO.
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

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use memchr::{memchr, memchr_iter, memrchr};

use super::Format;
use super::metadata::{BLANKS, Metadata, begins_name, name_length};
use super::openmetrics::Converter;

/// Of how many families a page says what they are.
pub const FAMILIES: usize = 28_000;

/// Longest line that is taken, 64 KiB.
pub const LINE_LIMIT: usize = 64 * 1024;

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
    /// Which source said what a family is, by the hash of its name.
    families: HashMap<u64, usize>,
    /// What was said of them, by the hash of that and of the name.
    said: HashSet<u64>,
    /// How many sources have begun.
    sources: usize,
    /// Where the source that is being read sends OpenMetrics.
    converter: Option<Converter>,
    /// The line that has begun.
    begun: Vec<u8>,
    lines: u64,
    bytes: usize,
    /// Nothing more is taken from the source.
    closed: bool,
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
        if self.closed {
            return Ok(());
        }
        out.reserve(block.len());
        let text = match std::str::from_utf8(block) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&block[..error.valid_up_to()]).unwrap_or_default(),
        };
        let (mut kept, mut start) = (0, 0);
        for end in memchr_iter(b'\n', text.as_bytes()) {
            self.lines += 1;
            if self.converter.is_some() || !is_sample(&block[start..end]) {
                out.extend_from_slice(&block[kept..start]);
                kept = end + 1;
                self.other_line(&text[start..end], out)?;
                if self.closed {
                    return Ok(());
                }
            }
            start = end + 1;
        }
        out.extend_from_slice(&block[kept..start]);
        match start == block.len() {
            true => Ok(()),
            // What follows is not UTF-8.
            false => Err(Broken::Line(self.lines + 1)),
        }
    }

    /// A line that is not passed on as it is.
    fn other_line(&mut self, line: &str, out: &mut Vec<u8>) -> Result<(), Broken> {
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
                out.extend_from_slice(format!("# {word} {family} {text}\n").as_bytes());
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
        let first = *self.families.entry(key).or_insert(self.sources);
        let said = self.hasher.hash_one((said.word, said.family));
        first == self.sources && self.said.insert(said)
    }
}

/// A remark for people, between two sources: one line.
pub(super) fn remark(text: &str, out: &mut Vec<u8>) {
    let text = text.replace(char::is_control, " ");
    let shown: String = text.chars().take(REMARK_LIMIT).collect();
    out.extend_from_slice(format!("# {shown}\n").as_bytes());
}

/// Whether a line has the shape of a sample: a name, labels in braces or none, a value, and perhaps
/// a timestamp in milliseconds.
fn is_sample(line: &[u8]) -> bool {
    line.len() <= LINE_LIMIT && (is_usual_sample(line) || is_any_sample(line))
}

/// Knows samples with labels and a whole number, which most are, by their ends.
fn is_usual_sample(line: &[u8]) -> bool {
    let digits = line.iter().rev().take_while(|byte| byte.is_ascii_digit());
    let (series, value) = line.split_at(line.len() - digits.count());
    match series {
        [first, .., b'"' | b'{' | b',', b'}', b' '] => begins_name(first) && !value.is_empty(),
        _ => false,
    }
}

fn is_any_sample(line: &[u8]) -> bool {
    let name = name_length(line);
    let rest = &line[name..];
    let blanks = rest.iter().take_while(|byte| is_blank(byte)).count();
    name > 0
        && match rest[blanks..].split_first() {
            Some((b'{', rest)) => memrchr(b'}', rest)
                .is_some_and(|end| is_labels(&rest[..end]) && is_value(&rest[end + 1..])),
            _ => blanks > 0 && is_value(rest),
        }
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Whether what is between the braces ends as labels do.
fn is_labels(labels: &[u8]) -> bool {
    labels
        .last()
        .is_none_or(|last| matches!(last, b'"' | b',') || is_blank(last))
}

/// A number and perhaps a timestamp.
fn is_value(bytes: &[u8]) -> bool {
    let mut words = bytes.split(is_blank).filter(|word| !word.is_empty());
    let text = |word| std::str::from_utf8(word).unwrap_or_default();
    let number = words.next().is_some_and(|word| is_number(text(word)));
    let time = words
        .next()
        .is_none_or(|word| text(word).parse::<i64>().is_ok());
    number && time && words.next().is_none()
}

/// Whether readers take it for a number: as Rust does, but no sign before `NaN`.
fn is_number(text: &str) -> bool {
    match text.parse::<f64>() {
        Ok(number) => !number.is_nan() || text.starts_with(['n', 'N']),
        Err(_) => false,
    }
}

#[cfg(test)]
pub(super) mod tests;
