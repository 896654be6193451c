//! Joins the metrics pages of several sources into one that every reader takes. Bytes in, bytes
//! out, without IO; [`merge_pages`] does it in one call.
//!
//! State is bounded whatever the sources send: the beginning of one line, and a few bytes for each
//! of [`FAMILIES`] families. What comes out is made of whole lines that were understood:
//!
//! * A source is cut at the first line that is no metric; the others stay whole. Remarks and blank
//!   lines are left out.
//! * `HELP`, `TYPE` and `UNIT` of a family appear once, the first time, and never behind the
//!   family's samples. A family that several sources have, or one source at several places, is
//!   not gathered at one place, which would need all of it in memory: its later samples follow
//!   where they were, without metadata, and readers count them to the family that they know.
//!   A later source that gives a family another type is not heard.
//! * The metadata of families beyond [`FAMILIES`] is left out: they read as untyped.
//! * Series that two sources both have stay twice; the reader chooses.
//! * An OpenMetrics page has one `# EOF`, at its end. On a text page OpenMetrics sources are
//!   written as text: counters get their `_total` in the metadata as well, timestamps are in
//!   milliseconds, exemplars and units are left out. The other way round nothing can be done: text
//!   does not say enough. Such a source is refused.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::Format;
use super::line::{Line, Metadata, Sample, parse};

/// Of how many families a page says what they are.
pub const FAMILIES: usize = 28_000;

/// Longest line that is taken, 64 KiB.
pub const LINE_LIMIT: usize = 64 * 1024;

/// Largest page that is taken from one source, 64 MiB.
pub const SOURCE_LIMIT: usize = 64 * 1024 * 1024;

/// Longest remark that is written, in bytes.
const REMARK_LIMIT: usize = 512;

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
    /// The page is OpenMetrics and the source is not.
    #[error("the source does not speak OpenMetrics")]
    Format,
}

/// What is known of a family.
#[derive(Debug, Clone, Copy, Default)]
struct Family {
    kind: Kind,
    written: u8,
}

const HELP: u8 = 1;
const TYPE: u8 = 2;
const UNIT: u8 = 4;
/// Nothing may be said about it any more.
const SAMPLES: u8 = 8;

/// Types whose samples have other names than the family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Plain,
    /// Of OpenMetrics: there the family has the shorter name.
    Counter,
    Histogram,
    GaugeHistogram,
    Summary,
    Info,
}

impl Kind {
    fn of(word: &str, format: Format) -> Kind {
        match (word, format) {
            ("histogram", _) => Kind::Histogram,
            ("summary", _) => Kind::Summary,
            ("counter", Format::OpenMetrics) => Kind::Counter,
            ("gaugehistogram", Format::OpenMetrics) => Kind::GaugeHistogram,
            ("info", Format::OpenMetrics) => Kind::Info,
            _ => Kind::Plain,
        }
    }

    fn suffixes(self) -> &'static [&'static str] {
        match self {
            Kind::Plain => &[],
            Kind::Counter => &["_total", "_created"],
            Kind::Histogram => &["_bucket", "_sum", "_count", "_created"],
            Kind::GaugeHistogram => &["_bucket", "_gsum", "_gcount"],
            Kind::Summary => &["_sum", "_count", "_created"],
            Kind::Info => &["_info"],
        }
    }
}

const SUFFIXES: [&str; 8] = [
    "_bucket", "_sum", "_count", "_total", "_created", "_gsum", "_gcount", "_info",
];

/// The source that is being read.
#[derive(Debug)]
struct Source {
    format: Format,
    /// The line that has begun.
    begun: Vec<u8>,
    lines: u64,
    bytes: usize,
    /// Nothing more is taken from it.
    closed: bool,
    /// A help that waits for the type, which may change the family's name.
    help: Option<(String, String)>,
    /// A family and what it is called on this page.
    renamed: Option<(String, String)>,
}

/// A page that is being put together: [`begin`](Merge::begin), [`push`](Merge::push) and
/// [`end`](Merge::end) for each source, then [`finish`](Merge::finish).
#[derive(Debug)]
pub struct Merge {
    format: Format,
    hasher: RandomState,
    families: HashMap<u64, Family>,
    source: Source,
    /// The last sample's name: most samples follow one of their own.
    last: String,
}

impl Merge {
    /// An empty page.
    pub fn new(format: Format) -> Merge {
        Merge {
            format,
            hasher: RandomState::new(),
            families: HashMap::new(),
            source: Source::new(format),
            last: String::new(),
        }
    }

    /// What comes from now on is of another source. What the last one left unfinished is dropped.
    pub fn begin(&mut self, format: Format) {
        let begun = std::mem::take(&mut self.source.begun);
        self.source = Source::new(format);
        // Its memory is used again, its content is not.
        self.source.begun = begun;
        self.source.begun.clear();
    }

