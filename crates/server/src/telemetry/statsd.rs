//! Metrics over UDP for StatsD and DogStatsD. Counters are sent as increments, histograms as counters of their
//! count and sum.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::time::Duration;

use legate_runtime::metrics::Registry;
use legate_runtime::metrics::proto::{Metric, MetricType};
use legate_runtime::{BoxError, CancellationToken};
use tokio::net::UdpSocket;
use tokio::time::{MissedTickBehavior, interval};

/// Maximum size of a datagram, below Ethernet's MTU.
const DATAGRAM: usize = 1400;

/// Sends all metrics at each interval until `stop`. With `tags`, labels are sent as DogStatsD tags, else as
/// parts of the metric's name.
pub(super) async fn send(
    address: String,
    tags: Option<Vec<String>>,
    registry: Registry,
    every: Duration,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    let mut due = interval(every);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sums = HashMap::new();
    let mut failing = false;
    while stop.run_until_cancelled(due.tick()).await.is_some() {
        let lines = lines(&registry, tags.as_deref(), &mut sums);
        match stop.run_until_cancelled(write(&address, &lines)).await {
            Some(Err(error)) if !failing => {
                failing = true;
                tracing::warn!(address, %error, "metrics cannot be sent; retrying");
            }
            Some(Ok(())) => failing = false,
            _ => {}
        }
    }
    Ok(())
}

/// Resolves the name each time, because receivers may move.
async fn write(address: &str, lines: &[String]) -> io::Result<()> {
    let mut found = tokio::net::lookup_host(address).await?;
    let address = found
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))?;
    let own = if address.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(own).await?;
    let mut datagram = String::new();
    for line in lines {
        if !datagram.is_empty() && datagram.len() + line.len() > DATAGRAM {
            socket.send_to(datagram.as_bytes(), address).await?;
            datagram.clear();
        }
        datagram.push_str(line);
        datagram.push('\n');
    }
    if !datagram.is_empty() {
        socket.send_to(datagram.as_bytes(), address).await?;
    }
    Ok(())
}

/// Formats all metrics. `sums` contains the previous values of counters.
fn lines(
    registry: &Registry,
    tags: Option<&[String]>,
    sums: &mut HashMap<String, f64>,
) -> Vec<String> {
    let mut lines = Vec::new();
    let mut grown = |lines: &mut Vec<String>, series: String, tail: &str, now: f64| {
        let before = sums
            .insert(format!("{series}{tail}"), now)
            .unwrap_or_default();
        if now > before {
            lines.push(format!("{series}:{}|c{tail}", now - before));
        }
    };
    for family in registry.gather() {
        for metric in family.get_metric() {
            let (series, tail) = series(family.name(), metric, tags);
            match family.get_field_type() {
                MetricType::COUNTER => {
                    grown(&mut lines, series, &tail, metric.get_counter().get_value());
                }
                MetricType::GAUGE => {
                    let value = metric.get_gauge().get_value();
                    lines.push(format!("{series}:{value}|g{tail}"));
                }
                MetricType::HISTOGRAM => {
                    let histogram = metric.get_histogram();
                    #[expect(clippy::cast_precision_loss, reason = "a count of events")]
                    let count = histogram.get_sample_count() as f64;
                    grown(&mut lines, format!("{series}_count"), &tail, count);
                    let sum = histogram.get_sample_sum();
                    grown(&mut lines, format!("{series}_sum"), &tail, sum);
                }
                _ => {}
            }
        }
    }
    lines
}

/// The name of a series, and the suffix after its value.
fn series(name: &str, metric: &Metric, tags: Option<&[String]>) -> (String, String) {
    let plain = |text: &str| -> String {
        let kept = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        text.chars()
            .map(|c| if kept(c) { c } else { '_' })
            .collect()
    };
    let labels = metric.get_label().iter();
    let Some(tags) = tags else {
        let values = labels.map(|label| plain(label.value()).replace('.', "_"));
        let parts: Vec<String> = std::iter::once(name.to_owned()).chain(values).collect();
        return (parts.join("."), String::new());
    };
    let own = labels.map(|label| format!("{}:{}", label.name(), plain(label.value())));
    let all: BTreeSet<String> = tags.iter().cloned().chain(own).collect();
    if all.is_empty() {
        return (name.to_owned(), String::new());
    }
    let all: Vec<String> = all.into_iter().collect();
    (name.to_owned(), format!("|#{}", all.join(",")))
}

#[cfg(test)]
mod tests {
    use legate_runtime::metrics::{IntCounterVec, IntGauge, Opts};

    use super::*;

    #[test]
    fn counters_are_sent_as_increments() {
        let registry = Registry::new();
        let calls = IntCounterVec::new(Opts::new("calls_total", "x"), &["path"]).unwrap();
        registry.register(Box::new(calls.clone())).unwrap();
        let open = IntGauge::new("open", "x").unwrap();
        registry.register(Box::new(open.clone())).unwrap();
        calls.with_label_values(&["/v1|x"]).inc_by(3);
        open.set(2);
        let mut sums = HashMap::new();
        let first = lines(&registry, None, &mut sums);
        assert_eq!(first, ["calls_total./v1_x:3|c", "open:2|g"]);
        assert_eq!(lines(&registry, None, &mut sums), ["open:2|g"]);
        let tags = ["env:test".to_owned()];
        let tagged = lines(&registry, Some(&tags), &mut HashMap::new());
        assert_eq!(tagged[0], "calls_total:3|c|#env:test,path:/v1_x");
    }
}
