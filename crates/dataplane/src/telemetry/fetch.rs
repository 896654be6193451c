//! Fetches one metrics page over HTTP or HTTPS with a deadline. Ignores proxy settings; never retries.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;

use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, LOCATION};
use http::{Request, Uri};
use legate_identity::tls::{ClientTls, client_config, server_name};
use legate_metrics_page::Format;
use legate_runtime::http_client::{Body, HttpError, Reply, send_over};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_util::either::Either;

/// Maximum number of redirects.
const REDIRECTS: usize = 3;

/// URL of a page. The query is not displayed, because it may contain a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    scheme: &'static str,
    /// Host and port.
    authority: String,
    path: String,
}

impl Target {
    /// A path with an optional query at an address.
    pub fn new(address: SocketAddr, path: impl Into<String>) -> Target {
        Target {
            scheme: "http",
            authority: SocketAddr::new(address.ip(), address.port()).to_string(),
            path: path.into(),
        }
    }

    /// Returns a copy with this query, if there is one.
    pub(super) fn with_query(&self, query: Option<&str>) -> Target {
        let mut target = self.clone();
        if let Some(query) = query.filter(|query| !query.is_empty()) {
            target.path = format!("{}?{query}", target.path);
        }
        target
    }

    /// Resolves the location of a redirect.
    fn follow(&self, location: &str) -> Option<Target> {
        let Target {
            scheme,
            authority,
            path,
        } = self;
        let url = if location.starts_with("//") {
            format!("{scheme}:{location}")
        } else if location.contains("://") {
            location.to_owned()
        } else if location.starts_with('/') {
            format!("{scheme}://{authority}{location}")
        } else {
            let path = path.split('?').next().unwrap_or_default();
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{location}")
        };
        url.parse().ok()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)?;
        match self.path.split_once('?') {
            None => f.write_str(&self.path),
            Some((path, _)) => write!(f, "{path}?***"),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(url: &str) -> Result<Target, String> {
        let target = || {
            let uri: Uri = url.parse().ok()?;
            let (scheme, port) = match uri.scheme_str()? {
                "http" => ("http", 80),
                "https" => ("https", 443),
                _ => return None,
            };
            let host = uri.host().filter(|host| !host.is_empty())?;
            Some(Target {
                scheme,
                authority: format!("{host}:{}", uri.port_u16().unwrap_or(port)),
                path: uri.path_and_query()?.to_string(),
            })
        };
        target().ok_or_else(|| {
            let url = url.split('?').next().unwrap_or_default();
            format!(
                "{url:?} is not a URL that metrics can be read from: use http://HOST:PORT/PATH or https://HOST:PORT/PATH"
            )
        })
    }
}

/// A response whose headers have arrived.
#[derive(Debug)]
pub(super) struct Answer {
    /// The final target, after redirects.
    pub(super) target: Target,
    /// The format according to `Content-Type`.
    pub(super) format: Format,
    pub(super) reply: Reply,
}

fn header<'a>(reply: &'a Reply, name: &HeaderName) -> &'a str {
    let value = reply.headers.get(name);
    value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Without a `Content-Type` of OpenMetrics, a page is in the text format.
fn format(content_type: &str) -> Format {
    let kind = content_type.trim_start().to_ascii_lowercase();
    match kind.starts_with("application/openmetrics-text") {
        true => Format::OpenMetrics,
        false => Format::Text,
    }
}

/// Opens connections. Clones share a lock around operations that block a thread, because a cancelled name lookup
/// continues in its thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Dialer {
    /// The lock, with the TLS configuration once the system's root certificates are loaded.
    turn: Arc<Mutex<Option<Arc<ClientConfig>>>>,
}

impl Dialer {
    /// Requests a page and waits for its headers until the deadline. Errors name the target.
    pub(super) async fn open(
        self,
        mut target: Target,
        deadline: Instant,
    ) -> Result<Answer, String> {
        for _ in 0..=REDIRECTS {
            let reply = self.get(&target, deadline).await;
            let reply = reply.map_err(|error| format!("{target}: {error}"))?;
            match reply.status.as_u16() {
                200..=299 => {
                    return Ok(Answer {
                        target,
                        format: format(header(&reply, &CONTENT_TYPE)),
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

    /// Sends the request for the target's path over a new connection.
    async fn get(&self, target: &Target, deadline: Instant) -> anyhow::Result<Reply> {
        let request = Request::get(&target.path)
            .header(HOST, &target.authority)
            .header(ACCEPT, "text/plain;version=0.0.4;q=0.9,*/*;q=0.1")
            .body(Body::default())?;
        let stream = timeout_at(deadline, self.connect(target)).await;
        let stream = stream.map_err(|_| HttpError::Timeout)??;
        Ok(send_over(stream, request, deadline).await?)
    }

    async fn connect(
        &self,
        target: &Target,
    ) -> anyhow::Result<Either<TcpStream, TlsStream<TcpStream>>> {
        let tls = target.scheme == "https";
        let authority = target.authority.clone();
        let (addresses, config) = match authority.parse() {
            Ok(address) if !tls => (vec![address], None),
            _ => {
                let mut turn = Arc::clone(&self.turn).lock_owned().await;
                let blocking = spawn_blocking(move || {
                    let addresses = authority.to_socket_addrs()?.collect();
                    if tls && turn.is_none() {
                        // No CA can be configured for the application, so the system's roots are used.
                        *turn = Some(client_config(&ClientTls::default())?);
                    }
                    anyhow::Ok((addresses, turn.clone().filter(|_| tls)))
                });
                blocking.await??
            }
        };
        let stream = TcpStream::connect(&*addresses).await?;
        let Some(config) = config else {
            return Ok(Either::Left(stream));
        };
        let (host, _) = target.authority.rsplit_once(':').unwrap_or_default();
        let name = server_name(host.trim_matches(['[', ']']))?;
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        Ok(Either::Right(stream))
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
            let error = url.parse::<Target>().unwrap_err();
            assert!(error.contains("http://HOST"), "{error}");
        }
    }

    #[test]
    fn the_content_type_is_the_format() {
        for (sent, expected) in [
            (
                "Application/openmetrics-text; version=1.0.0",
                Format::OpenMetrics,
            ),
            ("text/plain; version=0.0.4", Format::Text),
            ("", Format::Text),
        ] {
            assert_eq!(format(sent), expected, "{sent}");
        }
    }

    #[test]
    fn the_dialer_follows_redirects() {
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
        let hangs = Arc::clone(&dialer.turn).lock_owned().await;
        for _ in 0..100 {
            let localhost = target("localhost");
            let connect = dialer.connect(&localhost);
            let waited = timeout(Duration::from_millis(1), connect).await;
            assert!(waited.is_err(), "it looked the name up");
        }
        // IP addresses need no lookup.
        dialer.connect(&target("127.0.0.1")).await.unwrap();
        drop(hangs);
        dialer.connect(&target("localhost")).await.unwrap();
    }
}
