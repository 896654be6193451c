//! A recursive-descent parser for filters: one function for each rule of the grammar.

use crate::expression::{Expression, Match, Operator, Selector, Tree, is_identifier};
use crate::pattern::Pattern;
use crate::{FilterError, MAX_DEPTH, MAX_LENGTH, MAX_PATTERNS};

/// The byte offset and the reason.
struct Wrong(usize, String);

/// How many bytes of an overlong filter an error shows.
const SHOWN: usize = 64;

impl Expression {
    /// Parses a filter; `None` for an empty one, which matches every value.
    ///
    /// # Errors
    ///
    /// [`FilterError::Syntax`] has the byte offset and what was expected.
    pub fn parse(text: &str) -> Result<Option<Expression>, FilterError> {
        let fail = |text: &str, Wrong(at, reason)| FilterError::Syntax {
            text: text.to_owned(),
            at,
            reason,
        };
        if text.len() > MAX_LENGTH {
            let reason = format!("it is longer than {MAX_LENGTH} bytes");
            let shown = &text[..text.floor_char_boundary(SHOWN)];
            return Err(fail(shown, Wrong(MAX_LENGTH, reason)));
        }
        let mut parser = Parser {
            text,
            at: 0,
            depth: 0,
            patterns: 0,
        };
        parser.whole().map_err(|wrong| fail(text, wrong))
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':' | '@')
}

