//! The life of a connection: original destination, ClientHello, filter chain, TLS, authorisation, host, copying, and the
//! line in the access log. Nothing of it reaches the application before its caller is authorised.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use legate_identity::tls::mesh::MeshServer;
use legate_l4::access_log::{AccessLog, Flag, Record, Tls};
use legate_l4::chains::Connection;
use legate_l4::client_hello::{self, ClientHello, Inspection};
use legate_l4::model::{Address, Filter, TlsVersion, Transport};
use legate_l4::rbac::{Peer, authorize};
use nix::sys::socket::{MsgFlags, recv};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::rustls::{ProtocolVersion, SupportedCipherSuite};

use super::copy::{Outcome, copy};
use super::dial::{Attempted, Dialled, Failure, Goal, dial};
use super::handshake;
use super::io::{Io, Socket};
use super::registry::{Entry, Why};
use super::serving::{FilterStats, ServedChain, ServedListener, stat_name};
use super::shared::Shared;
use super::stats::Gauge;
use super::tls;
use super::tls_stream::TlsStream;

/// How long a TLS handshake may take, unless its chain says otherwise.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection that a listener has accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) socket: Socket,
    pub(super) remote: Option<SocketAddr>,
}

/// What is known of a connection. It becomes a line of the access log.
struct Known {
    start: SystemTime,
    began: Instant,
    number: u64,
    remote: Option<SocketAddr>,
    /// Where the caller wanted to connect to.
    destination: Option<SocketAddr>,
    hello: ClientHello,
    tls: Option<KnownTls>,
    chain: Option<Arc<ServedChain>>,
    flags: Vec<Flag>,
    termination: Option<String>,
    /// Why TLS with the caller failed.
    tls_failure: Option<String>,
    attempted: Attempted,
    upstream_local: Option<Address>,
    bytes: (u64, u64),
}

/// TLS of a caller.
struct KnownTls {
    version: TlsVersion,
    cipher: String,
    peer: Arc<Peer>,
}

/// A connection that counts for a limit, for as long as it lives.
struct Counted<'a> {
    open: &'a AtomicU64,
    active: &'a Gauge,
}

impl<'a> Counted<'a> {
    /// Returns how many there were before.
    fn new(open: &'a AtomicU64, active: &'a Gauge) -> (u64, Self) {
        active.inc();
        let before = open.fetch_add(1, Ordering::Relaxed);
        (before, Self { open, active })
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.active.dec();
    }
}

/// Serves a connection until it ends.
pub(super) async fn serve(shared: Arc<Shared>, listener: Arc<ServedListener>, accepted: Accepted) {
    let stats = Arc::clone(&listener.stats);
    shared.stats.own.connections.inc();
    let mut known = Box::new(Known {
        start: SystemTime::now(),
        began: Instant::now(),
        number: shared.registry.number(),
        remote: accepted.remote,
        destination: None,
        hello: ClientHello::default(),
        tls: None,
        chain: None,
        flags: Vec::new(),
        termination: None,
        tls_failure: None,
        attempted: Attempted::default(),
        upstream_local: None,
        bytes: (0, 0),
    });
    // Boxed: it needs much more room than the copying that follows, which lasts much longer.
    let chosen = Box::pin(choose(&listener, accepted.socket, &mut known)).await;
    if let Some((socket, chain)) = chosen {
        // As in Envoy, the listener counts only connections that have a chain.
        stats.cx_total.inc();
        stats.cx_active.inc();
        known.chain = Some(Arc::clone(&chain));
        chain.tcp.cx_total.inc();
        carry(&shared, &listener, socket, &chain, &mut known).await;
        stats.cx_active.dec();
        stats.cx_destroy.inc();
        stats.cx_length.record(known.began.elapsed());
    }
    write_log(&shared, &listener, &known);
    shared.stats.own.connections.dec();
}

/// Finds the filter chain.
async fn choose(
    listener: &Arc<ServedListener>,
    socket: Socket,
    known: &mut Known,
) -> Option<(Socket, Arc<ServedChain>)> {
    if let Socket::Tcp(stream) = &socket {
        // A connection that has already ended fails here.
        super::dial::prepare(stream, None).ok()?;
        let own = stream.local_addr().ok()?;
        let original = listener.spec.original_destination;
        known.destination = Some(match original.then(|| original_destination(stream, own)) {
            Some(Some(original)) => original,
            _ => own,
        });
    }
    let port = known.destination.map(|address| address.port());
    let mut transport = Transport::Raw;
    if listener.chains.needs_inspection(port) {
        match inspect(&socket, listener.spec.inspect_timeout).await? {
            Found::Hello(hello) => {
                known.hello = hello;
                transport = Transport::Tls;
            }
            Found::Other => {}
            Found::Timeout => {
                listener.stats.inspect_timeout.inc();
                if !listener.spec.continue_on_timeout {
                    return None;
                }
            }
        }
    }
    let chain = listener.chains.find(&Connection {
        destination: known.destination,
        server_name: known.hello.server_name.as_deref(),
        transport,
        alpn: &known.hello.alpn,
    });
    let served = chain.and_then(|chain| listener.served(chain));
    let Some(served) = served else {
        listener.stats.no_chain.inc();
        known.flags.push(Flag::NoRouteFound);
        tracing::debug!(listener = %listener.spec.name, "no filter chain matches a connection");
        return None;
    };
    Some((socket, Arc::clone(served)))
}

