//! TCP connections as every API accepts them: listening, a limit in all and for one address, and
//! how that fits the files the process may open. It reads and writes no byte of a connection.

mod admission;
mod limits;
mod local;

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

pub(crate) use admission::{Admission, Place};
pub use limits::{ApiLimit, ConnectionLimits};
pub(crate) use local::{accept_local, listen_local};

/// Connections that the kernel may hold until they are accepted. It takes no more than
/// `net.core.somaxconn`, 4,096 by default.
const BACKLOG: u32 = 65_535;

/// Listens with `SO_REUSEADDR`, so that connections that linger do not keep the port.
///
/// # Errors
/// What the system says.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Whether this machine has IPv6, by the file that Linux has for it.
pub(crate) fn has_ipv6() -> bool {
    std::path::Path::new("/proc/net/if_inet6").exists()
}

/// The next client. Running out of file descriptors passes; it must not end the listener.
pub(crate) async fn accept(api: &'static str, listener: &TcpListener) -> (TcpStream, SocketAddr) {
    legate_runtime::net::accept(api, || listener.accept()).await
}
