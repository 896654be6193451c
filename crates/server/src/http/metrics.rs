//! `/v1/agent/metrics` without a format: metrics as JSON, in Consul's format. Derived from the Prometheus text,
//! so that both agree.

use std::collections::BTreeMap;
use std::time::SystemTime;

use legate_model::timestamp;
use legate_runtime::metrics::{self, Registry};
use serde::Serialize;

/// The response. Consul reports the last interval; these values are totals since startup.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Summary {
    timestamp: String,
    gauges: Vec<Gauge>,
    points: [(); 0],
    counters: Vec<Counter>,
    samples: [(); 0],
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Gauge {
    name: String,
    value: f64,
    labels: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Counter {
    name: String,
    /// An integer, as clients expect.
    count: u64,
    sum: f64,
    labels: BTreeMap<String, String>,
}

/// All metrics of the server at this time.
pub(super) fn summary(registry: &Registry, now: SystemTime) -> Summary {
    let mut summary = read(&metrics::encode(registry));
    summary.timestamp = timestamp::format(now).unwrap_or_default();
    summary.gauges.extend(process());
    summary
}

/// The memory of the process, under Consul's metric names, which tools look for.
fn process() -> Vec<Gauge> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let host = read("/proc/sys/kernel/hostname");
    let status = read("/proc/self/status");
    let gauge = |(name, key): (&str, &str)| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        let kilobytes: f64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Gauge {
            name: format!("consul.{}.runtime.{name}", host.trim()),
            value: kilobytes * 1024.0,
            labels: BTreeMap::new(),
        })
    };
    let names = [("alloc_bytes", "VmRSS:"), ("sys_bytes", "VmSize:")];
    names.into_iter().filter_map(gauge).collect()
}

/// Parses Prometheus text. The counts and sums of histograms are reported as counters; their buckets are
/// omitted.
fn read(text: &str) -> Summary {
    let mut summary = Summary::default();
    let mut kind = "";
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            kind = declared.split_once(' ').map_or("", |(_, kind)| kind);
        }
        let Some((name, labels, value)) = series(line) else {
            continue;
        };
        match kind {
            "gauge" => summary.gauges.push(Gauge {
                name,
                value,
                labels,
            }),
            _ if name.ends_with("_bucket") => {}
            _ => summary.counters.push(Counter {
                name,
                count: whole(value),
                sum: value,
                labels,
            }),
        }
    }
    summary
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are non-negative integers; other values are truncated"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

/// Parses `name{label="value",...} 7`. `None` for comments and for non-finite values, which JSON cannot
/// represent.
fn series(line: &str) -> Option<(String, BTreeMap<String, String>, f64)> {
    let (series, value) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let value = value.parse().ok().filter(|value: &f64| value.is_finite())?;
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let mut found = BTreeMap::new();
    let mut rest = labels.trim_end_matches('}');
    while let Some((label, quoted)) = rest.split_once("=\"") {
        let mut text = String::new();
        let mut chars = quoted.chars();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => match chars.next()? {
                    'n' => text.push('\n'),
                    other => text.push(other),
                },
                other => text.push(other),
            }
        }
        found.insert(label.to_owned(), text);
        rest = chars.as_str().trim_start_matches(',');
    }
    Some((name.to_owned(), found, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_and_counters_are_read_with_their_labels() {
        let text = "# HELP up x\n# TYPE up gauge\nup 1\n# TYPE c counter\n\
                    c{a=\"x \\\"y\\\"\",b=\"\"} 7\n# TYPE h histogram\n\
                    h_bucket{le=\"+Inf\"} 2\nh_sum 0.5\nh_count 2\n";
        let summary = read(text);
        assert_eq!(summary.gauges.len(), 1);
        assert_eq!(
            (summary.gauges[0].name.as_str(), summary.gauges[0].value),
            ("up", 1.0)
        );
        let counters: Vec<_> = summary
            .counters
            .iter()
            .map(|c| (c.name.as_str(), c.sum))
            .collect();
        assert_eq!(counters, [("c", 7.0), ("h_sum", 0.5), ("h_count", 2.0)]);
        let labels = &summary.counters[0].labels;
        assert_eq!(labels["a"], "x \"y\"");
        assert_eq!(labels["b"], "");
    }
}
