//! From a query to a reply: every query that is admitted gets one, and so does every query that
//! is not.
//!
//! It knows the transports' limits and nothing of their sockets.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::pending;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use legate_runtime::{CancellationToken, Spawner};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

use super::Limits;
use super::cache::Key;
use super::calls::Call;
use super::forward::{ForwardError, Throttle};
use super::message::{Query, Reason, Transport};
use super::metrics::{DnsMetrics, InFlight, Outcome};
use super::source::Source;
use super::wire::HEADER;

/// At most one warning in this time, however many queries fail.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// Turns queries into replies.
#[derive(Debug)]
pub(super) struct Answerer {
    source: Arc<Source>,
    metrics: DnsMetrics,
    udp: Arc<Semaphore>,
    tcp: Arc<Semaphore>,
    /// See [`Limits::stale_after`].
    stale_after: Duration,
    drain: Duration,
    spawner: Spawner,
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
    /// Calls that outlast their queries belong to the scope of `spawner`.
    pub(super) fn new(
        source: Source,
        limits: &Limits,
        metrics: DnsMetrics,
        spawner: Spawner,
    ) -> Self {
        Self {
            source: Arc::new(source),
            metrics,
            udp: Arc::new(Semaphore::new(limits.udp_queries)),
            tcp: Arc::new(Semaphore::new(limits.tcp_queries)),
            stale_after: limits.stale_after,
            drain: limits.drain,
            stop: spawner.token(),
            spawner,
            stopped: OnceLock::new(),
            warnings: Throttle::default(),
        }
    }

    /// Where answers come from.
    pub(super) fn source(&self) -> &Source {
        &self.source
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

    /// The reply to a query for which there is no slot: one that takes no waiting.
    pub(super) fn overloaded(&self, query: &Query, transport: Transport) -> Bytes {
        if let Some(reply) = self.malformed(query, transport) {
            return reply;
        }
        let key = Key::of(query, transport);
        if let Some(reply) = self.fresh(query, key.as_ref(), transport) {
            return reply;
        }
        let error = "as many as can be are being answered";
        self.decline(query, transport, Reason::Overloaded, &error)
    }

    /// The reply to a query. Takes no longer than [`Limits::query`].
    pub(super) async fn answer(self: &Arc<Self>, query: &Query, slot: Slot) -> Bytes {
        let transport = slot.transport;
        if let Some(reply) = self.malformed(query, transport) {
            return reply;
        }
        let key = Key::of(query, transport);
        if let Some(reply) = self.fresh(query, key.as_ref(), transport) {
            return reply;
        }
        let call = self.source.ask(query, key.as_ref(), transport);
        let answer = tokio::select! {
            answer = call.answer(query) => answer,
            reply = self.late(query, key.as_ref()) => {
                self.metrics.count(transport, Outcome::Stale);
                self.tell(transport, "an earlier answer was given", &"the server is slow");
                self.finish(call, slot);
                return reply;
            }
            () = self.drained() => {
                return self.decline(query, transport, Reason::Stopping, &"this process ends");
            }
        };
        match answer {
            Ok(answer) => self.pass_on(query, transport, answer),
            Err(error) => self.without_answer(query, key.as_ref(), transport, &error),
        }
    }

    /// The reply to what no server could read. No server is asked: one that cannot read a query
    /// fails the call, which says nothing about the server.
    fn malformed(&self, query: &Query, transport: Transport) -> Option<Bytes> {
        if !query.is_malformed() {
            return None;
        }
        self.metrics.count(transport, Outcome::Malformed);
        Some(query.format_error())
    }

    /// An answer of a moment ago.
    fn fresh(&self, query: &Query, key: Option<&Key>, transport: Transport) -> Option<Bytes> {
        let reply = self.source.fresh(query, key)?;
        self.metrics.count(transport, Outcome::Cached);
        Some(reply)
    }

    /// An earlier answer once the server has taken too long, if there is one.
    async fn late(&self, query: &Query, key: Option<&Key>) -> Bytes {
        sleep(self.stale_after).await;
        match self.source.stale(query, key) {
            Some(reply) => reply,
            None => pending().await,
        }
    }

    /// Lets the call go on in the place of the query that does not wait for it any more, so that
    /// the answer is there for the next one.
    fn finish(self: &Arc<Self>, call: Call, slot: Slot) {
        if !call.claim() {
            return;
        }
        let answerer = Arc::clone(self);
        self.spawner.spawn("dns call", async move {
            tokio::select! {
                () = call.finish() => {}
                () = answerer.drained() => {}
            }
            drop(slot);
            Ok::<_, Infallible>(())
        });
    }

    /// The reply when no server has answered: what was answered before, or none.
    fn without_answer(
        &self,
        query: &Query,
        key: Option<&Key>,
        transport: Transport,
        error: &ForwardError,
    ) -> Bytes {
        let earlier = if error.is_outage() {
            self.source.stale(query, key)
        } else {
            None
        };
        let (outcome, text) = match &earlier {
            Some(_) => (Outcome::Stale, "an earlier answer was given"),
            None => (Outcome::Declined(error.reason()), "query declined"),
        };
        self.metrics.count(transport, outcome);
        match error {
            // The session tells about that, once for all.
            ForwardError::NoServer(_) | ForwardError::Barred(_) => {
                tracing::debug!(target: "dns-proxy", transport = transport.label(), %error, "{text}");
            }
            _ => self.tell(transport, text, error),
        }
        earlier.unwrap_or_else(|| query.failure(error.reason()))
    }

    /// Pending until the time is over that there is after the stop.
    pub(super) async fn drained(&self) {
        self.stop.cancelled().await;
        let stopped = *self.stopped.get_or_init(Instant::now);
        sleep_until(stopped + self.drain).await;
    }

    /// The server's answer as it is, if it can be sent.
    fn pass_on(&self, query: &Query, transport: Transport, answer: Bytes) -> Bytes {
        let largest = transport.largest();
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
        error: &dyn Display,
    ) -> Bytes {
        self.metrics.count(transport, Outcome::Declined(reason));
        self.tell(transport, "query declined", error);
        query.failure(reason)
    }

    /// Warns, unless there was a warning a moment ago.
    fn tell(&self, transport: Transport, text: &str, error: &dyn Display) {
        let transport = transport.label();
        match self.warnings.pass(Instant::now(), WARN_EVERY) {
            Some(suppressed) => {
                tracing::warn!(target: "dns-proxy", transport, suppressed, %error, "{text}");
            }
            None => tracing::debug!(target: "dns-proxy", transport, %error, "{text}"),
        }
    }
}