/// Carries a connection whose chain is known.
async fn carry(
    shared: &Arc<Shared>,
    listener: &Arc<ServedListener>,
    socket: Socket,
    chain: &Arc<ServedChain>,
    known: &mut Known,
) {
    let Some(_limit) = within_limits(chain).await else {
        return;
    };
    let prepared = Box::pin(prepare(shared, listener, socket, chain, known)).await;
    let Some((caller, host, entry)) = prepared else {
        return;
    };
    let Dialled { io, local, use_of } = host;
    known.upstream_local = local;
    let cluster = &use_of.cluster.stats;
    entry.open.connected(cluster);
    let outcome = copy(caller, io, &entry.open).await;
    known.bytes = entry.open.bytes();
    entry.open.report();
    match outcome {
        Outcome::Done => {}
        Outcome::Caller(error) => {
            cluster.destroy_local.inc();
            tracing::debug!(connection = known.number, %error, "the caller's connection broke");
        }
        Outcome::Host(error) => {
            cluster.destroy_remote.inc();
            if error.kind() == io::ErrorKind::ConnectionReset {
                known.flags.push(Flag::UpstreamRemoteReset);
            }
            tracing::debug!(connection = known.number, %error, "the host's connection broke");
        }
        Outcome::Closed => {
            cluster.destroy_local.inc();
            closed(shared, chain, known, &entry);
        }
    }
}

/// The proxy has closed the connection.
fn closed(shared: &Shared, chain: &ServedChain, known: &mut Known, entry: &Entry) {
    match entry.open.why() {
        Some(Why::Idle) => chain.tcp.idle_timeout.inc(),
        Some(Why::TooLong) => {
            chain.tcp.max_duration.inc();
            known.flags.push(Flag::DurationTimeout);
        }
        Some(Why::Policy) => {
            shared.stats.own.policy_closes.inc();
            known.termination = Some("policy_changed".to_owned());
            shared.log_denied(
                &entry.open.listener,
                known.remote,
                entry.open.peer.as_deref(),
                "new rules",
            );
        }
        Some(Why::Drained) => shared.stats.own.drained.inc(),
        None => {}
    }
}

/// Checks the connection limits of a chain. The result counts the connection until it is dropped.
async fn within_limits(chain: &ServedChain) -> Option<Option<Counted<'_>>> {
    let mut counted = None;
    for (filter, stats) in chain.chain.filters.iter().zip(&chain.filters) {
        let (Filter::ConnectionLimit(limit), FilterStats::Limit(stats)) = (filter, stats) else {
            continue;
        };
        let (before, count) = Counted::new(&chain.open, &stats.active);
        if before >= limit.max {
            drop(count);
            stats.limited.inc();
            if !limit.delay.is_zero() {
                sleep(limit.delay).await;
            }
            return None;
        }
        counted = Some(count);
    }
    Some(counted)
}

/// TLS, authorisation and the host.
async fn prepare(
    shared: &Arc<Shared>,
    listener: &Arc<ServedListener>,
    socket: Socket,
    chain: &Arc<ServedChain>,
    known: &mut Known,
) -> Option<(Io, Dialled, Entry)> {
    let caller = match &chain.tls {
        Some(config) => {
            let limit = chain.chain.handshake_timeout;
            let limit = if limit.is_zero() { HANDSHAKE } else { limit };
            accept_tls(listener, config, socket, limit, known).await?
        }
        None => Io::Plain(socket),
    };
    let peer = known.tls.as_ref().map(|tls| Arc::clone(&tls.peer));
    // First in the registry, then the rules as they are now: later ones are applied to all who are in the registry.
    let entry = shared
        .registry
        .add(known.number, &listener.spec.name, chain, peer.clone());
    let serving = shared.serving();
    let current = serving.listeners.get(&listener.spec.name);
    let current = current.and_then(|listener| listener.chains.get(&chain.id));
    // Its listener or chain may be gone by now.
    let current = Arc::clone(current?);
    drop(serving);
    if !is_allowed(shared, listener, chain, &current, peer.as_deref(), known) {
        return None;
    }
    let by_name = current
        .filters
        .iter()
        .any(|filter| matches!(filter, Filter::SniCluster));
    let named = known.hello.server_name.clone().filter(|_| by_name);
    let cluster = named.unwrap_or_else(|| pick_cluster(&current.tcp.clusters).to_owned());
    let goal = Goal {
        cluster: &cluster,
        destination: known.destination,
        attempts: current.tcp.max_connect_attempts,
        listener: &listener.spec.address,
    };
    let dialling = dial(shared, &goal, &mut known.attempted);
    let dialled = tokio::select! {
        dialled = dialling => dialled,
        () = poll_fn(|cx| entry.open.poll_closed(cx)) => {
            closed(shared, chain, known, &entry);
            return None;
        }
    };
    match dialled {
        Ok(host) => Some((caller, host, entry)),
        Err(failure) => {
            not_dialled(chain, failure, known);
            None
        }
    }
}

