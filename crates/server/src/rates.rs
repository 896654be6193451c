//! Rate limits of the HTTP and gRPC APIs together: one token bucket for reads and one for writes, for all
//! clients. Uses tokio's clock, so that tests can control it. Each API decides which requests are writes and
//! which are exempt.

use std::sync::{Arc, Mutex, PoisonError};

use legate_runtime::metrics::{Error as MetricsError, IntCounterVec, Opts, Registry};
use tokio::time::Instant;

use crate::operations::{LimitMode, RequestLimits};

/// Size of a bucket, in seconds at the configured rate. Consul's.
const BURST: f64 = 10.0;

/// The error text. Consul's, on which clients match.
pub(crate) const TOO_MANY: &str =
    "rate limit exceeded, try again later or against a different server";

/// The current rate limits. Clones share the state.
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
    /// Tokens in the bucket.
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

    /// Takes a token, if there is one. Without a rate, always succeeds.
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
    /// Fails if the registry already contains a metric of this name.
    pub(crate) fn new(limits: RequestLimits, registry: &Registry) -> Result<Self, MetricsError> {
        let exceeded = IntCounterVec::new(
            Opts::new(
                "legate_requests_over_limit_total",
                "Requests beyond limits.request_limits, by operation and mode.",
            ),
            &["operation", "mode"],
        )?;
        registry.register(Box::new(exceeded.clone()))?;
        let state = Arc::new(Mutex::new(State::new(limits)));
        Ok(Self { state, exceeded })
    }

    /// Replaces the limits, with full buckets if they differ.
    pub(crate) fn set(&self, limits: RequestLimits) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.limits != limits {
            *state = State::new(limits);
        }
    }

    /// Counts a request, and returns whether to reject it. `name` is for the log.
    pub(crate) fn refuse(&self, write: bool, name: &str) -> bool {
        let mode = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let limits = state.limits;
            let room = match (limits.mode, write) {
                (LimitMode::Disabled, _) => true,
                (_, true) => state.writes.take(limits.write_rate),
                (_, false) => state.reads.take(limits.read_rate),
            };
            if room {
                return false;
            }
            limits.mode
        };
        let enforced = mode == LimitMode::Enforcing;
        let operation = if write { "write" } else { "read" };
        let label = if enforced { "enforcing" } else { "permissive" };
        self.exceeded.with_label_values(&[operation, label]).inc();
        tracing::debug!(
            name,
            operation,
            enforced,
            "a request exceeds request_limits"
        );
        enforced
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
        let read = || rates.refuse(false, "a read");
        assert_eq!((0..30).filter(|_| !read()).count(), 20);
        assert!(!rates.refuse(true, "a write"));
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
