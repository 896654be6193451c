//! How many queries there are and what became of them.

use legate_runtime::metrics::{Error, IntCounterVec, IntGaugeVec, Registrar, Registry};

use super::message::{Reason, Transport};
use crate::telemetry::PREFIX;

/// What became of a query. Every message that comes in has one outcome, unless its TCP client goes
/// away first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The server's answer was passed on.
    Answered,
    /// An answer of a moment ago was given again, within the time that its server allows.
    Cached,
    /// An earlier answer was given again, because no server answers.
    Stale,
    /// The server's answer was too long; the client got an empty one that says to use TCP.
    Truncated,
    /// It was declined with SERVFAIL.
    Declined(Reason),
    /// It could not be read, and was answered with FORMERR.
    Malformed,
    /// It was no query: nothing was sent.
    Ignored,
}

impl Outcome {
    /// All of them, with their labels.
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
    /// Everything is there from the start, as zero.
    pub(super) fn new(registry: &Registry) -> Result<Self, Error> {
        let metrics = Registrar::new(registry, PREFIX);
        let metrics = Self {
            queries: metrics.counters(
                "dns_queries_total",
                "DNS messages that came in, by what became of them.",
                &["transport", "outcome"],
            )?,
            in_flight: metrics.gauges(
                "dns_queries_in_flight",
                "DNS queries that are waiting for an answer.",
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
