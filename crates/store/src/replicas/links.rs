//! Connections between servers: TLS with a key that is derived from their shared key.
//!
//! Every server listens. Followers connect to the leader at the address in its lease.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use legate_identity::SealingKey;
use legate_identity::tls::{SharedKeyTls, server_name, shared_key};
use legate_runtime::{Backoff, BackoffPolicy, Spawner};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::machine::LinkId;
use super::message::{Message, PROTOCOL};
use crate::backend::etcd::Lead;
use crate::open_error::OpenError;

/// The maximum number of connections to a server, including those that have not proved the key.
const CONNECTIONS: usize = 64;
/// The timeout of a connection with its handshake.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// The maximum number of messages that wait to be sent. A slower connection is closed.
const WAITING: usize = 64;
/// The maximum number of received messages that wait to be handled.
const RECEIVED: usize = 256;
/// The pauses between attempts to connect.
const PAUSES: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(50),
    multiplier: 2.0,
    jitter: 0.5,
    cap: Duration::from_secs(1),
};

/// What a connection reports.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// A follower has connected.
    Joined(LinkId, mpsc::Sender<Message>),
    /// This server has connected to the leader at this address.
    Connected(String, LinkId, mpsc::Sender<Message>),
    /// The leader at this address cannot be reached.
    Unreachable(String, String),
    Received(LinkId, Message),
    Left(LinkId),
}

/// All connections of a server. The tasks end with the receiver of the events.
pub(crate) struct Links {
    pub(crate) events: mpsc::Receiver<LinkEvent>,
}

/// The listening socket, before the connections are started.
pub(crate) struct Listening {
    listener: TcpListener,
    /// The address at which other servers reach this one.
    pub(crate) address: String,
}

#[derive(Clone)]
struct Shared {
    tls: SharedKeyTls,
    events: mpsc::Sender<LinkEvent>,
    next: Arc<AtomicU64>,
}

impl Listening {
    /// Listens at `at`; other servers use `advertise` with the same port.
    pub(crate) async fn bind(
        at: SocketAddr,
        advertise: Option<std::net::IpAddr>,
    ) -> Result<Self, OpenError> {
        let failed = |source: io::Error| OpenError::Listen { at, source };
        let listener = TcpListener::bind(at).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let advertised = SocketAddr::new(advertise.unwrap_or(bound.ip()), bound.port());
        Ok(Self {
            listener,
            address: advertised.to_string(),
        })
    }

    /// Accepts followers, and connects to the leader.
    pub(crate) fn start(
        self,
        key: &SealingKey,
        lead: watch::Receiver<Lead>,
        spawner: &Spawner,
    ) -> Result<Links, OpenError> {
        let tls = shared_key(key, PROTOCOL).map_err(|error| OpenError::NotMade {
            reason: error.to_string(),
        })?;
        let (events, received) = mpsc::channel(RECEIVED);
        let shared = Shared {
            tls,
            events,
            // 0 and the maximum are not used.
            next: Arc::new(AtomicU64::new(1)),
        };
        let token = spawner.token();
        let accepting = accept(self.listener, shared.clone(), spawner.clone());
        let connecting = connect(lead, shared);
        spawner.spawn("links of followers", {
            let token = token.clone();
            async move {
                token.run_until_cancelled(accepting).await;
                Ok::<_, Infallible>(())
            }
        });
        spawner.spawn("link to the leader", async move {
            token.run_until_cancelled(connecting).await;
            Ok::<_, Infallible>(())
        });
        Ok(Links { events: received })
    }
}

/// Accepts until the receiver of the events is gone.
async fn accept(listener: TcpListener, shared: Shared, spawner: Spawner) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&free).acquire_owned().await else {
            return;
        };
        let accepted = tokio::select! {
            () = shared.events.closed() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, from)) = accepted else {
            // Such as too many open files.
            sleep(PAUSES.initial).await;
            continue;
        };
        let (shared, token) = (shared.clone(), spawner.token());
        spawner.spawn("link of a follower", async move {
            let served = token.run_until_cancelled(serve(stream, shared)).await;
            if let Some(Err(error)) = served {
                tracing::debug!(%from, %error, "a connection of another server has ended");
            }
            drop(place);
            Ok::<_, Infallible>(())
        });
    }
}

