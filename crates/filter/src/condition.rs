//! A condition on one field, and its result for each type of value.

use crate::expression::Operator;
use crate::fields::{FieldPath, Kind, Step};
use crate::pattern::Pattern;

/// A condition on one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    place: FieldPath,
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

/// A value in a filter, parsed as each type that a field can have.
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

/// An integer in Go's syntax: `0x`, `0o` (or `0`) and `0b` select bases other than ten.
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

impl Condition {
    pub(crate) fn new(place: FieldPath, operator: &Operator, negated: bool) -> Self {
        let check = match operator {
            Operator::Equal(text) => Check::Equal(Value::new(text)),
            Operator::In(text) => Check::In(text.clone()),
            Operator::Matches(pattern) => Check::Matches(pattern.clone()),
            Operator::Empty => Check::Empty,
        };
        Condition {
            place,
            check,
            negated,
        }
    }

    /// The result for a missing key of a map: it equals, contains and matches nothing, and is empty.
    pub(crate) fn missing(&self) -> bool {
        matches!(self.check, Check::Empty) != self.negated
    }

    /// The result for a field that a record leaves out because it has the zero value.
    pub(crate) fn left_out(&self, from: usize) -> bool {
        let steps = self.place.steps.get(from..).unwrap_or_default();
        let Some((last, way)) = steps.split_last() else {
            return self.missing();
        };
        for step in way {
            match step.kind {
                Kind::Map | Kind::Any => return self.missing(),
                // An empty list: no record matches.
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

    /// The result for a list of texts or the keys of a map. `found`: one of them is the text looked
    /// for.
    pub(crate) fn many(&self, found: bool, empty: bool) -> bool {
        let holds = match &self.check {
            Check::In(_) => found,
            Check::Empty => empty,
            Check::Equal(_) | Check::Matches(_) => false,
        };
        holds != self.negated
    }

    /// The text looked for among the items of a list or the keys of a map; `None` for other
    /// operators.
    pub(crate) fn item(&self) -> Option<&str> {
        match &self.check {
            Check::In(text) => Some(text),
            Check::Equal(_) | Check::Matches(_) | Check::Empty => None,
        }
    }

    /// The path to the field.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.place.steps
    }
}
