//! What one field is asked, and the answer for each kind of value that it may have.

use crate::expression::Operator;
use crate::fields::{Kind, Place, Step};
use crate::pattern::Pattern;

/// A condition on one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    place: Place,
    check: Check,
    negated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Check {
    Equal(Value),
    In(String),
    Matches(Pattern),
    Empty,
}

/// A value of a filter, as each kind of field reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    text: String,
    pub(crate) integer: Option<i128>,
    pub(crate) boolean: Option<bool>,
}

impl Value {
    pub(crate) fn new(text: &str) -> Self {
        Value {
            text: text.to_owned(),
            integer: integer(text),
            boolean: match text {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
                _ => None,
            },
        }
    }
}

/// A whole number as Go writes them: `0x`, `0o` (or `0`) and `0b` begin other bases than ten.
fn integer(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = if let Some(rest) = lower.strip_prefix("0x") {
        (16, rest)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (2, rest)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (8, rest)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let number = u64::from_str_radix(digits, base).ok()?;
    Some(sign * i128::from(number))
}

impl Question {
    pub(crate) fn new(place: Place, operator: &Operator, negated: bool) -> Self {
        let check = match operator {
            Operator::Equal(text) => Check::Equal(Value::new(text)),
            Operator::In(text) => Check::In(text.clone()),
            Operator::Matches(pattern) => Check::Matches(pattern.clone()),
            Operator::Empty => Check::Empty,
        };
        Question {
            place,
            check,
            negated,
        }
    }

    /// The answer where a map has no such key: nothing equals it, is in it or matches it, and it is
    /// empty.
    pub(crate) fn missing(&self) -> bool {
        matches!(self.check, Check::Empty) != self.negated
    }

    /// The answer where a record leaves a field out, which it does with those that have no value.
    pub(crate) fn left_out(&self, from: usize) -> bool {
        let steps = self.place.steps.get(from..).unwrap_or_default();
        let Some((last, way)) = steps.split_last() else {
            return self.missing();
        };
        for step in way {
            match step.kind {
                Kind::Map | Kind::Any => return self.missing(),
                // There is no record for which it could hold.
                Kind::List => return false,
                _ => {}
            }
        }
        match last.kind {
            Kind::Text => self.text(""),
            Kind::Bool => self.boolean(false),
            Kind::Integer => self.integer(0),
            _ => self.missing(),
        }
    }

    pub(crate) fn text(&self, own: &str) -> bool {
        let holds = match &self.check {
            Check::Equal(value) => own == value.text,
            Check::In(part) => own.contains(part.as_str()),
            Check::Matches(pattern) => pattern.is_match(own),
            Check::Empty => own.is_empty(),
        };
        holds != self.negated
    }

    pub(crate) fn integer(&self, own: i128) -> bool {
        let holds = match &self.check {
            Check::Equal(value) => value.integer == Some(own),
            _ => false,
        };
        holds != self.negated
    }

    pub(crate) fn boolean(&self, own: bool) -> bool {
        let holds = match &self.check {
            Check::Equal(value) => value.boolean == Some(own),
            _ => false,
        };
        holds != self.negated
    }

    /// The answer of a list of texts or the keys of a map, of which one was what is looked for.
    pub(crate) fn many(&self, found: bool, empty: bool) -> bool {
        let holds = match &self.check {
            Check::In(_) => found,
            Check::Empty => empty,
            Check::Equal(_) | Check::Matches(_) => false,
        };
        holds != self.negated
    }

    /// The text that an item of a list or a key of a map has to be; nothing where another question is
    /// asked.
    pub(crate) fn item(&self) -> Option<&str> {
        match &self.check {
            Check::In(text) => Some(text),
            Check::Equal(_) | Check::Matches(_) | Check::Empty => None,
        }
    }

    /// The way to what is asked.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.place.steps
    }
}
