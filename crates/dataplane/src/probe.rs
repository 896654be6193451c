//! `-check-proxy-health`: one question to Envoy's admin interface, without a runtime, because
//! orchestrators start this every second.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

// Not paused here; the type is the one whose use the workspace allows.
use tokio::time::Instant;

/// How long the whole probe may take.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// A status line is shorter than this, in bytes.
const STATUS_LINE_LIMIT: u64 = 1024;

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
        match ask(address, deadline) {
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

fn ask(address: SocketAddr, deadline: Instant) -> io::Result<u16> {
    let mut stream = TcpStream::connect_timeout(&address, left(deadline)?)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    write!(
        stream,
        "GET /ready HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = BufReader::new(UntilDeadline { stream, deadline }.take(STATUS_LINE_LIMIT));
    let mut line = String::new();
    answer.read_line(&mut line)?;
    let status = line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1));
    status
        .and_then(|status| status.trim().parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
}

/// Bounds all reads together: a peer that sends a byte now and then must not prolong the probe.
struct UntilDeadline {
    stream: TcpStream,
    deadline: Instant,
}

impl Read for UntilDeadline {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        match self.stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::ErrorKind::TimedOut.into())
            }
            other => other,
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    // A zero timeout would mean none.
    if left.is_zero() {
        Err(io::ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}