async fn serve(stream: TcpStream, shared: Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let acceptor = TlsAcceptor::from(Arc::clone(&shared.tls.server));
    let stream = timeout(HANDSHAKE, acceptor.accept(stream)).await??;
    let id = shared.next.fetch_add(1, Ordering::Relaxed);
    let (outbox, messages) = mpsc::channel(WAITING);
    let joined = shared.events.send(LinkEvent::Joined(id, outbox)).await;
    joined.map_err(io::Error::other)?;
    let ended = exchange(id, stream, messages, &shared.events).await;
    drop(shared.events.send(LinkEvent::Left(id)).await);
    ended
}

/// Keeps a connection to the current leader.
async fn connect(mut lead: watch::Receiver<Lead>, shared: Shared) {
    let mut pauses = Backoff::new(PAUSES);
    loop {
        let current = lead.borrow_and_update().clone();
        let Lead::Other(address) = current else {
            pauses.reset();
            tokio::select! {
                () = shared.events.closed() => return,
                changed = lead.changed() => if changed.is_err() { return },
            }
            continue;
        };
        let ended = tokio::select! {
            () = shared.events.closed() => return,
            changed = lead.changed() => {
                if changed.is_err() {
                    return;
                }
                pauses.reset();
                continue;
            }
            ended = follow(&address, &shared) => ended,
        };
        let reason = match ended {
            Ok(()) => "it closed the connection".to_owned(),
            Err(error) => error.to_string(),
        };
        let event = LinkEvent::Unreachable(address, reason);
        if shared.events.send(event).await.is_err() {
            return;
        }
        tokio::select! {
            () = sleep(pauses.next(rand::random())) => {}
            changed = lead.changed() => if changed.is_err() { return },
        }
    }
}

/// Connects, and exchanges messages until the connection ends.
async fn follow(address: &str, shared: &Shared) -> io::Result<()> {
    let connected = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        // The name is not verified.
        let name = server_name("legate").map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(&shared.tls.client));
        connector.connect(name, stream).await
    };
    let stream = timeout(HANDSHAKE, connected).await??;
    let id = shared.next.fetch_add(1, Ordering::Relaxed);
    let (outbox, messages) = mpsc::channel(WAITING);
    let _left = Left { id, shared };
    let event = LinkEvent::Connected(address.to_owned(), id, outbox);
    shared.events.send(event).await.map_err(io::Error::other)?;
    exchange(id, stream, messages, &shared.events).await
}

/// Reports the end of a connection, even if another leader was elected meanwhile.
struct Left<'s> {
    id: LinkId,
    shared: &'s Shared,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        // If the queue is full, sending to the connection fails later.
        drop(self.shared.events.try_send(LinkEvent::Left(self.id)));
    }
}

/// Exchanges messages until the connection ends or `messages` is closed.
async fn exchange(
    id: LinkId,
    stream: impl AsyncRead + AsyncWrite,
    mut messages: mpsc::Receiver<Message>,
    events: &mpsc::Sender<LinkEvent>,
) -> io::Result<()> {
    let (from, mut to) = split(stream);
    let reading = async {
        let mut from = BufReader::new(from);
        while let Some(message) = Message::read(&mut from).await? {
            let event = LinkEvent::Received(id, message);
            events.send(event).await.map_err(io::Error::other)?;
        }
        Ok(())
    };
    let writing = async {
        while let Some(message) = messages.recv().await {
            let mut frames = message.to_frame();
            while let Ok(message) = messages.try_recv() {
                frames.extend(message.to_frame());
            }
            to.write_all(&frames).await?;
            to.flush().await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}
