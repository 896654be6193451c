//! Values that differ in every run, and their placeholders in recordings.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bytes::Bytes;
use http::Response;
use regex::Regex;
use serde_json::Value;

use super::file::{Answer, Exchange};

/// The headers that clients use, and whether a header describes freshness or a default; refusals have those
/// unpredictably.
const HEADERS: [(&str, bool); 15] = [
    ("Content-Type", false),
    ("Allow", false),
    ("Cache-Control", false),
    ("Location", false),
    ("X-Cache", true),
    ("X-Consul-ContentHash", true),
    ("X-Consul-Default-Acl-Policy", true),
    ("X-Consul-Effective-Consistency", true),
    ("X-Consul-Index", true),
    ("X-Consul-KnownLeader", true),
    ("X-Consul-LastContact", true),
    ("X-Consul-Query-Backend", true),
    ("X-Consul-Reason", false),
    ("X-Consul-Results-Filtered-By-ACLs", false),
    ("X-Consul-Translate-Addresses", false),
];

/// Whether refusals have this header unpredictably.
pub(super) fn is_by_chance(header: &str) -> bool {
    HEADERS.contains(&(header, true))
}

static CHANGING: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let all = [
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "{id}"),
        (
            r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:\d\d)",
            "{time}",
        ),
        (
            r"(?s)-----BEGIN [A-Z ]+-----.*-----END [A-Z ]+-----\n?",
            "{pem}",
        ),
        (r"([0-9a-f]{2}:){15,}[0-9a-f]{2}", "{bytes}"),
    ];
    let compiled = all.map(|(text, with)| (Regex::new(text).expect("it is one"), with));
    compiled.into()
});

/// The values saved from previous responses.
pub(super) struct Masks {
    pub(super) kept: BTreeMap<String, String>,
}

impl Masks {
    /// The recorded form of a response; saves the values that the exchange keeps.
    pub(super) fn answer(&mut self, exchange: &Exchange, reply: &Response<Bytes>) -> Answer {
        let text = String::from_utf8_lossy(reply.body()).into_owned();
        let json: Option<Value> = serde_json::from_str(&text).ok();
        for (name, pointer) in &exchange.keep {
            let value = json.as_ref().and_then(|json| json.pointer(pointer));
            let value = match value {
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                None => continue,
            };
            self.kept.insert(name.clone(), value);
        }
        let body = match json {
            Some(mut json) => {
                self.hide(&mut json, &mut Vec::new(), &exchange.masked);
                if exchange.unordered {
                    sort(&mut json);
                }
                serde_json::to_string_pretty(&json).expect("it was JSON")
            }
            None if exchange.masked.iter().any(|place| place == "body") => "{masked}".to_owned(),
            None => self.hidden(text.trim()),
        };
        let mut headers = Vec::new();
        let refused = reply.status().as_u16() >= 400 && !reply.body().is_empty();
        for (name, by_chance) in HEADERS {
            if refused && by_chance && name != "X-Consul-Default-Acl-Policy" {
                continue;
            }
            for value in reply.headers().get_all(name) {
                let value = self.hidden(&String::from_utf8_lossy(value.as_bytes()));
                let value = match name {
                    "X-Consul-Index" if value != "0" => "{index}".to_owned(),
                    "X-Consul-LastContact" if value != "0" => "{milliseconds}".to_owned(),
                    "X-Consul-ContentHash" => "{hash}".to_owned(),
                    // The state of the cache in Consul's agent depends on timing.
                    "X-Cache" => "{cache}".to_owned(),
                    _ => value,
                };
                headers.push((name.to_owned(), value));
            }
        }
        Answer {
            status: reply.status().as_u16(),
            headers,
            body,
        }
    }

    fn hidden(&self, text: &str) -> String {
        let mut kept: Vec<_> = self.kept.iter().collect();
        kept.sort_by_key(|(name, value)| (std::cmp::Reverse(value.len()), *name));
        let mut text = text.to_owned();
        for (name, value) in kept {
            if value.len() > 3 {
                text = text.replace(value.as_str(), &format!("{{{name}}}"));
            }
        }
        CHANGING.iter().fold(text, |text, (changing, with)| {
            changing.replace_all(&text, *with).into_owned()
        })
    }

    fn hide(&self, value: &mut Value, at: &mut Vec<String>, masked: &[String]) {
        let name = at.last().map_or("", String::as_str);
        if masked.iter().any(|place| is_at(place, at)) {
            *value = Value::String("{masked}".to_owned());
            return;
        }
        match value {
            Value::Object(fields) => {
                // In config entries: a checksum of Consul's, which clients do not use.
                fields.retain(|name, value| name != "Hash" || !value.is_number());
                for (name, value) in fields.iter_mut() {
                    at.push(name.clone());
                    self.hide(value, at, masked);
                    at.pop();
                }
                let ids: Vec<_> = fields.keys().map(|name| self.hidden(name)).collect();
                if ids.iter().zip(fields.keys()).any(|(id, name)| id != name) {
                    let values = std::mem::take(fields).into_iter();
                    *fields = ids
                        .into_iter()
                        .zip(values.map(|(_, value)| value))
                        .collect();
                }
            }
            Value::Array(elements) => {
                for (i, element) in elements.iter_mut().enumerate() {
                    at.push(i.to_string());
                    self.hide(element, at, masked);
                    at.pop();
                }
            }
            Value::Number(number) if name.ends_with("Index") && number.as_u64() > Some(0) => {
                *value = Value::String("{index}".to_owned());
            }
            Value::String(text) if name == "Hash" && !text.is_empty() => {
                *value = Value::String("{hash}".to_owned());
            }
            Value::String(text) => *text = self.hidden(text),
            Value::Number(_) | Value::Bool(_) | Value::Null => {}
        }
    }
}

/// Whether a pointer with wildcards matches this path.
pub(super) fn is_at(pointer: &str, at: &[String]) -> bool {
    let names: Vec<_> = pointer.split('/').skip(1).collect();
    names.len() == at.len()
        && names
            .iter()
            .zip(at)
            .all(|(name, at)| *name == "*" || name == at)
}

fn sort(value: &mut Value) {
    match value {
        Value::Array(elements) => {
            elements.iter_mut().for_each(sort);
            elements.sort_by_key(Value::to_string);
        }
        Value::Object(fields) => fields.values_mut().for_each(sort),
        _ => {}
    }
}
