//! A connection to a server of metrics pages, over HTTP or HTTPS. Goes through no proxy, follows
//! nothing and retries nothing; its owner limits the time.

use std::convert::Infallible;
use std::fmt;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_runtime::Spawner;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Format;
use super::fetch::{FetchError, Target};

/// How much of a page waits in the connection, in bytes.
const BUFFER: usize = 64 * 1024;

/// An open connection: what it is asked is answered by one process.
pub(super) struct Connection {
    target: Target,
    sender: http1::SendRequest<Empty<Bytes>>,
}

impl Connection {
    pub(super) async fn open(target: Target, spawner: &Spawner) -> Result<Connection, FetchError> {
        let sender = match connect(&target, spawner).await {
            Ok(sender) => sender,
            Err(reason) => return Err(FetchError::Connection { target, reason }),
        };
        Ok(Connection { target, sender })
    }

    /// The answer to the target's own path, the last one over this connection.
    pub(super) async fn page(mut self, wanted: Format) -> Result<Answer, FetchError> {
        let path = self.target.path().to_owned();
        let response = self.send(&path, wanted, "close").await?;
        Ok((self.target, response))
    }

    /// The answer to another path. It has to be read to its end before anything else is asked.
    pub(super) async fn get(&mut self, path: &str) -> Result<Response<Incoming>, FetchError> {
        self.send(path, Format::Text, "keep-alive").await
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    async fn send(
        &mut self,
        path: &str,
        wanted: Format,
        then: &'static str,
    ) -> Result<Response<Incoming>, FetchError> {
        let accept = match wanted {
            Format::Text => "text/plain;version=0.0.4;q=0.9,*/*;q=0.1",
            Format::OpenMetrics => {
                "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
            }
        };
        let failed = |error: &dyn fmt::Display| FetchError::Connection {
            target: self.target.clone(),
            reason: error.to_string(),
        };
        let request = Request::get(path)
            .header(header::HOST, self.target.authority())
            .header(header::ACCEPT, accept)
            .header(header::CONNECTION, then)
            .body(Empty::new())
            .map_err(|error| failed(&error))?;
        let ready = self.sender.ready().await;
        ready.map_err(|error| failed(&error))?;
        let answer = self.sender.send_request(request).await;
        answer.map_err(|error| failed(&error))
    }
}

/// An answer, and whose it is.
pub(super) type Answer = (Target, Response<Incoming>);

async fn connect(
    target: &Target,
    spawner: &Spawner,
) -> Result<http1::SendRequest<Empty<Bytes>>, String> {
    let stream = TcpStream::connect((target.host(), target.port()))
        .await
        .map_err(|error| error.to_string())?;
    if !target.tls() {
        return handshake(stream, spawner).await;
    }
    // Files and variables name no authority for the application: the system's are believed.
    let options = ClientTls {
        ca: None,
        client_cert: None,
        insecure_skip_verify: false,
        alpn_h2: false,
    };
    let config = client_config(&options).map_err(|error| error.to_string())?;
    let name = server_name(target.host()).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(config)
        .connect(name, stream)
        .await
        .map_err(|error| error.to_string())?;
    handshake(stream, spawner).await
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    spawner: &Spawner,
) -> Result<http1::SendRequest<Empty<Bytes>>, String> {
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let stop = spawner.token();
    spawner.spawn("metrics connection", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            // Whoever reads the page sees its errors.
            _ = connection => {}
        }
        Ok::<_, Infallible>(())
    });
    Ok(sender)
}
