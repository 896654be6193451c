//! Reads a selector: its text into tokens, and those into an expression.

use std::fmt;

use super::pattern::Pattern;
use super::{Expression, Variable};

/// Deepest nesting of parentheses and `not`.
const MAX_DEPTH: usize = 64;

/// What is wrong, and at which byte.
pub(super) struct Wrong(pub(super) usize, pub(super) String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Open,
    Close,
    /// `["name"]` after a variable: a part of its name.
    Index(String),
    Equal,
    NotEqual,
    /// A bare word: an operator, a variable or a value.
    Word(String),
    /// A quoted text: always a value.
    Text(String),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Open => f.write_str("("),
            Token::Close => f.write_str(")"),
            Token::Index(name) => write!(f, "[{name:?}]"),
            Token::Equal => f.write_str("=="),
            Token::NotEqual => f.write_str("!="),
            Token::Word(word) => f.write_str(word),
            Token::Text(text) => write!(f, "{text:?}"),
        }
    }
}

pub(super) fn tokenise(text: &str) -> Result<Vec<(usize, Token)>, Wrong> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (token, length) = match first {
            c if c.is_whitespace() => {
                at += c.len_utf8();
                continue;
            }
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '[' => {
                let (name, length) = index(rest).map_err(|why| Wrong(at, why))?;
                (Token::Index(name), length)
            }
            '=' if rest.starts_with("==") => (Token::Equal, 2),
            '!' if rest.starts_with("!=") => (Token::NotEqual, 2),
            '"' | '`' => {
                let (value, length) = quoted(rest, first).map_err(|why| Wrong(at, why))?;
                (Token::Text(value), length)
            }
            c if is_word(c) => {
                let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                (Token::Word(rest[..length].to_owned()), length)
            }
            c => {
                return Err(Wrong(
                    at,
                    format!("the character {c:?} has no meaning here"),
                ));
            }
        };
        tokens.push((at, token));
        at += length;
    }
    Ok(tokens)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':' | '@')
}

/// Reads `["name"]`.
fn index(text: &str) -> Result<(String, usize), String> {
    let unclosed = || "an index is a quoted name in brackets, as in value[\"name\"]".to_owned();
    let space = |text: &str| text.len() - text.trim_start().len();
    let start = 1 + space(&text[1..]);
    let quote = text[start..].chars().next().ok_or_else(unclosed)?;
    if quote != '"' && quote != '`' {
        return Err(unclosed());
    }
    let (name, length) = quoted(&text[start..], quote)?;
    let end = start + length;
    let end = end + space(&text[end..]);
    match text[end..].starts_with(']') {
        true => Ok((name, end + 1)),
        false => Err(unclosed()),
    }
}

/// Reads a quoted text: `"…"` with the escapes of Go's strings, or `` `…` `` as it is.
fn quoted(text: &str, quote: char) -> Result<(String, usize), String> {
    let mut value = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((i, c)) = chars.next() {
        match c {
            _ if c == quote => return Ok((value, i + 1)),
            '\\' if quote == '"' => {
                let mut rest = chars.by_ref().map(|(_, c)| c);
                value.push(escaped(&mut rest)?);
            }
            _ => value.push(c),
        }
    }
    Err("the quote is not closed".to_owned())
}

/// The character that the text after a backslash stands for.
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
    let code = u32::from_str_radix(&code, 16)
        .ok()
        .filter(|_| code.len() == digits);
    // A byte above 0x7f is half a character only.
    code.filter(|code| kind != 'x' || *code < 0x80)
        .and_then(char::from_u32)
        .ok_or_else(|| format!("\\{kind} needs {digits} hexadecimal digits of a character"))
}

pub(super) struct Parser<'a> {
    tokens: &'a [(usize, Token)],
    end: usize,
    depth: usize,
}

