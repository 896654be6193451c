//! The listener that Envoy connects to: a loopback address or a unix socket. It replaces a stale
//! socket file, and removes its own when it is dropped.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use legate_envoy::bootstrap::XdsAddress;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

/// Why the listener cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for Envoy on {0}")]
pub struct BindError(String);

/// A TCP or unix connection.
pub(super) type Stream = Either<TcpStream, UnixStream>;

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    socket: Either<TcpListener, UnixListener>,
    address: XdsAddress,
    _file: Option<SocketFile>,
}

/// A socket file that is removed together with its listener.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "socket file not removed");
        }
    }
}

impl Listener {
    /// Binds the configured address. Connections are accepted from then on.
    ///
    /// # Errors
    /// When the address is taken or not allowed; the error names the settings.
    pub async fn bind(bind: &XdsAddress) -> Result<Listener, BindError> {
        match bind {
            XdsAddress::Tcp(address) => {
                let failed = |error: io::Error| {
                    BindError(format!(
                        "{address} (-xds-bind-addr, -xds-bind-port): {error}"
                    ))
                };
                let socket = TcpListener::bind(address).await.map_err(failed)?;
                let bound = socket.local_addr().map_err(failed)?;
                Ok(Listener {
                    socket: Either::Left(socket),
                    address: XdsAddress::Tcp(bound),
                    _file: None,
                })
            }
            XdsAddress::Unix(path) => {
                let failed = |error: io::Error| {
                    let path = path.display();
                    BindError(format!("the socket {path} (-xds-bind-addr): {error}"))
                };
                let socket = bind_unix(path).await.map_err(failed)?;
                Ok(Listener {
                    socket: Either::Right(socket),
                    address: bind.clone(),
                    _file: Some(SocketFile(path.clone())),
                })
            }
        }
    }

    /// The address for Envoy. Contains the actual port if the configured one is 0.
    pub fn address(&self) -> &XdsAddress {
        &self.address
    }

    pub(super) async fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Either::Left(socket) => {
                let (stream, _) = socket.accept().await?;
                // Fails if the connection has already ended; reading reports that, too.
                let _ = stream.set_nodelay(true);
                Ok(Either::Left(stream))
            }
            Either::Right(socket) => Ok(Either::Right(socket.accept().await?.0)),
        }
    }
}

async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let socket = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(path).await.is_ok() {
                return Err(io::Error::other("another process listens on it"));
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        other => other?,
    };
    // Any client that can connect gets the proxy's private keys.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_abandoned_socket_is_taken_over_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xds.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let bind = XdsAddress::Unix(path.clone());
        let listener = Listener::bind(&bind).await.unwrap();
        assert_eq!(listener.address(), &XdsAddress::Unix(path.clone()));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let error = Listener::bind(&bind).await.unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn an_ephemeral_port_is_reported_and_a_taken_one_names_the_setting() {
        let any = XdsAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = Listener::bind(&any).await.unwrap();
        let XdsAddress::Tcp(bound) = *listener.address() else {
            panic!("{listener:?}")
        };
        assert_ne!(bound.port(), 0);
        let error = Listener::bind(&XdsAddress::Tcp(bound))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("-xds-bind-port"), "{error}");
    }
}
