//! Free ports, a listener whose port is free again at once, and a TCP forwarder that can be cut, at
//! once or within a transfer, frozen and restored.
//!
//! Loopback only. The forwarder does not interpret the bytes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use legate_runtime::{Scope, Spawner};
use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};

/// The deadline for the forwarder's tasks.
const STOP: Duration = Duration::from_secs(5);

/// Outside of the ephemeral ranges of common systems and of our programs' default ports, so that a
/// port returned here is not taken by a connection before it is bound.
const PORTS: Range<u16> = 23_000..30_000;

/// An unused port on 127.0.0.1, a different one each time.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    free_port_on(&[Ipv4Addr::LOCALHOST.into()])
}

/// A port unused on all of these addresses, a different one each time.
///
/// # Panics
///
/// If there is none after a hundred attempts.
#[must_use]
pub fn free_port_on(addresses: &[IpAddr]) -> u16 {
    // Concurrent test processes start at different offsets.
    static NEXT: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(std::process::id().wrapping_mul(131)));
    let count = u32::from(PORTS.end - PORTS.start);
    for _ in 0..100 {
        let place = NEXT.fetch_add(1, Ordering::Relaxed) % count;
        let port = PORTS.start + u16::try_from(place).expect("it is below the count");
        // UDP is checked as well, because DNS servers use both.
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

/// Waits until an address at which this process has listened can be bound again: a process that is being
/// started holds copies of all sockets of ours until its program runs.
///
/// # Panics
///
/// If somebody else listens there.
pub async fn until_free(address: SocketAddr) {
    let bind = async || TcpListener::bind(address).await.is_ok();
    let free = async {
        while !bind().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(STOP, free).await;
    assert!(waited.is_ok(), "{address} is in use");
}

/// A listener that refuses connections once it is dropped, and whose port can be used again.
///
/// A process that is being started holds copies of all sockets of ours until its program runs.
/// Closing the socket alone would leave the port taken until then.
#[derive(Debug)]
pub(crate) struct Listener(TcpListener);

impl Listener {
    /// Listens on an address; port 0 is any ephemeral port.
    pub(crate) async fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self)
    }

    /// The address to connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        let address = self.0.local_addr();
        address.expect("a bound socket has an address")
    }

    /// The next connection, with the client's address.
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.accept().await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Fails only if it does not listen any more.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }
}

/// A TCP forwarder. Dropping it cuts it.
pub struct Cuttable {
    address: SocketAddr,
    target: SocketAddr,
    flowing: watch::Sender<bool>,
    allowance: Allowance,
    running: Mutex<Option<Scope>>,
}

impl Cuttable {
    /// Listens on a free port of 127.0.0.1 and forwards to `target`.
    ///
    /// # Panics
    ///
    /// If it cannot listen.
    pub async fn start(target: SocketAddr) -> Self {
        // Not an ephemeral port, which a connection could take while it is cut.
        Self::start_at((Ipv4Addr::LOCALHOST, free_port()).into(), target).await
    }

    /// Listens on an address and forwards to `target`.
    ///
    /// # Panics
    ///
    /// If it cannot listen.
    pub async fn start_at(address: SocketAddr, target: SocketAddr) -> Self {
        let listener = Listener::bind(address).await.expect("the address is free");
        let forwarder = Self {
            address: listener.address(),
            target,
            flowing: watch::Sender::new(true),
            allowance: Allowance::default(),
            running: Mutex::new(None),
        };
        *forwarder.running.lock().await = Some(forwarder.run(listener));
        forwarder
    }

    /// The address to connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections and refuses new ones, completed on return.
    ///
    /// # Panics
    ///
    /// If connections do not end.
    pub async fn cut(&self) {
        if let Some(scope) = self.running.lock().await.take() {
            scope.stop(STOP).await.expect("forwarding ends");
        }
    }

    /// Keeps connections and accepts new ones, but forwards no bytes, as with lost packets.
    pub fn freeze(&self) {
        self.flowing.send_replace(false);
    }

    /// Forwards this many more bytes, of all connections and directions together. Who sends or receives more is
    /// disconnected, within a message if it is longer than that.
    pub fn cut_after(&self, bytes: usize) {
        self.allowance.0.store(bytes, Ordering::Relaxed);
    }

    /// Ends [`cut`](Self::cut), [`cut_after`](Self::cut_after) or [`freeze`](Self::freeze); connections that were cut
    /// stay closed.
    ///
    /// # Panics
    ///
    /// If another process has taken the port meanwhile.
    pub async fn restore(&self) {
        self.flowing.send_replace(true);
        self.allowance.0.store(usize::MAX, Ordering::Relaxed);
        let mut running = self.running.lock().await;
        if running.is_none() {
            let listener = Listener::bind(self.address)
                .await
                .expect("the port is still free");
            *running = Some(self.run(listener));
        }
    }

