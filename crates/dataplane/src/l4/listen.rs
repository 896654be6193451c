//! Sockets that the proxy listens on, and the task that accepts on one of them.
//!
//! Each data thread has its own socket for the same address (`SO_REUSEPORT`, as Envoy has), so that threads share
//! nothing when they accept, and another proxy of the same user can take the address over.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use legate_l4::model::{Address, Name};
use legate_runtime::CancellationToken;
use socket2::{Domain, Protocol, SockRef, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::connection::{Accepted, serve};
use super::io::Socket;
use super::shared::Shared;

/// Connections that wait to be accepted. The system's `somaxconn` limits it further.
const BACKLOG: i32 = 4_096;

/// Pause after the system refused a connection, because there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// After so many rounds that did not wait, other tasks of the thread have their turn.
const ROUNDS: usize = 32;

/// A socket that listens.
#[derive(Debug)]
pub(super) enum Listening {
    Tcp(std::net::TcpListener),
    Unix(StdUnixListener, SocketFile),
}

impl Listening {
    /// Begins to listen, which takes the next place of the group. That of a socket that listens changes nothing.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn listen(&self) -> io::Result<()> {
        match self {
            Listening::Tcp(socket) => SockRef::from(socket).listen(BACKLOG),
            Listening::Unix(..) => Ok(()),
        }
    }

    /// A connection of its queue.
    ///
    /// # Errors
    /// When there is none.
    fn accept(&self) -> io::Result<Accepted> {
        let (socket, remote) = match self {
            Listening::Tcp(socket) => {
                let (stream, remote) = socket.accept()?;
                stream.set_nonblocking(true)?;
                (Socket::Tcp(TcpStream::from_std(stream)?), Some(remote))
            }
            Listening::Unix(socket, _) => {
                let (stream, _) = socket.accept()?;
                stream.set_nonblocking(true)?;
                (Socket::Unix(UnixStream::from_std(stream)?), None)
            }
        };
        Ok(Accepted { socket, remote })
    }

    /// Another descriptor of a TCP socket, which steers its group. As long as it is open, the socket is.
    pub(super) fn group(&self) -> Option<OwnedFd> {
        match self {
            Listening::Tcp(socket) => Some(socket.try_clone().ok()?.into()),
            Listening::Unix(..) => None,
        }
    }
}

/// A socket file that is removed with its socket, unless another socket has taken its path.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: Option<u64>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.inode.is_some() && inode(&self.path) == self.inode {
            // Fails if somebody else has removed it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).ok().map(|file| file.ino())
}

/// Binds `count` sockets to an address; one for a unix socket, which cannot be shared. Those of TCP do not listen yet.
///
/// # Errors
/// The system's error.
pub(super) fn bind(address: &Address, count: usize) -> io::Result<Vec<Listening>> {
    match address {
        Address::Socket(address) => {
            let bind = |_| Ok(Listening::Tcp(bind_tcp(*address)?.into()));
            (0..count).map(bind).collect()
        }
        Address::Pipe { path, mode } => Ok(vec![open_unix(path, *mode)?]),
        Address::Dns(name, _) => Err(io::Error::other(format!(
            "{name} is a name; a listener needs an IP address"
        ))),
    }
}

/// A socket of a group at this address. It does not listen yet.
pub(super) fn bind_tcp(address: std::net::SocketAddr) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        // As in Envoy; IPv4 has listeners of its own.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A socket file appears at its path with its mode and ready to accept, in one step, in the place of an earlier one.
fn open_unix(path: &Path, mode: u32) -> io::Result<Listening> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    if let Some(name) = path.as_os_str().as_bytes().strip_prefix(b"@") {
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        let socket = StdUnixListener::bind_addr(&address)?;
        socket.set_nonblocking(true)?;
        let file = SocketFile {
            path: path.to_owned(),
            inode: None,
        };
        return Ok(Listening::Unix(socket, file));
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    // Left behind by a process with the same number that was killed.
    let _ = fs::remove_file(&temporary);
    let socket = StdUnixListener::bind(&temporary)?;
    socket.set_nonblocking(true)?;
    if mode != 0 {
        fs::set_permissions(&temporary, fs::Permissions::from_mode(mode))?;
    }
    fs::rename(&temporary, path)?;
    let file = SocketFile {
        inode: inode(path),
        path: path.to_owned(),
    };
    Ok(Listening::Unix(socket, file))
}

