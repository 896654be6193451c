//! What the proxy is started with, and why it does not start.

use std::net::SocketAddr;
use std::time::Duration;

/// Where the proxy listens and on whose behalf it asks.
#[derive(Clone, Debug)]
pub struct DnsOptions {
    /// Address of both UDP and TCP. With port 0 each of them gets a free port of its own.
    pub address: SocketAddr,
    /// Namespace in which names are looked up. Sent as it is; an empty one means the default.
    pub namespace: String,
    /// Partition in which names are looked up. Sent as it is; an empty one means the default.
    pub partition: String,
    /// How much there may be of everything.
    pub limits: Limits,
}

/// How much the proxy does at one time and how long it takes. The programs use the defaults, which
/// suit a sidecar as well as a node full of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// UDP queries that are being answered (default 512). Further ones get SERVFAIL at once.
    pub udp_queries: usize,
    /// TCP queries that are being answered, over all connections (default 256). Further ones get
    /// SERVFAIL at once.
    pub tcp_queries: usize,
    /// TCP connections (default 128). Further ones are closed at once.
    pub tcp_connections: usize,
    /// Queries of one TCP connection that are being answered (default 32). Further ones are not
    /// read until one of them has its reply.
    pub pipeline: usize,
    /// How long a TCP client may take for its next query, or to take a reply (default 5 s, as in
    /// Consul's dataplane).
    pub idle: Duration,
    /// How long a query may take (default 4 s: resolvers commonly give up after 5 s, and shall
    /// have an answer before).
    pub query: Duration,
    /// How long a query waits for a server when there is an earlier answer to it, which it gets
    /// then (default 1.8 s, as RFC 8767 recommends: before clients ask again). The server's answer
    /// is for the next one.
    pub stale_after: Duration,
    /// How long queries wait for a connection, counted from when it was lost (default 1 s: a
    /// server change takes less). In a longer outage they fail at once.
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