    fn run(&self, listener: Listener) -> Scope {
        let scope = Scope::new("cuttable");
        let spawner = scope.spawner();
        scope.spawn(
            "listen",
            listen(
                listener,
                self.target,
                (self.flowing.subscribe(), self.allowance.clone()),
                spawner,
            ),
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
    listener: Listener,
    target: SocketAddr,
    (flowing, allowance): (watch::Receiver<bool>, Allowance),
    spawner: Spawner,
) -> io::Result<()> {
    let stopped = spawner.token();
    loop {
        let client = tokio::select! {
            () = stopped.cancelled() => return Ok(()),
            accepted = listener.accept() => accepted?.0,
        };
        let (stopped, flowing) = (stopped.clone(), flowing.clone());
        let client = Limited {
            stream: client,
            allowance: allowance.clone(),
        };
        spawner.spawn("connection", async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = forward(client, target, flowing) => {}
            }
            Ok::<_, io::Error>(())
        });
    }
}

/// Forwards until either side ends; errors are not reported.
async fn forward(mut client: Limited, target: SocketAddr, mut flowing: watch::Receiver<bool>) {
    if flowing.wait_for(|flowing| *flowing).await.is_err() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    // Otherwise small writes would wait for acknowledgements, unlike without the forwarder.
    if client.stream.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let copy = copy_bidirectional(&mut client, &mut server);
    tokio::pin!(copy);
    loop {
        tokio::select! {
            biased;
            frozen = flowing.wait_for(|flowing| !*flowing) => if frozen.is_err() { return },
            _ = &mut copy => return,
        }
        // The copy is not polled while the network is frozen.
        if flowing.wait_for(|flowing| *flowing).await.is_err() {
            return;
        }
    }
}

/// The number of bytes that are still forwarded. Clones share it.
#[derive(Clone)]
struct Allowance(Arc<AtomicUsize>);

impl Default for Allowance {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(usize::MAX)))
    }
}

impl Allowance {
    /// How many of these bytes may be forwarded.
    ///
    /// # Errors
    ///
    /// If none may.
    fn of(&self, bytes: usize) -> io::Result<usize> {
        match self.0.load(Ordering::Relaxed).min(bytes) {
            0 if bytes > 0 => Err(io::ErrorKind::ConnectionAborted.into()),
            allowed => Ok(allowed),
        }
    }

    fn use_up(&self, bytes: usize) {
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let less = |left: usize| (left != usize::MAX).then(|| left.saturating_sub(bytes));
        // An error says that there is no limit.
        let _ = self.0.fetch_update(set, fetch, less);
    }
}

/// A stream that ends when its bytes are used up.
struct Limited {
    stream: TcpStream,
    allowance: Allowance,
}

impl AsyncRead for Limited {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let allowed = self.allowance.of(buffer.remaining())?;
        let mut part = vec![0; allowed];
        let mut part = ReadBuf::new(&mut part);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut part))?;
        let bytes = part.filled();
        self.allowance.use_up(bytes.len());
        buffer.put_slice(bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Limited {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let allowed = self.allowance.of(bytes.len())?;
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, &bytes[..allowed]))?;
        self.allowance.use_up(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

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
    async fn a_cut_within_a_message_forwards_its_beginning() {
        let scope = Scope::new("test");
        let network = Cuttable::start(echo_server(&scope).await).await;
        let mut stream = TcpStream::connect(network.address()).await.unwrap();
        assert!(echoes(&mut stream).await);
        // To the server and back.
        network.cut_after(7 + 4);
        stream.write_all(b"message").await.unwrap();
        let mut received = Vec::new();
        // The connection may have been reset.
        let _ = stream.read_to_end(&mut received).await;
        assert_eq!(received, b"mess");
        let mut refused = TcpStream::connect(network.address()).await.unwrap();
        assert!(!echoes(&mut refused).await);
        network.restore().await;
        let mut stream = TcpStream::connect(network.address()).await.unwrap();
        assert!(echoes(&mut stream).await);
    }

    #[tokio::test]
    async fn a_copy_of_a_listener_does_not_keep_its_port() {
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, free_port()).into())
            .await
            .unwrap();
        let address = listener.address();
        let _copy = listener.0.as_fd().try_clone_to_owned().unwrap();
        drop(listener);
        assert!(TcpStream::connect(address).await.is_err());
        Listener::bind(address).await.unwrap();
    }

    #[tokio::test]
    async fn a_port_is_awaited_while_a_copy_of_its_listener_is_open() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let copy = listener.as_fd().try_clone_to_owned().unwrap();
        drop(listener);
        let free = until_free(address);
        tokio::pin!(free);
        let waited = tokio::time::timeout(Duration::from_millis(50), &mut free).await;
        assert!(waited.is_err(), "it is in use");
        drop(copy);
        free.await;
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
