//! The statistics as text, JSON and for Prometheus, in Envoy's forms: `/stats` and `/stats/prometheus`.
//!
//! Quantiles are estimated from the buckets, because no single duration is kept; intervals are unknown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use regex::Regex;
use serde_json::{Value as Json, json};

use super::query::{Format, Query};
use super::tags::{Tagged, Tags};
use super::{Admin, Page};
use crate::l4::stats::{BOUNDS, Group, Histogram, Stats, Value};

/// The quantiles that Envoy shows, in percent.
const QUANTILES: [f64; 10] = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 100.0];

/// Which statistics are shown.
#[derive(Debug, Default)]
pub(super) struct Selection {
    only_used: bool,
    filter: Option<Regex>,
    /// `type`: all, or one of them.
    counters: bool,
    gauges: bool,
    histograms: bool,
}

impl Selection {
    fn new(query: &Query) -> Result<Selection, Page> {
        let kind = query.get("type").unwrap_or("All");
        let is = |name: &str| kind == "All" || kind == name;
        if !["All", "Counters", "Gauges", "Histograms", "TextReadouts"].contains(&kind) {
            return Err(Page::bad(
                "usage: /stats?type=(All|Counters|Gauges|Histograms|TextReadouts)\n",
            ));
        }
        Ok(Selection {
            only_used: query.has("usedonly"),
            filter: query.regex("filter")?,
            counters: is("Counters"),
            gauges: is("Gauges"),
            histograms: is("Histograms"),
        })
    }

    fn has(&self, name: &str, used: bool, value: &Value<'_>) -> bool {
        let kind = match value {
            Value::Counter(_) => self.counters,
            Value::Gauge(_) => self.gauges,
            Value::Histogram(_) => self.histograms,
        };
        kind && (used || !self.only_used)
            && self
                .filter
                .as_ref()
                .is_none_or(|filter| filter.is_match(name))
    }
}

/// What a histogram holds.
#[derive(Debug, Clone)]
struct Buckets {
    cumulative: [u64; BOUNDS.len() + 1],
    sum: f64,
}

impl Buckets {
    fn of(histogram: &Histogram) -> Buckets {
        Buckets {
            cumulative: histogram.cumulative(),
            sum: histogram.sum(),
        }
    }

    fn count(&self) -> u64 {
        let [.., count] = self.cumulative;
        count
    }

    /// An estimate of a quantile, in milliseconds: within its bucket, values are taken as evenly spread. `None`
    /// without values.
    fn quantile(&self, percent: f64) -> Option<f64> {
        if self.count() == 0 {
            return None;
        }
        let rank = self.count() as f64 * percent / 100.0;
        let above = |count: &&u64| **count > 0 && **count as f64 >= rank;
        let bucket = self.cumulative.iter().position(|count| above(&count))?;
        let before = |index: usize| index.checked_sub(1);
        let (low, under) = match before(bucket) {
            Some(index) => (BOUNDS[index], self.cumulative[index]),
            None => (0.0, 0),
        };
        // Nothing is known of what is beyond the last bound.
        let high = BOUNDS.get(bucket).copied().unwrap_or(low);
        let within = (self.cumulative[bucket] - under) as f64;
        let share = ((rank - under as f64) / within).clamp(0.0, 1.0);
        Some(((high - low).mul_add(share, low) * 100.0).round() / 100.0)
    }
}

/// The statistics of a page by name.
#[derive(Debug, Default)]
struct Collected {
    /// Counters and gauges, and whether it is a counter.
    numbers: BTreeMap<String, (u64, bool)>,
    histograms: BTreeMap<String, Buckets>,
}

impl Collected {
    fn of(stats: &Stats, selection: &Selection) -> Collected {
        let mut all = Collected::default();
        stats.visit(&mut |group, scope, value, reading| {
            let name = full_name(group, scope, value);
            if !selection.has(&name, reading.used, &reading.value) {
                return;
            }
            match reading.value {
                Value::Counter(number) => drop(all.numbers.insert(name, (number, true))),
                Value::Gauge(number) => drop(all.numbers.insert(name, (number, false))),
                Value::Histogram(values) => {
                    all.histograms.insert(name, Buckets::of(values));
                }
            }
        });
        all
    }
}

/// A name as Envoy has it.
fn full_name(group: Group, scope: &str, value: &str) -> String {
    match group {
        Group::Cluster => format!("cluster.{scope}.{value}"),
        Group::ConnectionLimit => format!("connection_limit.{scope}.{value}"),
        Group::Listener => format!("listener.{scope}.{value}"),
        Group::Rbac if scope.is_empty() => format!("rbac.{value}"),
        Group::Rbac => format!("{scope}.rbac.{value}"),
        Group::Tcp => format!("tcp.{scope}.{value}"),
        Group::Own => format!("{OWN}.{value}"),
    }
}

/// The prefix of what Envoy does not have.
const OWN: &str = "legate_l4";

