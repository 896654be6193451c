//! UDP checks: an empty datagram that nobody refuses. Most protocols do not answer it, so that
//! silence passes; a port without a program answers that nobody is there.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use legate_model::{CheckStatus, CheckType};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::dial::Dialer;
use super::output::Found;

/// How long a refusal may take; it needs a round trip. After that the silence is the answer.
const SILENCE: Duration = Duration::from_secs(1);

pub(super) async fn run(dialer: &Dialer, check: &CheckType) -> Found {
    let address = check.udp.as_str();
    match ask(dialer, check).await {
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

async fn ask(dialer: &Dialer, check: &CheckType) -> io::Result<()> {
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
    // Less than the whole timeout, which is a failure.
    let silence = match check.timeout {
        Duration::ZERO => SILENCE,
        own => SILENCE.min(own / 2),
    };
    match timeout(silence, socket.recv(&mut [0; 1])).await {
        Ok(answer) => answer.map(|_| ()),
        Err(_) => Ok(()),
    }
}
