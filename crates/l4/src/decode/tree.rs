//! Reads a message by its table into a tree, in which every value has its type. A field that is not in the table is
//! refused, and so is one that nothing has read in the end.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::Duration;

use super::problem::Problem;
use super::table::{Field, Kind, Message, Usage};
use crate::wire::{Fields, Malformed, Raw};

/// How deep messages may be nested. What servers send has half of it.
const DEPTH: usize = 64;
/// How many values a resource may have: a bound on memory.
const VALUES: usize = 1_000_000;

/// A message.
#[derive(Debug)]
pub(super) struct Node<'a> {
    message: &'static Message,
    entries: Vec<Entry<'a>>,
}

/// A value of a field.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) field: &'static Field,
    pub(super) value: Value<'a>,
    /// Whether the decoder has acted upon it.
    read: Cell<bool>,
}

#[derive(Debug)]
pub(super) enum Value<'a> {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Double(f64),
    Enum(i32),
    Text(&'a str),
    Bytes(&'a [u8]),
    Node(Node<'a>),
    /// A message with the URL of its type.
    Any(&'a str, Node<'a>),
    /// An entry of a map.
    Pair(&'a str, Node<'a>),
}

impl From<Malformed> for Problem {
    fn from(error: Malformed) -> Problem {
        Problem::invalid(error.to_string())
    }
}

/// A message of no fields, for what is left out.
static UNKNOWN: Message = Message {
    name: "",
    fields: &[],
    refused: &[],
    choices: &[],
};

static ANY: Message = Message {
    name: "google.protobuf.Any",
    fields: &[
        Field::served(1, "type_url", Kind::String),
        Field::served(2, "value", Kind::Bytes),
    ],
    refused: &[],
    choices: &[],
};

/// Reads trees, within limits.
pub(super) struct Reader {
    values: usize,
    depth: usize,
    /// Whether fields that are not in the tables are left out instead of refused; only to show a resource.
    lenient: bool,
}

/// Reads a message strictly.
pub(super) fn read<'a>(message: &'static Message, bytes: &'a [u8]) -> Result<Node<'a>, Problem> {
    Reader::new(false).node(message, bytes)
}

/// Reads what a table has of a message, only to show it.
pub(super) fn read_known<'a>(
    message: &'static Message,
    bytes: &'a [u8],
) -> Result<Node<'a>, Problem> {
    Reader::new(true).node(message, bytes)
}

/// The type URL and the value of an encoded `google.protobuf.Any`.
pub(super) fn any(bytes: &[u8]) -> Result<(&str, &[u8]), Problem> {
    let node = read(&ANY, bytes)?;
    Ok((
        node.text("type_url"),
        node.bytes("value").unwrap_or_default(),
    ))
}

impl Reader {
    fn new(lenient: bool) -> Reader {
        Reader {
            values: VALUES,
            depth: DEPTH,
            lenient,
        }
    }

