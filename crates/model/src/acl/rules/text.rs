//! Reads rules as text: HCL of the first version, which is Consul's, or JSON. Knows shapes only; what
//! they mean is the business of the module above.
//!
//! HCL's second version is another language: it has expressions, which rules do not, and it refuses
//! commas and several arguments on one line, which rules may have.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// How deep objects and lists may be nested. Rules need three levels.
const MAX_DEPTH: usize = 16;

/// A value of a rules text. Names of an object may be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Text(String),
    Object(Vec<(String, Node)>),
    List(Vec<Node>),
    /// A number, true, false or null: no rule has one.
    Other,
}

/// Where a text cannot be read, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unreadable(String);

/// The top of a text: an object.
pub(super) fn parse(text: &str) -> Result<Vec<(String, Node)>, Unreadable> {
    if text.trim_start().starts_with('{') {
        return match serde_json::from_str(text) {
            Ok(Node::Object(fields)) => Ok(fields),
            Ok(_) => Err(Unreadable("the text is not an object".to_owned())),
            Err(error) => Err(Unreadable(error.to_string())),
        };
    }
    let mut reader = Reader {
        text,
        at: 0,
        start: 0,
    };
    let fields = reader.fields(0)?;
    match reader.token()? {
        Token::End => Ok(fields),
        other => Err(reader.wrong("a name or the end", &other)),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Name(String),
    Text(String),
    Number,
    Sign(char),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Name(name) => f.write_str(name),
            Token::Text(text) => write!(f, "{text:?}"),
            Token::Number => f.write_str("a number"),
            Token::Sign(sign) => write!(f, "{sign}"),
            Token::End => f.write_str("the end of the text"),
        }
    }
}

