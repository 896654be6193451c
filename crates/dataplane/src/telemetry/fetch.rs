//! Reads one metrics page over plain HTTP, piece by piece, in bounded time. Follows no redirect
//! and no proxy setting, retries nothing.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use legate_runtime::Spawner;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// How long one page may take in all.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// A URL that cannot be read from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{url:?} is not a URL that metrics can be read from: use http://HOST:PORT/PATH")]
pub struct UrlError {
    url: String,
}

/// Why a page could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Nobody answers, or the connection broke.
    #[error("{target}: {reason}")]
    Connection {
        /// What was read.
        target: Target,
        /// What the network says.
        reason: String,
    },
    /// It took too long.
    #[error("{target}: not complete within {TIMEOUT:?}")]
    Timeout {
        /// What was read.
        target: Target,
    },
    /// The answer is not a page.
    #[error("{target}: status {status}")]
    Status {
        /// What was read.
        target: Target,
        /// The answer's status.
        status: StatusCode,
    },
}

/// Where a page is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    host: String,
    port: u16,
    path: String,
}

impl Target {
    /// A path with its query on an address.
    pub fn new(address: SocketAddr, path: impl Into<String>) -> Target {
        Target {
            host: address.ip().to_string(),
            port: address.port(),
            path: path.into(),
        }
    }

    /// The same with a query, when there is one.
    #[must_use]
    pub fn with_query(&self, query: Option<&str>) -> Target {
        let mut target = self.clone();
        if let Some(query) = query.filter(|query| !query.is_empty()) {
            target.path = format!("{}?{query}", target.path);
        }
        target
    }

    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.path)
    }
}

impl FromStr for Target {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Target, UrlError> {
        let error = || UrlError {
            url: url.to_owned(),
        };
        let uri: Uri = url.parse().map_err(|_| error())?;
        if uri.scheme_str() != Some("http") {
            return Err(error());
        }
        let host = uri
            .host()
            .filter(|host| !host.is_empty())
            .ok_or_else(error)?;
        Ok(Target {
            host: host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
            port: uri.port_u16().unwrap_or(80),
            path: uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .to_owned(),
        })
    }
}

/// A page that is being read.
pub(super) struct Page {
    target: Target,
    body: Incoming,
    deadline: Instant,
}

impl Page {
    /// Asks for a page and waits for its status.
    pub(super) async fn open(target: &Target, spawner: &Spawner) -> Result<Page, FetchError> {
        let deadline = Instant::now() + TIMEOUT;
        match timeout_at(deadline, request(target, spawner)).await {
            Ok(Ok(body)) => Ok(Page {
                target: target.clone(),
                body,
                deadline,
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(FetchError::Timeout {
                target: target.clone(),
            }),
        }
    }

    /// The next piece; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            let frame = timeout_at(self.deadline, self.body.frame()).await;
            let timeout = |_| FetchError::Timeout {
                target: self.target.clone(),
            };
            match frame.map_err(timeout)? {
                None => return Ok(None),
                Some(Err(error)) => return Err(broken(&self.target, &error)),
                Some(Ok(frame)) => {
                    // A frame without data holds trailers.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

fn broken(target: &Target, error: &dyn fmt::Display) -> FetchError {
    FetchError::Connection {
        target: target.clone(),
        reason: error.to_string(),
    }
}

async fn request(target: &Target, spawner: &Spawner) -> Result<Incoming, FetchError> {
    let failed = |error: &dyn fmt::Display| broken(target, error);
    let stream = TcpStream::connect((target.host.as_str(), target.port))
        .await
        .map_err(|error| failed(&error))?;
    let (mut sender, connection) = http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    let stop = spawner.token();
    spawner.spawn("metrics connection", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            // Whoever reads the page sees its errors.
            _ = connection => {}
        }
        Ok::<_, Infallible>(())
    });
    let request = Request::get(target.path.as_str())
        .header(header::HOST, target.authority())
        .header(header::CONNECTION, "close")
        .body(Empty::new())
        .map_err(|error| failed(&error))?;
    let answer = sender
        .send_request(request)
        .await
        .map_err(|error| failed(&error))?;
    match answer.status() {
        status if status.is_success() => Ok(answer.into_body()),
        status => Err(FetchError::Status {
            target: target.clone(),
            status,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_written() {
        for (url, text) in [
            ("http://localhost:8080", "http://localhost:8080/"),
            (
                "http://10.0.0.1/metrics?a=b",
                "http://10.0.0.1:80/metrics?a=b",
            ),
            ("http://[::1]:9102/m", "http://[::1]:9102/m"),
        ] {
            assert_eq!(url.parse::<Target>().unwrap().to_string(), text);
        }
        for url in [
            "https://localhost/",
            "localhost:8080",
            "/metrics",
            "http://",
            "",
        ] {
            let error = url.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("http://HOST"), "{error}");
        }
    }
}
