//! Options of the DNS proxy, and the error if it cannot start.

use std::net::SocketAddr;
use std::time::Duration;

/// Address of the proxy, and the tenancy of its queries.
#[derive(Clone, Debug)]
pub struct DnsOptions {
    /// Address for both UDP and TCP. With port 0 each of them gets its own free port.
    pub address: SocketAddr,
    /// Namespace in which names are looked up. Sent verbatim; empty means the default.
    pub namespace: String,
    /// Partition in which names are looked up. Sent verbatim; empty means the default.
    pub partition: String,
    /// Limits of the proxy.
    pub limits: Limits,
}

/// Limits on concurrency and time. The programs use the defaults, which suit a sidecar as well as a
/// node with many clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// UDP queries in flight (default 512). Further ones get SERVFAIL at once.
    pub udp_queries: usize,
    /// TCP queries in flight, over all connections (default 256). Further ones get SERVFAIL at once.
    pub tcp_queries: usize,
    /// TCP connections (default 128). Further ones are closed at once.
    pub tcp_connections: usize,
    /// Queries in flight of one TCP connection (default 32). Further ones are not read until one of
    /// them has its reply.
    pub pipeline: usize,
    /// How long a TCP client may take to send its next query or to read a reply (default 5 s, as in
    /// Consul's dataplane).
    pub idle: Duration,
    /// How long a query may take (default 4 s, because resolvers commonly time out after 5 s).
    pub query: Duration,
    /// How long a query with a stale answer waits for the server before it gets the stale one
    /// (default 1.8 s, as RFC 8767 recommends: before clients retry). The server's answer is then
    /// cached for the next query.
    pub stale_after: Duration,
    /// How long queries wait for a connection, counted from its loss (default 1 s: a server change
    /// is faster). In a longer outage they fail at once.
    pub connection: Duration,
    /// How long queries in flight may take after a stop (default 1 s).
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            udp_queries: 512,
            tcp_queries: 256,
            tcp_connections: 128,
            pipeline: 32,
            idle: Duration::from_secs(5),
            query: Duration::from_secs(4),
            stale_after: Duration::from_millis(1800),
            connection: Duration::from_secs(1),
            drain: Duration::from_secs(1),
        }
    }
}

/// Why the proxy does not start.
#[derive(Debug, thiserror::Error)]
#[error("failed to run the dns proxy: {0}")]
pub struct DnsError(pub(super) String);