struct Reader<'t> {
    text: &'t str,
    /// The byte behind the last token.
    at: usize,
    /// The byte where the last token begins.
    start: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn error(&self, reason: impl fmt::Display) -> Unreadable {
        let before = &self.text[..self.start];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before[start..].chars().count() + 1;
        Unreadable(format!("At {line}:{column}: {reason}"))
    }

    fn wrong(&self, expected: &str, found: &Token) -> Unreadable {
        self.error(format_args!("expected {expected}, found {found}"))
    }

    /// Arguments and blocks up to a closing brace or the end, which is left.
    fn fields(&mut self, depth: usize) -> Result<Vec<(String, Node)>, Unreadable> {
        let mut fields = Vec::new();
        loop {
            let before = self.at;
            match self.token()? {
                Token::Sign(',') => {}
                Token::Name(name) | Token::Text(name) => {
                    let value = self.field(depth)?;
                    fields.push((name, value));
                }
                Token::Sign('}') | Token::End => {
                    self.at = before;
                    return Ok(fields);
                }
                other => return Err(self.wrong("a name", &other)),
            }
        }
    }

    /// What stands behind a name: a value behind `=`, a block, or further names and a block.
    fn field(&mut self, depth: usize) -> Result<Node, Unreadable> {
        match self.token()? {
            Token::Sign('=') => self.value(depth),
            Token::Sign('{') => self.object(depth),
            Token::Name(name) | Token::Text(name) => {
                let mut names = vec![name];
                loop {
                    match self.token()? {
                        Token::Name(name) | Token::Text(name) => names.push(name),
                        Token::Sign('{') => break,
                        other => return Err(self.wrong("{", &other)),
                    }
                    if names.len() > MAX_DEPTH {
                        return Err(self.error("too many names"));
                    }
                }
                let body = self.object(depth)?;
                let nest = |inner, name| Node::Object(vec![(name, inner)]);
                Ok(names.into_iter().rev().fold(body, nest))
            }
            other => Err(self.wrong("=, { or a name", &other)),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node, Unreadable> {
        match self.token()? {
            Token::Text(text) => Ok(Node::Text(text)),
            Token::Number => Ok(Node::Other),
            Token::Name(name) if name == "true" || name == "false" => Ok(Node::Other),
            Token::Sign('{') => self.object(depth),
            Token::Sign('[') => self.list(depth),
            other => Err(self.wrong("a value in quotes", &other)),
        }
    }

    /// Behind the opening brace, to the closing one.
    fn object(&mut self, depth: usize) -> Result<Node, Unreadable> {
        self.deeper(depth)?;
        let fields = self.fields(depth + 1)?;
        match self.token()? {
            Token::Sign('}') => Ok(Node::Object(fields)),
            other => Err(self.wrong("}", &other)),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Node, Unreadable> {
        self.deeper(depth)?;
        let mut items = Vec::new();
        loop {
            let before = self.at;
            match self.token()? {
                Token::Sign(']') => return Ok(Node::List(items)),
                Token::Sign(',') => {}
                _ => {
                    self.at = before;
                    items.push(self.value(depth + 1)?);
                }
            }
        }
    }

    fn deeper(&self, depth: usize) -> Result<(), Unreadable> {
        if depth < MAX_DEPTH {
            return Ok(());
        }
        Err(self.error("nested too deep"))
    }

    fn token(&mut self) -> Result<Token, Unreadable> {
        self.skip()?;
        self.start = self.at;
        let Some(first) = self.rest().chars().next() else {
            return Ok(Token::End);
        };
        match first {
            '"' => self.quoted(),
            '<' if self.rest().starts_with("<<") => self.heredoc(),
            '=' | '{' | '}' | '[' | ']' | ',' => {
                self.at += 1;
                Ok(Token::Sign(first))
            }
            '-' | '0'..='9' => {
                let part = |c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c));
                self.at += self.rest().find(part).unwrap_or(self.rest().len());
                Ok(Token::Number)
            }
            letter if letter.is_alphabetic() || letter == '_' => {
                let part = |c: char| !(c.is_alphanumeric() || "_-.".contains(c));
                let rest = self.rest();
                let name = rest[..rest.find(part).unwrap_or(rest.len())].to_owned();
                self.at += name.len();
                Ok(Token::Name(name))
            }
            other => Err(self.error(format_args!("{other:?} has no meaning here"))),
        }
    }

    /// Space and comments.
    fn skip(&mut self) -> Result<(), Unreadable> {
        loop {
            let rest = self.rest();
            let space = [' ', '\t', '\r', '\n', '\u{feff}'];
            self.at += rest.len() - rest.trim_start_matches(space).len();
            self.start = self.at;
            let trimmed = self.rest();
            let comment = if trimmed.starts_with('#') || trimmed.starts_with("//") {
                trimmed.find('\n').unwrap_or(trimmed.len())
            } else if let Some(inner) = trimmed.strip_prefix("/*") {
                let end = inner.find("*/");
                end.ok_or_else(|| self.error("a comment is not closed"))? + 4
            } else {
                0
            };
            self.at += comment;
            if comment == 0 {
                return Ok(());
            }
        }
    }

    fn quoted(&mut self) -> Result<Token, Unreadable> {
        let open = self.error("a quote is not closed");
        let mut text = String::new();
        let mut chars = self.text[self.at + 1..].char_indices();
        while let Some((offset, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += offset + 2;
                    return Ok(Token::Text(text));
                }
                '\n' => break,
                '\\' => {
                    let Some((_, escaped)) = chars.next() else {
                        break;
                    };
                    match escaped {
                        'n' => text.push('\n'),
                        't' => text.push('\t'),
                        'r' => text.push('\r'),
                        '"' | '\\' => text.push(escaped),
                        'u' | 'U' => {
                            let count = if escaped == 'u' { 4 } else { 8 };
                            let digits: String =
                                chars.by_ref().take(count).map(|(_, c)| c).collect();
                            let code = u32::from_str_radix(&digits, 16).ok();
                            let known = code.and_then(char::from_u32);
                            text.push(known.ok_or_else(|| self.error("a \\u escape is wrong"))?);
                        }
                        other => {
                            let reason = format!("\\{other} is not an escape");
                            return Err(self.error(reason));
                        }
                    }
                }
                other => text.push(other),
            }
        }
        Err(open)
    }

    /// `<<END` or `<<-END`, lines, and a line that is `END`.
    fn heredoc(&mut self) -> Result<Token, Unreadable> {
        let open = self.error("a heredoc is not closed");
        let (head, body) = self.rest().split_once('\n').ok_or_else(|| open.clone())?;
        let mark = head[2..].trim_start_matches('-').trim();
        if mark.is_empty() {
            return Err(open);
        }
        let mut length = head.len() + 1;
        let mut text = String::new();
        for line in body.split_inclusive('\n') {
            if line.trim() == mark {
                // The end of the line stays: it ends the argument.
                self.at += length + line.trim_end().len();
                return Ok(Token::Text(text));
            }
            length += line.len();
            text.push_str(line);
        }
        Err(open)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Json)
    }
}

/// Reads JSON without losing names that are repeated.
struct Json;

impl<'de> Visitor<'de> for Json {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            fields.push(entry);
        }
        Ok(Node::Object(fields))
    }
}
