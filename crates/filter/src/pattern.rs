//! Patterns of `matches`: regular expressions with Go's semantics, matched in linear time.

use regex::{Regex, RegexBuilder};

/// The maximum size of a compiled pattern, in bytes.
const MAX_SIZE: usize = 256 * 1024;

/// A regular expression that may match anywhere in a text.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    regex: Regex,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl Pattern {
    /// # Errors
    ///
    /// A message for the user.
    pub fn new(text: &str) -> Result<Pattern, String> {
        let rewritten = as_go_reads(text);
        crate::re2::validate(&rewritten)?;
        let built = RegexBuilder::new(&rewritten)
            .size_limit(MAX_SIZE)
            .dfa_size_limit(MAX_SIZE)
            .build();
        let text = text.to_owned();
        match built {
            Ok(regex) => Ok(Pattern { text, regex }),
            Err(error) => Err(format!(
                "{text:?} is not a supported regular expression: {error}"
            )),
        }
    }

    /// The text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The number of groups, without the whole match.
    pub fn group_count(&self) -> usize {
        self.regex.captures_len() - 1
    }

    /// The groups of the first match, empty without a match. A group that did not participate is an
    /// empty text.
    pub fn groups(&self, text: &str) -> Vec<String> {
        let found = self.regex.captures(text);
        let groups = found.iter().flat_map(|found| found.iter());
        groups
            .map(|group| group.map_or_else(String::new, |group| group.as_str().to_owned()))
            .collect()
    }

    /// Whether it matches a part of the text.
    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

/// Rewrites the syntax in which Go differs from the `regex` crate: `\d`, `\s`, `\w` and `\b` are
/// ASCII only, and `[`, `&` and `~` are literal in a class.
fn as_go_reads(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_class = false;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some((_, 'd')) => out.push_str("[0-9]"),
                Some((_, 'D')) => out.push_str("[^0-9]"),
                Some((_, 'w')) => out.push_str("[0-9A-Za-z_]"),
                Some((_, 'W')) => out.push_str("[^0-9A-Za-z_]"),
                Some((_, 's')) => out.push_str("[\\t\\n\\f\\r ]"),
                Some((_, 'S')) => out.push_str("[^\\t\\n\\f\\r ]"),
                Some((_, 'b')) if !in_class => out.push_str("(?-u:\\b)"),
                // `\B` matches between any two bytes in Go, here only between characters.
                Some((_, other)) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            '[' if in_class => match named_class(&text[at..]) {
                Some(name) => {
                    out.push_str(name);
                    chars.nth(name.len() - 2);
                }
                None => out.push_str("\\["),
            },
            '[' => {
                in_class = true;
                out.push(c);
                // A bracket in first position does not close the class.
                if chars.next_if(|(_, c)| *c == '^').is_some() {
                    out.push('^');
                }
                if chars.next_if(|(_, c)| *c == ']').is_some() {
                    out.push_str("\\]");
                }
            }
            ']' if in_class => {
                in_class = false;
                out.push(c);
            }
            '&' | '~' if in_class => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}

/// A named class such as `[:alpha:]` at the beginning of a text.
fn named_class(text: &str) -> Option<&str> {
    let inside = text.strip_prefix("[:")?;
    let (name, _) = inside.split_once(":]")?;
    let letters = name.trim_start_matches('^');
    let known = !letters.is_empty() && letters.bytes().all(|b| b.is_ascii_lowercase());
    known.then(|| &text[..name.len() + 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_go() {
        for (pattern, text, expected) in [
            ("^web-\\d+$", "web-12", true),
            // An Arabic digit, and a letter with an accent.
            ("^\\d$", "\u{663}", false),
            ("^\\w$", "\u{e9}", false),
            ("^[\\w.]+$", "a.b", true),
            ("^\\W$", "\u{e9}", true),
            ("b", "abc", true),
            ("\\bops\\b", "dev ops", true),
            ("^[[a]$", "[", true),
            ("^[[:alpha:]]$", "x", true),
            ("^[[:alpha:]_]$", "_", true),
            ("^[[:alpha:]:]$", ":", true),
            ("^[a:]b[c]$", "abc", true),
            ("^[a&&b]$", "&", true),
            ("^[]a]$", "]", true),
            ("^[^]a]$", "]", false),
            ("(?i)^OPS$", "ops", true),
            ("", "anything", true),
        ] {
            let pattern = Pattern::new(pattern).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(pattern.is_match(text), expected, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn groups_are_taken_out_of_a_text() {
        let groups = |pattern, text| Pattern::new(pattern).map(|one| one.groups(text));
        let found = |groups: &[&str]| Ok(groups.iter().map(|one| (*one).to_owned()).collect());
        let geo = "^geo-(.*?)-([^-]+?)$";
        assert_eq!(groups(geo, "geo-a-b-c"), found(&["geo-a-b-c", "a-b", "c"]));
        assert_eq!(groups(geo, "geo"), found(&[]));
        assert_eq!(groups("(x)|(y)", "ay"), found(&["y", "", "y"]));
        let count = |pattern| Pattern::new(pattern).map(|one| one.group_count());
        assert_eq!(count("(x)|(?:y)|(?P<z>z)"), Ok(2));
        assert_eq!(count("x"), Ok(0));
    }

    #[test]
    fn unsupported_patterns_are_refused() {
        for pattern in [
            "(",
            "a**",
            "(a)\\1",
            "(?=x)",
            "a{1001}",
            "\\Qa\\E",
            "((a{900}){900})",
        ] {
            assert!(Pattern::new(pattern).is_err(), "{pattern}");
        }
    }
}
