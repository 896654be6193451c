//! What one line of a metrics page says: the grammar of the Prometheus text format 0.0.4 and of
//! OpenMetrics 1.0. Looks at one line at a time and changes nothing.

use super::Format;

/// A line that belongs to no metrics page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unknown;

/// One line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Line<'a> {
    /// Says nothing: blank, or a comment.
    Nothing,
    /// `# EOF`: the end of an OpenMetrics page.
    End,
    /// Says something about a family.
    Metadata {
        what: Metadata,
        family: &'a str,
        text: &'a str,
    },
    /// A value.
    Sample(Sample<'a>),
}

/// What is said about a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metadata {
    Help,
    Type,
    Unit,
}

/// A value of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    /// Name and labels, as they were written.
    pub(super) series: &'a str,
    pub(super) value: &'a str,
    /// Milliseconds in the text format, seconds in OpenMetrics.
    pub(super) timestamp: Option<&'a str>,
}

/// Reads a line, without its end.
pub(super) fn parse(line: &str, format: Format) -> Result<Line<'_>, Unknown> {
    let line = match format {
        Format::Text => line.trim_start_matches(BLANKS),
        Format::OpenMetrics => line,
    };
    match line.as_bytes().first() {
        None => Ok(Line::Nothing),
        Some(b'#') => Ok(comment(line, format)),
        Some(_) => sample(line, format).map(Line::Sample).ok_or(Unknown),
    }
}

const BLANKS: [char; 2] = [' ', '\t'];

/// Whatever is not well-formed metadata is a remark, which says nothing.
fn comment(line: &str, format: Format) -> Line<'_> {
    if line.trim_end_matches(BLANKS) == "# EOF" {
        return match format {
            Format::Text => Line::Nothing,
            Format::OpenMetrics => Line::End,
        };
    }
    metadata(line).unwrap_or(Line::Nothing)
}

fn metadata(line: &str) -> Option<Line<'_>> {
    let rest = line.strip_prefix('#')?.trim_start_matches(BLANKS);
    let (word, rest) = rest.split_once(BLANKS)?;
    let what = match word {
        "HELP" => Metadata::Help,
        "TYPE" => Metadata::Type,
        "UNIT" => Metadata::Unit,
        _ => return None,
    };
    let rest = rest.trim_start_matches(BLANKS);
    let (family, text) = rest.split_once(BLANKS).unwrap_or((rest, ""));
    let text = match what {
        Metadata::Help => text,
        // Behind a blank, a carriage return would be the end of the line in what is made of it.
        Metadata::Type | Metadata::Unit => text.trim_matches([' ', '\t', '\r']),
    };
    let sound = match what {
        Metadata::Help => is_escaped(text.as_bytes()),
        Metadata::Type => !text.is_empty(),
        Metadata::Unit => true,
    };
    (is_name(family) && sound).then_some(Line::Metadata { what, family, text })
}

/// Whether every backslash begins an escape that some format knows.
fn is_escaped(text: &[u8]) -> bool {
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        if *byte == b'\\' && !matches!(bytes.next(), Some(b'\\' | b'n' | b'"')) {
            return false;
        }
    }
    true
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name_length(name.as_bytes(), true) == name.len()
}

/// How long the name at the beginning is. Names of labels have no colon.
fn name_length(bytes: &[u8], colon: bool) -> usize {
    let mut length = 0;
    while let Some(byte) = bytes.get(length) {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {}
            b'0'..=b'9' if length > 0 => {}
            b':' if colon => {}
            _ => break,
        }
        length += 1;
    }
    length
}

fn blanks(bytes: &[u8], at: usize) -> usize {
    let mut next = at;
    while matches!(bytes.get(next), Some(b' ' | b'\t')) {
        next += 1;
    }
    next
}

fn sample(line: &str, format: Format) -> Option<Sample<'_>> {
    let bytes = line.as_bytes();
    let strict = format == Format::OpenMetrics;
    let name = name_length(bytes, true);
    if name == 0 {
        return None;
    }
    let brace = if strict { name } else { blanks(bytes, name) };
    let labelled = bytes.get(brace) == Some(&b'{');
    let series = if labelled {
        labels(bytes, brace, strict)?
    } else {
        name
    };
    let rest = line.get(series..)?;
    let (value, timestamp) = match format {
        Format::Text => {
            if !labelled && !rest.starts_with(BLANKS) {
                return None;
            }
            let mut words = rest.split(BLANKS).filter(|word| !word.is_empty());
            let parts = (words.next()?, words.next());
            if words.next().is_some() {
                return None;
            }
            if parts.1.is_some_and(|time| time.parse::<i64>().is_err()) {
                return None;
            }
            parts
        }
        Format::OpenMetrics => {
            let rest = rest.strip_prefix(' ')?;
            let (rest, exemplar) = match rest.split_once(" # ") {
                Some((rest, exemplar)) => (rest, Some(exemplar)),
                None => (rest, None),
            };
            if exemplar.is_some_and(|exemplar| !is_exemplar(exemplar)) {
                return None;
            }
            value_and_seconds(rest)?
        }
    };
    is_number(value).then_some(Sample {
        name: line.get(..name)?,
        series: line.get(..series)?,
        value,
        timestamp,
    })
}

