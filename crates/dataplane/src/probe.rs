//! `-check-proxy-health`: one question to Envoy's admin interface, without a runtime, because
//! orchestrators start this every second.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

// Not paused here; the type is the one whose use the workspace allows.
use tokio::time::Instant;

use crate::ask::{Question, connect};

/// How long the whole probe may take.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

const READY: Question = Question {
    method: "GET",
    path: "/ready",
};

/// What Envoy answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// A status from 200 to 399.
    Ready,
    /// Another status.
    NotReady(u16),
}

/// No answer.
#[derive(Debug)]
pub struct ProbeError {
    address: SocketAddr,
    source: io::Error,
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, source } = self;
        write!(
            f,
            "Error connecting to Envoy admin endpoint: Get \"http://{address}/ready\": {source}"
        )
    }
}

impl std::error::Error for ProbeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Asks the first of `addresses` at which someone answers.
///
/// # Errors
/// When nobody answers in time; it tells of the first address.
pub fn probe(addresses: &[SocketAddr], timeout: Duration) -> Result<Health, ProbeError> {
    let deadline = Instant::now() + timeout;
    let mut first = None;
    for &address in addresses {
        let reply = connect(address, deadline).and_then(|connection| connection.ask(READY));
        match reply.map(|reply| reply.status) {
            Ok(200..=399) => return Ok(Health::Ready),
            Ok(status) => return Ok(Health::NotReady(status)),
            Err(source) => drop(first.get_or_insert(ProbeError { address, source })),
        }
    }
    Err(first.unwrap_or_else(|| ProbeError {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        source: io::Error::other("no address to ask"),
    }))
}
