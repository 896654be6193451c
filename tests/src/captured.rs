//! A network in which the traffic of one user is captured, as in a pod in transparent mode: all
//! connections of that user arrive at port 15001. Connections of a second user to port 8080 arrive at
//! port 20000 of the same address, like inbound traffic of a pod.
//!
//! It requires a network namespace, which belongs to a process: a test executes itself again in one.
//! This requires root, `unshare` of util-linux, `ip` of iproute2 and `nft` of nftables.

use std::io;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use http::Request;
use http::request::Builder;
use legate_runtime::BoxError;
use legate_testkit::requirement::{self, IP, NFT, ROOT};
use nix::unistd::{Uid, setfsuid};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::client::{self, Answer};

/// The user whose traffic is captured.
const APPLICATION: u32 = 1000;

/// The user whose connections are redirected to the receiver's sidecar.
const STRANGER: u32 = 1001;

/// An address of the network outside of the loopback range.
pub const OUTSIDE: [u8; 4] = [10, 77, 0, 1];

/// The timeout of responses and of refused connections.
const LIMIT: Duration = Duration::from_secs(3);

/// Connections to unused addresses are refused at once instead of timing out.
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

/// Runs an ignored test of this program in a network of its own. `name` is its full name. On a machine that cannot
/// have such a network, the calling test is left out.
///
/// # Panics
///
/// If it fails or cannot be run.
pub fn run(name: &str) {
    if !requirement::met(&[ROOT, IP, NFT]) {
        return;
    }
    let program = std::env::current_exe().expect("this program has a file");
    let script = format!("set -e\n{NETWORK}\nexec \"$@\"");
    let status = Command::new("unshare")
        .args(["--net", "sh", "-c", &script, "sh"])
        .arg(program)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .status();
    let status = status.expect("unshare was started before");
    assert!(status.success(), "{name}: {status}");
}

/// Whether this process is in such a network, because ignored tests may be run outside of one.
#[must_use]
pub fn is_here() -> bool {
    std::net::TcpListener::bind(SocketAddr::from((OUTSIDE, 0))).is_ok()
}

/// `GET /` by the captured user, on a new connection.
///
/// # Errors
///
/// If there is no complete HTTP response in time.
pub async fn get(server: SocketAddr) -> Result<Answer, BoxError> {
    ask(server, Request::get("/")).await
}

/// A request without a body by the captured user, on a new connection.
///
/// # Errors
///
/// If there is no complete HTTP response in time.
pub async fn ask(server: SocketAddr, request: Builder) -> Result<Answer, BoxError> {
    ask_as(APPLICATION, server, request).await
}

/// A connection of the captured user.
///
/// # Errors
///
/// If it is refused. There is no timeout.
pub async fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    connect_as(APPLICATION, server).await
}

/// `GET /` by a user outside of the mesh, to an application with a sidecar.
///
/// # Errors
///
/// If there is no complete HTTP response in time.
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
    // The thread that opens a socket determines its owner.
    let before = setfsuid(Uid::from_raw(user));
    let socket = TcpSocket::new_v4();
    setfsuid(before);
    socket?.connect(server).await
}
