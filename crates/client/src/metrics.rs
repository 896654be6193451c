//! The session's metrics. Names are the same as in Consul's dataplane. Some types differ: its
//! summaries are histograms here (`_sum` and `_count` are the same), and `connection_errors`, a
//! gauge there that never decreases, is a counter.

use std::time::Duration;

use legate_runtime::metrics::{
    Error, Histogram, IntCounter, IntCounterVec, IntGauge, Registrar, Registry,
};
use tonic::Code;

/// Upper bounds of the buckets in milliseconds: from a local connection to the longest deadline.
const BUCKETS: [f64; 13] = [
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 10_000.0, 30_000.0,
];

pub(crate) struct Metrics {
    connected: IntGauge,
    errors: IntCounterVec,
    pub(crate) connect: Histogram,
    pub(crate) discover: Histogram,
    pub(crate) login: Histogram,
    pub(crate) logins: IntCounter,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, Error> {
        let metrics = Registrar::new(registry, "consul_dataplane");
        let duration = |name: &str, help: &str| metrics.histogram(name, help, &BUCKETS);
        let errors = metrics.counters(
            "connection_errors",
            "Errors of calls to servers, all and by gRPC status code.",
            &["error_code"],
        )?;
        // An empty label counts as no label: this is the series of all errors, present from the
        // start.
        errors.with_label_values(&[""]);
        Ok(Self {
            connected: metrics
                .gauge("consul_connected", "1 while connected to a server, else 0.")?,
            errors,
            logins: metrics.counter("logins_total", "Logins that succeeded.")?,
            connect: duration(
                "connect_duration",
                "Milliseconds from dialling a server to being connected.",
            )?,
            discover: duration(
                "discover_servers_duration",
                "Milliseconds to find the addresses of servers.",
            )?,
            login: duration(
                "login_duration",
                "Milliseconds that a successful login takes.",
            )?,
        })
    }

    pub(crate) fn connected(&self, connected: bool) {
        self.connected.set(connected.into());
    }

    pub(crate) fn error(&self, code: Code) {
        self.errors.with_label_values(&[""]).inc();
        self.errors.with_label_values(&[name(code).as_str()]).inc();
    }
}

pub(crate) fn observe(histogram: &Histogram, duration: Duration) {
    histogram.observe(duration.as_secs_f64() * 1_000.0);
}

/// Names of status codes as Go's gRPC prints them, for compatibility with dashboards.
fn name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use legate_runtime::metrics::encode;

    use super::*;

    #[test]
    fn names_are_there_from_the_start_and_errors_count() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        let text = encode(&registry);
        for line in [
            "consul_dataplane_consul_connected 0",
            "consul_dataplane_connection_errors{error_code=\"\"} 0",
            "consul_dataplane_connect_duration_count 0",
            "consul_dataplane_discover_servers_duration_count 0",
            "consul_dataplane_login_duration_count 0",
            "consul_dataplane_logins_total 0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        metrics.error(Code::Cancelled);
        metrics.connected(true);
        observe(&metrics.login, Duration::from_millis(20));
        let text = encode(&registry);
        assert!(text.contains("consul_dataplane_connection_errors{error_code=\"Canceled\"} 1"));
        assert!(text.contains("consul_dataplane_consul_connected 1"));
        assert!(text.contains("consul_dataplane_login_duration_sum 20"));
        assert!(
            Metrics::new(&registry).is_err(),
            "two sessions must not add up"
        );
    }
}
