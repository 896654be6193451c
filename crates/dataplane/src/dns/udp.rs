//! DNS over UDP: one task receives, one task per query replies.
//!
//! The receiving task waits for nothing but the next datagram.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use legate_runtime::Spawner;
use tokio::net::UdpSocket;

use super::answer::Answerer;
use super::message::{MAX_MESSAGE, Transport};

/// Pause before the next receive after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// Receives queries until the scope stops. The port is free once the last reply has been sent.
pub(super) async fn serve(
    socket: Arc<UdpSocket>,
    answerer: Arc<Answerer>,
    spawner: Spawner,
) -> Result<(), Infallible> {
    let stop = spawner.token();
    let mut buffer = vec![0; MAX_MESSAGE];
    while let Some(received) = stop
        .run_until_cancelled(socket.recv_from(&mut buffer))
        .await
    {
        let (length, client) = match received {
            Ok(received) => received,
            Err(error) => {
                // The peer rejected an earlier reply, or memory is short; the socket still works.
                tracing::debug!(target: "dns-proxy.udp", %error, "cannot receive");
                stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                continue;
            }
        };
        let message = Bytes::copy_from_slice(&buffer[..length]);
        let Some(query) = answerer.read(message, Transport::Udp) else {
            continue;
        };
        let Some(slot) = answerer.admit(Transport::Udp) else {
            // If the socket cannot send the reply immediately, it is dropped.
            let sent = socket.try_send_to(&answerer.overloaded(&query), client);
            log_failure(sent, client);
            continue;
        };
        let (socket, answerer) = (Arc::clone(&socket), Arc::clone(&answerer));
        spawner.spawn("dns udp query", async move {
            let reply = answerer.answer(&query, Some(slot)).await;
            log_failure(socket.send_to(&reply, client).await, client);
            Ok::<_, Infallible>(())
        });
    }
    Ok(())
}

fn log_failure(sent: std::io::Result<usize>, client: SocketAddr) {
    if let Err(error) = sent {
        tracing::debug!(target: "dns-proxy.udp", %client, %error, "cannot send a reply");
    }
}
