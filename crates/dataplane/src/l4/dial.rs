//! Connects to a host of a cluster: chooses one, dials it, makes the TLS handshake, and tries others if that fails.
//!
//! It decides nothing about callers; it starts when they are authorised.

use std::io;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use legate_l4::balance::{self, Balancer, Host, HostId, NoHost};
use legate_l4::model::{Address, Hosts, Keepalive};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout};

use super::handshake;
use super::io::{Io, Socket};
use super::serving::ServedCluster;
use super::shared::Shared;
use super::tls_stream::TlsStream;

/// Keepalive of all TCP connections: a peer that is gone is noticed within two minutes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(15), 4);

/// How long sent bytes may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);

/// A connection to a host.
#[derive(Debug)]
pub(super) struct Dialled {
    pub(super) io: Io,
    pub(super) local: Option<Address>,
    pub(super) use_of: HostUse,
}

/// Why no host was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The cluster does not exist.
    NoCluster,
    /// It has no healthy host.
    NoneHealthy,
    /// It has as many connections as it may have.
    Overflow,
    /// It dials as many hosts as it may.
    Pending,
    /// All attempts failed.
    Connect,
}

/// What is known of an attempt, for the access log.
#[derive(Debug, Default)]
pub(super) struct Attempted {
    pub(super) cluster: Option<Arc<ServedCluster>>,
    pub(super) host: Option<Address>,
    /// The number of attempts.
    pub(super) count: u32,
    pub(super) failure: Option<String>,
}

/// A host that is in use. It is released when this is dropped.
#[derive(Debug)]
pub(super) struct HostUse {
    pub(super) cluster: Arc<ServedCluster>,
    /// `None`: an address that is no host of the cluster.
    host: Option<HostId>,
    /// When the connection was established.
    since: Option<Instant>,
    /// Whether the balancer knows already that it has ended.
    ended: bool,
}

impl HostUse {
    fn begin(cluster: Arc<ServedCluster>, balancer: &mut Balancer, host: HostId) -> HostUse {
        balancer.connecting(host);
        // As in Envoy, an attempt counts, whatever becomes of it.
        cluster.stats.cx_total.inc();
        HostUse {
            cluster,
            host: Some(host),
            since: None,
            ended: false,
        }
    }

    fn connected(&mut self, now: Duration) {
        self.since = Some(Instant::now());
        if let Some(host) = self.host {
            self.cluster.balancer().connected(host, now);
        }
        self.cluster.stats.cx_active.inc();
    }

    /// Ends an attempt that failed.
    fn failed(mut self, now: Duration) {
        self.cluster.stats.connect_fail.inc();
        self.cluster.stats.destroy.inc();
        let Some(host) = self.host else {
            return;
        };
        self.ended = true;
        let ejected = self.cluster.balancer().failed(host, now, &mut random);
        if ejected {
            self.cluster.show();
        }
    }
}

impl Drop for HostUse {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut balancer = self.cluster.balancer();
        match (self.host, self.since) {
            (Some(host), Some(_)) => balancer.closed(host),
            (Some(host), None) => balancer.abandoned(host),
            (None, _) => balancer.release(),
        }
        drop(balancer);
        if let Some(since) = self.since {
            let stats = &self.cluster.stats;
            stats.cx_active.dec();
            stats.destroy.inc();
            stats.length.record(since.elapsed());
        }
    }
}

/// A uniform random number.
pub(super) fn random() -> u64 {
    rand::random()
}

/// Where a connection should go.
#[derive(Debug)]
pub(super) struct Goal<'a> {
    /// The name of the cluster.
    pub(super) cluster: &'a str,
    /// Where the caller wanted to connect to.
    pub(super) destination: Option<SocketAddr>,
    /// How many hosts are tried.
    pub(super) attempts: u32,
    /// The address of the listener that accepted the connection.
    pub(super) listener: &'a Address,
}

/// Whether an address would be accepted by the same listener again, without an end.
fn leads_to(address: SocketAddr, listener: &Address) -> bool {
    let Address::Socket(listener) = listener else {
        return false;
    };
    let any = listener.ip().is_unspecified() && address.ip().is_loopback();
    address.port() == listener.port() && (address.ip() == listener.ip() || any)
}

