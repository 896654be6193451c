//! The DNS proxy: takes DNS queries over UDP and TCP, lets a server answer them over gRPC, and
//! returns the answers.
//!
//! Messages pass unchanged, in both directions: it resolves nothing and rewrites nothing. Servers
//! know the transport and the size that the client takes, and cut their answers to it; an answer
//! that is longer all the same is passed on as long as a datagram can hold it.
//!
//! What it adds is that every query gets a reply. While servers are away, answers that they gave
//! before are given again (RFC 8767), for a day at most and with a TTL of 30 seconds; that is also
//! done when a server takes longer than [`Limits::stale_after`]. What a server answers is never
//! replaced in this way. Where there is no answer (no server, no time, too many queries) the client
//! gets SERVFAIL and can go on to another resolver, instead of waiting for its own timeout. `dig`
//! shows the reason. A query that cannot be read gets FORMERR, and no server is asked. Answers with
//! a TTL are also given again within it; Consul's have none by default.
//!
//! ```text
//!  client ──UDP──► udp ─┐           ┌─► cache: fresh? or, while servers are away, stale?
//!                       ├─► answer ─┤
//!  client ──TCP──► tcp ─┘           └─► calls: same question, one call
//!                                         └─► forward: connection, deadline, retry ──► server
//! ```
//!
//! [`message`] and [`cache`] read what strangers send and do no IO. They are public so that they can
//! be fuzzed.

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

/// A running proxy. It belongs to the scope that it was started in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnsProxy {
    /// Where queries over UDP are taken.
    pub udp: SocketAddr,
    /// Where queries over TCP are taken.
    pub tcp: SocketAddr,
}

impl DnsProxy {
    /// Listens, and answers queries over `session` until the scope of `spawner` stops.
    ///
    /// After the stop no query is taken any more; those in flight have [`Limits::drain`], then
    /// SERVFAIL. Give the scope a little longer than that, and close the session after it. When
    /// the scope has stopped, the ports are free.
    ///
    /// # Errors
    ///
    /// When an address cannot be bound, or the options make no sense.
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
