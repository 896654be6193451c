//! The status document as text for people: whether the proxy is ready, and if not, why.
//!
//! The document may come from an older or a newer dataplane: what is missing is left out, and
//! plain values that are not known here are shown under their own names.

mod grid;
#[cfg(test)]
mod tests;

use serde_json::Value;

use self::grid::{Page, columns};
use crate::relay::status::label;

/// How many servers are listed.
const SERVERS: usize = 12;

/// A part of the document, which may be missing.
#[derive(Clone, Copy)]
struct Part<'a>(&'a Value);

impl<'a> Part<'a> {
    fn get(self, key: &str) -> Part<'a> {
        Part(&self.0[key])
    }

    fn is_missing(self) -> bool {
        match self.0 {
            Value::Null => true,
            Value::Object(entries) => entries.is_empty(),
            _ => false,
        }
    }

    /// A plain value as text.
    fn plain(self) -> Option<String> {
        match self.0 {
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some(printable(text)),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(true) => Some("yes".to_owned()),
            Value::Bool(false) => Some("no".to_owned()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    fn text(self, key: &str) -> Option<String> {
        self.get(key).plain()
    }

    /// A number of seconds as an age.
    fn age(self, key: &str) -> Option<String> {
        self.get(key).0.as_f64().map(age)
    }

    fn count(self, key: &str) -> u64 {
        self.get(key).0.as_u64().unwrap_or(0)
    }

    fn is(self, key: &str) -> bool {
        self.get(key).0 == &Value::Bool(true)
    }

    fn list(self, key: &str) -> impl Iterator<Item = Part<'a>> + Clone {
        let list = self.get(key).0.as_array().map(Vec::as_slice);
        list.unwrap_or_default().iter().map(Part)
    }

    /// Name and text of every plain value whose key is none of these.
    fn others(self, known: &[&str]) -> Vec<(String, String)> {
        let entries = self.0.as_object().into_iter().flatten();
        let unknown = entries.filter(|(key, _)| !known.contains(&key.as_str()));
        let shown = unknown.filter_map(|(key, value)| {
            let (name, text) = named(key, value);
            Some((name, text?))
        });
        shown.collect()
    }
}

/// A key for people, and its value; durations by what their keys end with.
fn named(key: &str, value: &Value) -> (String, Option<String>) {
    let seconds = |factor: f64| value.as_f64().map(|number| age(number * factor));
    let (name, duration) = if let Some(name) = key.strip_suffix("_milliseconds") {
        (name, seconds(0.001))
    } else if let Some(name) = key.strip_suffix("_seconds") {
        (name, seconds(1.0))
    } else if key == "age" || key.ends_with("_age") || key.ends_with("_seconds_ago") {
        (key, seconds(1.0))
    } else {
        (key, None)
    };
    let name = name.replace("_seconds_ago", " ago").replace('_', " ");
    (printable(&name), duration.or_else(|| Part(value).plain()))
}

/// What servers and Envoy say ends up on terminals: no line breaks and no control sequences.
pub(super) fn printable(text: &str) -> String {
    let visible = |character: char| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    };
    let text: String = text.chars().map(visible).collect();
    text.trim().to_owned()
}

/// At most two units: `350ms`, `12s`, `3m12s`, `2h5m`, `4d1h`.
fn age(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{}ms", (seconds * 1000.0) as u64);
    }
    let seconds = seconds as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let units = [
        (days, 'd'),
        (hours, 'h'),
        (minutes, 'm'),
        (seconds % 60, 's'),
    ];
    let first = units.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let shown = units.iter().skip(first).take(2);
    let shown = shown.filter(|(count, _)| *count > 0);
    shown
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect()
}

