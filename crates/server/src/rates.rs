//! How many requests in a second are answered: one bucket for reads and one for writes, for all clients
//! together. The clock is tokio's, so that tests can hold it.

use std::sync::{Arc, Mutex, PoisonError};

use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};
use legate_runtime::metrics::{Error as MetricsError, IntCounterVec, Opts, Registry};
use tokio::time::Instant;

use super::error::ApiError;
use crate::operations::{LimitMode, RequestLimits};

/// How many seconds' worth of requests may come at once, as in Consul.
const BURST: f64 = 10.0;

/// Consul's text, which clients look for.
const TOO_MANY: &str = "rate limit exceeded, try again later or against a different server";

/// The rates, as they are now. Copies share them.
#[derive(Debug, Clone)]
pub(crate) struct Rates {
    state: Arc<Mutex<State>>,
    exceeded: IntCounterVec,
}

#[derive(Debug)]
struct State {
    limits: RequestLimits,
    reads: Bucket,
    writes: Bucket,
}

#[derive(Debug)]
struct Bucket {
    /// Requests that may come now.
    left: f64,
    filled: Instant,
}

impl Bucket {
    fn full(rate: Option<f64>) -> Self {
        Self {
            left: rate.unwrap_or_default() * BURST,
            filled: Instant::now(),
        }
    }

    /// Whether there is room for one more.
    fn take(&mut self, rate: Option<f64>) -> bool {
        let Some(rate) = rate else {
            return true;
        };
        let now = Instant::now();
        let passed = (now - self.filled).as_secs_f64();
        self.filled = now;
        self.left = (self.left + passed * rate).min(rate * BURST);
        let room = self.left >= 1.0;
        if room {
            self.left -= 1.0;
        }
        room
    }
}

impl Rates {
    /// # Errors
    /// When the registry holds a metric of this name already.
    pub(crate) fn new(limits: RequestLimits, registry: &Registry) -> Result<Self, MetricsError> {
        let exceeded = IntCounterVec::new(
            Opts::new(
                "legate_http_requests_over_limit_total",
                "Requests beyond limits.request_limits, by what they do and whether they were refused.",
            ),
            &["operation", "mode"],
        )?;
        registry.register(Box::new(exceeded.clone()))?;
        let state = Arc::new(Mutex::new(State::new(limits)));
        Ok(Self { state, exceeded })
    }

    /// Takes other limits. What is left of the old ones is forgotten.
    pub(crate) fn set(&self, limits: RequestLimits) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.limits != limits {
            *state = State::new(limits);
        }
    }

    /// The answer to a request that is too much.
    pub(super) fn refusal(&self, method: &Method, path: &str) -> Option<Response> {
        // As in Consul, what concerns the agent alone and how well the server is are not counted.
        if path.starts_with("/v1/agent/") || path.starts_with("/v1/status/") {
            return None;
        }
        let write = is_write(method, path);
        let mode = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let limits = state.limits;
            let room = match (limits.mode, write) {
                (LimitMode::Disabled, _) => true,
                (_, true) => state.writes.take(limits.write_rate),
                (_, false) => state.reads.take(limits.read_rate),
            };
            if room {
                return None;
            }
            limits.mode
        };
        let enforced = mode == LimitMode::Enforcing;
        let operation = if write { "write" } else { "read" };
        let label = if enforced { "enforcing" } else { "permissive" };
        self.exceeded.with_label_values(&[operation, label]).inc();
        tracing::debug!(%method, path, operation, enforced, "a request is beyond request_limits");
        enforced.then(|| ApiError::new(StatusCode::TOO_MANY_REQUESTS, TOO_MANY).into_response())
    }
}

impl State {
    fn new(limits: RequestLimits) -> Self {
        Self {
            limits,
            reads: Bucket::full(limits.read_rate),
            writes: Bucket::full(limits.write_rate),
        }
    }
}

/// Questions that need a body.
const ASKED_BY_POST: [&str; 4] = [
    "/v1/acl/templated-policy/preview/",
    "/v1/agent/connect/authorize",
    "/v1/discovery-chain/",
    "/v1/internal/acl/authorize",
];

/// Whether a request changes something.
pub(super) fn is_write(method: &Method, path: &str) -> bool {
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => false,
        Method::POST => !ASKED_BY_POST
            .iter()
            .any(|question| path.starts_with(question)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_the_rate_and_reads_do_not_cost_writes() {
        let limits = RequestLimits {
            mode: LimitMode::Enforcing,
            read_rate: Some(2.0),
            write_rate: None,
        };
        let rates = Rates::new(limits, &Registry::new()).unwrap();
        let refused = |method: Method, path: &str| rates.refusal(&method, path).is_some();
        let read = || refused(Method::GET, "/v1/catalog/nodes");
        assert_eq!((0..30).filter(|_| !read()).count(), 20);
        assert!(!refused(Method::PUT, "/v1/kv/a"));
        assert!(!refused(Method::GET, "/v1/agent/self"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((0..30).filter(|_| !read()).count(), 2);
        rates.set(RequestLimits {
            mode: LimitMode::Permissive,
            ..limits
        });
        assert!((0..30).all(|_| !read()));
        let counted = rates.exceeded.with_label_values(&["read", "permissive"]);
        assert_eq!(counted.get(), 10);
    }
}