/// Connects to a host of a cluster.
///
/// # Errors
/// [`Failure`]; `attempted` has the reason of the last attempt.
pub(super) async fn dial(
    shared: &Shared,
    goal: &Goal<'_>,
    attempted: &mut Attempted,
) -> Result<Dialled, Failure> {
    let mut tried = Vec::new();
    for attempt in 1..=goal.attempts.max(1) {
        let serving = shared.serving();
        let Some(cluster) = serving.clusters.get(goal.cluster) else {
            return Err(Failure::NoCluster);
        };
        // The access log names it also if none of its hosts is dialled, and never a member of an aggregate.
        attempted.cluster = Some(Arc::clone(cluster));
        let (mut used, address) = choose(&serving.clusters, cluster, goal.destination, &tried)
            .inspect_err(|failure| count(shared, cluster, *failure))?;
        drop(serving);
        tried.extend(used.host);
        let cluster = Arc::clone(&used.cluster);
        attempted.host = Some(address.clone());
        attempted.count = attempt;
        let started = Instant::now();
        let limit = cluster.spec.connect_timeout;
        let connected = timeout(limit, connect(goal.listener, &cluster, &address)).await;
        let failure = match connected {
            Ok(Ok((io, local))) => {
                used.connected(shared.now());
                cluster.stats.connect.record(started.elapsed());
                attempted.failure = None;
                return Ok(Dialled {
                    io,
                    local,
                    use_of: used,
                });
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                cluster.stats.connect_timeout.inc();
                format!("no connection within {limit:?}")
            }
        };
        tracing::debug!(
            cluster = %cluster.spec.name, ?address, attempt, failure, "cannot connect to a host"
        );
        attempted.failure = Some(failure);
        used.failed(shared.now());
    }
    if let Some(cluster) = &attempted.cluster {
        cluster.stats.attempts_exceeded.inc();
    }
    Err(Failure::Connect)
}

fn count(shared: &Shared, cluster: &ServedCluster, failure: Failure) {
    match failure {
        Failure::NoneHealthy => cluster.stats.none_healthy.inc(),
        Failure::Overflow => {
            cluster.stats.overflow.inc();
            let Some(suppressed) = shared.overflown.pass() else {
                return;
            };
            tracing::warn!(
                cluster = %cluster.spec.name,
                limit = cluster.spec.max_connections,
                suppressed,
                "a connection is refused: the cluster has as many as its limits allow \
                 (max_connections of the upstream or of the service)"
            );
        }
        Failure::Pending => cluster.stats.attempts_exceeded.inc(),
        Failure::NoCluster | Failure::Connect => {}
    }
}

type Clusters = std::collections::HashMap<legate_l4::model::Name, Arc<ServedCluster>>;

/// Chooses a host, and counts its use.
fn choose(
    clusters: &Clusters,
    cluster: &Arc<ServedCluster>,
    destination: Option<SocketAddr>,
    tried: &[HostId],
) -> Result<(HostUse, Address), Failure> {
    match &cluster.spec.hosts {
        Hosts::OriginalDestination => {
            let destination = destination.ok_or(Failure::NoneHealthy)?;
            cluster.balancer().acquire().map_err(failure)?;
            cluster.stats.cx_total.inc();
            let used = HostUse {
                cluster: Arc::clone(cluster),
                host: None,
                since: None,
                ended: false,
            };
            Ok((used, Address::Socket(destination)))
        }
        Hosts::Aggregate(members) => {
            let members: Vec<_> = members.iter().map(|name| clusters.get(name)).collect();
            let (member, priority) = choose_member(&members, cluster.spec.panic_threshold)
                .ok_or(Failure::NoneHealthy)?;
            let member = members[member].ok_or(Failure::NoneHealthy)?;
            let mut balancer = member.balancer();
            let host = balancer.pick_in(priority, &mut random, tried);
            let host = host.map_err(failure)?;
            let used = HostUse::begin(Arc::clone(member), &mut balancer, host.id);
            Ok((used, host.address))
        }
        Hosts::Static(_) | Hosts::Discovered(_) | Hosts::LogicalDns { .. } => {
            let mut balancer = cluster.balancer();
            let Host { id, address } = balancer.pick(&mut random, tried).map_err(failure)?;
            let used = HostUse::begin(Arc::clone(cluster), &mut balancer, id);
            Ok((used, address))
        }
    }
}

