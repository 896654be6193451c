//! UDP checks: send an empty datagram, which must not be refused. Most protocols do not respond to
//! it, so no response is passing. A closed port responds with an ICMP error.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use legate_model::{CheckStatus, CheckType};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::dial::Dialer;
use super::output::RunResult;

/// How long to wait for a refusal, which takes one round trip. Without one the check passes.
const SILENCE: Duration = Duration::from_secs(1);

pub(super) async fn run(dialer: &Dialer, check: &CheckType) -> RunResult {
    let address = check.udp.as_str();
    match probe(dialer, check).await {
        Ok(()) => (
            CheckStatus::Passing,
            format!("UDP connect {address}: Success"),
        ),
        Err(error) => (
            CheckStatus::Critical,
            format!("UDP connect {address}: {error}"),
        ),
    }
}

async fn probe(dialer: &Dialer, check: &CheckType) -> io::Result<()> {
    let addresses = dialer.names.addresses(&check.udp).await?;
    let to = addresses.first().copied();
    let to = to.ok_or_else(|| io::Error::other("the name has no address"))?;
    let from: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(from).await?;
    socket.connect(to).await?;
    socket.send(&[]).await?;
    // Less than the timeout, which would be a failure.
    let silence = match check.timeout {
        Duration::ZERO => SILENCE,
        own => SILENCE.min(own / 2),
    };
    match timeout(silence, socket.recv(&mut [0; 1])).await {
        Ok(answer) => answer.map(|_| ()),
        Err(_) => Ok(()),
    }
}
