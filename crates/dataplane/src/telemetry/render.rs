//! Writes the dataplane's own metrics in the formats that readers ask for.

use std::fmt::Write;

use super::Format;
use super::families::{Family, Kind, Series, Value};

/// A whole page. A family without series is named all the same: it may get some.
pub(super) fn render(families: &[Family], format: Format) -> String {
    let mut page = String::new();
    for family in families {
        metadata(family, format, &mut page);
        for series in &family.series {
            match &series.value {
                Value::Number(value) => sample(&family.name, series, None, *value, &mut page),
                Value::Histogram {
                    count,
                    sum,
                    buckets,
                } => {
                    let mut part = |suffix: &str, bound: Option<f64>, value: f64| {
                        sample(
                            &format!("{}{suffix}", family.name),
                            series,
                            bound,
                            value,
                            &mut page,
                        );
                    };
                    for (bound, count) in buckets.iter().filter(|(bound, _)| bound.is_finite()) {
                        part("_bucket", Some(*bound), as_float(*count));
                    }
                    part("_bucket", Some(f64::INFINITY), as_float(*count));
                    part("_sum", None, *sum);
                    part("_count", None, as_float(*count));
                }
            }
        }
    }
    if format == Format::OpenMetrics {
        page.push_str("# EOF\n");
    }
    page
}

fn metadata(family: &Family, format: Format, page: &mut String) {
    let (name, word) = match (family.kind, format) {
        (Kind::Gauge, _) => (family.name.as_str(), "gauge"),
        (Kind::Histogram, _) => (family.name.as_str(), "histogram"),
        (Kind::Counter, Format::Text) => (family.name.as_str(), "counter"),
        // A counter there has to be called that; the name that dashboards know is worth more.
        (Kind::Counter, Format::OpenMetrics) => match family.name.strip_suffix("_total") {
            Some(name) => (name, "counter"),
            None => (family.name.as_str(), "unknown"),
        },
    };
    let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
    push(
        page,
        format_args!("# HELP {name} {help}\n# TYPE {name} {word}\n"),
    );
}

fn sample(name: &str, series: &Series, bound: Option<f64>, value: f64, page: &mut String) {
    page.push_str(name);
    let mut separator = '{';
    for (label, value) in &series.labels {
        let value = value
            .replace('\\', "\\\\")
            .replace('\n', "\\n")
            .replace('"', "\\\"");
        push(page, format_args!("{separator}{label}=\"{value}\""));
        separator = ',';
    }
    if let Some(bound) = bound {
        push(page, format_args!("{separator}le=\"{}\"", number(bound)));
        separator = ',';
    }
    if separator == ',' {
        page.push('}');
    }
    push(page, format_args!(" {}\n", number(value)));
}

fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "pages have floats only")]
fn as_float(count: u64) -> f64 {
    count as f64
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    // A string takes everything.
    let _ = page.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::merge::merge_pages;

    fn families() -> Vec<Family> {
        let mut calls = Family::new("calls_total", "Calls\nand \\ more.", Kind::Counter);
        calls.with(&[("kind", "a\"b\\c\nd")], 3.0);
        let mut errors = Family::new("errors", "Errors.", Kind::Counter);
        errors.with(&[], 1.5);
        let mut time = Family::new("duration", "Time.", Kind::Histogram);
        time.series.push(Series {
            labels: vec![("type".to_owned(), "x".to_owned())],
            value: Value::Histogram {
                count: 3,
                sum: 9.0,
                buckets: vec![(1.0, 1), (2.5, 2)],
            },
        });
        vec![calls, errors, time, Family::gauge("none", "None.", None)]
    }

    #[test]
    fn both_formats_say_the_same() {
        let text = render(&families(), Format::Text);
        assert_eq!(
            text,
            "# HELP consul_dataplane_calls_total Calls\\nand \\\\ more.\n\
             # TYPE consul_dataplane_calls_total counter\n\
             consul_dataplane_calls_total{kind=\"a\\\"b\\\\c\\nd\"} 3\n\
             # HELP consul_dataplane_errors Errors.\n# TYPE consul_dataplane_errors counter\n\
             consul_dataplane_errors 1.5\n\
             # HELP consul_dataplane_duration Time.\n# TYPE consul_dataplane_duration histogram\n\
             consul_dataplane_duration_bucket{type=\"x\",le=\"1\"} 1\n\
             consul_dataplane_duration_bucket{type=\"x\",le=\"2.5\"} 2\n\
             consul_dataplane_duration_bucket{type=\"x\",le=\"+Inf\"} 3\n\
             consul_dataplane_duration_sum{type=\"x\"} 9\nconsul_dataplane_duration_count{type=\"x\"} 3\n\
             # HELP consul_dataplane_none None.\n# TYPE consul_dataplane_none gauge\n"
        );
        let open = render(&families(), Format::OpenMetrics);
        assert!(
            open.contains("# TYPE consul_dataplane_calls counter\n"),
            "{open}"
        );
        assert!(
            open.contains("# TYPE consul_dataplane_errors unknown\n"),
            "{open}"
        );
        assert!(open.ends_with("# EOF\n"), "{open}");
        // Readers understand every line.
        let read = merge_pages(&[(Format::Text, text.as_bytes())], 9);
        assert_eq!(String::from_utf8(read).unwrap(), text);
    }
}
