//! What a page says about families, and their names: the words of the text format and of OpenMetrics.

/// What separates words.
pub(crate) const BLANKS: [char; 2] = [' ', '\t'];

/// What a line says about a family.
pub(crate) struct Metadata<'a> {
    /// `HELP`, `TYPE` or `UNIT`.
    pub(crate) word: &'a str,
    pub(crate) family: &'a str,
    pub(crate) text: &'a str,
}

impl Metadata<'_> {
    /// Reads what follows the `#`: nothing where readers of text would refuse it, or take it for a
    /// comment.
    pub(crate) fn parse(comment: &str) -> Option<Metadata<'_>> {
        let said = Metadata::split(comment)?;
        let sound = match said.word {
            "HELP" => is_escaped(said.text),
            "TYPE" => matches!(
                said.text,
                "counter" | "gauge" | "histogram" | "summary" | "untyped"
            ),
            _ => false,
        };
        sound.then_some(said)
    }

    /// The parts of what follows the `#`, where it is metadata.
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

/// Whether every backslash begins an escape that the text format has.
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

/// Whether a name may begin with it.
pub(crate) fn begins_name(byte: &u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b':')
}

/// How long the name at the beginning is.
pub(crate) fn name_length(bytes: &[u8]) -> usize {
    let is_name = |byte: &u8| begins_name(byte) || byte.is_ascii_digit();
    match bytes.first().is_some_and(begins_name) {
        true => bytes.iter().take_while(|byte| is_name(byte)).count(),
        false => 0,
    }
}
