//! Compares two responses.

use std::collections::BTreeSet;

use serde_json::Value;

use super::file::{Answer, Exchange};
use super::masks::{self, is_at};

/// The differences with their places.
pub(super) struct Differences(Vec<(Location, String)>);

enum Location {
    /// The status, a header or the whole body.
    Named(String),
    /// A path in the JSON of the body.
    Inside(Vec<String>),
}

impl Differences {
    pub(super) fn between(recorded: &Answer, answered: &Answer) -> Self {
        let mut found = Self(Vec::new());
        if recorded.status != answered.status {
            let how = format!("{} is {}", recorded.status, answered.status);
            found.named("status", how);
        }
        let headers = recorded.headers.iter().chain(&answered.headers);
        let names: BTreeSet<_> = headers.map(|(name, _)| name).collect();
        let value = |answer: &Answer, name: &str| {
            let values = answer.headers.iter().filter(|(named, _)| named == name);
            values.map(|(_, value)| value.clone()).collect::<Vec<_>>()
        };
        for name in names {
            let (one, other) = (value(recorded, name), value(answered, name));
            // Legate sets this header on every response, Consul on many.
            let is_said = one.is_empty() && masks::is_by_chance(name);
            if one != other && !is_said {
                found.named(name, format!("{one:?} is {other:?}"));
            }
        }
        let json = |answer: &Answer| serde_json::from_str::<Value>(&answer.body).ok();
        match (json(recorded), json(answered)) {
            (Some(one), Some(other)) => found.inside(&one, &other, &mut Vec::new()),
            _ if recorded.body == answered.body => {}
            _ => found.named(
                "body",
                format!("{:?} is {:?}", recorded.body, answered.body),
            ),
        }
        found
    }

    /// Whether these are exactly the differences listed for the exchange.
    pub(super) fn judge(&self, exchange: &Exchange, intended: bool) -> Result<(), String> {
        let listed: &[String] = if intended { &exchange.differs } else { &[] };
        let mut text: Vec<String> = Vec::new();
        for (place, how) in &self.0 {
            if !listed.iter().any(|listed| place.is(listed)) {
                text.push(format!("  {}: {how}", place.shown()));
            }
        }
        for listed in listed {
            if !self.0.iter().any(|(place, _)| place.is(listed)) {
                text.push(format!("  {listed}: listed as different, and is the same"));
            }
        }
        if text.is_empty() {
            return Ok(());
        }
        Err(text.join("\n"))
    }

    fn named(&mut self, name: &str, how: String) {
        self.0.push((Location::Named(name.to_owned()), how));
    }

    fn inside(&mut self, one: &Value, other: &Value, at: &mut Vec<String>) {
        match (one, other) {
            (Value::Object(one), Value::Object(other)) => {
                let more = other.keys().filter(|name| !one.contains_key(*name));
                for name in one.keys().chain(more) {
                    at.push(name.clone());
                    match (one.get(name), other.get(name)) {
                        (Some(one), Some(other)) => self.inside(one, other, at),
                        (Some(one), None) => self.here(at, format!("{one} is missing")),
                        (None, other) => {
                            let other = other.unwrap_or(&Value::Null);
                            self.here(at, format!("{other} is too much"));
                        }
                    }
                    at.pop();
                }
            }
            (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
                for (i, (one, other)) in one.iter().zip(other).enumerate() {
                    at.push(i.to_string());
                    self.inside(one, other, at);
                    at.pop();
                }
            }
            (one, other) if one == other => {}
            // Consul writes null for unset lists, Legate an empty list.
            (Value::Null, Value::Array(other)) if other.is_empty() => {}
            (Value::Null, Value::Object(other)) if other.is_empty() => {}
            (Value::Array(one), Value::Null) if one.is_empty() => {}
            (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() => {}
            (one, other) => self.here(at, format!("{one} is {other}")),
        }
    }

    fn here(&mut self, at: &[String], how: String) {
        self.0.push((Location::Inside(at.to_vec()), how));
    }
}

impl Location {
    /// Whether a listed place is this one or a parent of it.
    fn is(&self, listed: &str) -> bool {
        match self {
            Self::Named(name) => name == listed,
            Self::Inside(at) => {
                listed == "body" || (1..=at.len()).any(|depth| is_at(listed, &at[..depth]))
            }
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Named(name) => name.clone(),
            Self::Inside(at) => format!("/{}", at.join("/")),
        }
    }
}