fn not_dialled(chain: &ServedChain, failure: Failure, known: &mut Known) {
    match failure {
        Failure::NoCluster => {
            chain.tcp.no_route.inc();
            known.flags.push(Flag::NoClusterFound);
        }
        Failure::NoneHealthy => known.flags.push(Flag::NoHealthyUpstream),
        Failure::Overflow => known.flags.push(Flag::UpstreamOverflow),
        Failure::Pending => known.flags.push(Flag::UpstreamRetryLimitExceeded),
        Failure::Connect => known.flags.extend([
            Flag::UpstreamConnectionFailure,
            Flag::UpstreamRetryLimitExceeded,
        ]),
    }
}

/// A cluster of a chain, by weight.
fn pick_cluster(clusters: &[(legate_l4::model::Name, u32)]) -> &str {
    let total: u64 = clusters.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let mut left = if total == 0 {
        0
    } else {
        super::dial::random() % total
    };
    for (name, weight) in clusters {
        match left.checked_sub(u64::from(*weight)) {
            Some(rest) if clusters.len() > 1 => left = rest,
            _ => return name,
        }
    }
    clusters.last().map_or("", |(name, _)| name)
}

/// Asks the rules, and counts what they say.
fn is_allowed(
    shared: &Shared,
    listener: &ServedListener,
    chain: &ServedChain,
    current: &legate_l4::model::Chain,
    peer: Option<&Peer>,
    known: &mut Known,
) -> bool {
    let verdict = authorize(current, peer);
    for (index, filter) in chain.filters.iter().enumerate() {
        if let FilterStats::Rbac(stats) = filter {
            if !verdict.allowed && verdict.filter == Some(index) {
                stats.denied.inc();
                break;
            }
            stats.allowed.inc();
        }
    }
    if !verdict.allowed {
        let policy = verdict.policy.unwrap_or("none");
        known.termination = Some(format!("rbac_access_denied_matched_policy[{policy}]"));
        shared.log_denied(&listener.spec.name, known.remote, peer, policy);
    }
    verdict.allowed
}

async fn accept_tls(
    listener: &ServedListener,
    config: &MeshServer,
    socket: Socket,
    limit: Duration,
    known: &mut Known,
) -> Option<Io> {
    let stats = &listener.stats;
    let accepted = timeout(limit, TlsStream::accept(config, socket)).await;
    let stream = match accepted {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(listener = %listener.spec.name, %error, "a TLS handshake failed");
            known.tls_failure = Some(error.to_string());
            handshake::count(
                &error,
                &stats.connection_error,
                &stats.no_certificate,
                &stats.verify_error,
                &stats.verify_san,
            );
            return None;
        }
        Err(_) => {
            stats.connection_error.inc();
            known.tls_failure = Some(format!("no TLS handshake within {limit:?}"));
            return None;
        }
    };
    stats.handshake.inc();
    if stream.is_resumed() {
        stats.session_reused.inc();
    }
    let session = stream.session();
    known.tls = Some(KnownTls {
        version: match session.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => TlsVersion::V1_2,
            _ => TlsVersion::V1_3,
        },
        cipher: session
            .negotiated_cipher_suite()
            .map(openssl_name)
            .unwrap_or_default(),
        peer: Arc::new(Peer {
            uris: tls::uris(session.peer_certificates()),
        }),
    });
    Some(Io::Tls(Box::new(stream)))
}