fn join(words: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let words: Vec<String> = words.into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// The page.
pub(super) fn text(document: &Value) -> String {
    let document = Part(document);
    let mut page = Page::default();
    heading(&mut page, document);
    components(&mut page, document);
    proxy(&mut page, document.get("proxy"));
    session(&mut page, document.get("session"));
    relay(&mut page, document);
    envoy(&mut page, document.get("envoy"));
    startup(&mut page, document.get("startup_seconds"));
    page.finish()
}

fn heading(page: &mut Page, document: Part) {
    let version = document.text("version");
    let version = version.map(|it| format!(" {it}")).unwrap_or_default();
    let state = match document.is("ready") {
        true => "is ready",
        false => "is NOT READY",
    };
    page.line(format!("legate-dataplane{version} {state}"));
    const KNOWN: [&str; 2] = ["version", "ready"];
    page.entries(document.others(&KNOWN));
}

fn components(page: &mut Page, document: Part) {
    let rows = document.list("components").map(|component| {
        ["name", "state", "reason"]
            .map(|key| component.text(key).unwrap_or_default())
            .to_vec()
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        page.title("components");
        page.rows(&columns(&rows));
    }
}

fn proxy(page: &mut Page, proxy: Part) {
    const KNOWN: [&str; 5] = ["id", "node_name", "node_id", "namespace", "partition"];
    let mut entries = Vec::new();
    for key in KNOWN {
        entries.extend(proxy.text(key).map(|text| (key.replace('_', " "), text)));
    }
    entries.extend(proxy.others(&KNOWN));
    if !entries.is_empty() {
        page.title("proxy");
        page.entries(entries);
    }
}

fn session(page: &mut Page, session: Part) {
    if session.is_missing() {
        return;
    }
    const KNOWN: [&str; 10] = [
        "state",
        "state_age",
        "next_attempt",
        "server",
        "heard",
        "logins",
        "accessor_id",
        "token_age",
        "bearer_expires",
        "client_certificate_expires",
    ];
    let since = session.age("state_age").map(|age| format!(" for {age}"));
    let state = session.text("state");
    let state = state.map(|state| state + &since.unwrap_or_default());
    let next = session.age("next_attempt");
    let next = next.map(|left| format!("next attempt in {left}"));
    let heard = session
        .age("heard")
        .map(|age| format!("last heard {age} ago"));
    let servers = session.list("known_servers").map(Part::plain);
    let more = servers.clone().count().saturating_sub(SERVERS);
    let more = (more > 0).then(|| format!("and {more} more"));
    let last = session.get("last_error");
    let logins = match session.count("logins") {
        0 => None,
        1 => Some("1 login".to_owned()),
        count => Some(format!("{count} logins")),
    };
    let token = [
        session
            .text("accessor_id")
            .map(|id| format!("accessor {id}")),
        session.age("token_age").map(|age| format!("{age} old")),
        logins,
    ];
    let known = [
        ("state", join([state, next])),
        ("server", join([session.text("server"), heard])),
        ("known servers", join(servers.take(SERVERS).chain([more]))),
        ("last error", last_error(last)),
        ("token", join(token)),
        ("bearer token", until(session, "bearer_expires")),
        (
            "client certificate",
            until(session, "client_certificate_expires"),
        ),
    ];
    page.title("session");
    page.entries(present(known).chain(session.others(&KNOWN)));
}

fn last_error(last: Part) -> Option<String> {
    let error = last.text("error")?;
    let age = last.age("age").map(|age| format!("{age} ago"));
    let code = last.text("code");
    Some(match join([age, code]) {
        Some(when) => format!("{when}: {error}"),
        None => error,
    })
}

fn until(session: Part, key: &str) -> Option<String> {
    session.text(key).map(|time| format!("expires {time}"))
}

fn present<const N: usize>(
    entries: [(&str, Option<String>); N],
) -> impl Iterator<Item = (String, String)> {
    let named = entries.map(|(name, text)| Some((name.to_owned(), text?)));
    named.into_iter().flatten()
}

fn relay(page: &mut Page, document: Part) {
    let relay = document.get("relay");
    if relay.is_missing() {
        return;
    }
    let upstream = relay.get("upstream");
    const KNOWN: [&str; 5] = [
        "server",
        "streams_opened",
        "last_message_seconds_ago",
        "last_error",
        "refused",
    ];
    let heard = upstream.age("last_message_seconds_ago");
    let heard = heard.map(|age| format!("last message {age} ago"));
    let server = upstream.text("server").unwrap_or_else(|| "none".to_owned());
    let hopeless = match upstream.is("refused") {
        true => " (waiting does not help)",
        false => "",
    };
    let streams = upstream.text("streams_opened");
    let mut reasons = document
        .list("components")
        .filter_map(|component| component.text("reason"));
    let missing = relay
        .text("missing")
        .filter(|missing| !reasons.any(|reason| reason.contains(missing)));
    let known = [
        ("missing", missing),
        ("server", join([Some(server), heard])),
        (
            "last error",
            upstream.text("last_error").map(|error| error + hopeless),
        ),
        ("opened streams", streams),
        ("Envoy's streams", relay.text("envoy_streams")),
    ];
    page.title("relay");
    page.entries(
        present(known)
            .chain(upstream.others(&KNOWN))
            .chain(relay.others(&["missing", "envoy_streams"])),
    );
    let mut rows = vec![
        ["type", "resources", "bytes", "ACKs", "NACKs", "state"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let mut rejections = Vec::new();
    for kind in relay.list("types") {
        let name = label(&kind.text("type_url").unwrap_or_default()).to_owned();
        let counts = ["resources", "bytes", "accepted", "rejected"];
        let counts = counts.map(|key| kind.count(key).to_string());
        rejections.extend(rejection(&name, kind.get("last_rejection")));
        let mut row = vec![name];
        row.extend(counts);
        row.push(kind_state(kind));
        rows.push(row);
    }
    if rows.len() > 1 {
        page.gap();
        page.rows(&columns(&rows));
    }
    if !rejections.is_empty() {
        page.gap();
        page.entries(rejections);
    }
}

fn kind_state(kind: Part) -> String {
    let (missing, names) = (kind.count("unanswered_names"), kind.count("names"));
    if kind.is("waiting_for_envoy") {
        "waiting for Envoy".to_owned()
    } else if missing > 0 {
        format!("{missing} of {names} names without an answer")
    } else if kind.is("answered") {
        "complete".to_owned()
    } else {
        "no answer yet".to_owned()
    }
}

fn rejection(kind: &str, last: Part) -> Option<(String, String)> {
    let message = last.text("message")?;
    let names = join(last.list("names").map(Part::plain));
    let names = names.map(|names| format!(" ({names})")).unwrap_or_default();
    Some((format!("rejected {kind}"), message + &names))
}

fn envoy(page: &mut Page, envoy: Part) {
    // Without a sidecar there is an Envoy without a state.
    if envoy.text("state").is_none() {
        return;
    }
    const KNOWN: [&str; 4] = ["state", "pid", "admin", "starts"];
    let pid = envoy.text("pid").map(|pid| format!("pid {pid}"));
    let known = [
        ("state", join([envoy.text("state"), pid])),
        ("admin", envoy.text("admin")),
        ("starts", envoy.text("starts")),
    ];
    page.title("envoy");
    page.entries(present(known).chain(envoy.others(&KNOWN)));
    epochs(page, envoy);
    let exits = envoy.list("exits").map(exit).collect::<Vec<_>>();
    if !exits.is_empty() {
        page.gap();
        page.rows(&["last exits".to_owned()]);
        page.rows(&columns(&exits));
    }
}

/// A table with a column for whatever epochs tell of themselves.
fn epochs(page: &mut Page, envoy: Part) {
    const FIRST: [&str; 3] = ["epoch", "pid", "state"];
    let mut more: Vec<String> = Vec::new();
    for epoch in envoy.list("epochs") {
        for (name, _) in epoch.others(&FIRST) {
            if !more.contains(&name) {
                more.push(name);
            }
        }
    }
    let mut header = FIRST.map(str::to_owned).to_vec();
    header.extend(more.iter().cloned());
    let mut rows = vec![header];
    for epoch in envoy.list("epochs") {
        let mut row = FIRST
            .map(|key| epoch.text(key).unwrap_or_default())
            .to_vec();
        let others = epoch.others(&FIRST);
        row.extend(more.iter().map(|name| {
            let found = others.iter().find(|(other, _)| other == name);
            found.map(|(_, text)| text.clone()).unwrap_or_default()
        }));
        rows.push(row);
    }
    if rows.len() > 1 {
        page.gap();
        page.rows(&columns(&rows));
    }
}

fn exit(exit: Part) -> Vec<String> {
    const KNOWN: [&str; 5] = ["epoch", "pid", "reason", "expected", "lived_seconds"];
    let pid = exit.text("pid").map(|pid| format!("(pid {pid})"));
    let lived = exit.get("lived_seconds").0.as_f64();
    let others = exit.others(&KNOWN).into_iter();
    let expected = match exit.get("expected").0 {
        Value::Bool(true) => Some("as expected".to_owned()),
        Value::Bool(false) => Some("unexpected".to_owned()),
        _ => None,
    };
    let lived = lived.map(|lived| format!("lived {}", age(lived)));
    let others = others.map(|(name, text)| Some(format!("{name} {text}")));
    vec![
        format!("epoch {}", exit.text("epoch").unwrap_or_default()),
        pid.unwrap_or_default(),
        exit.text("reason").unwrap_or_default(),
        join([lived, expected].into_iter().chain(others)).unwrap_or_default(),
    ]
}

fn startup(page: &mut Page, stages: Part) {
    let entries = stages.0.as_object().into_iter().flatten();
    let seconds = entries.filter_map(|(stage, seconds)| Some((stage, seconds.as_f64()?)));
    let mut stages: Vec<_> = seconds.collect();
    stages.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    if stages.is_empty() {
        return;
    }
    page.title("start");
    let stages = stages.iter();
    page.entries(
        stages.map(|(stage, seconds)| (printable(stage), format!("after {seconds:.3} s"))),
    );
}