    fn node<'a>(
        &mut self,
        message: &'static Message,
        bytes: &'a [u8],
    ) -> Result<Node<'a>, Problem> {
        let inner = self.depth.checked_sub(1);
        let inner = inner
            .ok_or_else(|| Problem::needs_envoy(format!("messages nested deeper than {DEPTH}")))?;
        self.depth = inner;
        let mut node = Node {
            message,
            entries: Vec::new(),
        };
        for field in Fields::new(bytes) {
            let (number, raw) = field?;
            self.add(&mut node, number, raw)?;
        }
        self.depth += 1;
        if !self.lenient {
            node.check_choices()?;
            node.check_keys()?;
        }
        Ok(node)
    }

    fn add<'a>(&mut self, node: &mut Node<'a>, number: u32, raw: Raw<'a>) -> Result<(), Problem> {
        self.values = self.values.checked_sub(1).ok_or_else(|| {
            Problem::needs_envoy(format!("a resource of more than {VALUES} values"))
        })?;
        let Some(field) = node.message.field(number) else {
            if self.lenient {
                return Ok(());
            }
            return Err(not_in_the_table(node.message, number));
        };
        if !field.many && !matches!(field.kind, Kind::Map(_)) && node.has(field.name) {
            return Err(Problem::needs_envoy("it occurs twice").within(field.name));
        }
        let value = self.value(field, raw).map_err(|problem| {
            if !field.many {
                return problem.within(field.name);
            }
            let before = node
                .entries
                .iter()
                .filter(|entry| entry.field.number == number);
            problem.within_element(field.name, before.count())
        })?;
        node.entries.push(Entry {
            field,
            value,
            read: Cell::new(false),
        });
        Ok(())
    }

    fn value<'a>(&mut self, field: &'static Field, raw: Raw<'a>) -> Result<Value<'a>, Problem> {
        Ok(match (field.kind, raw) {
            (Kind::Bool, Raw::Varint(number)) => Value::Bool(number != 0),
            (Kind::U32, Raw::Varint(number)) => Value::Unsigned(
                u32::try_from(number)
                    .map_err(|_| out_of_range(number))?
                    .into(),
            ),
            (Kind::U64, Raw::Varint(number)) => Value::Unsigned(number),
            (Kind::I32, Raw::Varint(number)) => {
                let signed = number.cast_signed();
                Value::Signed(
                    i32::try_from(signed)
                        .map_err(|_| out_of_range(signed))?
                        .into(),
                )
            }
            (Kind::I64, Raw::Varint(number)) => Value::Signed(number.cast_signed()),
            (Kind::Double, Raw::Fixed64(bits)) => Value::Double(f64::from_bits(bits)),
            (Kind::Enum(kind), Raw::Varint(number)) => {
                let signed = number.cast_signed();
                let known = kind
                    .values
                    .iter()
                    .find(|(value, _)| i64::from(*value) == signed);
                let known = known.ok_or_else(|| {
                    Problem::needs_envoy(format!("the value {signed} of {}", kind.name))
                })?;
                Value::Enum(known.0)
            }
            (Kind::String, Raw::Bytes(bytes)) => Value::Text(text(bytes)?),
            (Kind::Bytes, Raw::Bytes(bytes)) => Value::Bytes(bytes),
            (Kind::Message(message), Raw::Bytes(bytes)) => Value::Node(self.node(message, bytes)?),
            (Kind::Any(known), Raw::Bytes(bytes)) => self.any(known, bytes)?,
            (Kind::Map(message), Raw::Bytes(bytes)) => self.pair(message, bytes)?,
            _ => return Err(Problem::invalid("its wire type is another than its type")),
        })
    }

    fn any<'a>(
        &mut self,
        known: &'static [&'static Message],
        bytes: &'a [u8],
    ) -> Result<Value<'a>, Problem> {
        let (url, value) = any(bytes)?;
        // As in Envoy, only what follows the last slash is the name.
        let name = url.rsplit('/').next().unwrap_or(url);
        match known.iter().find(|message| message.name == name) {
            Some(message) => Ok(Value::Any(url, self.node(message, value)?)),
            None if self.lenient => Ok(Value::Any(url, self.node(&UNKNOWN, &[])?)),
            None => Err(Problem::needs_envoy(if name.is_empty() {
                "a configuration without a type".to_owned()
            } else {
                name.to_owned()
            })),
        }
    }

    fn pair<'a>(
        &mut self,
        message: &'static Message,
        bytes: &'a [u8],
    ) -> Result<Value<'a>, Problem> {
        let (mut key, mut value) = ("", &[][..]);
        for field in Fields::new(bytes) {
            match field? {
                (1, Raw::Bytes(bytes)) => key = text(bytes)?,
                (2, Raw::Bytes(bytes)) => value = bytes,
                _ => return Err(Problem::invalid("it is not an entry of a map")),
            }
        }
        let node = self.node(message, value);
        Ok(Value::Pair(
            key,
            node.map_err(|problem| problem.within(key))?,
        ))
    }
}