    /// Takes what a source sends, cut into pieces anywhere. After an error nothing more is taken
    /// from this source, and what it sent before is on the page.
    ///
    /// # Errors
    /// When the source has to be cut.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
        if self.source.format == Format::Text && self.format == Format::OpenMetrics {
            return Err(Broken::Format);
        }
        let room = SOURCE_LIMIT - self.source.bytes;
        let (mut rest, too_large) = match piece.get(..room) {
            Some(fitting) if piece.len() > room => (fitting, true),
            _ => (piece, false),
        };
        self.source.bytes += rest.len();
        while !self.source.closed {
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                self.source.begun.extend_from_slice(rest);
                if self.source.begun.len() > LINE_LIMIT {
                    return Err(self.close(Broken::LongLine(self.source.lines + 1)));
                }
                break;
            };
            let (line, next) = (&rest[..end], &rest[end + 1..]);
            rest = next;
            if self.source.begun.is_empty() {
                self.line(line, out)?;
            } else {
                let mut whole = std::mem::take(&mut self.source.begun);
                whole.extend_from_slice(line);
                let taken = self.line(&whole, out);
                whole.clear();
                self.source.begun = whole;
                taken?;
            }
        }
        match too_large && !self.source.closed {
            true => Err(self.close(Broken::TooLarge)),
            false => Ok(()),
        }
    }

    /// The source has ended in order; its last line may lack its end.
    ///
    /// # Errors
    /// When that last line is no metric, or an OpenMetrics page lacks its end.
    pub fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Broken> {
        if self.source.closed {
            return Ok(());
        }
        let last = std::mem::take(&mut self.source.begun);
        if !last.is_empty() {
            self.line(&last, out)?;
        }
        self.tell_help(out);
        match self.source.format == Format::OpenMetrics && !self.source.closed {
            true => Err(self.close(Broken::NoEnd)),
            false => Ok(()),
        }
    }

    /// Writes a remark for people, between sources. OpenMetrics has none.
    pub fn remark(&self, text: &str, out: &mut Vec<u8>) {
        if self.format == Format::OpenMetrics {
            return;
        }
        out.extend_from_slice(b"# ");
        for character in text.chars().take(REMARK_LIMIT / 4) {
            let shown = if character.is_control() {
                ' '
            } else {
                character
            };
            out.extend_from_slice(shown.encode_utf8(&mut [0; 4]).as_bytes());
        }
        out.push(b'\n');
    }

    /// The end of the page.
    pub fn finish(self, out: &mut Vec<u8>) {
        if self.format == Format::OpenMetrics {
            out.extend_from_slice(b"# EOF\n");
        }
    }

    fn close(&mut self, why: Broken) -> Broken {
        self.source.closed = true;
        self.source.begun.clear();
        why
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
        self.source.lines += 1;
        let number = self.source.lines;
        if line.len() > LINE_LIMIT {
            return Err(self.close(Broken::LongLine(number)));
        }
        let end = line.iter().rposition(|byte| *byte != b'\r');
        let line = &line[..end.map_or(0, |end| end + 1)];
        let Ok(line) = std::str::from_utf8(line) else {
            return Err(self.close(Broken::Line(number)));
        };
        match parse(line, self.source.format) {
            Err(_) => return Err(self.close(Broken::Line(number))),
            Ok(Line::Nothing) => {}
            Ok(Line::End) => {
                self.tell_help(out);
                self.source.closed = true;
            }
            Ok(Line::Metadata { what, family, text }) if self.source.format == self.format => {
                self.metadata(what, family, text, out);
            }
            Ok(Line::Metadata { what, family, text }) => {
                self.metadata_as_text(what, family, text, out);
            }
            Ok(Line::Sample(sample)) => {
                self.tell_help(out);
                self.note(sample.name);
                match self.source.format == self.format {
                    true => out.extend_from_slice(line.trim_start().as_bytes()),
                    false => sample_as_text(&sample, out),
                }
                out.push(b'\n');
            }
        }
        Ok(())
    }

    /// Passes metadata on, unless the page says it already or can no longer say it.
    fn metadata(&mut self, what: Metadata, family: &str, text: &str, out: &mut Vec<u8>) {
        let (word, bit) = match what {
            Metadata::Help => ("HELP", HELP),
            Metadata::Type => ("TYPE", TYPE),
            Metadata::Unit => ("UNIT", UNIT),
        };
        if !is_known(what, text, self.format) {
            return;
        }
        let key = self.hasher.hash_one(family);
        let room = self.families.len() < FAMILIES;
        let Some(known) = (match room {
            true => Some(self.families.entry(key).or_default()),
            false => self.families.get_mut(&key),
        }) else {
            return;
        };
        if known.written & (bit | SAMPLES) != 0 {
            return;
        }
        known.written |= bit;
        if what == Metadata::Type {
            known.kind = Kind::of(text, self.format);
        }
        self.last.clear();
        for part in ["# ", word, " ", family, " ", text, "\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }

    /// Passes metadata of an OpenMetrics page on to a text page.
    fn metadata_as_text(&mut self, what: Metadata, family: &str, text: &str, out: &mut Vec<u8>) {
        match what {
            Metadata::Unit => {}
            Metadata::Help => {
                let text = text.replace("\\\"", "\"");
                match &self.source.renamed {
                    Some((named, name)) if named == family => {
                        let name = name.clone();
                        self.metadata(what, &name, &text, out);
                    }
                    _ => {
                        self.tell_help(out);
                        self.source.help = Some((family.to_owned(), text));
                    }
                }
            }
            Metadata::Type => {
                let (suffix, word) = match text {
                    "counter" => ("_total", Some("counter")),
                    "info" => ("_info", Some("gauge")),
                    "stateset" => ("", Some("gauge")),
                    "gaugehistogram" => ("", None),
                    "unknown" => ("", Some("untyped")),
                    other => ("", Some(other)),
                };
                let name = match family.ends_with(suffix) {
                    true => family.to_owned(),
                    false => format!("{family}{suffix}"),
                };
                match self.source.help.take() {
                    Some((named, help)) if named == family => {
                        self.metadata(Metadata::Help, &name, &help, out);
                    }
                    Some((named, help)) => self.metadata(Metadata::Help, &named, &help, out),
                    None => {}
                }
                if let Some(word) = word {
                    self.metadata(what, &name, word, out);
                }
                self.source.renamed = Some((family.to_owned(), name));
            }
        }
    }

    /// Writes the help that waits: no type follows it.
    fn tell_help(&mut self, out: &mut Vec<u8>) {
        if let Some((family, text)) = self.source.help.take() {
            self.metadata(Metadata::Help, &family, &text, out);
        }
    }

    /// Nothing can be said any more about the family of this sample.
    fn note(&mut self, name: &str) {
        if self.last == name {
            return;
        }
        self.last.clear();
        self.last.push_str(name);
        let key = self.hasher.hash_one(name);
        let mut noted = false;
        if let Some(family) = self.families.get_mut(&key) {
            family.written |= SAMPLES;
            noted = true;
        }
        for suffix in SUFFIXES {
            let Some(base) = name.strip_suffix(suffix) else {
                continue;
            };
            let known = self.families.get_mut(&self.hasher.hash_one(base));
            if let Some(family) = known
                && family.kind.suffixes().contains(&suffix)
            {
                family.written |= SAMPLES;
                noted = true;
            }
        }
        if !noted && self.families.len() < FAMILIES {
            let written = SAMPLES;
            let kind = Kind::Plain;
            self.families.insert(key, Family { kind, written });
        }
    }
}

impl Source {
    fn new(format: Format) -> Source {
        Source {
            format,
            begun: Vec::new(),
            lines: 0,
            bytes: 0,
            closed: false,
            help: None,
            renamed: None,
        }
    }
}

/// Whether a page of this format may say that.
fn is_known(what: Metadata, text: &str, format: Format) -> bool {
    match (what, format) {
        (Metadata::Type, Format::Text) => {
            matches!(
                text,
                "counter" | "gauge" | "histogram" | "summary" | "untyped"
            )
        }
        (Metadata::Type, Format::OpenMetrics) => matches!(
            text,
            "counter"
                | "gauge"
                | "histogram"
                | "summary"
                | "unknown"
                | "gaugehistogram"
                | "info"
                | "stateset"
        ),
        (Metadata::Unit, format) => format == Format::OpenMetrics,
        // Text knows no quotation mark that is escaped.
        (Metadata::Help, Format::Text) => !text.replace("\\\\", "").contains("\\\""),
        (Metadata::Help, Format::OpenMetrics) => true,
    }
}

fn sample_as_text(sample: &Sample<'_>, out: &mut Vec<u8>) {
    for part in [sample.series, " ", sample.value] {
        out.extend_from_slice(part.as_bytes());
    }
    if let Some(seconds) = sample.timestamp.and_then(|time| time.parse::<f64>().ok()) {
        let milliseconds = format!(" {:.0}", (seconds * 1_000.0).clamp(-9e15, 9e15));
        out.extend_from_slice(milliseconds.as_bytes());
    }
}

/// Joins whole pages, each fed in pieces of `piece` bytes (at least one): what a fuzzer calls.
/// Sources that are broken are cut and remarked upon.
pub fn merge_pages(format: Format, sources: &[(Format, &[u8])], piece: usize) -> Vec<u8> {
    let mut merge = Merge::new(format);
    let mut out = Vec::new();
    for (format, bytes) in sources {
        merge.begin(*format);
        let mut pieces = bytes.chunks(piece.max(1));
        let pushed = pieces.try_for_each(|piece| merge.push(piece, &mut out));
        if let Err(broken) = pushed.and_then(|()| merge.end(&mut out)) {
            merge.remark(&broken.to_string(), &mut out);
        }
    }
    merge.finish(&mut out);
    out
}

#[cfg(test)]
mod tests;
