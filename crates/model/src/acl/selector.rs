//! Selectors of binding rules: boolean expressions over the variables of a login.
//!
//! The part of Consul's filter language that selectors use: `==`, `!=`, `in`, `not in`, `contains`,
//! `not contains`, `is empty`, `is not empty`, `and`, `or`, `not` and parentheses.

use crate::acl::variables::Variables;

/// Longest selector, in bytes.
const MAX_LENGTH: usize = 8 * 1024;
/// Deepest nesting of parentheses and `not`.
const MAX_DEPTH: usize = 64;

/// A text that is not a selector, or uses a variable that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the selector {selector:?} is wrong at byte {at}: {reason}")]
pub struct SelectorError {
    selector: String,
    at: usize,
    reason: String,
}

/// A parsed selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    text: String,
    /// `None` matches everything.
    expression: Option<Expression>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Expression {
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Not(Box<Expression>),
    Equal { variable: Variable, value: String },
    In { value: String, variable: Variable },
    Empty { variable: Variable },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Variable {
    name: String,
    at: usize,
}

impl Selector {
    /// Reads a selector; an empty one matches everything.
    ///
    /// # Errors
    ///
    /// [`SelectorError`] says where the text stops making sense and what was expected.
    pub fn parse(text: &str) -> Result<Selector, SelectorError> {
        let fail = |at, reason| SelectorError {
            selector: text.to_owned(),
            at,
            reason,
        };
        if text.len() > MAX_LENGTH {
            return Err(fail(
                MAX_LENGTH,
                format!("it is longer than {MAX_LENGTH} bytes"),
            ));
        }
        let tokens = tokenise(text).map_err(|Wrong(at, reason)| fail(at, reason))?;
        let mut parser = Parser {
            tokens: &tokens,
            end: text.len(),
            depth: 0,
        };
        let expression = if tokens.is_empty() {
            None
        } else {
            let expression = parser.or().map_err(|Wrong(at, reason)| fail(at, reason))?;
            if let Some((at, token)) = parser.tokens.first() {
                return Err(fail(
                    *at,
                    format!("expected and, or or the end, not {token}"),
                ));
            }
            Some(expression)
        };
        Ok(Selector {
            text: text.to_owned(),
            expression,
        })
    }

    /// Whether every variable exists.
    ///
    /// # Errors
    ///
    /// [`SelectorError`] names the variable and those that exist.
    pub fn check(&self, known: &Variables) -> Result<(), SelectorError> {
        let fail = |variable: &Variable, wanted: &str| SelectorError {
            selector: self.text.clone(),
            at: variable.at,
            reason: format!(
                "{:?} is not a {wanted} here (known: {})",
                variable.name,
                known.names()
            ),
        };
        let mut rest: Vec<&Expression> = self.expression.iter().collect();
        while let Some(expression) = rest.pop() {
            match expression {
                Expression::And(a, b) | Expression::Or(a, b) => rest.extend([a.as_ref(), b]),
                Expression::Not(inner) => rest.push(inner),
                Expression::Equal { variable, .. } => {
                    if !known.values.contains_key(&variable.name) {
                        return Err(fail(variable, "single value"));
                    }
                }
                Expression::In { variable, .. } | Expression::Empty { variable } => {
                    let exists = known.values.contains_key(&variable.name)
                        || known.lists.contains_key(&variable.name);
                    if !exists {
                        return Err(fail(variable, "variable"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a login's variables fit. A variable that is missing is empty.
    pub fn matches(&self, variables: &Variables) -> bool {
        self.expression
            .as_ref()
            .is_none_or(|expression| expression.holds(variables))
    }
}

impl Expression {
    fn holds(&self, variables: &Variables) -> bool {
        match self {
            Expression::And(a, b) => a.holds(variables) && b.holds(variables),
            Expression::Or(a, b) => a.holds(variables) || b.holds(variables),
            Expression::Not(inner) => !inner.holds(variables),
            Expression::Equal { variable, value } => {
                variables
                    .values
                    .get(&variable.name)
                    .map_or("", String::as_str)
                    == value
            }
            // In a list an item, in a text a part of it.
            Expression::In { value, variable } => match variables.lists.get(&variable.name) {
                Some(list) => list.contains(value),
                None => variables
                    .values
                    .get(&variable.name)
                    .is_some_and(|text| text.contains(value)),
            },
            Expression::Empty { variable } => match variables.lists.get(&variable.name) {
                Some(list) => list.is_empty(),
                None => variables
                    .values
                    .get(&variable.name)
                    .is_none_or(String::is_empty),
            },
        }
    }
}

/// What is wrong, and at which byte.
struct Wrong(usize, String);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    Equal,
    NotEqual,
    /// A bare word: an operator, a variable or a value.
    Word(String),
    /// A quoted text: always a value.
    Text(String),
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Open => f.write_str("("),
            Token::Close => f.write_str(")"),
            Token::Equal => f.write_str("=="),
            Token::NotEqual => f.write_str("!="),
            Token::Word(word) => f.write_str(word),
            Token::Text(text) => write!(f, "{text:?}"),
        }
    }
}

fn tokenise(text: &str) -> Result<Vec<(usize, Token)>, Wrong> {
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

/// Reads a quoted text: `"…"` with `\"` and `\\`, or `` `…` `` as it is.
fn quoted(text: &str, quote: char) -> Result<(String, usize), String> {
    let mut value = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((i, c)) = chars.next() {
        match c {
            _ if c == quote => return Ok((value, i + 1)),
            '\\' if quote == '"' => match chars.next() {
                Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                Some((_, other)) => {
                    return Err(format!("\\{other} is not an escape (\\\" or \\\\)"));
                }
                None => break,
            },
            _ => value.push(c),
        }
    }
    Err("the quote is not closed".to_owned())
}

struct Parser<'a> {
    tokens: &'a [(usize, Token)],
    end: usize,
    depth: usize,
}

impl Parser<'_> {
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

    fn or(&mut self) -> Result<Expression, Wrong> {
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
    /// `variable is empty` and their negations.
    fn comparison(&mut self) -> Result<Expression, Wrong> {
        let at = self.at();
        let (left, quoted) = match self.tokens.first() {
            Some((_, Token::Word(word))) => (word.clone(), false),
            Some((_, Token::Text(text))) => (text.clone(), true),
            _ => return self.wrong("a variable, a value, not or ("),
        };
        self.tokens = &self.tokens[1..];
        let variable = Variable {
            name: left.clone(),
            at,
        };
        if !quoted && self.take(&Token::Equal) {
            let value = self.value()?;
            return Ok(Expression::Equal { variable, value });
        }
        if !quoted && self.take(&Token::NotEqual) {
            let value = self.value()?;
            return Ok(negated(Expression::Equal { variable, value }));
        }
        if !quoted && self.take_word("is") {
            let not = self.take_word("not");
            if !self.take_word("empty") {
                return self.wrong("empty");
            }
            let empty = Expression::Empty { variable };
            return Ok(if not { negated(empty) } else { empty });
        }
        let not = self.take_word("not");
        let found = if self.take_word("in") {
            let variable = self.variable()?;
            Expression::In {
                value: left,
                variable,
            }
        } else if !quoted && self.take_word("contains") {
            let value = self.value()?;
            Expression::In { value, variable }
        } else {
            return self.wrong(match (quoted, not) {
                (true, _) => "in or not in",
                (false, true) => "in or contains",
                (false, false) => "==, !=, in, not in, contains, not contains or is",
            });
        };
        Ok(if not { negated(found) } else { found })
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

    fn variable(&mut self) -> Result<Variable, Wrong> {
        match self.tokens.first() {
            Some((at, Token::Word(name))) => {
                self.tokens = &self.tokens[1..];
                Ok(Variable {
                    name: name.clone(),
                    at: *at,
                })
            }
            _ => self.wrong("a variable"),
        }
    }
}

fn negated(expression: Expression) -> Expression {
    Expression::Not(Box::new(expression))
}

#[cfg(test)]
#[path = "selector_tests.rs"]
mod tests;
