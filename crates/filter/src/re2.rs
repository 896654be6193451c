//! Checks regular expressions that proxies compile. They are refused when they are written, because
//! a proxy that rejects one keeps all of its previous access rules. Nothing is matched here.

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{self, Ast, RepetitionKind, RepetitionRange, Visitor};

/// RE2's limit for counted repetitions.
const MAX_REPEAT: u32 = 1_000;

/// Checks whether RE2, which Envoy uses, accepts an expression.
///
/// The syntax is that of the `regex` crate, with the differences that matter in paths: a brace that
/// begins no repetition is literal, as in `/users/{id}`. Syntax that only RE2 has (`\Q…\E`, `\C`)
/// is not checked.
///
/// # Errors
///
/// A message for the user.
pub fn validate(text: &str) -> Result<(), String> {
    if text.contains("\\Q") || text.contains("\\C") {
        return Ok(());
    }
    let tree = Parser::new()
        .parse(&with_literal_braces(text))
        .map_err(|error| format!("it is not a regular expression: {}", error.kind()))?;
    ast::visit(&tree, Repetitions)
}

/// Escapes braces that begin no repetition.
fn with_literal_braces(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        // `\p{Greek}` and `\x{10ffff}` have their own braces.
        let of_escape = out.ends_with("\\p") || out.ends_with("\\P") || out.ends_with("\\x");
        if c == '{' && !escaped && !of_escape && !is_repetition(&text[at + 1..]) {
            out.push('\\');
        }
        escaped = c == '\\' && !escaped;
        out.push(c);
    }
    out
}

/// Whether the text after a brace is `n}`, `n,}` or `n,m}`.
fn is_repetition(rest: &str) -> bool {
    let Some((inside, _)) = rest.split_once('}') else {
        return false;
    };
    let (low, high) = inside.split_once(',').unwrap_or((inside, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    !low.is_empty() && digits(low) && digits(high)
}

struct Repetitions;

impl Visitor for Repetitions {
    type Output = ();
    type Err = String;

    fn finish(self) -> Result<(), String> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), String> {
        let Ast::Repetition(repetition) = ast else {
            return Ok(());
        };
        if matches!(*repetition.ast, Ast::Repetition(_)) {
            return Err("it repeats a repetition: put the inner one in parentheses".to_owned());
        }
        let RepetitionKind::Range(range) = &repetition.op.kind else {
            return Ok(());
        };
        let highest = match range {
            RepetitionRange::Exactly(n) | RepetitionRange::AtLeast(n) => *n,
            RepetitionRange::Bounded(low, high) => *low.max(high),
        };
        if highest > MAX_REPEAT {
            return Err(format!(
                "it repeats {highest} times, more than the {MAX_REPEAT} that proxies take"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_paths_and_headers_are_accepted() {
        for text in [
            "/v[0-9]+/.*",
            "/users/{id}/orders/{order,id}",
            "^/a|b(?:c|d)?$",
            "(?i)bearer .{10,1000}",
            "(?P<version>v\\d{1,3})",
            "\\p{Greek}\\x{1F980}[[:alpha:]]{2}",
            "\\Q((\\E",
            "\\{\\\\{x",
            "a{,5}",
            "(?:a*)*b+?",
        ] {
            assert_eq!(validate(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn patterns_that_re2_rejects_are_refused() {
        for text in [
            "((",
            "/a)",
            "[a-",
            "[z-a]",
            "*",
            "a**",
            "a|+",
            "\\",
            "(?=/admin)",
            "(?!/admin).*",
            "(a)\\1",
            "a{2,1}",
            "a{1001}",
            "(b{0,5000})",
        ] {
            assert!(validate(text).is_err(), "{text}");
        }
    }
}
