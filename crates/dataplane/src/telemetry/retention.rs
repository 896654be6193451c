//! How long series that come with an event stay visible: for a while after they last changed, as in
//! Consul's dataplane. Everything else stays as long as the process runs.

use std::collections::BTreeMap;
use std::time::Duration;

use legate_runtime::metrics::proto::MetricFamily;
use tokio::time::Instant;

use super::PREFIX;

/// The family, without prefix, whose labelled series come with an event.
pub(super) const EVENTS: &str = "connection_errors";

/// Remembers when series changed. A change is noticed when somebody looks.
#[derive(Debug)]
pub(super) struct Retention {
    /// How long series stay.
    pub(super) time: Duration,
    /// Value and last change by the value of the label. As many as the registry has.
    series: BTreeMap<String, (f64, Instant)>,
}

impl Default for Retention {
    /// What `-telemetry-prom-retention-time` is by default.
    fn default() -> Retention {
        Retention {
            time: Duration::from_secs(60),
            series: BTreeMap::new(),
        }
    }
}

impl Retention {
    /// Takes out the series that did not change for too long.
    pub(super) fn apply(&mut self, families: &mut [MetricFamily]) {
        let now = Instant::now();
        let name = format!("{PREFIX}_{EVENTS}");
        let Some(family) = families.iter_mut().find(|family| family.name() == name) else {
            return;
        };
        family.mut_metric().retain(|metric| {
            let Some(label) = metric.get_label().first() else {
                return true;
            };
            let value = metric.get_counter().get_value();
            let known = self.series.entry(label.value().to_owned());
            let known = known.or_insert((value, now));
            if known.0 < value {
                *known = (value, now);
            }
            now.duration_since(known.1) < self.time
        });
    }
}

#[cfg(test)]
mod tests {
    use legate_runtime::metrics::{IntCounterVec, Opts, Registry};

    use super::*;
    use crate::telemetry::families::gather;

    #[tokio::test(start_paused = true)]
    async fn series_of_events_leave_when_nothing_happens_and_come_back() {
        let registry = Registry::new();
        let counter = |name: &str, label| {
            let options = Opts::new(name, "x").namespace(PREFIX);
            let counter = IntCounterVec::new(options, &[label]).unwrap();
            registry.register(Box::new(counter.clone())).unwrap();
            counter
        };
        let errors = counter(EVENTS, "error_code");
        errors.with_label_values(&[""]).inc();
        errors.with_label_values(&["Unavailable"]).inc();
        let queries = counter("dns_queries_total", "outcome");
        queries.with_label_values(&["answered"]);
        let mut retention = Retention {
            time: Duration::from_secs(30),
            ..Retention::default()
        };
        let mut shown = || {
            let mut families = gather(&registry);
            retention.apply(&mut families);
            assert_eq!(families[1].get_metric().len(), 1);
            families[0].get_metric().len()
        };
        assert_eq!(shown(), 2);
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(shown(), 2);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(shown(), 1, "the sum of all stays");
        errors.with_label_values(&["Unavailable"]).inc();
        assert_eq!(shown(), 2);
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(shown(), 2);
    }
}
