//! Connections to servers, directly or through mesh gateways: TCP and mutual TLS, within a deadline.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use legate_identity::tls::{AgentFiles, AgentTls, ExpectedServer, TlsError, server_name};
use legate_runtime::CancellationToken;
use rand::seq::SliceRandom;
use rustls::pki_types::ServerName as TlsName;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::gateways::{GatewayAddress, by_turns};
use crate::membership::ServerName;
use crate::{PROTOCOLS, Protocol, Wan};

/// The time in which a connection with its handshake must be made.
const DIAL: Duration = Duration::from_secs(3);
/// The largest number of gateways that are tried for a connection.
const GATEWAYS: usize = 16;
/// The largest number of addresses of a gateway.
const ADDRESSES: usize = 8;
/// After this time another gateway is tried, too.
const SLOW: Duration = Duration::from_secs(1);
const NO_GATEWAY: &str = "no mesh gateway that leads there is known: register one that exposes servers (-expose-servers, \
                          service meta consul-wan-federation=1), and in a secondary set primary_gateways";
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

    /// Checks that the own certificate has the name by which gateways find this server.
    ///
    /// # Errors
    /// [`TlsError::BadCertificate`].
    pub(crate) fn check_node(&self, node: &str, datacenter: &str) -> Result<(), TlsError> {
        let own = ExpectedServer::OfNode { node, datacenter };
        if self.current().is_own(own) {
            return Ok(());
        }
        let name = own.name(&self.domain).unwrap_or_default();
        Err(TlsError::BadCertificate {
            origin: self.files.certificate.display().to_string(),
            reason: format!(
                "it has no name {name}, by which mesh gateways find this server: create it with legate tls cert create \
                 -server -dc {datacenter} -node {node}"
            ),
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

/// A connection to a server.
pub(crate) struct Connection {
    pub(crate) stream: TlsStream<TcpStream>,
    /// The datacenters in its certificate.
    pub(crate) datacenters: Vec<String>,
    /// The mesh gateway that it leads through.
    pub(crate) gateway: Option<GatewayAddress>,
}

/// Connects to the server at an address, or to the one that a gateway at this address leads to.
pub(crate) async fn dial(
    identity: &Identity,
    address: SocketAddr,
    server: ExpectedServer<'_>,
    protocol: Protocol,
) -> io::Result<Connection> {
    let tls = identity.current();
    let client = tls.client(server, protocol.name());
    let client = client.map_err(io::Error::other)?;
    let name = server.name(&identity.domain);
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = match &name {
            Some(name) => server_name(name).map_err(io::Error::other)?,
            None => TlsName::IpAddress(address.ip().into()),
        };
        TlsConnector::from(client).connect(name, stream).await
    };
    let connected = timeout(DIAL, connecting).await?;
    let stream = connected.map_err(|error| explained(error, server, &identity.domain))?;
    let certificates = stream.get_ref().1.peer_certificates();
    let own = certificates.and_then(|chain| chain.first());
    let datacenters = own.map(|own| tls.datacenters(own)).unwrap_or_default();
    Ok(Connection {
        stream,
        datacenters,
        gateway: None,
    })
}

/// The error of a handshake; if the certificate lacks the name, with the name.
fn explained(error: io::Error, server: ExpectedServer<'_>, domain: &str) -> io::Error {
    use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) =
        tls
    else {
        return error;
    };
    let name = server.name(domain);
    let name = name.unwrap_or_else(|| format!("server.<datacenter>.{domain}"));
    let node = match server {
        ExpectedServer::OfNode { .. } => " -node",
        _ => "",
    };
    io::Error::other(format!(
        "its certificate has no name {name}: create it with legate tls cert create -server -dc{node}"
    ))
}

impl Wan {
    /// Connects to a server: directly, or through a mesh gateway if other datacenters are reached so.
    pub(crate) async fn connect(
        &self,
        server: &ServerName,
        address: SocketAddr,
        protocol: Protocol,
    ) -> io::Result<Connection> {
        let ServerName { node, datacenter } = server;
        let is_own = datacenter.eq_ignore_ascii_case(&self.0.config.datacenter);
        if self.0.config.gateways.is_some() && !is_own {
            let server = ExpectedServer::OfNode { node, datacenter };
            return self.connect_through(datacenter, server, protocol).await;
        }
        let server = ExpectedServer::OfDatacenter(datacenter);
        dial(self.identity(), address, server, protocol).await
    }

    /// Connects to a server of another datacenter through a mesh gateway.
    pub(crate) async fn connect_through(
        &self,
        datacenter: &str,
        server: ExpectedServer<'_>,
        protocol: Protocol,
    ) -> io::Result<Connection> {
        let routes = self.routes(datacenter).map(|mut gateways| {
            gateways.shuffle(&mut rand::rng());
            gateways
        });
        let gateways = by_turns(routes).into_iter().take(GATEWAYS);
        let attempts = gateways.map(|gateway| async move {
            match self.connect_by(&gateway, server, protocol).await {
                Ok(connection) => Ok(Connection {
                    gateway: Some(gateway),
                    ..connection
                }),
                Err(error) => Err(format!("through the mesh gateway at {gateway}: {error}")),
            }
        });
        first_of(attempts, NO_GATEWAY).await
    }

    /// Connects through one gateway, at any of its addresses.
    async fn connect_by(
        &self,
        gateway: &GatewayAddress,
        server: ExpectedServer<'_>,
        protocol: Protocol,
    ) -> io::Result<Connection> {
        let found = lookup_host((gateway.host.as_str(), gateway.port));
        let found = timeout(DIAL, found).await??.take(ADDRESSES);
        let attempts = found.map(|address| async move {
            let dialled = dial(self.identity(), address, server, protocol).await;
            dialled.map_err(|error| error.to_string())
        });
        first_of(attempts, "it has no address").await
    }
}

/// The result of the first attempt that succeeds. Each begins when the one before has failed, or takes long.
async fn first_of<T>(
    mut attempts: impl Iterator<Item = impl Future<Output = Result<T, String>>>,
    none: &str,
) -> io::Result<T> {
    let mut running = FuturesUnordered::new();
    let mut reasons = Vec::new();
    loop {
        match attempts.next() {
            Some(next) => running.push(next),
            None if running.is_empty() => {
                return Err(io::Error::other(match reasons.is_empty() {
                    true => none.to_owned(),
                    false => reasons.join("; "),
                }));
            }
            None => {}
        }
        tokio::select! {
            Some(ended) = running.next() => match ended {
                Ok(connected) => return Ok(connected),
                Err(reason) => reasons.push(reason),
            },
            () = sleep(SLOW) => {}
        }
    }
}
