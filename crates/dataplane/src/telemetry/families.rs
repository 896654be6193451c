//! The dataplane's own metrics at one moment, as values: what the registry holds, in a form that
//! can be completed, written in several formats and pushed.

use legate_runtime::metrics::Registry;
use prometheus::proto::{Metric, MetricFamily, MetricType};

/// All series of one name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) help: String,
    pub(super) kind: Kind,
    pub(super) series: Vec<Series>,
}

/// What its values mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    /// None of them is empty: an empty label is no label.
    pub(super) labels: Vec<(String, String)>,
    pub(super) value: Value,
}

/// What tells series apart: a name and its labels.
pub(super) type SeriesKey = (String, Vec<(String, String)>);

/// What it is at this moment.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Number(f64),
    Histogram {
        count: u64,
        sum: f64,
        /// Upper bounds, and how many values are not above them.
        buckets: Vec<(f64, u64)>,
    },
}

impl Family {
    /// A family whose series [`with`](Family::with) adds.
    pub(super) fn new(name: &str, help: &str, kind: Kind) -> Family {
        Family {
            name: format!("{}_{name}", super::PREFIX),
            help: help.to_owned(),
            kind,
            series: Vec::new(),
        }
    }

    /// A gauge without labels; without a value it is only named.
    pub(super) fn gauge(name: &str, help: &str, value: Option<f64>) -> Family {
        let mut family = Family::new(name, help, Kind::Gauge);
        if let Some(value) = value {
            family.with(&[], value);
        }
        family
    }

    /// One more series.
    pub(super) fn with(&mut self, labels: &[(&str, &str)], value: f64) {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.series.push(Series {
            labels: labels.collect(),
            value: Value::Number(value),
        });
    }
}

/// Everything in the registry, in the order of the names.
pub(super) fn gather(registry: &Registry) -> Vec<Family> {
    registry.gather().iter().filter_map(family).collect()
}

fn family(family: &MetricFamily) -> Option<Family> {
    let kind = match family.get_field_type() {
        MetricType::COUNTER => Kind::Counter,
        MetricType::GAUGE => Kind::Gauge,
        MetricType::HISTOGRAM => Kind::Histogram,
        // Nothing of that kind is registered.
        MetricType::SUMMARY | MetricType::UNTYPED => return None,
    };
    Some(Family {
        name: family.name().to_owned(),
        help: family.help().to_owned(),
        kind,
        series: family
            .get_metric()
            .iter()
            .map(|metric| series(metric, kind))
            .collect(),
    })
}

fn series(metric: &Metric, kind: Kind) -> Series {
    let labels = metric.get_label().iter();
    let labels = labels.filter(|label| !label.value().is_empty());
    let histogram = metric.get_histogram();
    Series {
        labels: labels
            .map(|label| (label.name().to_owned(), label.value().to_owned()))
            .collect(),
        value: match kind {
            Kind::Counter => Value::Number(metric.get_counter().get_value()),
            Kind::Gauge => Value::Number(metric.get_gauge().get_value()),
            Kind::Histogram => Value::Histogram {
                count: histogram.get_sample_count(),
                sum: histogram.get_sample_sum(),
                buckets: histogram
                    .get_bucket()
                    .iter()
                    .map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()))
                    .collect(),
            },
        },
    }
}
