//! The dataplane's own metrics in the words of statsd and dogstatsd. Values in, datagrams out,
//! without IO.
//!
//! Names are those of Consul's dataplane there: without the prefix that Prometheus sees, and parts
//! of the runtime's names joined by a dot. Counters are sent as what was added, durations as one
//! value each, gauges when they change and now and then.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::PREFIX;
use super::families::{Family, Kind, SeriesKey, Value};

/// Families for Prometheus only, by the beginning of their names.
const PROMETHEUS_ONLY: [&str; 2] = ["go_", "process_"];

/// Counters that dashboards know as gauges which are 1 whenever something happens.
const EVENTS: [&str; 1] = ["connection_errors"];

/// Of how many durations of one series between two ticks each is sent.
const TIMINGS: u64 = 16;

/// Something to send.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    name: String,
    labels: Vec<(String, String)>,
    value: Pushed,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Pushed {
    Gauge(f64),
    Count(f64),
    /// Milliseconds.
    Timing(f64),
}

/// What was sent before. It holds as many numbers as there are series.
#[derive(Debug, Default)]
pub(super) struct Push {
    sent: BTreeMap<SeriesKey, (f64, u64)>,
}

impl Push {
    /// What has to be sent now; with `all` also the gauges that did not change.
    pub(super) fn tick(&mut self, families: &[Family], all: bool) -> Vec<Item> {
        let mut items = Vec::new();
        for family in families {
            let Some(name) = name(&family.name) else {
                continue;
            };
            for series in &family.series {
                let key = (name.clone(), series.labels.clone());
                let last = self.sent.get(&key).copied();
                let mut push = |value| {
                    let (name, labels) = key.clone();
                    items.push(Item {
                        name,
                        labels,
                        value,
                    });
                };
                let now = match (&series.value, family.kind) {
                    (Value::Number(value), Kind::Gauge) => {
                        if all || last != Some((*value, 0)) {
                            push(Pushed::Gauge(*value));
                        }
                        (*value, 0)
                    }
                    (Value::Number(value), _) => {
                        let added = value - last.map_or(0.0, |last| last.0);
                        match EVENTS.contains(&name.as_str()) {
                            true if added > 0.0 => push(Pushed::Gauge(1.0)),
                            false if added > 0.0 => push(Pushed::Count(added)),
                            _ => {}
                        }
                        (*value, 0)
                    }
                    (Value::Histogram { count, sum, .. }, _) => {
                        let last = last.unwrap_or_default();
                        let added = count.saturating_sub(last.1);
                        // Of several only the mean is known.
                        let each =
                            (sum - last.0) / u32::try_from(added).map_or(f64::MAX, f64::from);
                        for _ in 0..added.min(TIMINGS) {
                            push(Pushed::Timing(each));
                        }
                        (*sum, *count)
                    }
                };
                self.sent.insert(key, now);
            }
        }
        items.retain(|item| item.number().is_finite());
        items
    }
}

impl Item {
    fn number(&self) -> f64 {
        match self.value {
            Pushed::Gauge(number) | Pushed::Count(number) | Pushed::Timing(number) => number,
        }
    }
}

/// The name there.
fn name(name: &str) -> Option<String> {
    let name = name.strip_prefix(PREFIX)?.strip_prefix('_')?;
    if PROMETHEUS_ONLY
        .iter()
        .any(|prefix| name.starts_with(prefix))
    {
        return None;
    }
    Some(match name.strip_prefix("runtime_") {
        Some(rest) => format!("runtime.{rest}"),
        None => name.to_owned(),
    })
}

/// A line protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dialect {
    /// Labels become parts of the name.
    Statsd,
    /// Labels become tags, behind those that every metric gets.
    Dogstatsd {
        /// As they are to be sent.
        tags: Vec<String>,
    },
}

impl Dialect {
    /// One line, without its end.
    fn line(&self, item: &Item) -> String {
        let kind = match item.value {
            Pushed::Gauge(_) => "g",
            Pushed::Count(_) => "c",
            Pushed::Timing(_) => "ms",
        };
        let mut line = clean(&item.name);
        let number = item.number();
        // Writing to a string cannot fail.
        match self {
            Dialect::Statsd => {
                for (_, value) in &item.labels {
                    line.push('.');
                    line.push_str(&clean(value));
                }
                let _ = write!(line, ":{number:.6}|{kind}");
            }
            Dialect::Dogstatsd { tags } => {
                let _ = match item.value {
                    Pushed::Timing(_) => write!(line, ":{number:.6}|{kind}"),
                    _ => write!(line, ":{number}|{kind}"),
                };
                let labels = item
                    .labels
                    .iter()
                    .map(|(name, value)| format!("{name}:{value}"));
                let tags: Vec<_> = tags.iter().cloned().chain(labels).collect();
                if !tags.is_empty() {
                    let _ = write!(line, "|#{}", tags.join(","));
                }
            }
        }
        line.retain(|character| character != '\n');
        line
    }

