//! Produces a reply for every query, admitted or not. Independent of the transports' sockets.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use legate_runtime::metrics::IntGauge;
use legate_runtime::{Spawner, Throttle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

use super::cache::Cache;
use super::calls::{Call, Calls};
use super::forward::{ForwardError, Forwarder};
use super::message::{HEADER, Query, Reason, Transport};
use super::metrics::{DnsMetrics, Outcome};
use super::options::Limits;

/// Approximate memory for cached answers, in bytes.
const CACHE: usize = 1024 * 1024;

/// At most one warning in this interval, however many queries fail.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// Turns queries into replies.
#[derive(Debug)]
pub(super) struct Answerer {
    pub(super) forwarder: Forwarder,
    pub(super) limits: Limits,
    cache: Mutex<Cache>,
    calls: Calls,
    metrics: DnsMetrics,
    udp: Arc<Semaphore>,
    tcp: Arc<Semaphore>,
    spawner: Spawner,
    /// When the stop was first noticed.
    stopped: OnceLock<Instant>,
    warnings: Throttle,
}

/// Permit to process one query. Counts as in flight until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    _permit: OwnedSemaphorePermit,
    in_flight: IntGauge,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.in_flight.dec();
    }
}

impl Answerer {
    /// Creates an answerer. Calls that outlive their queries run in the scope of `spawner`.
    pub(super) fn new(
        forwarder: Forwarder,
        limits: Limits,
        metrics: DnsMetrics,
        spawner: Spawner,
    ) -> Self {
        Self {
            forwarder,
            cache: Mutex::new(Cache::new(CACHE)),
            calls: Calls::default(),
            metrics,
            udp: Arc::new(Semaphore::new(limits.udp_queries)),
            tcp: Arc::new(Semaphore::new(limits.tcp_queries)),
            limits,
            spawner,
            stopped: OnceLock::new(),
            warnings: Throttle::new(WARN_EVERY),
        }
    }

    /// Parses a message. A message that is not a query is counted and gets no reply.
    pub(super) fn read(&self, message: Bytes, transport: Transport) -> Option<Query> {
        let query = Query::parse(message, transport);
        if query.is_none() {
            self.metrics.count(transport, Outcome::Ignored);
        }
        query
    }

    /// A slot, unless all are in use. Never waits.
    pub(super) fn admit(&self, transport: Transport) -> Option<Slot> {
        let slots = match transport {
            Transport::Udp => &self.udp,
            Transport::Tcp => &self.tcp,
        };
        let permit = Arc::clone(slots).try_acquire_owned().ok()?;
        let in_flight = &self.metrics.in_flight;
        let in_flight = in_flight.with_label_values(&[transport.label()]);
        in_flight.inc();
        Some(Slot {
            _permit: permit,
            in_flight,
        })
    }

    /// The reply to a query without a slot: one that needs no server, or SERVFAIL.
    pub(super) fn overloaded(&self, query: &Query) -> Bytes {
        let error = "too many queries are being answered";
        self.at_once(query)
            .unwrap_or_else(|| self.decline(query, Reason::Overloaded, &error))
    }

    /// The reply to a query. Takes at most [`Limits::query`].
    pub(super) async fn answer(self: &Arc<Self>, query: &Query, slot: Option<Slot>) -> Bytes {
        let Some(slot) = slot else {
            return self.overloaded(query);
        };
        if let Some(reply) = self.at_once(query) {
            return reply;
        }
        let call = self.ask(query);
        tokio::select! {
            answer = call.answer(query) => match answer {
                Ok(answer) => self.pass_on(query, answer),
                Err(error) => self.without_answer(query, &error),
            },
            // If the server is too slow: a stale answer, if there is one.
            Some(reply) = async {
                sleep(self.limits.stale_after).await;
                self.stale(query)
            } => {
                self.count(query, Outcome::Stale);
                self.warn(query, "a stale answer was returned", &"the server is slow");
                self.finish(call, slot);
                reply
            }
            () = self.drained() => {
                self.decline(query, Reason::Stopping, &"this process is stopping")
            }
        }
    }

