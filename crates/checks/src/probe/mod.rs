//! One run of a check: connects, sends a request, and returns a status with an output. It ends within
//! the timeout.

mod grpc;
mod http;
mod names;

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_model::{CheckStatus, CheckType, OUTPUT_MAX_SIZE};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use self::names::Names;

/// How long a run takes at most when the check has no timeout. Consul's.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// What a run found.
pub(crate) type Found = (CheckStatus, String);

/// What all runs share: the lookups of names, and the TLS configurations, which read the system's
/// roots once.
#[derive(Debug, Default)]
pub(crate) struct Prober {
    names: Names,
    verifying: OnceLock<Result<Arc<ClientConfig>, String>>,
    trusting: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Prober {
    /// Runs a check once.
    pub(crate) async fn run(&self, check: &CheckType) -> Found {
        let limit = match check.timeout {
            Duration::ZERO => DEFAULT_TIMEOUT,
            own => own,
        };
        let run = async {
            match check.type_name() {
                "http" => http::run(self, check).await,
                "grpc" => grpc::run(self, check).await,
                _ => tcp(self, check).await,
            }
        };
        let (status, mut output) = timeout(limit, run).await.unwrap_or_else(|_| {
            let output = format!("no answer within {limit:?}");
            (CheckStatus::Critical, output)
        });
        cut(&mut output, size(check));
        (status, output)
    }

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

    /// A connection, with TLS where the check has it. The certificate must be of `host`, or of the name
    /// in the check.
    async fn connect(
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

/// What is spoken over.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn tcp(prober: &Prober, check: &CheckType) -> Found {
    let address = check.tcp.as_str();
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let tls = check.tcp_use_tls.then_some([].as_slice());
    match prober.connect(check, address, host, tls).await {
        Ok(_) => (
            CheckStatus::Passing,
            format!("TCP connect {address}: Success"),
        ),
        Err(error) => (
            CheckStatus::Critical,
            format!("TCP connect {address}: {error}"),
        ),
    }
}

/// How many bytes of output are kept.
pub(crate) fn size(check: &CheckType) -> usize {
    let size = match check.output_max_size {
        0 => OUTPUT_MAX_SIZE,
        own => own,
    };
    usize::try_from(size).unwrap_or(usize::MAX)
}

pub(crate) fn cut(text: &mut String, size: usize) {
    if text.len() > size {
        let end = (0..=size).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests;
