//! Connections to servers: TCP and mutual TLS, within a deadline.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use legate_identity::tls::{AgentFiles, AgentTls, TlsError, server_name};
use legate_runtime::CancellationToken;
use rustls::pki_types::ServerName as TlsName;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::{PROTOCOLS, Protocol};

/// The time in which a connection with its handshake must be made.
const DIAL: Duration = Duration::from_secs(3);
/// How often the files are read again.
const READ_EVERY: Duration = Duration::from_secs(30);

/// The certificate and the CA of this server, which are read again when the files change.
pub(crate) struct Identity {
    files: AgentFiles,
    pub(crate) domain: String,
    current: ArcSwap<AgentTls>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl Identity {
    pub(crate) fn read(files: AgentFiles, domain: String) -> Result<Self, TlsError> {
        let current = AgentTls::read(&files, &domain, &PROTOCOLS)?;
        Ok(Self {
            files,
            domain,
            current: ArcSwap::from_pointee(current),
        })
    }

    pub(crate) fn current(&self) -> Arc<AgentTls> {
        self.current.load_full()
    }

    /// Reads the files again until `stop`. Open connections keep their certificate.
    pub(crate) async fn keep(&self, stop: CancellationToken) {
        let mut readable = true;
        while stop.run_until_cancelled(sleep(READ_EVERY)).await.is_some() {
            match AgentTls::read(&self.files, &self.domain, &PROTOCOLS) {
                Ok(tls) => {
                    readable = true;
                    self.current.store(Arc::new(tls));
                }
                Err(error) => {
                    if std::mem::replace(&mut readable, false) {
                        tracing::warn!(%error, "the certificate of this server cannot be read again; the previous one stays in use");
                    }
                }
            }
        }
    }
}

/// A connection, and the datacenters in the certificate of the server.
pub(crate) struct Connection {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) datacenters: Vec<String>,
}

/// Connects to a server of this datacenter, or of any.
pub(crate) async fn dial(
    identity: &Identity,
    address: SocketAddr,
    datacenter: Option<&str>,
    protocol: Protocol,
) -> io::Result<Connection> {
    let tls = identity.current();
    let client = tls
        .client(datacenter, protocol.name())
        .map_err(io::Error::other)?;
    let name = match datacenter {
        Some(datacenter) => {
            let name = format!("server.{datacenter}.{}", identity.domain);
            server_name(&name).map_err(io::Error::other)?
        }
        None => TlsName::IpAddress(address.ip().into()),
    };
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(client).connect(name, stream).await
    };
    let connected = timeout(DIAL, connecting).await?;
    let stream = connected.map_err(|error| explained(error, datacenter, &identity.domain))?;
    let certificates = stream.get_ref().1.peer_certificates();
    let own = certificates.and_then(|chain| chain.first());
    let datacenters = own.map(|own| tls.datacenters(own)).unwrap_or_default();
    Ok(Connection {
        stream,
        datacenters,
    })
}

/// The error of a handshake; if the certificate lacks the name, with the name.
fn explained(error: io::Error, datacenter: Option<&str>, domain: &str) -> io::Error {
    use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) =
        tls
    else {
        return error;
    };
    let datacenter = datacenter.unwrap_or("<datacenter>");
    io::Error::other(format!(
        "its certificate has no name server.{datacenter}.{domain}: create it with legate tls cert create -server -dc"
    ))
}