    /// The reply that needs no server: a fresh cached answer, or FORMERR. A server that cannot parse
    /// a query fails the call, which would look like a fault of the server.
    fn at_once(&self, query: &Query) -> Option<Bytes> {
        if query.malformed {
            self.count(query, Outcome::Malformed);
            return Some(query.format_error());
        }
        let reply = self.cache().fresh(query, Instant::now())?;
        self.count(query, Outcome::Cached);
        Some(reply)
    }

    /// Queries a server, sharing the call with identical concurrent queries. The answer is cached.
    fn ask(self: &Arc<Self>, query: &Query) -> Arc<Call> {
        self.calls.join(query, || {
            let (answerer, query) = (Arc::clone(self), query.clone());
            async move {
                let answer = answerer.forwarder.forward(&query).await?;
                answerer.cache().store(&query, &answer, Instant::now());
                Ok(answer)
            }
        })
    }

    /// Lets the call continue in the slot of a query that no longer waits for it, so that the next
    /// query finds the answer in the cache. One slot is enough for a call.
    fn finish(self: &Arc<Self>, call: Arc<Call>, slot: Slot) {
        if !call.claim() {
            return;
        }
        let answerer = Arc::clone(self);
        self.spawner.spawn("dns call", async move {
            tokio::select! {
                _ = call.answer.clone() => {}
                () = answerer.drained() => {}
            }
            drop(slot);
            Ok::<_, Infallible>(())
        });
    }

    /// The reply if no server has answered: a stale answer, or SERVFAIL.
    fn without_answer(&self, query: &Query, error: &ForwardError) -> Bytes {
        let earlier = match error.is_outage {
            true => self.stale(query),
            false => None,
        };
        let (outcome, text) = match &earlier {
            Some(_) => (Outcome::Stale, "a stale answer was returned"),
            None => (Outcome::Declined(error.reason), "query declined"),
        };
        self.count(query, outcome);
        if error.reason == Reason::NoServer {
            // The session has logged the reason once for all queries.
            let transport = query.transport.label();
            tracing::debug!(target: "dns-proxy", transport, error = error.text, "{text}");
        } else {
            self.warn(query, text, &error.text);
        }
        earlier.unwrap_or_else(|| query.failure(error.reason))
    }

    /// The server's answer, unchanged if it can be sent.
    fn pass_on(&self, query: &Query, answer: Bytes) -> Bytes {
        let max = query.transport.max_message();
        if (HEADER..=max).contains(&answer.len()) {
            self.count(query, Outcome::Answered);
            return answer;
        }
        if answer.len() > max && query.transport == Transport::Udp {
            self.count(query, Outcome::Truncated);
            return query.truncation();
        }
        let error = format!(
            "the server's answer has {} bytes, which is not a valid size of a DNS message",
            answer.len()
        );
        self.decline(query, Reason::ServerError, &error)
    }

    fn decline(&self, query: &Query, reason: Reason, error: &dyn Display) -> Bytes {
        self.count(query, Outcome::Declined(reason));
        self.warn(query, "query declined", error);
        query.failure(reason)
    }

    /// Waits for the stop, and then for the time that queries in flight have left.
    pub(super) async fn drained(&self) {
        self.spawner.token().cancelled().await;
        let stopped = *self.stopped.get_or_init(Instant::now);
        sleep_until(stopped + self.limits.drain).await;
    }

    fn stale(&self, query: &Query) -> Option<Bytes> {
        self.cache().stale(query, Instant::now())
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, query: &Query, outcome: Outcome) {
        self.metrics.count(query.transport, outcome);
    }

    /// Logs a warning, at most one per [`WARN_EVERY`].
    fn warn(&self, query: &Query, text: &str, error: &dyn Display) {
        let transport = query.transport.label();
        match self.warnings.pass() {
            Some(suppressed) => {
                tracing::warn!(target: "dns-proxy", transport, suppressed, %error, "{text}");
            }
            None => tracing::debug!(target: "dns-proxy", transport, %error, "{text}"),
        }
    }
}
