//! Ports, and a TCP forwarder that can be cut, frozen and restored.
//!
//! Loopback only. The forwarder never looks at what it forwards.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use legate_runtime::{Scope, Spawner};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};

/// How long the forwarder's tasks may take to end; they only have to notice.
const STOP: Duration = Duration::from_secs(5);

/// Ports that no system takes for outgoing connections and no program of ours by default: one that is
/// given out here is not lost to a connection before it is listened on.
const PORTS: Range<u16> = 23_000..30_000;

/// A port on 127.0.0.1 that nobody listened on a moment ago, another one each time.
///
/// # Panics
///
/// When there is none.
#[must_use]
pub fn free_port() -> u16 {
    free_port_on(&[Ipv4Addr::LOCALHOST.into()])
}

/// A port that nobody listened on a moment ago, on any of these addresses, another one each time.
///
/// # Panics
///
/// When there is none after a hundred attempts.
#[must_use]
pub fn free_port_on(addresses: &[IpAddr]) -> u16 {
    // Tests of other programs begin elsewhere.
    static NEXT: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(std::process::id().wrapping_mul(131)));
    let count = u32::from(PORTS.end - PORTS.start);
    for _ in 0..100 {
        let place = NEXT.fetch_add(1, Ordering::Relaxed) % count;
        let port = PORTS.start + u16::try_from(place).expect("it is below the count");
        // UDP as well: DNS servers take both.
        let free = |ip: &IpAddr| {
            std::net::TcpListener::bind((*ip, port)).is_ok()
                && std::net::UdpSocket::bind((*ip, port)).is_ok()
        };
        if addresses.iter().all(free) {
            return port;
        }
    }
    panic!("no port is free on all of {addresses:?}");
}

/// A TCP forwarder. Dropping it cuts it.
pub struct Cuttable {
    address: SocketAddr,
    target: SocketAddr,
    flowing: watch::Sender<bool>,
    running: Mutex<Option<Scope>>,
}

impl Cuttable {
    /// Listens on a free port of 127.0.0.1 and forwards to `target`.
    ///
    /// # Panics
    ///
    /// When it cannot listen.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("an ephemeral port");
        let forwarder = Self {
            address: listener
                .local_addr()
                .expect("a bound socket has an address"),
            target,
            flowing: watch::Sender::new(true),
            running: Mutex::new(None),
        };
        *forwarder.running.lock().await = Some(forwarder.run(listener));
        forwarder
    }

    /// Where to connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections and refuses new ones. Done when it returns.
    ///
    /// # Panics
    ///
    /// When connections do not end.
    pub async fn cut(&self) {
        if let Some(scope) = self.running.lock().await.take() {
            scope.stop(STOP).await.expect("forwarding ends");
        }
    }

    /// Keeps all connections, and takes new ones, but no byte passes: packets are lost.
    pub fn freeze(&self) {
        self.flowing.send_replace(false);
    }

    /// Ends what [`cut`](Self::cut) or [`freeze`](Self::freeze) began; connections that were cut
    /// stay closed.
    ///
    /// # Panics
    ///
    /// When somebody else took the port meanwhile.
    pub async fn restore(&self) {
        self.flowing.send_replace(true);
        let mut running = self.running.lock().await;
        if running.is_none() {
            let listener = TcpListener::bind(self.address)
                .await
                .expect("the port is still free");
            *running = Some(self.run(listener));
        }
    }

    fn run(&self, listener: TcpListener) -> Scope {
        let scope = Scope::new("cuttable");
        let spawner = scope.spawner();
        scope.spawn(
            "listen",
            listen(listener, self.target, self.flowing.subscribe(), spawner),
        );
        scope
    }
}

impl std::fmt::Debug for Cuttable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cuttable")
            .field("address", &self.address)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

async fn listen(
    listener: TcpListener,
    target: SocketAddr,
    flowing: watch::Receiver<bool>,
    spawner: Spawner,
) -> io::Result<()> {
    let stopped = spawner.token();
    loop {
        let client = tokio::select! {
            () = stopped.cancelled() => return Ok(()),
            accepted = listener.accept() => accepted?.0,
        };
        let (stopped, flowing) = (stopped.clone(), flowing.clone());
        spawner.spawn("connection", async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = forward(client, target, flowing) => {}
            }
            Ok::<_, io::Error>(())
        });
    }
}

/// Ends when either side does; which one and why is the test's business.
async fn forward(mut client: TcpStream, target: SocketAddr, mut flowing: watch::Receiver<bool>) {
    if flowing.wait_for(|flowing| *flowing).await.is_err() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    let copy = copy_bidirectional(&mut client, &mut server);
    tokio::pin!(copy);
    loop {
        tokio::select! {
            biased;
            frozen = flowing.wait_for(|flowing| !*flowing) => if frozen.is_err() { return },
            _ = &mut copy => return,
        }
        // Nothing polls the copy while the network is frozen.
        if flowing.wait_for(|flowing| *flowing).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn echo_server(scope: &Scope) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let spawner = scope.spawner();
        scope.spawn("echo", async move {
            loop {
                let (mut stream, _) = listener.accept().await?;
                spawner.spawn("echo connection", async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write)
                        .await
                        .map(drop)
                        .or(Ok::<_, io::Error>(()))
                });
            }
            #[expect(unreachable_code, reason = "names the error type")]
            Ok::<_, io::Error>(())
        });
        address
    }

    async fn echoes(stream: &mut TcpStream) -> bool {
        let mut byte = [0];
        stream.write_all(b"x").await.is_ok() && stream.read_exact(&mut byte).await.is_ok()
    }

    #[tokio::test]
    async fn a_cut_closes_and_refuses_until_restored() {
        let scope = Scope::new("test");
        let network = Cuttable::start(echo_server(&scope).await).await;
        let mut stream = TcpStream::connect(network.address()).await.unwrap();
        assert!(echoes(&mut stream).await);
        network.cut().await;
        assert!(!echoes(&mut stream).await);
        assert!(TcpStream::connect(network.address()).await.is_err());
        network.restore().await;
        let mut stream = TcpStream::connect(network.address()).await.unwrap();
        assert!(echoes(&mut stream).await);
    }

    #[tokio::test]
    async fn frozen_bytes_arrive_after_the_thaw() {
        let scope = Scope::new("test");
        let network = Cuttable::start(echo_server(&scope).await).await;
        let mut stream = TcpStream::connect(network.address()).await.unwrap();
        assert!(echoes(&mut stream).await);
        network.freeze();
        let echo = echoes(&mut stream);
        tokio::pin!(echo);
        let waited = tokio::time::timeout(Duration::from_millis(50), &mut echo).await;
        assert!(waited.is_err(), "nothing passes");
        network.restore().await;
        assert!(echo.await);
    }

    #[test]
    fn a_free_port_can_be_bound_everywhere() {
        let addresses = ["127.0.0.1", "127.0.0.2"].map(|ip| ip.parse().unwrap());
        let port = free_port_on(&addresses);
        let _both = addresses.map(|ip: IpAddr| std::net::TcpListener::bind((ip, port)).unwrap());
    }
}