fn text(bytes: &[u8]) -> Result<&str, Problem> {
    std::str::from_utf8(bytes).map_err(|_| Problem::invalid("it is not UTF-8"))
}

fn out_of_range(number: impl std::fmt::Display) -> Problem {
    Problem::invalid(format!("the number {number} is out of range"))
}

fn not_in_the_table(message: &Message, number: u32) -> Problem {
    let refused = message.refused.iter().find(|(other, _)| *other == number);
    match refused {
        Some((_, name)) => Problem::needs_envoy("").within(name),
        None => Problem::needs_envoy(format!("field {number} of {}", message.name)),
    }
}

impl<'a> Node<'a> {
    /// The message's full name.
    pub(super) fn message_name(&self) -> &'static str {
        self.message.name
    }

    /// All values, in the order of their bytes.
    pub(super) fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    fn check_choices(&self) -> Result<(), Problem> {
        for choice in self.message.choices {
            let mut set = choice.iter().filter(|number| {
                let mut entries = self.entries.iter();
                entries.any(|entry| entry.field.number == **number)
            });
            if set.next().is_some() && set.next().is_some() {
                let message = self.message.name;
                return Err(Problem::needs_envoy(format!(
                    "fields of {message} that exclude each other"
                )));
            }
        }
        Ok(())
    }

    /// Refuses a map with two values for a key, of which only one could count.
    fn check_keys(&self) -> Result<(), Problem> {
        let mut keys = HashSet::new();
        for entry in &self.entries {
            if let Value::Pair(key, _) = &entry.value
                && !keys.insert((entry.field.number, *key))
            {
                let problem = Problem::needs_envoy(format!("the key {key:?} occurs twice"));
                return Err(problem.within(entry.field.name));
            }
        }
        Ok(())
    }

    fn values<'n>(&'n self, name: &'static str) -> impl Iterator<Item = &'n Value<'a>> {
        debug_assert!(
            self.message.fields.iter().any(|field| field.name == name),
            "{} has no row {name}",
            self.message.name
        );
        let entries = self.entries.iter();
        entries
            .filter(move |entry| entry.field.name == name)
            .map(|entry| {
                entry.read.set(true);
                &entry.value
            })
    }

    /// Whether a field is set. It does not count as read.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.field.name == name)
    }

    pub(super) fn flag(&self, name: &'static str) -> bool {
        matches!(self.values(name).next(), Some(Value::Bool(true)))
    }

    /// An unsigned number, 0 if it is not set.
    pub(super) fn number(&self, name: &'static str) -> u32 {
        match self.values(name).next() {
            Some(Value::Unsigned(number)) => u32::try_from(*number).unwrap_or(u32::MAX),
            _ => 0,
        }
    }

    /// A signed number, 0 if it is not set.
    pub(super) fn signed(&self, name: &'static str) -> i64 {
        match self.values(name).next() {
            Some(Value::Signed(number)) => *number,
            _ => 0,
        }
    }

    /// The number of an enumeration's value, 0 if it is not set.
    pub(super) fn choice(&self, name: &'static str) -> i32 {
        match self.values(name).next() {
            Some(Value::Enum(number)) => *number,
            _ => 0,
        }
    }

    /// A string, empty if it is not set.
    pub(super) fn text(&self, name: &'static str) -> &'a str {
        self.texts(name).next().unwrap_or_default()
    }

    pub(super) fn texts<'n>(&'n self, name: &'static str) -> impl Iterator<Item = &'a str> {
        self.values(name).filter_map(|value| match value {
            Value::Text(text) => Some(*text),
            _ => None,
        })
    }

    pub(super) fn bytes(&self, name: &'static str) -> Option<&'a [u8]> {
        match self.values(name).next() {
            Some(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// A message.
    pub(super) fn node(&self, name: &'static str) -> Option<&Node<'a>> {
        self.nodes(name).next()
    }

    fn nodes<'n>(&'n self, name: &'static str) -> impl Iterator<Item = &'n Node<'a>> {
        self.values(name).filter_map(|value| match value {
            Value::Node(node) | Value::Any(_, node) => Some(node),
            _ => None,
        })
    }

    /// The entries of a map.
    pub(super) fn pairs<'n>(
        &'n self,
        name: &'static str,
    ) -> impl Iterator<Item = (&'a str, &'n Node<'a>)> {
        self.values(name).filter_map(|value| match value {
            Value::Pair(key, node) => Some((*key, node)),
            _ => None,
        })
    }

    /// Makes something of a message; a problem gets the field into its path.
    pub(super) fn child<T>(
        &self,
        name: &'static str,
        make: impl FnOnce(&Node<'a>) -> Result<T, Problem>,
    ) -> Result<Option<T>, Problem> {
        let made = self.node(name).map(make).transpose();
        made.map_err(|problem| problem.within(name))
    }

    /// Makes something of each message of a repeated field; a problem gets the element into its path.
    pub(super) fn each<T>(
        &self,
        name: &'static str,
        mut make: impl FnMut(&Node<'a>) -> Result<T, Problem>,
    ) -> Result<Vec<T>, Problem> {
        let nodes = self.nodes(name).enumerate();
        nodes
            .map(|(index, node)| make(node).map_err(|problem| problem.within_element(name, index)))
            .collect()
    }

    /// The number in a `UInt32Value`.
    pub(super) fn wrapped_number(&self, name: &'static str) -> Option<u32> {
        self.node(name).map(|node| node.number("value"))
    }

    /// The number in a `UInt64Value`.
    pub(super) fn wrapped_large(&self, name: &'static str) -> Option<u64> {
        self.node(name).map(|node| node.large("value"))
    }

    /// An unsigned number of 64 bits, 0 if it is not set.
    pub(super) fn large(&self, name: &'static str) -> u64 {
        match self.values(name).next() {
            Some(Value::Unsigned(number)) => *number,
            _ => 0,
        }
    }

    /// The truth value in a `BoolValue`.
    pub(super) fn wrapped_flag(&self, name: &'static str) -> Option<bool> {
        self.node(name).map(|node| node.flag("value"))
    }

    pub(super) fn double(&self, name: &'static str) -> f64 {
        match self.values(name).next() {
            Some(Value::Double(number)) => *number,
            _ => 0.0,
        }
    }

    /// A duration.
    ///
    /// # Errors
    ///
    /// If it is negative or out of the range of Protocol Buffers.
    pub(super) fn duration(&self, name: &'static str) -> Result<Option<Duration>, Problem> {
        /// About 10,000 years, the longest of Protocol Buffers.
        const LONGEST: u64 = 315_576_000_000;
        self.child(name, |node| {
            let seconds = u64::try_from(node.signed("seconds"));
            let nanos = u32::try_from(node.signed("nanos"));
            match (seconds, nanos) {
                (Ok(seconds @ ..=LONGEST), Ok(nanos @ ..1_000_000_000)) => {
                    Ok(Duration::new(seconds, nanos))
                }
                _ => Err(Problem::invalid("Expected positive duration")),
            }
        })
    }

    /// A duration of more than 0.
    pub(super) fn positive(&self, name: &'static str) -> Result<Option<Duration>, Problem> {
        let duration = self.duration(name)?;
        if duration == Some(Duration::ZERO) {
            return Err(Problem::invalid("value must be greater than 0s").within(name));
        }
        Ok(duration)
    }

    /// Refuses a value that nothing has read: the tables say that it is served, but it had no effect.
    pub(super) fn check_read(&self) -> Result<(), Problem> {
        for entry in &self.entries {
            if entry.field.usage == Usage::Harmless {
                continue;
            }
            let name = entry.field.name;
            if !entry.read.get() {
                return Err(Problem::needs_envoy("it has no effect here").within(name));
            }
            if let Value::Node(node) | Value::Any(_, node) | Value::Pair(_, node) = &entry.value {
                node.check_read().map_err(|problem| problem.within(name))?;
            }
        }
        Ok(())
    }
}
