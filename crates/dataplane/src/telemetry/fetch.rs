//! Reads one metrics page over HTTP or HTTPS, piece by piece, until a deadline. Goes through no
//! proxy and retries nothing.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, LOCATION};
use http::{Request, Uri};
use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_runtime::http_client::{Body, HttpError, Reply, send_over};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_util::either::Either;

use super::{Format, negotiate};

/// How often a page may say that it is elsewhere.
const REDIRECTS: usize = 3;

/// A URL that cannot be read from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{url:?} is not a URL that metrics can be read from: use http://HOST:PORT/PATH or https://HOST:PORT/PATH"
)]
pub struct UrlError {
    url: String,
}

/// Where a page is. A query is not shown: it may hold a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    tls: bool,
    host: String,
    port: u16,
    path: String,
}

impl Target {
    /// A path with its query on an address.
    pub fn new(address: SocketAddr, path: impl Into<String>) -> Target {
        Target {
            tls: false,
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

    /// Where a redirect leads from here.
    fn follow(&self, location: &str) -> Option<Target> {
        if location.starts_with("//") {
            let scheme = if self.tls { "https" } else { "http" };
            return format!("{scheme}:{location}").parse().ok();
        }
        if location.contains("://") {
            return location.parse().ok();
        }
        let path = match location.starts_with('/') {
            true => location.to_owned(),
            false => {
                let path = self.path.split('?').next().unwrap_or_default();
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                format!("{folder}/{location}")
            }
        };
        Some(Target {
            path,
            ..self.clone()
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())?;
        match self.path.split_once('?') {
            None => f.write_str(&self.path),
            Some((path, _)) => write!(f, "{path}?***"),
        }
    }
}

impl FromStr for Target {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Target, UrlError> {
        let error = || UrlError {
            url: url.split('?').next().unwrap_or_default().to_owned(),
        };
        let uri: Uri = url.parse().map_err(|_| error())?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(error()),
        };
        let host = uri
            .host()
            .filter(|host| !host.is_empty())
            .ok_or_else(error)?;
        Ok(Target {
            tls,
            host: host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            path: uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .to_owned(),
        })
    }
}

/// A page that is being read. Errors say of which target.
pub(super) struct Page {
    target: Target,
    format: Format,
    reply: Reply,
}

impl Page {
    /// Asks for a page and waits for its status, until the deadline.
    pub(super) async fn open(
        mut target: Target,
        dialer: Dialer,
        deadline: Instant,
    ) -> Result<Page, String> {
        for _ in 0..=REDIRECTS {
            let reply = dialer.get(&target, deadline).await;
            let reply = reply.map_err(|reason| format!("{target}: {reason}"))?;
            match reply.status.as_u16() {
                200..=299 => {
                    let format = negotiate::sent(header(&reply, &CONTENT_TYPE));
                    return Ok(Page {
                        target,
                        format,
                        reply,
                    });
                }
                301 | 302 | 303 | 307 | 308 => match target.follow(header(&reply, &LOCATION)) {
                    Some(next) => target = next,
                    None => break,
                },
                _ => return Err(format!("{target}: status {}", reply.status)),
            }
        }
        Err(format!("{target}: redirects without end, or to nowhere"))
    }

    /// What it says it is written in.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// The next piece, until the deadline; `None` at the end.
    pub(super) async fn next(&mut self, deadline: Instant) -> Result<Option<Bytes>, String> {
        let piece = self.reply.piece(deadline).await;
        piece.map_err(|error| format!("{}: {error}", self.target))
    }
}

fn header<'a>(reply: &'a Reply, name: &HeaderName) -> &'a str {
    let value = reply.headers.get(name);
    value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Opens connections. Copies share what is read once, and the one turn for look-ups of names.
#[derive(Debug, Clone, Default)]
pub(super) struct Dialer {
    /// The TLS configuration, once the system's authorities have been read.
    tls: Arc<Mutex<Option<Arc<ClientConfig>>>>,
    /// A look-up that nobody waits for any more goes on in its thread: there is one at a time.
    look_up: Arc<Mutex<()>>,
}

impl Dialer {
    /// The answer to a target's path, over a connection of its own.
    async fn get(&self, target: &Target, deadline: Instant) -> Result<Reply, String> {
        let request = Request::get(&target.path)
            .header(HOST, target.authority())
            .header(ACCEPT, "text/plain;version=0.0.4;q=0.9,*/*;q=0.1")
            .body(Body::default())
            .map_err(|error| error.to_string())?;
        let stream = timeout_at(deadline, self.connect(target)).await;
        let stream = stream.map_err(|_| HttpError::Timeout.to_string())??;
        let reply = send_over(stream, request, deadline).await;
        reply.map_err(|error| error.to_string())
    }

