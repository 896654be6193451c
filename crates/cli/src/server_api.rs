//! Questions to the HTTP API of a server, wherever it is.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Args;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use legate_identity::tls::{self, ClientTls};
use legate_model::Secret;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::http_client;

/// How long an answer may take, connecting included.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Largest answer that is read, in bytes: some kilobytes for each of 10,000 proxies.
const SIZE_LIMIT: usize = 64 << 20;

/// Which server is asked, and as whom.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerApi {
    /// Ask the HTTP API of this server, instead of sidecars on Kubernetes: HOST:PORT, http://HOST:PORT
    /// or https://HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http_addr: Option<String>,
    /// ACL token for the server
    #[arg(
        long,
        env = "CONSUL_HTTP_TOKEN",
        hide_env_values = true,
        value_parser = |text: &str| Ok::<_, Infallible>(Secret::new(text.to_owned())),
        value_name = "TOKEN"
    )]
    token: Option<Secret>,
    /// File with the ACL token for the server; it wins over --token
    #[arg(long, env = "CONSUL_HTTP_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Certificates that an https server is verified with: a PEM file, or a folder of them. Default:
    /// those of the system
    #[arg(long, env = "CONSUL_CACERT", value_name = "PATH")]
    ca_file: Option<PathBuf>,
    /// The name in the certificate of an https server. Default: the host of --http-addr
    #[arg(long, env = "CONSUL_TLS_SERVER_NAME", value_name = "NAME")]
    tls_server_name: Option<String>,
}

/// An address that was taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Address<'a> {
    /// With the port.
    authority: &'a str,
    host: &'a str,
    https: bool,
}

fn parse(text: &str) -> anyhow::Result<Address<'_>> {
    let (https, authority) = match text.split_once("://") {
        None => (false, text),
        Some(("http", authority)) => (false, authority),
        Some(("https", authority)) => (true, authority),
        Some((scheme, _)) => bail!("--http-addr {text:?}: {scheme} is neither http nor https"),
    };
    let authority = authority.trim_end_matches('/');
    let parts = authority.rsplit_once(':');
    let (host, _) = parts
        .filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        .with_context(|| format!("--http-addr {text:?} is not HOST:PORT"))?;
    Ok(Address {
        authority,
        host: host.trim_start_matches('[').trim_end_matches(']'),
        https,
    })
}

impl ServerApi {
    /// `GET` of a path whose answer is JSON.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked, or does not answer with a success.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let address = self.http_addr.as_deref().unwrap_or_default();
        let to = parse(address)?;
        let asking = async {
            let (status, body) = self.ask(&to, path).await?;
            let text = String::from_utf8_lossy(&body);
            ensure!(status.is_success(), "{status}: {}", text.trim());
            serde_json::from_slice(&body).context("the answer is not JSON")
        };
        tokio::time::timeout(TIME_LIMIT, asking)
            .await
            .context("no answer in time")
            .flatten()
            .with_context(|| format!("GET {path} of {address}"))
    }

    async fn ask(&self, to: &Address<'_>, path: &str) -> anyhow::Result<(StatusCode, Bytes)> {
        let mut request = Request::get(path).header(header::HOST, to.authority);
        if let Some(token) = self.token()? {
            request = request.header("x-consul-token", token);
        }
        let request = request.body(Full::new(Bytes::new()))?;
        let stream = TcpStream::connect(to.authority).await?;
        if !to.https {
            return http_client::exchange(stream, request, SIZE_LIMIT).await;
        }
        let config = tls::client_config(&ClientTls {
            ca: self.ca_file.clone(),
            ..ClientTls::default()
        })?;
        let name = self.tls_server_name.as_deref().unwrap_or(to.host);
        let name = ServerName::try_from(name.to_owned())
            .with_context(|| format!("{name:?} is no name of a server"))?;
        let connector = TlsConnector::from(Arc::clone(&config));
        let stream = connector.connect(name, stream).await?;
        http_client::exchange(stream, request, SIZE_LIMIT).await
    }

    /// The ACL token, where one is given.
    ///
    /// # Errors
    ///
    /// When the file of the token cannot be read.
    pub(crate) fn token(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.token_file else {
            return Ok(self.token.as_ref().map(|token| token.expose().to_owned()));
        };
        let token = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the token file {}", file.display()))?;
        Ok(Some(token.trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let of = |text: &'static str| {
            let address = parse(text).unwrap();
            (address.authority, address.host, address.https)
        };
        assert_eq!(of("127.0.0.1:8500"), ("127.0.0.1:8500", "127.0.0.1", false));
        assert_eq!(of("https://a.b:8501/"), ("a.b:8501", "a.b", true));
        assert_eq!(of("http://[::1]:8500"), ("[::1]:8500", "::1", false));
        for wrong in ["", "localhost", "unix:///a", "localhost:http", ":8500"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
