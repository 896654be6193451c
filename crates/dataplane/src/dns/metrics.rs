//! Counts queries by outcome.

use legate_runtime::metrics::{Error, IntCounterVec, IntGaugeVec, Registrar, Registry};

use super::message::{Reason, Transport};
use crate::telemetry::PREFIX;

/// Outcome of a query. Every received message has one outcome, unless its TCP client disconnects
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The server's answer was returned.
    Answered,
    /// A cached answer was returned within its TTL.
    Cached,
    /// A stale answer was returned, because no server answered.
    Stale,
    /// The server's answer was too long; the client got an empty one that refers it to TCP.
    Truncated,
    /// It was answered with SERVFAIL.
    Declined(Reason),
    /// It could not be parsed, and was answered with FORMERR.
    Malformed,
    /// It was not a query: nothing was sent.
    Ignored,
}

impl Outcome {
    /// All outcomes, with their labels.
    const ALL: [(Self, &str); 11] = [
        (Self::Answered, "answered"),
        (Self::Cached, "cached"),
        (Self::Stale, "stale"),
        (Self::Truncated, "truncated"),
        (Self::Declined(Reason::Overloaded), "overloaded"),
        (Self::Declined(Reason::NoServer), "no_server"),
        (Self::Declined(Reason::Timeout), "timeout"),
        (Self::Declined(Reason::ServerError), "server_error"),
        (Self::Declined(Reason::Stopping), "stopping"),
        (Self::Malformed, "malformed"),
        (Self::Ignored, "ignored"),
    ];
}

/// The metrics of one proxy.
#[derive(Debug)]
pub(super) struct DnsMetrics {
    queries: IntCounterVec,
    pub(super) in_flight: IntGaugeVec,
}

impl DnsMetrics {
    /// Registers all metrics, each with value 0.
    pub(super) fn new(registry: &Registry) -> Result<Self, Error> {
        let metrics = Registrar::new(registry, PREFIX);
        let metrics = Self {
            queries: metrics.counters(
                "dns_queries_total",
                "DNS messages received, by outcome.",
                &["transport", "outcome"],
            )?,
            in_flight: metrics.gauges(
                "dns_queries_in_flight",
                "DNS queries that are being answered.",
                &["transport"],
            )?,
        };
        for transport in Transport::ALL.map(Transport::label) {
            metrics.in_flight.with_label_values(&[transport]);
            for (_, outcome) in Outcome::ALL {
                metrics.queries.with_label_values(&[transport, outcome]);
            }
        }
        Ok(metrics)
    }

    pub(super) fn count(&self, transport: Transport, outcome: Outcome) {
        let mut all = Outcome::ALL.iter();
        if let Some((_, label)) = all.find(|(known, _)| *known == outcome) {
            let labels = [transport.label(), label];
            self.queries.with_label_values(&labels).inc();
        }
    }
}
