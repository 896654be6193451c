//! From a query to a reply: every query that is admitted gets one, and so does every query that
//! is not.
//!
//! It knows the transports' limits and nothing of their sockets.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use legate_runtime::CancellationToken;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::DnsOptions;
use super::forward::{ForwardError, Forwarder, Throttle};
use super::message::{HEADER, LARGEST, Query, Reason};
use super::metrics::{DnsMetrics, InFlight, Outcome, Transport};

/// The longest reply that fits into a datagram over IPv4.
const LARGEST_DATAGRAM: usize = 65_507;

/// At most one warning in this time, however many queries fail.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// Turns queries into replies.
#[derive(Debug)]
pub(super) struct Answerer {
    forwarder: Forwarder,
    metrics: DnsMetrics,
    udp: Arc<Semaphore>,
    tcp: Arc<Semaphore>,
    drain: Duration,
    stop: CancellationToken,
    /// When the first task noticed the stop.
    stopped: OnceLock<Instant>,
    warnings: Throttle,
}

/// The right to be answered, for one query.
#[derive(Debug)]
pub(super) struct Slot {
    transport: Transport,
    _permit: OwnedSemaphorePermit,
    _in_flight: InFlight,
}

impl Answerer {
    pub(super) fn new(
        forwarder: Forwarder,
        options: &DnsOptions,
        metrics: DnsMetrics,
        stop: CancellationToken,
    ) -> Self {
        Self {
            forwarder,
            metrics,
            udp: Arc::new(Semaphore::new(options.limits.udp_queries)),
            tcp: Arc::new(Semaphore::new(options.limits.tcp_queries)),
            drain: options.limits.drain,
            stop,
            stopped: OnceLock::new(),
            warnings: Throttle::default(),
        }
    }

    /// What to forward to.
    pub(super) fn forwarder(&self) -> &Forwarder {
        &self.forwarder
    }

    /// Reads a message. What is no query is counted and gets no reply.
    pub(super) fn read(&self, message: Bytes, transport: Transport) -> Option<Query> {
        let query = Query::parse(message);
        if query.is_none() {
            self.metrics.count(transport, Outcome::Ignored);
        }
        query
    }

    /// A place among those who wait, unless all are taken. Never waits itself.
    pub(super) fn admit(&self, transport: Transport) -> Option<Slot> {
        let slots = match transport {
            Transport::Udp => &self.udp,
            Transport::Tcp => &self.tcp,
        };
        let permit = Arc::clone(slots).try_acquire_owned().ok()?;
        Some(Slot {
            transport,
            _permit: permit,
            _in_flight: self.metrics.enter(transport),
        })
    }

    /// The reply to a query for which there is no slot.
    pub(super) fn overloaded(&self, query: &Query, transport: Transport) -> Bytes {
        self.decline(
            query,
            transport,
            Reason::Overloaded,
            &"as many as can be are being answered",
        )
    }

    /// The reply to a query. Takes no longer than [`super::Limits::query`].
    pub(super) async fn answer(&self, query: &Query, slot: Slot) -> Bytes {
        let transport = slot.transport;
        let answer = tokio::select! {
            answer = self.forwarder.forward(query.bytes(), transport) => answer,
            () = self.drained() => {
                return self.decline(query, transport, Reason::Stopping, &"this process ends");
            }
        };
        match answer {
            Ok(answer) => self.pass_on(query, transport, answer),
            Err(error @ ForwardError::NoServer(_)) => {
                // The session tells about that, once for all.
                tracing::debug!(target: "dns-proxy", transport = transport.label(), %error, "query declined");
                self.metrics
                    .count(transport, Outcome::Declined(Reason::NoServer));
                query.failure(Reason::NoServer)
            }
            Err(error) => self.decline(query, transport, error.reason(), &error),
        }
    }

    /// Pending until the time is over that there is after the stop.
    pub(super) async fn drained(&self) {
        self.stop.cancelled().await;
        let stopped = *self.stopped.get_or_init(Instant::now);
        sleep_until(stopped + self.drain).await;
    }

    /// The server's answer as it is, if it can be sent.
    fn pass_on(&self, query: &Query, transport: Transport, answer: Bytes) -> Bytes {
        let largest = match transport {
            Transport::Udp => LARGEST_DATAGRAM,
            Transport::Tcp => LARGEST,
        };
        if (HEADER..=largest).contains(&answer.len()) {
            self.metrics.count(transport, Outcome::Answered);
            return answer;
        }
        if answer.len() > largest && transport == Transport::Udp {
            self.metrics.count(transport, Outcome::Truncated);
            return query.truncation();
        }
        let error = format!(
            "the server's answer has {} bytes, which no DNS message can have",
            answer.len()
        );
        self.decline(query, transport, Reason::ServerError, &error)
    }

    fn decline(
        &self,
        query: &Query,
        transport: Transport,
        reason: Reason,
        error: &dyn std::fmt::Display,
    ) -> Bytes {
        self.metrics.count(transport, Outcome::Declined(reason));
        let transport = transport.label();
        match self.warnings.pass(Instant::now(), WARN_EVERY) {
            Some(suppressed) => {
                tracing::warn!(target: "dns-proxy", transport, suppressed, %error, "query declined");
            }
            None => tracing::debug!(target: "dns-proxy", transport, %error, "query declined"),
        }
        query.failure(reason)
    }
}
