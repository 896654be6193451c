//! Reads values of a free-form map, as lenient about types as Consul. Keys that were never read are
//! an error at the end.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use legate_model::duration::GoDuration;
use legate_model::json::same_key;
use serde_json::{Map, Value};

/// A map whose keys are read one by one.
pub(super) struct Values<'m> {
    map: &'m Map<String, Value>,
    taken: HashSet<&'m str>,
}

impl<'m> Values<'m> {
    pub(super) fn new(map: &'m Map<String, Value>) -> Self {
        let taken = HashSet::new();
        Self { map, taken }
    }

    fn take(&mut self, key: &str) -> Option<&'m Value> {
        let mut found = None;
        for (name, value) in self.map {
            if same_key(name, key) {
                self.taken.insert(name);
                found = Some(value).filter(|value| !value.is_null());
            }
        }
        found
    }

    /// Accepts a key without using its value.
    pub(super) fn ignore(&mut self, key: &str) {
        self.take(key);
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(wrong(key, "a text")),
        }
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<bool, String> {
        match self.take(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(Value::String(text)) => match text.as_str() {
                "true" | "1" => Ok(true),
                "false" | "0" | "" => Ok(false),
                _ => Err(wrong(key, "true or false")),
            },
            Some(_) => Err(wrong(key, "true or false")),
        }
    }

    /// Reads a number that must not be negative.
    pub(super) fn number(&mut self, key: &str, default: f64) -> Result<f64, String> {
        let number = match self.take(key) {
            None => Some(default),
            Some(Value::Number(number)) => number.as_f64(),
            Some(Value::String(text)) => text.parse().ok(),
            Some(_) => None,
        };
        number
            .filter(|number| (0.0..=1e9).contains(number))
            .ok_or_else(|| wrong(key, "a number from 0"))
    }

    /// Reads a text such as `72h`, or a number of nanoseconds.
    pub(super) fn duration(&mut self, key: &str, default: Duration) -> Result<Duration, String> {
        let duration = match self.take(key) {
            None => return Ok(default),
            Some(Value::String(text)) => {
                let duration = text.parse::<GoDuration>();
                duration.map_err(|error| format!("error decoding config: {key}: {error}"))?
            }
            #[expect(
                clippy::cast_possible_truncation,
                reason = "clients that write in floating point mean whole nanoseconds"
            )]
            Some(Value::Number(number)) => {
                let nanos = number.as_i64();
                let nanos = nanos.or(number.as_f64().map(|nanos| nanos as i64));
                GoDuration::from_nanos(nanos.unwrap_or(-1))
            }
            Some(_) => return Err(wrong(key, "a duration such as 72h")),
        };
        if duration.is_negative() {
            return Err(wrong(key, "a duration such as 72h"));
        }
        Ok(duration.to_duration())
    }

    pub(super) fn texts(&mut self, key: &str) -> Result<Option<BTreeMap<String, String>>, String> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let texts = value.as_object().ok_or_else(|| wrong(key, "an object"))?;
        let text =
            |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        Ok(Some(texts.iter().filter_map(text).collect()))
    }

    /// Reads an object. HCL encodes it as a list of one.
    pub(super) fn inside(&mut self, key: &str) -> Result<Option<Values<'m>>, String> {
        let object = match self.take(key) {
            None => return Ok(None),
            Some(Value::Object(object)) => Some(object),
            Some(Value::Array(list)) => match list.as_slice() {
                [one] => one.as_object(),
                _ => None,
            },
            Some(_) => None,
        };
        let object = object.ok_or_else(|| wrong(key, "an object"))?;
        Ok(Some(Values::new(object)))
    }

    /// Refuses the first unused key.
    pub(super) fn finish(&self) -> Result<(), String> {
        let mut unknown = self.map.keys();
        match unknown.find(|key| !self.taken.contains(key.as_str())) {
            None => Ok(()),
            Some(key) => Err(format!("error decoding config: invalid config key {key:?}")),
        }
    }
}

fn wrong(key: &str, expected: &str) -> String {
    format!("error decoding config: {key} must be {expected}")
}

/// Formats whole seconds as Go does: `1h0m0s`.
pub(crate) fn go_text(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}
