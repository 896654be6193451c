//! Connections of checks to their targets, with name resolution and optional TLS.

use std::io;
use std::sync::{Arc, OnceLock};

use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_model::CheckType;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::names::Names;

/// Name resolution and TLS configurations, which load the system's roots once. Shared by all runs.
#[derive(Debug, Default)]
pub(super) struct Dialer {
    pub(super) names: Names,
    verifying: OnceLock<Result<Arc<ClientConfig>, String>>,
    trusting: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Dialer {
    fn config(&self, check: &CheckType) -> io::Result<Arc<ClientConfig>> {
        let skip = check.tls_skip_verify;
        let kept = if skip {
            &self.trusting
        } else {
            &self.verifying
        };
        let made = kept.get_or_init(|| {
            let options = ClientTls {
                insecure_skip_verify: skip,
                ..ClientTls::default()
            };
            client_config(&options).map_err(|error| error.to_string())
        });
        made.clone().map_err(io::Error::other)
    }

    /// Connects, with TLS if the check uses it. The certificate must be valid for `host`, or for the
    /// server name of the check.
    pub(super) async fn connect(
        &self,
        check: &CheckType,
        address: &str,
        host: &str,
        tls: Option<&[u8]>,
    ) -> io::Result<Box<dyn Stream>> {
        let addresses = self.names.addresses(address).await?;
        let stream = TcpStream::connect(&*addresses).await?;
        let Some(protocol) = tls else {
            return Ok(Box::new(stream));
        };
        let mut config = (*self.config(check)?).clone();
        if !protocol.is_empty() {
            config.alpn_protocols = vec![protocol.to_vec()];
        }
        let name = match check.tls_server_name.as_str() {
            "" => host.trim_start_matches('[').trim_end_matches(']'),
            own => own,
        };
        let name = server_name(name).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Box::new(connector.connect(name, stream).await?))
    }
}

/// The transport of a probe.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
