//! One run of a check: connects, sends a request, and returns a status with an output. It ends within
//! the timeout.

mod docker;
mod grpc;
mod h2ping;
mod http;
mod names;
mod output;
mod script;
mod udp;

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_model::{CheckStatus, CheckType};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use self::names::Names;
use crate::settings::Settings;

/// How long a run takes at most when the check has no timeout. Consul's.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for programs.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(30);

/// What a run found.
pub(crate) type Found = (CheckStatus, String);

/// What all runs share: the lookups of names, and the TLS configurations, which read the system's
/// roots once.
#[derive(Debug, Default)]
pub(crate) struct Prober {
    settings: Settings,
    names: Names,
    verifying: OnceLock<Result<Arc<ClientConfig>, String>>,
    trusting: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Prober {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Runs a check once.
    pub(crate) async fn run(&self, check: &CheckType) -> Found {
        let kind = check.type_name();
        let limit = match check.timeout {
            Duration::ZERO if check.is_script() => SCRIPT_TIMEOUT,
            Duration::ZERO => DEFAULT_TIMEOUT,
            own => own,
        };
        if kind == "script" {
            return script::run(&check.script_args, limit, self.size(check)).await;
        }
        if kind == "docker" {
            return docker::run(self, check, limit).await;
        }
        let run = async {
            match kind {
                "http" => http::run(self, check).await,
                "grpc" => grpc::run(self, check).await,
                "h2ping" => h2ping::run(self, check).await,
                "udp" => udp::run(self, check).await,
                _ => tcp(self, check).await,
            }
        };
        let (status, mut output) = timeout(limit, run).await.unwrap_or_else(|_| {
            let output = format!("no answer within {limit:?}");
            (CheckStatus::Critical, output)
        });
        cut(&mut output, self.size(check));
        (status, output)
    }

    /// How many bytes of output are kept.
    fn size(&self, check: &CheckType) -> usize {
        size(check, &self.settings)
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
    let over = if check.tcp_use_tls { "TCP+TLS" } else { "TCP" };
    match prober.connect(check, address, host, tls).await {
        Ok(_) => (
            CheckStatus::Passing,
            format!("{over} connect {address}: Success"),
        ),
        Err(error) => (
            CheckStatus::Critical,
            format!("{over} connect {address}: {error}"),
        ),
    }
}

/// How many bytes of output are kept: what the agent permits, or less when the check says so.
pub(crate) fn size(check: &CheckType, settings: &Settings) -> usize {
    let size = match check.output_max_size {
        0 => settings.output_max_size,
        own => own.min(settings.output_max_size),
    };
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// The output that somebody reports for a check, as much of it as is kept.
pub fn shortened(mut output: String, check: &CheckType, settings: &Settings) -> String {
    let (whole, size) = (output.len(), size(check, settings));
    if whole > size {
        cut(&mut output, size);
        output = format!("{output} ... (captured {size} of {whole} bytes)");
    }
    output
}

pub(crate) fn cut(text: &mut String, size: usize) {
    if text.len() > size {
        let end = (0..=size).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests;
