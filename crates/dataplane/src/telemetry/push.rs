//! Encodes the dataplane's own metrics for statsd and dogstatsd. Pure: values in, datagrams out.
//!
//! Names are those of Consul's dataplane for these sinks: without Prometheus' prefix, and with dots in the names
//! of runtime metrics. Counters are sent as differences, durations as individual values, gauges on change and at
//! regular intervals.

use std::collections::BTreeMap;

use legate_runtime::metrics::proto::{MetricFamily, MetricType};

use super::families::PREFIX;
use super::observed::EVENTS;

/// Maximum number of durations of one series that are sent per tick.
const TIMINGS: u64 = 16;

/// Identifies a series: its name and labels.
type Series = (String, Vec<(String, String)>);

/// A value to send.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    series: Series,
    /// `g` for a gauge, `c` for the increase of a counter, `ms` for a duration.
    kind: &'static str,
    value: f64,
}

/// The state at the last tick: values, or sums and counts. One entry per series.
#[derive(Debug, Default)]
pub(super) struct Push {
    sent: BTreeMap<Series, (f64, u64)>,
}

impl Push {
    /// The values to send now; with `all` also unchanged gauges.
    pub(super) fn tick(&mut self, families: &[MetricFamily], all: bool) -> Vec<Item> {
        let mut items = Vec::new();
        for family in families {
            let Some(name) = name(family.name()) else {
                continue;
            };
            for metric in family.get_metric() {
                let labels = metric.get_label().iter();
                let labels =
                    labels.map(|label| (label.name().to_owned(), label.value().to_owned()));
                let series = (name.clone(), labels.collect());
                let kind = family.get_field_type();
                let now = match kind {
                    MetricType::GAUGE => (metric.get_gauge().get_value(), 0),
                    MetricType::COUNTER => (metric.get_counter().get_value(), 0),
                    _ => {
                        let histogram = metric.get_histogram();
                        (histogram.get_sample_sum(), histogram.get_sample_count())
                    }
                };
                let before = self.sent.insert(series.clone(), now);
                let (sum, count) = before.unwrap_or_default();
                let (added, durations) = (now.0 - sum, now.1.saturating_sub(count));
                let (kind, value, times) = match kind {
                    MetricType::GAUGE => ("g", now.0, u64::from(all || before != Some(now))),
                    // Dashboards expect events as a gauge that is 1 if one happened.
                    MetricType::COUNTER if name == EVENTS => ("g", 1.0, u64::from(added > 0.0)),
                    MetricType::COUNTER => ("c", added, u64::from(added > 0.0)),
                    // If there were several durations, only their mean is known.
                    _ => ("ms", added / durations as f64, durations.min(TIMINGS)),
                };
                if value.is_finite() {
                    let item = Item {
                        series,
                        kind,
                        value,
                    };
                    items.extend((0..times).map(|_| item.clone()));
                }
            }
        }
        items
    }
}

