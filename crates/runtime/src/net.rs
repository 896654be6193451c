//! Listening: how connections are accepted whatever the system says. It reads and writes no byte.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::time::sleep;

/// How long a listener rests when the system refuses a connection, so that a lack of file descriptors
/// does not become a busy loop.
const REST: Duration = Duration::from_millis(100);

/// The next connection, by `accept`. Running out of file descriptors passes: it is logged under the
/// name of the `listener`, once, and ends nothing. Cancel safe where `accept` is.
pub async fn accept<T, F>(listener: &str, accept: impl Fn() -> F) -> T
where
    F: Future<Output = io::Result<T>>,
{
    let mut refused = false;
    loop {
        match accept().await {
            Ok(connection) => return connection,
            Err(error) => {
                if !std::mem::replace(&mut refused, true) {
                    tracing::warn!(listener, %error, "cannot accept a connection");
                }
                sleep(REST).await;
            }
        }
    }
}
