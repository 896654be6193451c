//! HTTP/2 pings: the server must acknowledge a PING frame.

use std::pin::pin;

use futures_util::future::{Either, select};
use h2::Ping;
use legate_model::{CheckStatus, CheckType};

use super::dial::Dialer;
use super::output::RunResult;

pub(super) async fn run(dialer: &Dialer, check: &CheckType) -> RunResult {
    match ping(dialer, check).await {
        Ok(()) => (CheckStatus::Passing, "HTTP2 ping was successful".to_owned()),
        Err(error) => (CheckStatus::Critical, error),
    }
}

async fn ping(dialer: &Dialer, check: &CheckType) -> Result<(), String> {
    let address = check.h2ping.as_str();
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let tls = (check.h2ping_use_tls != Some(false)).then_some(b"h2".as_slice());
    let stream = dialer.connect(check, address, host, tls).await;
    let stream = stream.map_err(|error| format!("Failed to dial to {address}: {error}"))?;
    let failed = |error: &h2::Error| format!("HTTP2 ping failed: {error}");
    // Dropping the request handle would close the connection.
    let (_requests, mut connection) = h2::client::handshake(stream)
        .await
        .map_err(|error| format!("Failed to create client connection {error}"))?;
    let mut pings = connection
        .ping_pong()
        .ok_or("HTTP2 ping failed: the connection has no pings")?;
    let pong = pin!(pings.ping(Ping::opaque()));
    match select(pong, connection).await {
        Either::Left((pong, _)) => pong.map(|_| ()).map_err(|error| failed(&error)),
        Either::Right((Err(error), _)) => Err(failed(&error)),
        Either::Right((Ok(()), _)) => Err("HTTP2 ping failed: the server closed".to_owned()),
    }
}