impl Parser<'_> {
    pub(super) fn new(tokens: &[(usize, Token)], end: usize) -> Parser<'_> {
        Parser {
            tokens,
            end,
            depth: 0,
        }
    }

    /// What has not been read.
    pub(super) fn rest(&self) -> &[(usize, Token)] {
        self.tokens
    }

    fn at(&self) -> usize {
        self.tokens.first().map_or(self.end, |(at, _)| *at)
    }

    fn wrong<T>(&self, expected: &str) -> Result<T, Wrong> {
        let found = match self.tokens.first() {
            Some((_, token)) => token.to_string(),
            None => "the end".to_owned(),
        };
        Err(Wrong(
            self.at(),
            format!("expected {expected}, not {found}"),
        ))
    }

    fn take(&mut self, token: &Token) -> bool {
        let found = self.tokens.first().is_some_and(|(_, next)| next == token);
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let is_it = |token: &Token| matches!(token, Token::Word(w) if w.eq_ignore_ascii_case(word));
        let found = self.tokens.first().is_some_and(|(_, token)| is_it(token));
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    pub(super) fn or(&mut self) -> Result<Expression, Wrong> {
        let mut left = self.and()?;
        while self.take_word("or") {
            left = Expression::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expression, Wrong> {
        let mut left = self.not()?;
        while self.take_word("and") {
            left = Expression::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expression, Wrong> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Wrong(
                self.at(),
                format!("it is nested deeper than {MAX_DEPTH}"),
            ));
        }
        let expression = if self.take_word("not") {
            Expression::Not(Box::new(self.not()?))
        } else if self.take(&Token::Open) {
            let inner = self.or()?;
            if !self.take(&Token::Close) {
                return self.wrong(")");
            }
            inner
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(expression)
    }

    /// One of `variable == value`, `value in variable`, `variable contains value`,
    /// `variable matches value`, `variable is empty` and their negations.
    fn comparison(&mut self) -> Result<Expression, Wrong> {
        if let Some((_, Token::Text(value))) = self.tokens.first() {
            let value = value.clone();
            self.tokens = &self.tokens[1..];
            return self.is_in(value, "in or not in");
        }
        if !matches!(self.tokens.first(), Some((_, Token::Word(_)))) {
            return self.wrong("a variable, a value, not or (");
        }
        let variable = self.variable()?;
        if self.take(&Token::Equal) {
            let value = self.value()?;
            return Ok(Expression::Equal { variable, value });
        }
        if self.take(&Token::NotEqual) {
            let value = self.value()?;
            return Ok(negated(Expression::Equal { variable, value }));
        }
        if self.take_word("is") {
            let not = self.take_word("not");
            if !self.take_word("empty") {
                return self.wrong("empty");
            }
            let empty = Expression::Empty { variable };
            return Ok(if not { negated(empty) } else { empty });
        }
        let rest = self.tokens;
        let not = self.take_word("not");
        let found = if self.take_word("contains") {
            let value = self.value()?;
            Expression::In { value, variable }
        } else if self.take_word("matches") {
            let pattern = self.pattern()?;
            Expression::Matches { variable, pattern }
        } else if not {
            self.tokens = rest;
            return self.is_in(variable.name, "in, contains or matches");
        } else {
            const EXPECTED: &str = "==, !=, in, contains, matches, not in, not contains, not \
                                    matches or is";
            return self.is_in(variable.name, EXPECTED);
        };
        Ok(if not { negated(found) } else { found })
    }

    /// The rest of `value in variable` or `value not in variable`.
    fn is_in(&mut self, value: String, expected: &str) -> Result<Expression, Wrong> {
        let not = self.take_word("not");
        if !self.take_word("in") {
            return self.wrong(expected);
        }
        let variable = self.variable()?;
        let found = Expression::In { value, variable };
        Ok(if not { negated(found) } else { found })
    }

    fn pattern(&mut self) -> Result<Pattern, Wrong> {
        let at = self.at();
        Pattern::new(&self.value()?).map_err(|reason| Wrong(at, reason))
    }

    fn value(&mut self) -> Result<String, Wrong> {
        match self.tokens.first() {
            Some((_, Token::Word(value) | Token::Text(value))) => {
                self.tokens = &self.tokens[1..];
                Ok(value.clone())
            }
            _ => self.wrong("a value"),
        }
    }

    /// `list.groups`, which is the same as `list["groups"]`.
    fn variable(&mut self) -> Result<Variable, Wrong> {
        let Some((at, Token::Word(name))) = self.tokens.first() else {
            return self.wrong("a variable");
        };
        let (at, mut name) = (*at, name.clone());
        self.tokens = &self.tokens[1..];
        while let Some((_, Token::Index(part))) = self.tokens.first() {
            name = format!("{name}.{part}");
            self.tokens = &self.tokens[1..];
        }
        Ok(Variable { name, at })
    }
}

fn negated(expression: Expression) -> Expression {
    Expression::Not(Box::new(expression))
}
