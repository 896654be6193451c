//! The link between two servers: relays in this process that delay and count what they forward.
//!
//! A server advertises the address of its relay to the other one, and the relay listens there at the
//! same ports. Throughput is not limited.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use legate_runtime::{Scope, Spawner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

/// The delay of each direction.
const DELAY: Duration = Duration::from_millis(25);

/// The largest piece that is forwarded at once, in bytes; also that of a datagram.
const PIECE: usize = 64 * 1024;

/// The number of pieces that can be on their way in one direction of a connection: far more than what a server
/// sends within the delay.
const UNDER_WAY: usize = 4_096;

/// A server's own address and that of its relay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) server: Ipv4Addr,
    pub(crate) relay: Ipv4Addr,
}

/// The ports of a server that others reach through the relay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) tcp: &'static [u16],
    pub(crate) udp: &'static [u16],
}

/// The number of bytes in both directions so far, without headers of TCP, UDP and IP.
type Count = Arc<AtomicU64>;

/// A running link. Dropping it closes all connections.
pub(crate) struct Link {
    _tasks: Scope,
    count: Count,
}

impl Link {
    /// Starts the relays of both servers.
    ///
    /// # Errors
    ///
    /// If an address is in use.
    pub(crate) async fn start(ends: [End; 2], ports: Ports) -> io::Result<Self> {
        let tasks = Scope::new("link");
        let count = Count::default();
        for End { server, relay } in ends {
            for port in ports.tcp.iter().copied() {
                let listener = TcpListener::bind((relay, port)).await?;
                let (target, count) = ((server, port).into(), Arc::clone(&count));
                tasks.spawn("listen", listen(listener, target, count, tasks.spawner()));
            }
        }
        for port in ports.udp.iter().copied() {
            let [first, second] = ends;
            let socket = async |end: End| UdpSocket::bind((end.relay, port)).await.map(Arc::new);
            let relays = [socket(first).await?, socket(second).await?];
            // What the relay of one server gets is from the other, whose relay passes it on, so that an answer
            // finds its way back.
            for (from, to, server) in [(0, 1, first.server), (1, 0, second.server)] {
                let (from, to) = (Arc::clone(&relays[from]), Arc::clone(&relays[to]));
                let (target, count) = ((server, port).into(), Arc::clone(&count));
                tasks.spawn("datagrams", datagrams(from, to, target, count));
            }
        }
        Ok(Self {
            _tasks: tasks,
            count,
        })
    }

    /// The number of bytes in both directions so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

async fn listen(
    listener: TcpListener,
    target: SocketAddr,
    count: Count,
    connections: Spawner,
) -> io::Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        let count = Arc::clone(&count);
        connections.spawn("connection", async move {
            // A failed connection is closed on both sides.
            let _ = connection(client, target, &count).await;
            Ok::<_, Infallible>(())
        });
    }
}

async fn connection(client: TcpStream, target: SocketAddr, count: &AtomicU64) -> io::Result<()> {
    // A distant server would accept it only now.
    sleep(2 * DELAY).await;
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let there = carry(from_client, to_server, count);
    let back = carry(from_server, to_client, count);
    tokio::try_join!(there, back).map(drop)
}

/// Forwards one direction of a connection to its end.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    count: &AtomicU64,
) -> io::Result<()> {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let read = async move {
        let mut buffer = vec![0; PIECE];
        loop {
            let length = from.read(&mut buffer).await?;
            count.fetch_add(length as u64, Ordering::Relaxed);
            let piece = (Instant::now() + DELAY, buffer[..length].to_vec());
            // The end is an empty piece, which takes as long as the others.
            if sender.send(piece).await.is_err() || length == 0 {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((due, piece)) = pieces.recv().await {
            sleep_until(due).await;
            to.write_all(&piece).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(drop)
}

/// Forwards the datagrams that arrive at `from`; those that cannot be sent are lost.
async fn datagrams(
    from: Arc<UdpSocket>,
    to: Arc<UdpSocket>,
    target: SocketAddr,
    count: Count,
) -> Result<(), Infallible> {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let read = async move {
        let mut buffer = vec![0; PIECE];
        loop {
            // An error is about an earlier datagram.
            let Ok(length) = from.recv(&mut buffer).await else {
                continue;
            };
            count.fetch_add(length as u64, Ordering::Relaxed);
            let piece = (Instant::now() + DELAY, buffer[..length].to_vec());
            let _ = sender.try_send(piece);
        }
    };
    let write = async move {
        while let Some((due, piece)) = pieces.recv().await {
            sleep_until(due).await;
            let _ = to.send_to(&piece, target).await;
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
    Ok(())
}