    async fn connect(
        &self,
        target: &Target,
    ) -> Result<Either<TcpStream, TlsStream<TcpStream>>, String> {
        let failed = |error: io::Error| error.to_string();
        let addresses = self.addresses(target).await.map_err(failed)?;
        let stream = TcpStream::connect(&*addresses).await.map_err(failed)?;
        if !target.tls {
            return Ok(Either::Left(stream));
        }
        let name = server_name(&target.host).map_err(|error| error.to_string())?;
        let stream = TlsConnector::from(self.tls().await?).connect(name, stream);
        stream.await.map(Either::Right).map_err(failed)
    }

    async fn addresses(&self, target: &Target) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = target.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, target.port)]);
        }
        let turn = Arc::clone(&self.look_up).lock_owned().await;
        let name = (target.host.clone(), target.port);
        let found = spawn_blocking(move || {
            let _turn = turn;
            name.to_socket_addrs().map(Vec::from_iter)
        });
        found.await.map_err(io::Error::other)?
    }

    /// Reading the system's authorities takes a while, and is done once, in a thread of its own.
    async fn tls(&self) -> Result<Arc<ClientConfig>, String> {
        let mut tls = Arc::clone(&self.tls).lock_owned().await;
        if let Some(config) = &*tls {
            return Ok(Arc::clone(config));
        }
        // It is kept also when whoever asked has no time left.
        let read = spawn_blocking(move || {
            // Files and variables name no authority for the application: the system's are believed.
            let config = client_config(&ClientTls::default()).map_err(|error| error.to_string())?;
            *tls = Some(Arc::clone(&config));
            Ok(config)
        });
        read.await.map_err(|error| error.to_string())?
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn urls_are_read_and_shown_without_what_may_be_secret() {
        for (url, text) in [
            ("http://localhost:8080", "http://localhost:8080/"),
            (
                "http://10.0.0.1/metrics?a=b",
                "http://10.0.0.1:80/metrics?***",
            ),
            ("http://[::1]:9102/m", "http://[::1]:9102/m"),
            ("https://app/m", "https://app:443/m"),
        ] {
            assert_eq!(url.parse::<Target>().unwrap().to_string(), text);
        }
        for url in [
            "ftp://localhost/",
            "localhost:8080",
            "/metrics",
            "http://",
            "",
        ] {
            let error = url.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("http://HOST"), "{error}");
        }
    }

    #[test]
    fn redirects_lead_on() {
        let target: Target = "http://a:1/m/x?q".parse().unwrap();
        for (location, next) in [
            ("/n", "http://a:1/n"),
            ("y/", "http://a:1/m/y/"),
            ("https://b/z", "https://b:443/z"),
            ("//c:2/z", "http://c:2/z"),
        ] {
            assert_eq!(target.follow(location).unwrap().to_string(), next);
        }
        assert_eq!(target.follow("ftp://b/"), None);
    }

    #[tokio::test]
    async fn a_look_up_that_hangs_keeps_others_waiting_and_starts_no_threads() {
        let dialer = Dialer::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = |host: &str| format!("http://{host}:{port}/").parse::<Target>().unwrap();
        let hangs = Arc::clone(&dialer.look_up).lock_owned().await;
        for _ in 0..100 {
            let localhost = target("localhost");
            let connect = dialer.connect(&localhost);
            let waited = timeout(Duration::from_millis(1), connect).await;
            assert!(waited.is_err(), "it looked the name up");
        }
        // An address needs no look-up.
        dialer.connect(&target("127.0.0.1")).await.unwrap();
        drop(hangs);
        dialer.connect(&target("localhost")).await.unwrap();
    }
}
