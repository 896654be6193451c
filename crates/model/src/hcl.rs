//! Parser for HCL version 1, the language of Consul's configuration and rules, or JSON in its place.
//! Parses structure only; callers interpret it.
//!
//! HCL version 2 is a different language: it has expressions, which version 1 lacks, and does not
//! support commas, quoted keys and several arguments per line, which version 1 permits.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The maximum nesting depth of objects and lists.
const MAX_DEPTH: usize = 16;

/// A parsed value. Keys of an object may be repeated.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// Quoted text or a heredoc.
    Text(String),
    /// A block, or an object after `=`.
    Object(Vec<(String, Node)>),
    /// A list in brackets.
    List(Vec<Node>),
    /// A number, true, false or null.
    Scalar(Value),
}

/// A syntax error: its position and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

/// Converts a text to one JSON object. Repeated keys become a list, so one block and several blocks
/// differ in shape; [`crate::json::from_hcl`] accepts both for lists.
///
/// # Errors
/// [`Unreadable`] locates the syntax error.
pub fn to_json(text: &str) -> Result<Value, Unreadable> {
    Ok(Node::Object(parse(text)?).into_json())
}

impl Node {
    /// Converts the value to JSON.
    fn into_json(self) -> Value {
        match self {
            Node::Text(text) => Value::String(text),
            Node::Scalar(value) => value,
            Node::List(items) => Value::Array(items.into_iter().map(Node::into_json).collect()),
            Node::Object(fields) => {
                let mut object = Map::new();
                for (name, node) in fields {
                    let all = match (object.remove(&name), node.into_json()) {
                        (None, value) => value,
                        (Some(first), more) => Value::Array([items(first), items(more)].concat()),
                    };
                    object.insert(name, all);
                }
                Value::Object(object)
            }
        }
    }
}

fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        one => vec![one],
    }
}

/// Parses a text as the fields of an object.
///
/// # Errors
/// [`Unreadable`] locates the syntax error.
pub fn parse(text: &str) -> Result<Vec<(String, Node)>, Unreadable> {
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

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Name(String),
    Text(String),
    Number(Number),
    Sign(char),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Name(name) => f.write_str(name),
            Token::Text(text) => write!(f, "{text:?}"),
            Token::Number(number) => write!(f, "{number}"),
            Token::Sign(sign) => write!(f, "{sign}"),
            Token::End => f.write_str("the end of the text"),
        }
    }
}

struct Reader<'t> {
    text: &'t str,
    /// Byte offset after the last token.
    at: usize,
    /// Byte offset of the last token.
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

    /// Parses arguments and blocks up to a closing brace or the end, which is not consumed.
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

    /// Parses what follows a key: `=` and a value, a block, or further labels and a block.
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
            Token::Number(number) => Ok(Node::Scalar(Value::Number(number))),
            Token::Name(name) if name == "true" => Ok(Node::Scalar(Value::Bool(true))),
            Token::Name(name) if name == "false" => Ok(Node::Scalar(Value::Bool(false))),
            Token::Sign('{') => self.object(depth),
            Token::Sign('[') => self.list(depth),
            other => Err(self.wrong("a value in quotes", &other)),
        }
    }

    /// Parses an object after its opening brace, including the closing one.
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
                let rest = self.rest();
                let text = &rest[..rest.find(part).unwrap_or(rest.len())];
                let number = number(text)
                    .ok_or_else(|| self.error(format_args!("{text} is not a number")))?;
                self.at += text.len();
                Ok(Token::Number(number))
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

    /// Skips whitespace and comments.
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

    /// Parses a heredoc: `<<END` or `<<-END`, lines, and the terminating line `END`.
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
                // The line break is not consumed: it ends the argument.
                self.at += length + line.trim_end().len();
                return Ok(Token::Text(text));
            }
            length += line.len();
            text.push_str(line);
        }
        Err(open)
    }
}

/// Parses an integer (decimal, hexadecimal or octal) or a decimal number.
fn number(text: &str) -> Option<Number> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let radix = |digits: &str, radix| {
        let value = i64::from_str_radix(digits, radix).ok()?;
        Some(Number::from(if text.starts_with('-') {
            -value
        } else {
            value
        }))
    };
    if let Some(hex) = digits.strip_prefix("0x") {
        return radix(hex, 16);
    }
    if digits.len() > 1
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && digits.starts_with('0')
    {
        return radix(digits, 8);
    }
    let signed = text.parse::<i64>().map(Number::from).ok();
    let integer = signed.or_else(|| text.parse::<u64>().map(Number::from).ok());
    integer.or_else(|| Number::from_f64(text.parse().ok()?))
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Json)
    }
}

/// Deserialises JSON without losing repeated keys.
struct Json;

impl<'de> Visitor<'de> for Json {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Bool(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(Value::from(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(Value::from(value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(Value::from(value)))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(text: &str) -> Value {
        to_json(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn blocks_may_be_repeated_nested_and_on_one_line() {
        let text = r#"
            # comment
            services {
              name = "s1"
              connect { sidecar_service { proxy { upstreams = [ { destination_name = "s2" local_bind_port = 5000 } ] } } }
            }
            services { name = "s2" connect { sidecar_service {} } }
            "quoted" = true, ports { http = -1 }
            template = "{{ GetInterfaceIP \"eth0\" }}" // not HCL's
        "#;
        let upstream = json!({"destination_name": "s2", "local_bind_port": 5000});
        let sidecar = json!({"sidecar_service": {"proxy": {"upstreams": [upstream]}}});
        assert_eq!(
            value(text),
            json!({
                "services": [
                    {"name": "s1", "connect": sidecar},
                    {"name": "s2", "connect": {"sidecar_service": {}}},
                ],
                "quoted": true,
                "ports": {"http": -1},
                "template": "{{ GetInterfaceIP \"eth0\" }}",
            })
        );
    }

    #[test]
    fn repeated_keys_become_one_list() {
        assert_eq!(value("a = 1 a = 2 a = 3"), json!({"a": [1, 2, 3]}));
        assert_eq!(value("a = [1] a = [2]"), json!({"a": [1, 2]}));
        assert_eq!(value("a {} a = [{}]"), json!({"a": [{}, {}]}));
        assert_eq!(value(r#"{"a": 1}"#), json!({"a": 1}));
    }

    #[test]
    fn numbers_and_texts() {
        assert_eq!(
            value("a = 0x10 b = 1.5 c = -3 d = 010 e = 0"),
            json!({"a": 16, "b": 1.5, "c": -3, "d": 8, "e": 0})
        );
        assert_eq!(value("a = <<EOF\nx ${y}\nEOF\n"), json!({"a": "x ${y}\n"}));
        assert!(
            to_json("a = 1x")
                .unwrap_err()
                .to_string()
                .contains("At 1:5")
        );
        assert!(to_json("a = [").is_err());
        assert!(to_json(&"a {".repeat(100)).is_err());
    }
}
