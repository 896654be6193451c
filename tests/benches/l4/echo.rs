//! The application: returns what it gets, or only counts it.

use std::net::{Ipv4Addr, SocketAddr};

use legate_runtime::Scope;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The first byte of a connection whose bytes are not returned. At its end one byte is.
pub(crate) const SINK: u8 = b's';

/// Serves at an address until the scope ends.
pub(crate) async fn serve(address: SocketAddr, scope: &Scope) {
    accept(
        TcpListener::bind(address)
            .await
            .expect("the address is free"),
        scope,
    );
}

/// Serves at a free address.
pub(crate) async fn serve_anywhere(scope: &Scope) -> SocketAddr {
    let any = (Ipv4Addr::LOCALHOST, 0);
    let listener = TcpListener::bind(any).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    accept(listener, scope);
    address
}

fn accept(listener: TcpListener, scope: &Scope) {
    let spawner = scope.spawner();
    scope.spawner().spawn_until_stop("application", async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawner.spawn_until_stop("connection", async move {
                // The caller sees what is missing.
                let _ = answer(stream).await;
            });
        }
    });
}

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 2048];
    let mut first = true;
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        if std::mem::take(&mut first) && buffer[0] == SINK {
            break;
        }
        stream.write_all(&buffer[..count]).await?;
    }
    buffer.resize(256 * 1024, 0);
    while stream.read(&mut buffer).await? > 0 {}
    stream.write_u8(SINK).await
}