/// OpenSSL's name of a cipher suite.
fn openssl_name(suite: SupportedCipherSuite) -> String {
    let name = format!("{:?}", suite.suite());
    if let Some(name) = name.strip_prefix("TLS13_") {
        return format!("TLS_{name}");
    }
    let name = name
        .trim_start_matches("TLS_")
        .replace("_WITH_", "_")
        .replace("AES_", "AES");
    name.trim_end_matches("_SHA256").replace('_', "-")
        + if name.contains("CHACHA20") || !name.ends_with("_SHA256") {
            ""
        } else {
            "-SHA256"
        }
}

/// Where a redirected connection was going; `None` if it was not redirected.
fn original_destination(stream: &TcpStream, own: SocketAddr) -> Option<SocketAddr> {
    let socket = SockRef::from(stream);
    let original = match own {
        SocketAddr::V4(_) => socket.original_dst_v4(),
        SocketAddr::V6(_) => socket.original_dst_v6(),
    };
    original.ok()?.as_socket()
}

/// What the first bytes are.
enum Found {
    Hello(ClientHello),
    Other,
    Timeout,
}

/// Looks at the first bytes without consuming them; `None` if the connection ends before.
async fn inspect(socket: &Socket, limit: Duration) -> Option<Found> {
    let Socket::Tcp(stream) = socket else {
        return Some(Found::Other);
    };
    let looking = async {
        let mut needed = 1;
        loop {
            // Asked before the bytes are looked at: if nothing follows, all that there will be is among them.
            let is_over = stream
                .ready(Interest::READABLE)
                .await
                .ok()?
                .is_read_closed();
            let mut buffer = [0; client_hello::MAX_LENGTH + 1];
            let peeked = stream.try_io(Interest::READABLE, || {
                let count = recv(stream.as_raw_fd(), &mut buffer, MsgFlags::MSG_PEEK)?;
                match count {
                    // Waits for more: this makes the runtime forget that the socket is readable.
                    1.. if count < needed && !is_over => Err(io::ErrorKind::WouldBlock.into()),
                    count => Ok(count),
                }
            });
            let count = match peeked {
                Ok(0) => return None,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return None,
            };
            match client_hello::inspect(&buffer[..count]) {
                // The end of a stream stays readable: whoever waited for more would never let others have their turn.
                Inspection::NeedMore(_) if is_over => return None,
                Inspection::NeedMore(more) => needed = more.max(count + 1),
                Inspection::NotTls | Inspection::Invalid => return Some(Found::Other),
                Inspection::Hello(hello) => return Some(Found::Hello(hello)),
                Inspection::TooLong => return None,
            }
        }
    };
    if limit.is_zero() {
        return looking.await;
    }
    timeout(limit, looking)
        .await
        .unwrap_or(Some(Found::Timeout))
}

/// Writes the lines of the access logs.
fn write_log(shared: &Shared, listener: &ServedListener, known: &Known) {
    let chain = known.chain.as_ref().map(|served| &served.chain);
    let of_chain = chain.map(|chain| &chain.tcp.access_logs);
    let logs = listener
        .spec
        .access_logs
        .iter()
        .chain(of_chain.into_iter().flatten());
    let mut wanted = logs.filter(|log| is_logged(log, &known.flags)).peekable();
    if wanted.peek().is_none() {
        return;
    }
    let (remote, destination) = (
        known.remote.map(Address::Socket),
        known.destination.map(Address::Socket),
    );
    let cluster = known.attempted.cluster.as_ref();
    let record = Record {
        start: known.start,
        duration: known.began.elapsed(),
        bytes_received: known.bytes.0,
        bytes_sent: known.bytes.1,
        flags: &known.flags,
        upstream_host: known.attempted.host.as_ref(),
        upstream_cluster: cluster.map(|cluster| stat_name(&cluster.spec)),
        attempts: known.attempted.count,
        upstream_local: known.upstream_local.as_ref(),
        upstream_failure: known.attempted.failure.as_deref(),
        downstream_failure: known.tls_failure.as_deref(),
        downstream_local: destination.as_ref(),
        downstream_remote: remote.as_ref(),
        server_name: known.hello.server_name.as_deref(),
        tls: known.tls.as_ref().map(|tls| Tls {
            version: tls.version,
            cipher: &tls.cipher,
            peer_uris: &tls.peer.uris,
        }),
        connection: known.number,
        termination: known.termination.as_deref(),
        details: chain.is_none().then_some("filter_chain_not_found"),
        chain: chain.map(|chain| chain.name.as_str()),
        host_name: &shared.host_name,
    };
    for log in wanted {
        shared.logs.write(&log.sink, &log.format.line(&record));
    }
}

fn is_logged(log: &AccessLog, flags: &[Flag]) -> bool {
    let wanted = log.flags.as_ref();
    wanted.is_none_or(|wanted| flags.iter().any(|flag| wanted.contains(flag)))
}