/// Chooses a member of an aggregate, and one of its priorities. All members are locked, in the order of their names, so
/// that two aggregates with the same members in another order never wait for each other.
fn choose_member(
    members: &[Option<&Arc<ServedCluster>>],
    panic_threshold: f64,
) -> Option<(usize, usize)> {
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|index| members[*index].map(|member| &member.spec.name));
    let mut locked: Vec<_> = members.iter().map(|_| None).collect();
    let mut last = None;
    for index in order {
        let name = members[index].map(|member| &member.spec.name);
        // The same member twice counts once.
        if name.is_some() && name != last {
            locked[index] = members[index].map(|member| member.balancer());
        }
        last = name;
    }
    let balancers: Vec<Option<&Balancer>> = locked.iter().map(Option::as_deref).collect();
    balance::aggregate(&balancers, panic_threshold, &mut random)
}

fn failure(none: NoHost) -> Failure {
    match none {
        NoHost::Overflow => Failure::Overflow,
        NoHost::Pending => Failure::Pending,
        NoHost::NoneHealthy => Failure::NoneHealthy,
    }
}

/// One attempt.
async fn connect(
    listener: &Address,
    cluster: &ServedCluster,
    address: &Address,
) -> io::Result<(Io, Option<Address>)> {
    let socket = match address {
        Address::Socket(address) => {
            if leads_to(*address, listener) {
                return Err(io::Error::other(
                    "the address is the one that accepted the connection",
                ));
            }
            let stream = TcpStream::connect(address).await?;
            prepare(&stream, cluster.spec.keepalive.as_ref())?;
            Socket::Tcp(stream)
        }
        Address::Pipe { path, .. } => Socket::Unix(connect_unix(path).await?),
        Address::Dns(name, _) => {
            return Err(io::Error::other(format!("{name} has no address yet")));
        }
    };
    let local = match &socket {
        Socket::Tcp(stream) => stream.local_addr().ok().map(Address::Socket),
        Socket::Unix(_) => None,
    };
    let Some(tls) = &cluster.tls else {
        return Ok((Io::Plain(socket), local));
    };
    let tls = tls
        .as_ref()
        .map_err(|error| io::Error::other(error.clone()))?;
    let stream = TlsStream::connect(&tls.config, tls.name.clone(), socket).await;
    let stream = stream.inspect_err(|error| {
        let stats = &cluster.stats;
        handshake::count(
            error,
            &stats.connection_error,
            &stats.no_certificate,
            &stats.verify_error,
            &stats.verify_san,
        );
    })?;
    cluster.stats.handshake.inc();
    if stream.is_resumed() {
        cluster.stats.session_reused.inc();
    }
    Ok((Io::Tls(Box::new(stream)), local))
}

async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    // A server that replaces its socket file leaves a moment without one.
    let bytes = path.as_os_str().as_bytes();
    if let Some(name) = bytes.strip_prefix(b"@") {
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        let stream = std::os::unix::net::UnixStream::connect_addr(&address)?;
        stream.set_nonblocking(true)?;
        return UnixStream::from_std(stream);
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tokio::task::yield_now().await;
            UnixStream::connect(path).await
        }
        other => other,
    }
}

/// Sets the options of a TCP connection, of a caller or to a host.
pub(super) fn prepare(stream: &TcpStream, keepalive: Option<&Keepalive>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let own = Keepalive::default();
    let wanted = keepalive.unwrap_or(&own);
    let (time, interval, probes) = KEEPALIVE;
    let options = TcpKeepalive::new()
        .with_time(wanted.time.unwrap_or(time))
        .with_interval(wanted.interval.unwrap_or(interval))
        .with_retries(wanted.probes.unwrap_or(probes));
    socket.set_tcp_keepalive(&options)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}
