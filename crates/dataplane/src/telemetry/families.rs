//! The dataplane's own metrics as `prometheus` families, and their encoding as a page. Metrics computed
//! per scrape ([`super::observed`]) are merged with those of the registry.

use std::slice;

use legate_metrics_page::Format;
use legate_runtime::metrics::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use legate_runtime::metrics::{Registry, encode_families};

/// Prefix of all metrics of the dataplane.
pub(crate) const PREFIX: &str = "consul_dataplane";

/// All families of the registry, sorted by name. Labels with empty values are removed.
pub(super) fn gather(registry: &Registry) -> Vec<MetricFamily> {
    let mut families = registry.gather();
    for metric in families.iter_mut().flat_map(MetricFamily::mut_metric) {
        let labels = metric.take_label().into_iter();
        let labels = labels.filter(|label| !label.value().is_empty());
        metric.set_label(labels.collect());
    }
    families
}

/// A gauge without labels; without a series if there is no value.
pub(super) fn gauge(name: &str, help: &str, value: Option<f64>) -> MetricFamily {
    family(name, help, "", value.map(|value| ("", value)))
}

/// A family with one label, one series per value; an empty value means no label. A counter if the name ends
/// with `_total`, otherwise a gauge.
pub(super) fn family(
    name: &str,
    help: &str,
    label: &str,
    values: impl IntoIterator<Item = (&'static str, f64)>,
) -> MetricFamily {
    let metric = |(text, value): (&str, f64)| {
        let mut metric = Metric::default();
        if !text.is_empty() {
            let mut pair = LabelPair::default();
            pair.set_name(label.to_owned());
            pair.set_value(text.to_owned());
            metric.set_label(vec![pair]);
        }
        // The type of the family decides which one is used.
        let (mut counter, mut gauge) = (Counter::default(), Gauge::default());
        counter.set_value(value);
        gauge.set_value(value);
        metric.set_counter(counter);
        metric.set_gauge(gauge);
        metric
    };
    let mut family = MetricFamily::default();
    family.set_name(format!("{PREFIX}_{name}"));
    family.set_help(help.to_owned());
    family.set_field_type(match name.ends_with("_total") {
        true => MetricType::COUNTER,
        false => MetricType::GAUGE,
    });
    family.set_metric(values.into_iter().map(metric).collect());
    family
}

/// Encodes a whole page.
pub(super) fn page(families: &[MetricFamily], format: Format) -> String {
    match format {
        Format::Text => families.iter().map(text).collect(),
        Format::OpenMetrics => {
            let mut page: String = families.iter().map(openmetrics).collect();
            page.push_str("# EOF\n");
            page
        }
    }
}

/// Encodes a family as text. `HELP` and `TYPE` are written even without series, because some may follow.
fn text(family: &MetricFamily) -> String {
    let (name, help) = (family.name(), family.help());
    match family.get_metric().is_empty() {
        true => format!("# HELP {name} {help}\n# TYPE {name} gauge\n"),
        false => encode_families(slice::from_ref(family)),
    }
}

/// Encodes a family as OpenMetrics: counters must end with `_total`, and their metadata has the name without
/// the suffix.
fn openmetrics(family: &MetricFamily) -> String {
    let (text, name) = (text(family), family.name());
    match (family.get_field_type(), name.strip_suffix("_total")) {
        (MetricType::COUNTER, Some(base)) => text
            .replacen(&format!("# HELP {name} "), &format!("# HELP {base} "), 1)
            .replacen(&format!("# TYPE {name} "), &format!("# TYPE {base} "), 1),
        // Keeping the name that dashboards use is more important than the type.
        (MetricType::COUNTER, None) => text.replacen(" counter\n", " unknown\n", 1),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use legate_runtime::metrics::{Histogram, HistogramOpts, IntCounterVec, Opts};

    use super::*;
    use crate::telemetry::tests::read;

    #[test]
    fn both_formats_have_the_same_metrics() {
        let registry = Registry::new();
        let named = |name: &str, help: &str| Opts::new(name, help).namespace(PREFIX);
        let calls = named("calls_total", "Calls\nand \\ more.");
        let calls = IntCounterVec::new(calls, &["kind"]).unwrap();
        calls.with_label_values(&["a\"b\\c\nd"]).inc_by(3);
        let errors = named("errors", "Errors.");
        let errors = IntCounterVec::new(errors, &["code"]).unwrap();
        errors.with_label_values(&[""]).inc();
        let time = HistogramOpts::new("duration", "Time.").namespace(PREFIX);
        let time = Histogram::with_opts(time.buckets(vec![1.0, 2.5])).unwrap();
        for value in [0.5, 2.0, 6.5] {
            time.observe(value);
        }
        registry.register(Box::new(calls)).unwrap();
        registry.register(Box::new(errors)).unwrap();
        registry.register(Box::new(time)).unwrap();
        let families = gather(&registry);

        let text = page(&families, Format::Text);
        assert_eq!(
            text,
            "# HELP consul_dataplane_calls_total Calls\\nand \\\\ more.\n\
             # TYPE consul_dataplane_calls_total counter\n\
             consul_dataplane_calls_total{kind=\"a\\\"b\\\\c\\nd\"} 3\n\
             # HELP consul_dataplane_duration Time.\n# TYPE consul_dataplane_duration histogram\n\
             consul_dataplane_duration_bucket{le=\"1\"} 1\n\
             consul_dataplane_duration_bucket{le=\"2.5\"} 2\n\
             consul_dataplane_duration_bucket{le=\"+Inf\"} 3\n\
             consul_dataplane_duration_sum 9\nconsul_dataplane_duration_count 3\n\
             # HELP consul_dataplane_errors Errors.\n# TYPE consul_dataplane_errors counter\n\
             consul_dataplane_errors 1\n"
        );
        let open = page(&families, Format::OpenMetrics);
        for line in [
            "# HELP consul_dataplane_calls Calls\\nand \\\\ more.\n",
            "# TYPE consul_dataplane_calls counter\nconsul_dataplane_calls_total{",
            "# TYPE consul_dataplane_errors unknown\nconsul_dataplane_errors 1\n",
        ] {
            assert!(open.contains(line), "{line}\n{open}");
        }
        assert!(open.ends_with("# EOF\n"), "{open}");
        // The merger accepts every line.
        assert_eq!(read(&text).unwrap(), text);
    }
}
