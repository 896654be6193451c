//! Parses metadata of families (`# HELP`, `# TYPE`, `# UNIT`), and metric names.

/// Characters that separate words.
pub(crate) const BLANKS: [char; 2] = [' ', '\t'];

/// A line of metadata.
pub(crate) struct Metadata<'a> {
    /// `HELP`, `TYPE` or `UNIT`.
    pub(crate) word: &'a str,
    pub(crate) family: &'a str,
    pub(crate) text: &'a str,
}

impl Metadata<'_> {
    /// Parses what follows the `#`; `None` if readers of text would reject it or treat it as a comment.
    pub(crate) fn parse(comment: &str) -> Option<Metadata<'_>> {
        let metadata = Metadata::split(comment)?;
        let sound = match metadata.word {
            "HELP" => is_escaped(metadata.text),
            "TYPE" => matches!(
                metadata.text,
                "counter" | "gauge" | "histogram" | "summary" | "untyped"
            ),
            _ => false,
        };
        sound.then_some(metadata)
    }

    /// Splits what follows the `#`; `None` if it is not metadata.
    pub(crate) fn split(comment: &str) -> Option<Metadata<'_>> {
        let (word, rest) = comment.trim_start_matches(BLANKS).split_at_checked(4)?;
        let rest = rest.strip_prefix(BLANKS)?.trim_start_matches(BLANKS);
        let (family, text) = rest.split_at(name_length(rest.as_bytes()));
        if family.is_empty() || !(text.is_empty() || text.starts_with(BLANKS)) {
            return None;
        }
        let text = match word {
            "HELP" => text.strip_prefix(BLANKS).unwrap_or_default(),
            "TYPE" | "UNIT" => text.trim_matches(BLANKS),
            _ => return None,
        };
        Some(Metadata { word, family, text })
    }
}

/// Whether every backslash starts an escape sequence of the text format.
fn is_escaped(help: &str) -> bool {
    let mut rest = help;
    while let Some((_, escape)) = rest.split_once('\\') {
        match escape.strip_prefix(['\\', 'n']) {
            Some(next) => rest = next,
            None => return false,
        }
    }
    true
}

/// Whether a name may start with this byte.
pub(crate) fn begins_name(byte: &u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b':')
}

/// Length of the name at the beginning.
pub(crate) fn name_length(bytes: &[u8]) -> usize {
    let is_name = |byte: &u8| begins_name(byte) || byte.is_ascii_digit();
    match bytes.first().is_some_and(begins_name) {
        true => bytes.iter().take_while(|byte| is_name(byte)).count(),
        false => 0,
    }
}