/// The name for the sinks; `None` for metrics of Go's runtime and of the process, which are for Prometheus only.
fn name(name: &str) -> Option<String> {
    let name = name.strip_prefix(PREFIX)?.strip_prefix('_')?;
    if name.starts_with("go_") || name.starts_with("process_") {
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
    /// Labels are appended to the name.
    Statsd,
    /// Labels are sent as tags, after the tags of every metric.
    Dogstatsd {
        /// Tags of every metric, verbatim.
        tags: Vec<String>,
    },
}

impl Dialect {
    /// Encodes one line.
    fn line(&self, item: &Item) -> String {
        let (name, labels) = &item.series;
        let (mut name, mut all) = (clean(name), Vec::new());
        let mut value = format!("{:.6}", item.value);
        match self {
            Dialect::Statsd => {
                for (_, label) in labels {
                    name = name + "." + &clean(label);
                }
            }
            Dialect::Dogstatsd { tags } => {
                let labels = labels.iter().map(|(name, value)| format!("{name}:{value}"));
                all = tags.iter().cloned().chain(labels).collect();
                if item.kind != "ms" {
                    value = item.value.to_string();
                }
            }
        }
        let tags = match all.is_empty() {
            true => String::new(),
            false => format!("|#{}", all.join(",")),
        };
        let line = format!("{name}:{value}|{}{tags}", item.kind);
        line.replace('\n', "") + "\n"
    }

    /// Packs lines into datagrams of at most `limit` bytes. Longer lines are dropped.
    pub(super) fn datagrams(&self, items: &[Item], limit: usize) -> Vec<String> {
        let mut datagrams: Vec<String> = Vec::new();
        let lines = items.iter().map(|item| self.line(item));
        for line in lines.filter(|line| line.len() <= limit) {
            match datagrams.last_mut() {
                Some(last) if last.len() + line.len() <= limit => last.push_str(&line),
                _ => datagrams.push(line),
            }
        }
        datagrams
    }
}

/// Replaces characters with a meaning in the protocol by underscores.
fn clean(name: &str) -> String {
    name.replace([':', ' '], "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use legate_runtime::metrics::{Gauge, Histogram, HistogramOpts, IntCounterVec, Opts, Registry};

    use crate::telemetry::families::gather;

    /// Families with this number of errors, and durations with this count and sum.
    fn families(errors: u64, durations: (u64, f64)) -> Vec<MetricFamily> {
        let registry = Registry::new();
        let options = |name: &str| Opts::new(name, "x").namespace(PREFIX);
        for (name, value) in [
            ("consul_connected", 1.0),
            ("runtime_num_goroutines", 7.5),
            ("go_goroutines", 7.0),
            ("endless", f64::NAN),
        ] {
            let gauge = Gauge::with_opts(options(name)).unwrap();
            gauge.set(value);
            registry.register(Box::new(gauge)).unwrap();
        }
        let failed = IntCounterVec::new(options(EVENTS), &["error_code"]).unwrap();
        failed.with_label_values(&["Unavailable: x"]).inc_by(errors);
        let queries = options("dns_queries_total");
        let queries = IntCounterVec::new(queries, &["transport", "outcome"]).unwrap();
        queries
            .with_label_values(&["udp", "answered"])
            .inc_by(errors * 2);
        let time = HistogramOpts::new("login_duration", "x").namespace(PREFIX);
        let time = Histogram::with_opts(time).unwrap();
        let (count, sum) = durations;
        for _ in 0..count {
            time.observe(sum / f64::from(u32::try_from(count).unwrap()));
        }
        registry.register(Box::new(failed)).unwrap();
        registry.register(Box::new(queries)).unwrap();
        registry.register(Box::new(time)).unwrap();
        gather(&registry)
    }

    #[test]
    fn statsd_has_six_digits_and_labels_in_names() {
        let mut push = Push::default();
        let items = push.tick(&families(2, (2, 30.0)), false);
        assert_eq!(
            Dialect::Statsd.datagrams(&items, 1_400),
            [
                "connection_errors.Unavailable__x:1.000000|g\nconsul_connected:1.000000|g\n\
              dns_queries_total.answered.udp:4.000000|c\nlogin_duration:15.000000|ms\n\
              login_duration:15.000000|ms\nruntime.num_goroutines:7.500000|g\n"
            ]
        );
    }

    #[test]
    fn dogstatsd_has_tags_and_short_numbers() {
        let mut push = Push::default();
        let items = push.tick(&families(2, (1, 12.25)), false);
        let plain = Dialect::Dogstatsd { tags: Vec::new() };
        let tagged = Dialect::Dogstatsd {
            tags: vec!["foo=bar".to_owned(), "b".to_owned()],
        };
        assert!(plain.datagrams(&items, 1_432)[0].starts_with(
            "connection_errors:1|g|#error_code:Unavailable: x\nconsul_connected:1|g\n"
        ));
        assert!(tagged.datagrams(&items, 1_432)[0].contains(
            "dns_queries_total:4|c|#foo=bar,b,outcome:answered,transport:udp\n\
             login_duration:12.250000|ms|#foo=bar,b\nruntime.num_goroutines:7.5|g|#foo=bar,b\n"
        ));
    }

    #[test]
    fn only_what_is_new_is_sent() {
        let mut push = Push::default();
        assert_eq!(push.tick(&families(1, (1, 5.0)), false).len(), 5);
        assert_eq!(push.tick(&families(1, (1, 5.0)), false), []);
        assert_eq!(
            push.tick(&families(1, (1, 5.0)), true).len(),
            2,
            "the gauges"
        );
        let items = push.tick(&families(2, (2, 12.0)), false);
        assert_eq!(
            Dialect::Statsd.datagrams(&items, 1_400),
            [
                "connection_errors.Unavailable__x:1.000000|g\ndns_queries_total.answered.udp:2.000000|c\n\
              login_duration:7.000000|ms\n"
            ]
        );
        assert_eq!(push.tick(&families(2, (9_000, 12.0)), false).len(), 16);
    }

    #[test]
    fn datagrams_have_a_limit_and_hold_whole_lines() {
        let items = Push::default().tick(&families(1, (16, 16.0)), false);
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
