//! Accepting connections, for all APIs: listening, and the connection limits of each API. Does not read or write
//! connections.

mod limits;
mod local;

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

pub use legate_runtime::admission::ApiLimit;
pub(crate) use legate_runtime::admission::{Admission, Permit};
pub use limits::ConnectionLimits;
pub(crate) use local::{accept_local, listen_local};

/// Length of the kernel's accept queue, capped by `net.core.somaxconn` (4,096 by default).
const BACKLOG: u32 = 65_535;

/// Listens with `SO_REUSEADDR`, so that connections in TIME_WAIT do not block the port.
///
/// # Errors
/// The system's error.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Whether this machine has IPv6 enabled.
pub(crate) fn has_ipv6() -> bool {
    std::path::Path::new("/proc/net/if_inet6").exists()
}

/// Accepts the next client. Running out of file descriptors is temporary and must not end the listener.
pub(crate) async fn accept(api: &'static str, listener: &TcpListener) -> (TcpStream, SocketAddr) {
    legate_runtime::net::accept(api, || listener.accept()).await
}