fn is_quote(c: char) -> bool {
    matches!(c, '"' | '`')
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    patterns: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    /// The word at the current position, possibly empty.
    fn peek_word(&self) -> &'a str {
        let rest = self.rest();
        &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())]
    }

    /// Consumes a sign or keyword after white space, if it is next.
    fn take(&mut self, sign: &str) -> bool {
        self.space();
        let found = match sign.starts_with(is_word) {
            true => self.peek_word() == sign,
            false => self.rest().starts_with(sign),
        };
        if found {
            self.at += sign.len();
        }
        found
    }

    fn wrong<T>(&self, expected: &str) -> Result<T, Wrong> {
        let found = match (self.peek_word(), self.peek()) {
            (_, None) => "the end".to_owned(),
            ("", Some(c)) => format!("{c:?}"),
            (word, _) => word.to_owned(),
        };
        let reason = format!("expected {expected}, not {found}");
        Err(Wrong(self.at, reason))
    }

    fn whole(&mut self) -> Result<Option<Expression>, Wrong> {
        self.space();
        if self.rest().is_empty() {
            return Ok(None);
        }
        let found = self.or()?;
        self.space();
        match self.rest() {
            "" => Ok(Some(found)),
            _ => self.wrong("and, or or the end"),
        }
    }

    fn or(&mut self) -> Result<Expression, Wrong> {
        let mut all = vec![self.and()?];
        while self.take("or") {
            all.push(self.and()?);
        }
        Ok(joined(all, Tree::Or))
    }

    fn and(&mut self) -> Result<Expression, Wrong> {
        let mut all = vec![self.not()?];
        while self.take("and") {
            all.push(self.not()?);
        }
        Ok(joined(all, Tree::And))
    }

    fn not(&mut self) -> Result<Expression, Wrong> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let reason = format!("it is nested deeper than {MAX_DEPTH}");
            return Err(Wrong(self.at, reason));
        }
        let found = if self.take("not") {
            Tree::Not(Box::new(self.not()?))
        } else if self.take("(") {
            let inner = self.or()?;
            if !self.take(")") {
                return self.wrong(")");
            }
            inner
        } else {
            Tree::Match(self.matching()?)
        };
        self.depth -= 1;
        Ok(found)
    }

    fn matching(&mut self) -> Result<Match, Wrong> {
        self.space();
        let at = self.at;
        if let Some(selector) = self.selector()? {
            return self.about(selector);
        }
        let Some(value) = self.value()? else {
            return self.wrong("a selector, a value, not or (");
        };
        let negated = self.take("not");
        if self.take("in") {
            return self.is_in(value, negated);
        }
        // Only `in` could follow here; report the more precise error.
        let after = self.wrong("in or not in");
        self.at = at;
        match self.peek() {
            Some(c) if is_quote(c) => after,
            _ => self.wrong("a selector (as in Node.Meta) before this operator, or a value and in"),
        }
    }

    /// The rest of a match that begins with a selector. The selector may turn out to be a value
    /// before `in`.
    fn about(&mut self, selector: Selector) -> Result<Match, Wrong> {
        let operator = if self.take("==") {
            (Operator::Equal(self.required_value()?), false)
        } else if self.take("!=") {
            (Operator::Equal(self.required_value()?), true)
        } else if self.take("is") {
            let negated = self.take("not");
            if !self.take("empty") {
                return self.wrong(if negated {
                    "empty"
                } else {
                    "empty or not empty"
                });
            }
            (Operator::Empty, negated)
        } else {
            let negated = self.take("not");
            if self.take("contains") {
                (Operator::In(self.required_value()?), negated)
            } else if self.take("matches") {
                (Operator::Matches(self.pattern()?), negated)
            } else if self.take("in") {
                return self.is_in(selector.parts.join("."), negated);
            } else if negated {
                return self.wrong("in, contains or matches");
            } else {
                return self.wrong(
                    "==, !=, in, contains, matches, not in, not contains, not matches or is",
                );
            }
        };
        let (operator, negated) = operator;
        Ok(Match {
            selector,
            operator,
            negated,
        })
    }

    /// Parses the selector after `in`.
    fn is_in(&mut self, value: String, negated: bool) -> Result<Match, Wrong> {
        self.space();
        match self.selector()? {
            Some(selector) => Ok(Match {
                selector,
                operator: Operator::In(value),
                negated,
            }),
            None => self.wrong("a selector (as in Node.Meta)"),
        }
    }

    fn pattern(&mut self) -> Result<Pattern, Wrong> {
        self.space();
        let at = self.at;
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            let reason = format!("it has more than {MAX_PATTERNS} patterns");
            return Err(Wrong(at, reason));
        }
        Pattern::new(&self.required_value()?).map_err(|reason| Wrong(at, reason))
    }

    fn required_value(&mut self) -> Result<String, Wrong> {
        self.space();
        match self.value()? {
            Some(value) => Ok(value),
            None => self.wrong("a value"),
        }
    }

    /// Parses a word or a string, if one is next. A word may have indices like a selector.
    fn value(&mut self) -> Result<Option<String>, Wrong> {
        if let Some(selector) = self.selector()? {
            return Ok(Some(selector.parts.join(".")));
        }
        if self.peek().is_some_and(is_quote) {
            return self.string().map(Some);
        }
        let word = self.peek_word();
        self.at += word.len();
        Ok((!word.is_empty()).then(|| word.to_owned()))
    }

    /// Parses a selector, if one is next; otherwise consumes nothing.
    fn selector(&mut self) -> Result<Option<Selector>, Wrong> {
        let start = self.at;
        let mut parts = Vec::new();
        loop {
            let rest = self.rest();
            let more = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let name = &rest[..rest.find(|c| !more(c)).unwrap_or(rest.len())];
            if !is_identifier(name) {
                break;
            }
            parts.push(name.to_owned());
            self.at += name.len();
            while self.peek() == Some('[') {
                parts.push(self.index()?);
            }
            match self.peek() {
                Some('.') => self.at += 1,
                Some(c) if is_word(c) => break,
                _ => {
                    let at = start;
                    return Ok(Some(Selector { parts, at }));
                }
            }
        }
        self.at = start;
        Ok(None)
    }

    /// `["name"]`
    fn index(&mut self) -> Result<String, Wrong> {
        let start = self.at;
        let unclosed = || {
            let reason = "expected a quoted name in brackets, as in Meta[\"name\"]";
            Wrong(start, reason.to_owned())
        };
        self.at += 1;
        self.space();
        if !self.peek().is_some_and(is_quote) {
            return Err(unclosed());
        }
        let name = self.string()?;
        match self.take("]") {
            true => Ok(name),
            false => Err(unclosed()),
        }
    }

    /// `"…"` with Go's escapes, or `` `…` `` verbatim.
    fn string(&mut self) -> Result<String, Wrong> {
        let start = self.at;
        let wrong = |reason: String| Wrong(start, reason);
        let unclosed = || wrong("the quote is not closed".to_owned());
        let mut chars = self.rest().char_indices();
        let (_, quote) = chars.next().ok_or_else(unclosed)?;
        let mut value = String::new();
        while let Some((i, c)) = chars.next() {
            match c {
                _ if c == quote => {
                    self.at += i + 1;
                    return Ok(value);
                }
                '\\' if quote == '"' => {
                    let mut rest = chars.by_ref().map(|(_, c)| c);
                    value.push(escaped(&mut rest).map_err(wrong)?);
                }
                _ => value.push(c),
            }
        }
        Err(unclosed())
    }
}

fn joined(mut all: Vec<Expression>, join: fn(Vec<Expression>) -> Expression) -> Expression {
    match all.len() {
        1 => all.remove(0),
        _ => join(all),
    }
}

/// The character of an escape sequence, after the backslash.
fn escaped(rest: &mut impl Iterator<Item = char>) -> Result<char, String> {
    let Some(kind) = rest.next() else {
        return Err("the quote is not closed".to_owned());
    };
    let digits = match kind {
        '"' | '\\' => return Ok(kind),
        'n' => return Ok('\n'),
        'r' => return Ok('\r'),
        't' => return Ok('\t'),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        other => {
            return Err(format!(
                "\\{other} is not an escape: write \\\\ for a backslash, or quote with `"
            ));
        }
    };
    let code: String = rest.take(digits).collect();
    let hex = code.len() == digits && code.bytes().all(|byte| byte.is_ascii_hexdigit());
    let code = u32::from_str_radix(&code, 16).ok().filter(|_| hex);
    // `\x` above 0x7f would be part of a character only.
    code.filter(|code| kind != 'x' || *code < 0x80)
        .and_then(char::from_u32)
        .ok_or_else(|| format!("\\{kind} needs {digits} hexadecimal digits of a character"))
}