/// A socket of the runtime.
enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Acceptor {
    fn new(listening: Listening) -> io::Result<Acceptor> {
        listening.listen()?;
        Ok(match listening {
            Listening::Tcp(socket) => Acceptor::Tcp(TcpListener::from_std(socket)?),
            Listening::Unix(socket, file) => Acceptor::Unix(UnixListener::from_std(socket)?, file),
        })
    }

    fn into_std(self) -> io::Result<Listening> {
        Ok(match self {
            Acceptor::Tcp(socket) => Listening::Tcp(socket.into_std()?),
            Acceptor::Unix(socket, file) => Listening::Unix(socket.into_std()?, file),
        })
    }

    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Acceptor::Tcp(socket) => {
                let (stream, remote) = socket.accept().await?;
                Ok(Accepted {
                    socket: Socket::Tcp(stream),
                    remote: Some(remote),
                })
            }
            Acceptor::Unix(socket, _) => {
                let (stream, _) = socket.accept().await?;
                Ok(Accepted {
                    socket: Socket::Unix(stream),
                    remote: None,
                })
            }
        }
    }
}

/// Accepts and serves connections until `stop`, and serves those that are open then until they end.
///
/// # Errors
/// When the runtime cannot take the socket.
pub(super) async fn run(
    shared: Arc<Shared>,
    name: Name,
    listening: Listening,
    stop: CancellationToken,
) -> io::Result<()> {
    let mut acceptor = Some(Acceptor::new(listening)?);
    let mut connections = FuturesUnordered::new();
    // The runtime's budget is for tasks with a few sources. This one has thousands, and gives others their turn itself.
    tokio::task::unconstrained(async {
        let mut rounds = 0;
        while acceptor.is_some() || !connections.is_empty() {
            rounds += 1;
            if rounds % ROUNDS == 0 {
                yield_now().await;
            }
            tokio::select! {
                () = stop.cancelled(), if acceptor.is_some() => {
                    // Callers that wait in the queue are served, unless their listener is gone; closing it resets them.
                    for accepted in waiting(&shared, acceptor.take()) {
                        connections.extend(begin(&shared, &name, accepted));
                    }
                }
                accepted = next(&shared, acceptor.as_ref()), if acceptor.is_some() => {
                    connections.extend(begin(&shared, &name, accepted));
                }
                Some(()) = connections.next(), if !connections.is_empty() => {}
            }
        }
    })
    .await;
    Ok(())
}

/// A connection, and its part of the limit of connections.
type Next = (Accepted, tokio::sync::OwnedSemaphorePermit);

/// Serves a connection; `None` if its listener is gone.
fn begin(
    shared: &Arc<Shared>,
    name: &Name,
    (accepted, slot): Next,
) -> Option<BoxFuture<'static, ()>> {
    let listener = shared.serving().listeners.get(name).cloned()?;
    let served = serve(Arc::clone(shared), listener, accepted);
    Some(Box::pin(async move {
        served.await;
        drop(slot);
    }))
}

/// The connections in the queue of a socket that is about to be closed. The runtime may not have noticed them yet.
fn waiting(shared: &Shared, acceptor: Option<Acceptor>) -> Vec<Next> {
    let socket = acceptor.map(Acceptor::into_std).transpose();
    let Ok(Some(socket)) = socket else {
        return Vec::new();
    };
    let mut found = Vec::new();
    while let Some(slot) = shared.slot().now_or_never() {
        let Ok(accepted) = socket.accept() else {
            break;
        };
        found.push((accepted, slot));
    }
    found
}

/// The next connection, once the process may have another one. Until then, connections wait in the system's queue.
async fn next(shared: &Shared, acceptor: Option<&Acceptor>) -> Next {
    let Some(acceptor) = acceptor else {
        return std::future::pending().await;
    };
    let slot = shared.slot().await;
    loop {
        match acceptor.accept().await {
            Ok(accepted) => return (accepted, slot),
            Err(error) => {
                shared.stats.own.accept_pauses.inc();
                if let Some(suppressed) = shared.refused.pass() {
                    tracing::warn!(%error, suppressed, "cannot accept a connection");
                }
                sleep(PAUSE).await;
            }
        }
    }
}
