//! Accepts connections despite system errors. Never reads or writes data.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::time::sleep;

/// Delay after the system refused a connection, so that a lack of file descriptors does not cause a
/// busy loop.
const PAUSE: Duration = Duration::from_millis(100);

/// The next connection of `accept`. Running out of file descriptors is temporary: the error is logged
/// once, with the name of the `listener`, and accepting continues. Cancel safe if `accept` is.
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
                sleep(PAUSE).await;
            }
        }
    }
}