/// Where the labels end that begin with the brace at `open`.
fn labels(bytes: &[u8], open: usize, strict: bool) -> Option<usize> {
    let skip = |at| if strict { at } else { blanks(bytes, at) };
    let mut at = skip(open + 1);
    loop {
        if bytes.get(at) == Some(&b'}') {
            return Some(at + 1);
        }
        let name = name_length(bytes.get(at..)?, false);
        if name == 0 {
            return None;
        }
        at = skip(at + name);
        if bytes.get(at) != Some(&b'=') {
            return None;
        }
        at = skip(at + 1);
        if bytes.get(at) != Some(&b'"') {
            return None;
        }
        at = skip(quoted(bytes, at + 1)?);
        match bytes.get(at) {
            Some(b',') => at = skip(at + 1),
            Some(b'}') => {}
            _ => return None,
        }
    }
}

/// Where the text ends that began before `at` with a quotation mark; behind the other one.
fn quoted(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => match bytes.get(at + 1)? {
                b'\\' | b'n' | b'"' => at += 2,
                _ => return None,
            },
            _ => at += 1,
        }
    }
}

fn is_exemplar(text: &str) -> bool {
    let Some(end) = text
        .starts_with('{')
        .then(|| labels(text.as_bytes(), 0, true))
        .flatten()
    else {
        return false;
    };
    let rest = text.get(end..).and_then(|rest| rest.strip_prefix(' '));
    rest.and_then(value_and_seconds)
        .is_some_and(|(value, _)| is_number(value))
}

fn value_and_seconds(text: &str) -> Option<(&str, Option<&str>)> {
    match text.split_once(' ') {
        None => Some((text, None)),
        Some((value, time)) => {
            let finite = is_number(time) && time.parse::<f64>().is_ok_and(f64::is_finite);
            finite.then_some((value, Some(time)))
        }
    }
}

/// Whether readers take it for a number: as Rust does, but no sign before `NaN`.
fn is_number(text: &str) -> bool {
    match text.parse::<f64>() {
        Ok(number) => !number.is_nan() || text.starts_with(['n', 'N']),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &str) -> Result<Line<'_>, Unknown> {
        parse(line, Format::Text)
    }

    fn open(line: &str) -> Result<Line<'_>, Unknown> {
        parse(line, Format::OpenMetrics)
    }

    #[test]
    fn samples_are_taken_apart() {
        for line in ["a{b=\"c\",} 1 2", " a { b = \"c\" } 1\t2 ", "a{} 1 -2"] {
            let Ok(Line::Sample(sample)) = text(line) else {
                panic!("{line}");
            };
            assert_eq!((sample.name, sample.value), ("a", "1"), "{line}");
            assert!(sample.series.ends_with('}') && sample.timestamp.is_some());
        }
        let line = "a_bucket{le=\"1 # 2\"} 3 1.5 # {id=\"} 9\"} 0.5 1.2";
        let Ok(Line::Sample(sample)) = open("a_bucket{le=\"1\"} 3 1.5 # {id=\"9\"} 0.5 1.2") else {
            panic!("an exemplar");
        };
        assert_eq!((sample.value, sample.timestamp), ("3", Some("1.5")));
        assert!(matches!(open(line), Ok(Line::Sample(_))));
    }

    #[test]
    fn carriage_returns_at_the_end_of_words_are_blanks() {
        for line in ["# TYPE a counter\r\r ", "# TYPE a counter \r\t"] {
            let Ok(Line::Metadata { text, .. }) = text(line) else {
                panic!("{line}");
            };
            assert_eq!(text, "counter");
        }
    }

    #[test]
    fn what_readers_refuse_is_no_sample() {
        for line in [
            "<html>",
            "a",
            "a 1 2 3",
            "a 1 1.5",
            "a one",
            "a{b=c} 1",
            "a{b=\"c} 1",
            "a{b=\"\\x\"} 1",
            "a{b:c=\"d\"} 1",
            "a{b=\"c\" 1",
            "1a 1",
            "{a=\"b\"} 1",
            "a{b=\"c\"}",
            "a -NaN",
            "a-b 1",
            "\u{e4} 1",
        ] {
            assert_eq!(text(line), Err(Unknown), "{line}");
        }
        for line in [
            " a 1",
            "a  1",
            "a{ b=\"c\"} 1",
            "a 1 # 2",
            "a 1 NaN",
            "a 1 ",
        ] {
            assert_eq!(open(line), Err(Unknown), "{line}");
        }
        for value in ["NaN", "+Inf", "-Inf", "1e9", "-0.5", ".5", "1."] {
            let line = format!("a {value}");
            assert!(matches!(text(&line), Ok(Line::Sample(_))), "{line}");
        }
    }

    #[test]
    fn comments_are_metadata_an_end_or_nothing() {
        let help = Line::Metadata {
            what: Metadata::Help,
            family: "a",
            text: "x  y\\n",
        };
        assert_eq!(text("# HELP a x  y\\n"), Ok(help));
        assert_eq!(text("#\tHELP  a x  y\\n"), Ok(help));
        for line in [
            "",
            "  ",
            "#",
            "# x",
            "# HELP",
            "# HELP a-b x",
            "# TYPE a",
            "# HELP a \\x",
        ] {
            assert_eq!(text(line), Ok(Line::Nothing), "{line}");
        }
        assert_eq!(text("# EOF"), Ok(Line::Nothing));
        assert_eq!(open("# EOF"), Ok(Line::End));
    }
}