    /// Datagrams of at most `limit` bytes. A line that is longer is left out.
    pub(super) fn datagrams(&self, items: &[Item], limit: usize) -> Vec<String> {
        let mut datagrams: Vec<String> = Vec::new();
        for item in items {
            let line = self.line(item);
            if line.len() >= limit {
                continue;
            }
            match datagrams.last_mut() {
                Some(last) if last.len() + line.len() < limit => last.push_str(&line),
                _ => datagrams.push(line),
            }
            if let Some(last) = datagrams.last_mut() {
                last.push('\n');
            }
        }
        datagrams
    }
}

/// What has a meaning of its own in a name becomes an underscore.
fn clean(name: &str) -> String {
    let clean = |character| {
        if matches!(character, ':' | ' ') {
            '_'
        } else {
            character
        }
    };
    name.chars().map(clean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::families::Series;

    fn families(errors: f64, durations: (u64, f64)) -> Vec<Family> {
        let mut connected = Family::new("consul_connected", "", Kind::Gauge);
        connected.with(&[], 1.0);
        let mut failed = Family::new("connection_errors", "", Kind::Counter);
        failed.with(&[("error_code", "Unavailable: x")], errors);
        let mut queries = Family::new("dns_queries_total", "", Kind::Counter);
        queries.with(
            &[("transport", "udp"), ("outcome", "answered")],
            errors * 2.0,
        );
        let mut time = Family::new("login_duration", "", Kind::Histogram);
        let (count, sum) = durations;
        let value = Value::Histogram {
            count,
            sum,
            buckets: Vec::new(),
        };
        time.series.push(Series {
            labels: Vec::new(),
            value,
        });
        let tasks = Family::gauge("runtime_num_goroutines", "", Some(7.5));
        let hidden = Family::gauge("go_goroutines", "", Some(7.0));
        let endless = Family::gauge("endless", "", Some(f64::NAN));
        vec![connected, failed, queries, time, tasks, hidden, endless]
    }

    #[test]
    fn statsd_has_six_digits_and_labels_in_names() {
        let mut push = Push::default();
        let items = push.tick(&families(2.0, (2, 30.0)), false);
        assert_eq!(
            Dialect::Statsd.datagrams(&items, 1_400),
            [
                "consul_connected:1.000000|g\nconnection_errors.Unavailable__x:1.000000|g\n\
              dns_queries_total.udp.answered:4.000000|c\nlogin_duration:15.000000|ms\n\
              login_duration:15.000000|ms\nruntime.num_goroutines:7.500000|g\n"
            ]
        );
    }

    #[test]
    fn dogstatsd_has_tags_and_short_numbers() {
        let mut push = Push::default();
        let items = push.tick(&families(2.0, (1, 12.25)), false);
        let plain = Dialect::Dogstatsd { tags: Vec::new() };
        let tagged = Dialect::Dogstatsd {
            tags: vec!["foo=bar".to_owned(), "b".to_owned()],
        };
        assert!(plain.datagrams(&items, 1_432)[0].starts_with(
            "consul_connected:1|g\nconnection_errors:1|g|#error_code:Unavailable: x\n"
        ));
        assert!(tagged.datagrams(&items, 1_432)[0].contains(
            "dns_queries_total:4|c|#foo=bar,b,transport:udp,outcome:answered\n\
             login_duration:12.250000|ms|#foo=bar,b\nruntime.num_goroutines:7.5|g|#foo=bar,b\n"
        ));
    }

    #[test]
    fn only_what_is_new_is_sent() {
        let mut push = Push::default();
        assert_eq!(push.tick(&families(1.0, (1, 5.0)), false).len(), 5);
        assert_eq!(push.tick(&families(1.0, (1, 5.0)), false), []);
        assert_eq!(
            push.tick(&families(1.0, (1, 5.0)), true).len(),
            2,
            "the gauges"
        );
        let items = push.tick(&families(2.5, (2, 12.0)), false);
        assert_eq!(
            Dialect::Statsd.datagrams(&items, 1_400),
            [
                "connection_errors.Unavailable__x:1.000000|g\ndns_queries_total.udp.answered:3.000000|c\n\
              login_duration:7.000000|ms\n"
            ]
        );
        assert_eq!(push.tick(&families(2.5, (9_000, 12.0)), false).len(), 16);
    }

    #[test]
    fn datagrams_have_a_limit_and_hold_whole_lines() {
        let items = Push::default().tick(&families(1.0, (16, 16.0)), false);
        let whole = Dialect::Statsd.datagrams(&items, 8_192).concat();
        for limit in [80, 100, 1_400] {
            let datagrams = Dialect::Statsd.datagrams(&items, limit);
            assert!(
                datagrams
                    .iter()
                    .all(|datagram| datagram.len() <= limit && datagram.ends_with('\n'))
            );
            assert_eq!(datagrams.concat(), whole);
        }
        assert!(Dialect::Statsd.datagrams(&items, 10).is_empty());
    }
}
