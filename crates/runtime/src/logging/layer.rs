//! A `tracing` layer that writes one entry per event.
//!
//! Selects the events to be logged; `format` formats them.

use std::fmt;
use std::io::Write;
use std::time::SystemTime;

use serde_json::Value;
use time::OffsetDateTime;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::follow::{self, with_followers};
use super::format::{Entry, LogField};
use super::level::{Level, LogLevel};

/// Prefix of this project's crates, whose events are logged at every level.
const OWN_CRATES: &str = "legate";

/// Options of the log.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// The program's name, the first part of every logger's name.
    pub name: &'static str,
    /// The minimum level.
    pub level: Level,
    /// Whether to log JSON objects instead of text.
    pub json: bool,
}

pub(super) struct LineLayer<W> {
    options: LogOptions,
    /// The current minimum level.
    level: LogLevel,
    writer: W,
}

impl<W> LineLayer<W> {
    pub(super) fn new(options: LogOptions, writer: W) -> LineLayer<W> {
        LineLayer {
            options,
            level: LogLevel::new(options.level),
            writer,
        }
    }

    /// Handle for changing the log level.
    pub(super) fn level(&self) -> LogLevel {
        self.level.clone()
    }
}

/// Fields of a span, stored with it for the events inside.
struct SpanFields(Vec<LogField>);

impl<S, W> Layer<S> for LineLayer<W>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    W: for<'writer> MakeWriter<'writer> + 'static,
{
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let path = metadata.module_path().unwrap_or_default();
        let level = with_followers(self.level.get());
        allowed(level.filter(), *metadata.level(), path)
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(with_followers(self.level.get()).filter().into())
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Collected::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(SpanFields(fields.fields));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Collected::default();
        values.record(&mut fields);
        if let Some(SpanFields(known)) = span.extensions_mut().get_mut() {
            known.retain(|old| fields.fields.iter().all(|new| new.key != old.key));
            known.append(&mut fields.fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut collected = Collected::default();
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            if let Some(SpanFields(fields)) = span.extensions().get() {
                collected.fields.extend(fields.iter().cloned());
            }
        }
        event.record(&mut collected);
        let entry = Entry {
            time: OffsetDateTime::from(SystemTime::now()),
            level: *event.metadata().level(),
            module: module(self.options.name, event.metadata().target()),
            message: collected.message,
            fields: collected.fields,
        };
        let path = event.metadata().module_path().unwrap_or_default();
        let allowed = |level: Level| allowed(level.filter(), entry.level, path);
        follow::hand_out(&entry, allowed);
        if !allowed(self.level.get()) {
            return;
        }
        let line = entry.line(self.options.json);
        // There is nowhere to report that the log itself cannot be written.
        let _ = self
            .writer
            .make_writer_for(event.metadata())
            .write_all(line.as_bytes());
    }
}

/// Whether an event from this module is logged. Unlike the target, an event cannot choose its module
/// path.
fn allowed(chosen: tracing::Level, event: tracing::Level, path: &str) -> bool {
    let limit = if path.starts_with(OWN_CRATES) {
        chosen
    } else {
        chosen.min(tracing::Level::INFO)
    };
    event <= limit
}

/// Name of the logger for an event with this target.
fn module(program: &str, target: &str) -> String {
    let (krate, path) = target.split_once("::").unwrap_or((target, ""));
    let chosen = path.is_empty() && !krate.starts_with(OWN_CRATES);
    let name = if chosen {
        krate.to_owned()
    } else {
        let krate = krate.strip_prefix("legate_").unwrap_or(krate);
        krate.replace('_', "-")
    };
    let own = program.strip_prefix("legate-").unwrap_or(program);
    if name == own || name == program || name == OWN_CRATES {
        program.to_owned()
    } else {
        format!("{program}.{name}")
    }
}

#[derive(Default)]
struct Collected {
    message: String,
    fields: Vec<LogField>,
}

impl Collected {
    fn push(&mut self, field: &Field, value: Value, list: bool) {
        if field.name() == "message" {
            self.message = match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            return;
        }
        let key = field.name().trim_start_matches("r#");
        self.fields.push(LogField { key, value, list });
    }
}

impl Visit for Collected {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        let list = text.starts_with('[') && text.ends_with(']');
        self.push(field, Value::String(text), list);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, Value::from(value), false);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Value::from(value), false);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, Value::from(value), false);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, Value::from(value), false);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, Value::from(value), false);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.push(field, Value::from(value.to_string()), false);
    }
}

#[cfg(test)]
mod tests {
    use super::{allowed, module};
    use tracing::Level;

    #[test]
    fn debug_output_of_other_crates_is_not_logged() {
        assert!(allowed(Level::TRACE, Level::TRACE, "legate_client::driver"));
        assert!(!allowed(Level::TRACE, Level::DEBUG, "h2::codec"));
        assert!(allowed(Level::TRACE, Level::INFO, "h2::codec"));
        assert!(!allowed(Level::ERROR, Level::WARN, "h2::codec"));
        assert!(!allowed(Level::INFO, Level::DEBUG, "legate_client"));
    }

    #[test]
    fn loggers_are_named_by_crate_or_explicit_target() {
        let program = "legate-dataplane";
        for (target, expected) in [
            ("legate_dataplane", "legate-dataplane"),
            ("legate_dataplane::relay", "legate-dataplane"),
            ("legate_client::driver", "legate-dataplane.client"),
            (
                "legate_discovery_chain::x",
                "legate-dataplane.discovery-chain",
            ),
            ("dns-proxy.udp", "legate-dataplane.dns-proxy.udp"),
            ("hyper_util::client", "legate-dataplane.hyper-util"),
            ("legate", "legate-dataplane"),
        ] {
            assert_eq!(module(program, target), expected, "{target}");
        }
        assert_eq!(module("legate", "legate::dev"), "legate");
        assert_eq!(module("legate", "legate_server::http"), "legate.server");
    }
}
