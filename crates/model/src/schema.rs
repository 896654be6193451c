//! Parts of the JSON Schemas of config entries, from which custom resources get their definitions.
//!
//! Rules are in CEL, for the API server of Kubernetes. Fields have their names in resources there.

use serde_json::{Value, json};

/// A path: empty, or absolute.
pub(crate) const PATH: &str = "^(/.*)?$";
/// The protocols of services.
pub(crate) const PROTOCOLS: [&str; 5] = ["", "tcp", "http", "http2", "grpc"];

/// A rule and the message for values that break it. In it, `{a.b}` stands for: the field `b` of `a` is
/// set and not empty.
pub(crate) fn rule(cel: &str, message: &str) -> Value {
    let mut parts = cel.split(['{', '}']);
    let mut text = parts.next().unwrap_or_default().to_owned();
    while let (Some(field), Some(rest)) = (parts.next(), parts.next()) {
        text.push_str(&format!("({})", is_set(field)));
        text.push_str(rest);
    }
    json!({ "rule": text, "message": message })
}

/// A rule that exactly one of some fields is set.
pub(crate) fn exactly_one(of: &[&str]) -> Value {
    let message = format!("exactly one of {} is needed", listed(of));
    rule(&format!("{} == 1", count(of)), &message)
}

/// A rule that at most one of some fields is set.
pub(crate) fn at_most_one(of: &[&str]) -> Value {
    let message = format!("at most one of {} can be given", listed(of));
    rule(&format!("{} <= 1", count(of)), &message)
}

/// A rule against a proxy mode.
pub(crate) fn no_mode() -> Value {
    rule(
        "!has(self.mode)",
        "mode cannot be set here: use the annotation consul.hashicorp.com/transparent-proxy of the pods",
    )
}

fn is_set(field: &str) -> String {
    let ends = field.match_indices('.').map(|(at, _)| at);
    let paths = ends.chain([field.len()]).map(|end| &field[..end]);
    let present: Vec<String> = paths.map(|path| format!("has(self.{path})")).collect();
    format!("{} && size(self.{field}) > 0", present.join(" && "))
}

fn count(of: &[&str]) -> String {
    let each = of
        .iter()
        .map(|field| format!("({} ? 1 : 0)", is_set(field)));
    each.collect::<Vec<_>>().join(" + ")
}

fn listed(fields: &[&str]) -> String {
    match fields {
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
        [] => String::new(),
    }
}
