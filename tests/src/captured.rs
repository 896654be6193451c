//! A network in which the traffic of one user is captured, as in a pod whose service is in
//! transparent mode: everything that the user's connections send arrives at port 15001. What a second
//! user sends to port 8080 arrives at port 20000 of the same address, as what others send to a pod.
//!
//! It takes a network namespace, which belongs to a process: a test starts itself again in one. That
//! takes root, `unshare` of util-linux, `ip` of iproute2 and `nft` of nftables.

use std::io;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use http::Request;
use http::request::Builder;
use legate_runtime::BoxError;
use nix::unistd::{Uid, setfsuid};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::client::{self, Answer};

/// The user whose traffic is captured. Everybody else's is not.
const APPLICATION: u32 = 1000;

/// The user whose connections arrive at the sidecar of whom they are sent to.
const STRANGER: u32 = 1001;

/// An address of the network that is no loopback address.
pub const OUTSIDE: [u8; 4] = [10, 77, 0, 1];

/// Longest wait for an answer, and for an address at which nobody answers.
const LIMIT: Duration = Duration::from_secs(3);

/// Addresses that nobody has are refused at once, so that nobody waits for them.
const NETWORK: &str = "
ip link set lo up
ip address add 10.77.0.1/24 dev lo
ip route add default dev lo src 10.77.0.1
nft -f - <<END
table ip captured {
  chain capture {
    type nat hook output priority -100
    meta skuid 1000 meta l4proto tcp redirect to :15001
    meta skuid 1001 tcp dport 8080 dnat to :20000
  }
  chain nobody {
    type filter hook output priority 0
    ip daddr { 240.0.0.0/4, 10.96.0.0/16 } meta l4proto tcp reject with tcp reset
  }
}
END
";

/// Runs an ignored test of this program in a network of its own. `name` is its whole name.
///
/// # Panics
///
/// When it fails or cannot be run.
pub fn run(name: &str) {
    let program = std::env::current_exe().expect("this program has a file");
    let script = format!("set -e\n{NETWORK}\nexec \"$@\"");
    let status = Command::new("unshare")
        .args(["--net", "sh", "-c", &script, "sh"])
        .arg(program)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .status();
    let status = status.expect("unshare can be run (Debian: util-linux)");
    assert!(
        status.success(),
        "{name}: {status}; it takes root, ip (Debian: iproute2) and nft (Debian: nftables)"
    );
}

/// Whether this process is in such a network: whoever runs ignored tests may not be.
#[must_use]
pub fn is_here() -> bool {
    std::net::TcpListener::bind(SocketAddr::from((OUTSIDE, 0))).is_ok()
}

/// `GET /` by the user whose traffic is captured, on a connection of its own.
///
/// # Errors
///
/// When there is no complete HTTP answer in time.
pub async fn get(server: SocketAddr) -> Result<Answer, BoxError> {
    ask(server, Request::get("/")).await
}

/// A request without a body by the user whose traffic is captured, on a connection of its own.
///
/// # Errors
///
/// When there is no complete HTTP answer in time.
pub async fn ask(server: SocketAddr, request: Builder) -> Result<Answer, BoxError> {
    ask_as(APPLICATION, server, request).await
}

/// A connection of the user whose traffic is captured.
///
/// # Errors
///
/// When nobody takes it. It may wait without end.
pub async fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    connect_as(APPLICATION, server).await
}

/// `GET /` by a user who is not in the mesh, to an application with a sidecar.
///
/// # Errors
///
/// When there is no complete HTTP answer in time.
pub async fn get_from_outside(server: SocketAddr) -> Result<Answer, BoxError> {
    ask_as(STRANGER, server, Request::get("/")).await
}

async fn ask_as(user: u32, server: SocketAddr, request: Builder) -> Result<Answer, BoxError> {
    let request = request.header("host", server.to_string());
    let exchange = async {
        let stream = connect_as(user, server).await?;
        client::get_on(stream, request).await
    };
    timeout(LIMIT, exchange).await?
}

async fn connect_as(user: u32, server: SocketAddr) -> io::Result<TcpStream> {
    // Whose a socket is says the thread that makes it.
    let before = setfsuid(Uid::from_raw(user));
    let socket = TcpSocket::new_v4();
    setfsuid(before);
    socket?.connect(server).await
}
