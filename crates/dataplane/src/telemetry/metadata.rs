//! What a page says about families, and their names: the words of the text format and of OpenMetrics. Pure.

/// What separates words.
pub(super) const BLANKS: [char; 2] = [' ', '\t'];

/// What a line says about a family.
pub(super) struct Metadata<'a> {
    /// `HELP`, `TYPE` or `UNIT`.
    pub(super) word: &'a str,
    pub(super) family: &'a str,
    pub(super) text: &'a str,
}

impl Metadata<'_> {
    /// Reads what follows the `#`: nothing where readers of text would refuse it, or take it for a
    /// comment.
    pub(super) fn parse(comment: &str) -> Option<Metadata<'_>> {
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
    pub(super) fn split(comment: &str) -> Option<Metadata<'_>> {
        let rest = comment.trim_start_matches(BLANKS);
        let (word, rest) = rest.split_once(BLANKS)?;
        let rest = rest.trim_start_matches(BLANKS);
        let (family, text) = rest.split_once(BLANKS).unwrap_or((rest, ""));
        let named = matches!(word, "HELP" | "TYPE" | "UNIT")
            && !family.is_empty()
            && name_length(family.as_bytes()) == family.len();
        let text = match word {
            "HELP" => text,
            _ => text.trim_matches(BLANKS),
        };
        named.then_some(Metadata { word, family, text })
    }
}

/// Whether every backslash begins an escape that the text format has.
fn is_escaped(help: &str) -> bool {
    let rest = help.replace(r"\\", "").replace(r"\n", "");
    !rest.contains('\\')
}

/// Whether a name may begin with it.
pub(super) fn begins_name(byte: &u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b':')
}

/// How long the name at the beginning is.
pub(super) fn name_length(bytes: &[u8]) -> usize {
    let is_name = |byte: &u8| begins_name(byte) || byte.is_ascii_digit();
    match bytes.first().is_some_and(begins_name) {
        true => bytes.iter().take_while(|byte| is_name(byte)).count(),
        false => 0,
    }
}
