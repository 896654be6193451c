//! The DNS proxy: receives DNS queries over UDP and TCP, forwards them to a server over gRPC, and
//! returns the answers.
//!
//! Messages are not changed in either direction: the proxy resolves nothing and rewrites nothing.
//! Servers receive the transport and the size that the client accepts, and truncate their answers to
//! it; a longer answer is still returned if it fits into a datagram.
//!
//! In addition, every query gets a reply. During an outage of all servers, cached answers are
//! returned (RFC 8767), for at most a day and with a TTL of 30 seconds; also if a server takes
//! longer than [`Limits::stale_after`]. An answer from a server is never replaced by a cached one.
//! Without an answer (no server, timeout, too many queries) the client gets SERVFAIL and can switch
//! to another resolver instead of waiting for its own timeout. `dig` shows the reason. A malformed
//! query gets FORMERR without a query to a server. Answers with a TTL are cached for that time;
//! Consul's have no TTL by default.
//!
//! ```text
//!  client ──UDP──► udp ─┐           ┌─► cache: fresh? or, while servers are away, stale?
//!                       ├─► answer ─┤
//!  client ──TCP──► tcp ─┘           └─► calls: same question, one call
//!                                         └─► forward: connection, deadline, retry ──► server
//! ```
//!
//! [`message`] and [`cache`] parse untrusted input and do no IO. They are public for fuzzing.

mod answer;
pub mod cache;
mod calls;
mod forward;
pub mod message;
mod metrics;
mod options;
mod tcp;
mod udp;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use legate_client::Session;
use legate_runtime::Spawner;
use legate_runtime::metrics::Registry;
use tokio::net::{TcpListener, UdpSocket};

use self::answer::Answerer;
use self::forward::Forwarder;
use self::metrics::DnsMetrics;
pub use self::options::{DnsError, DnsOptions, Limits};

/// A running proxy. It runs until the scope that it was started in stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnsProxy {
    /// Address for queries over UDP.
    pub udp: SocketAddr,
    /// Address for queries over TCP.
    pub tcp: SocketAddr,
}

impl DnsProxy {
    /// Listens, and answers queries over `session` until the scope of `spawner` stops.
    ///
    /// After the stop no more queries are accepted. Queries in flight may take [`Limits::drain`],
    /// then they get SERVFAIL. Give the scope a little more time than that, and close the session
    /// afterwards. Once the scope has stopped, the ports are free.
    ///
    /// # Errors
    ///
    /// When an address cannot be bound, or the options are invalid.
    pub async fn start(
        options: DnsOptions,
        session: Session,
        spawner: &Spawner,
        registry: &Registry,
    ) -> Result<Self, DnsError> {
        let forwarder = Forwarder::new(session, &options)?;
        let address = options.address;
        let failed = |transport| {
            move |error: io::Error| {
                DnsError(format!(
                    "error listening {transport} on {address}: {error}; see -consul-dns-bind-addr and \
                     -consul-dns-bind-port (-1 turns the proxy off)"
                ))
            }
        };
        let udp = UdpSocket::bind(address).await.map_err(failed("for udp"))?;
        let tcp = TcpListener::bind(address).await.map_err(failed("to tcp"))?;
        let proxy = Self {
            udp: udp.local_addr().map_err(failed("for udp"))?,
            tcp: tcp.local_addr().map_err(failed("to tcp"))?,
        };
        let metrics = DnsMetrics::new(registry)
            .map_err(|error| DnsError(format!("its metrics cannot be registered: {error}")))?;
        let answerer = Answerer::new(forwarder, options.limits, metrics, spawner.clone());
        let answerer = Arc::new(answerer);
        let (follower, stop) = (Arc::clone(&answerer), spawner.token());
        spawner.spawn("dns session", async move {
            stop.run_until_cancelled(follower.forwarder.follow()).await;
            Ok::<_, Infallible>(())
        });
        let (udp, tcp) = (
            udp::serve(Arc::new(udp), Arc::clone(&answerer), spawner.clone()),
            tcp::serve(tcp, answerer, spawner.clone()),
        );
        spawner.spawn("dns udp", udp);
        spawner.spawn("dns tcp", tcp);
        tracing::info!(target: "dns-proxy", udp = %proxy.udp, tcp = %proxy.tcp, "running dns proxy");
        Ok(proxy)
    }
}
