//! When and where the dialing cluster opens its next stream. Pure arithmetic: the caller waits and dials.

use std::time::Duration;

use crate::refusal::code;

/// A stream that was open for this long starts the delays over.
const STABLE: Duration = Duration::from_secs(60);
/// The longest delay after an answer of a server that is not the leader, and the delay after a message that is too
/// large.
const LONGEST_FAST: Duration = Duration::from_millis(8192);
/// The first delay after an answer of a server that is not the leader.
const FAST: Duration = Duration::from_millis(8);
/// How often the first delay is repeated: once for each server of a usual cluster.
const FAST_ATTEMPTS: u32 = 5;
/// The longest delay after any other error.
const LONGEST: Duration = Duration::from_secs(64);
/// A delay is at most this much longer, so that clusters do not dial together.
const JITTER: f64 = 0.25;

/// Why a stream ended, as far as the next delay depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryReason {
    /// The server is not the leader, but the next one may be.
    NotLeader,
    /// A message is too large.
    TooLarge,
    /// Anything else.
    Other,
}

impl RetryReason {
    /// The reason of a gRPC status code.
    pub const fn of_code(code: i32) -> Self {
        match code {
            code::FAILED_PRECONDITION => Self::NotLeader,
            code::RESOURCE_EXHAUSTED => Self::TooLarge,
            _ => Self::Other,
        }
    }
}

/// The delays between the streams of a dialing cluster.
///
/// The delays are Consul's, up to a quarter longer. A stream that was open for a minute starts them over; in Consul
/// nothing does but a change of the peering, so that its delays are the longest ones after a few failures at any time.
#[derive(Debug, Clone, Default)]
pub struct Retry {
    failures: u32,
}

impl Retry {
    /// The delay before the next attempt after a stream that was open for `connected` (zero if it did not open).
    /// `random` is uniform between 0 and 1.
    pub fn failed(&mut self, reason: RetryReason, connected: Duration, random: f64) -> Duration {
        if connected >= STABLE {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        delay(reason, self.failures).mul_f64(1.0 + JITTER * random.clamp(0.0, 1.0))
    }
}

/// Consul's delay after the given number of failures in a row, at least 1.
fn delay(reason: RetryReason, failures: u32) -> Duration {
    let doubled = |first: Duration, times: u32, longest: Duration| {
        let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
        first.saturating_mul(factor).min(longest)
    };
    match reason {
        RetryReason::NotLeader => {
            let times = failures.saturating_sub(FAST_ATTEMPTS);
            doubled(FAST, times, LONGEST_FAST)
        }
        RetryReason::TooLarge => LONGEST_FAST,
        RetryReason::Other => doubled(Duration::from_secs(1), failures, LONGEST),
    }
}

/// The addresses to dial, one after the other and around.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressRing {
    addresses: Vec<String>,
    next: usize,
}

impl AddressRing {
    /// Local mesh gateways come first (empty unless this cluster peers through them), then the addresses that an
    /// operator gave or, if there are none, those of the other cluster's servers.
    pub fn new(gateways: &[String], manual: &[String], servers: &[String]) -> Self {
        let direct = match manual {
            [] => servers,
            manual => manual,
        };
        Self {
            addresses: gateways.iter().chain(direct).cloned().collect(),
            next: 0,
        }
    }

    /// Takes the addresses of another ring. It starts at the first address if any has changed.
    pub fn replace(&mut self, other: Self) {
        if self.addresses != other.addresses {
            *self = other;
        }
    }

    /// The address of the next attempt; `None` if there are none.
    pub fn next_address(&mut self) -> Option<&str> {
        let at = self.next.checked_rem(self.addresses.len())?;
        self.next = at + 1;
        self.addresses.get(at).map(String::as_str)
    }
}