impl Admin {
    pub(super) fn stats(&self, query: &Query) -> Result<Page, Page> {
        let formats = [
            ("text", Format::Text),
            ("json", Format::Json),
            ("prometheus", Format::Prometheus),
        ];
        let format = query.format("/stats", &formats)?;
        if format == Format::Prometheus {
            return self.prometheus(query);
        }
        summary_only(query)?;
        let collected = self.collect(query)?;
        Ok(match format {
            Format::Json => Page::json(&json(&collected)),
            _ => Page::ok(text(&collected)),
        })
    }

    pub(super) fn prometheus(&self, query: &Query) -> Result<Page, Page> {
        match query.get("histogram_buckets") {
            None | Some("" | "cumulative") => {}
            Some(_) => query.refuse(&["histogram_buckets"])?,
        }
        Ok(Page::ok(prometheus(&self.collect(query)?, &self.tags)))
    }

    fn collect(&self, query: &Query) -> Result<Collected, Page> {
        let selection = Selection::new(query)?;
        self.refresh();
        Ok(Collected::of(&self.built_in.shared.stats, &selection))
    }

    /// Brings gauges up to date that are counted elsewhere.
    fn refresh(&self) {
        let serving = self.built_in.shared.serving();
        serving.clusters.values().for_each(|cluster| cluster.show());
    }
}

/// Histograms are shown in one way only.
fn summary_only(query: &Query) -> Result<(), Page> {
    match query.get("histogram_buckets") {
        None | Some("" | "summary") => Ok(()),
        Some(_) => query.refuse(&["histogram_buckets"]),
    }
}

fn text(all: &Collected) -> String {
    let mut page = String::new();
    for (name, (number, _)) in &all.numbers {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{name}: {number}");
    }
    for (name, buckets) in &all.histograms {
        if buckets.count() == 0 {
            let _ = writeln!(page, "{name}: No recorded values");
            continue;
        }
        let quantiles = QUANTILES.map(|percent| {
            let value = buckets.quantile(percent).unwrap_or_default();
            format!("P{percent}(nan,{value})")
        });
        let _ = writeln!(page, "{name}: {}", quantiles.join(" "));
    }
    page
}

fn json(all: &Collected) -> Json {
    let numbers = all.numbers.iter();
    let numbers = numbers.map(|(name, (number, _))| json!({ "name": name, "value": number }));
    let mut stats: Vec<Json> = numbers.collect();
    if !all.histograms.is_empty() {
        let computed = all.histograms.iter().map(|(name, buckets)| {
            let values = QUANTILES.map(
                |percent| json!({ "interval": null, "cumulative": buckets.quantile(percent) }),
            );
            json!({ "name": name, "values": values })
        });
        stats.push(json!({ "histograms": {
            "supported_quantiles": QUANTILES,
            "computed_quantiles": computed.collect::<Vec<_>>(),
        } }));
    }
    json!({ "stats": stats })
}

/// The lines of each metric by its name.
type Metrics = BTreeMap<String, String>;

fn prometheus(all: &Collected, tags: &Tags) -> String {
    let (mut counters, mut gauges, mut histograms) =
        (Metrics::new(), Metrics::new(), Metrics::new());
    for (name, (number, is_counter)) in &all.numbers {
        let (name, labels) = metric(&tags.extract(name));
        let metrics = if *is_counter {
            &mut counters
        } else {
            &mut gauges
        };
        let lines = metrics.entry(name.clone()).or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "{name}{{{labels}}} {number}");
    }
    for (name, buckets) in &all.histograms {
        let (name, labels) = metric(&tags.extract(name));
        let lines = histograms.entry(name.clone()).or_default();
        let comma = if labels.is_empty() { "" } else { "," };
        let bounds = BOUNDS.map(|bound| bound.to_string());
        let bounds = bounds.iter().map(String::as_str).chain(["+Inf"]);
        for (bound, count) in bounds.zip(buckets.cumulative) {
            let _ = writeln!(
                lines,
                "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}"
            );
        }
        let _ = writeln!(lines, "{name}_sum{{{labels}}} {}", buckets.sum);
        let _ = writeln!(lines, "{name}_count{{{labels}}} {}", buckets.count());
    }
    let mut page = String::new();
    for (kind, metrics) in [
        ("counter", counters),
        ("gauge", gauges),
        ("histogram", histograms),
    ] {
        for (name, lines) in metrics {
            let _ = write!(page, "# TYPE {name} {kind}\n{lines}");
        }
    }
    page
}

/// The name of a metric, and its labels.
fn metric(tagged: &Tagged) -> (String, String) {
    let name = identifier(&tagged.name);
    let name = match name.starts_with(OWN) {
        true => name,
        false => format!("envoy_{name}"),
    };
    let labels = tagged.tags.iter().map(|(tag, value)| {
        let value = value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        format!("{}=\"{value}\"", identifier(tag))
    });
    (name, labels.collect::<Vec<_>>().join(","))
}

/// A name with `_` for what Prometheus does not allow.
fn identifier(name: &str) -> String {
    let allowed = |character: char| character.is_ascii_alphanumeric() || character == '_';
    name.replace(|character: char| !allowed(character), "_")
}
