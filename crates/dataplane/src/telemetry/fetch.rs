//! Reads one metrics page over HTTP or HTTPS, piece by piece, until a deadline. Goes through no
//! proxy and retries nothing.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::connection::Dialer;
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
    #[error("{target}: not complete in time")]
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
    /// The page is always somewhere else.
    #[error("{target}: redirects without end, or to nowhere")]
    Redirects {
        /// What was read last.
        target: Target,
    },
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

    pub(super) fn tls(&self) -> bool {
        self.tls
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// With its query.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn authority(&self) -> String {
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

/// A page that is being read.
pub(super) struct Page {
    target: Target,
    format: Format,
    body: Incoming,
}

impl Page {
    /// Asks for a page and waits for its status, until the deadline.
    pub(super) async fn open(
        mut target: Target,
        wanted: Format,
        dialer: Dialer,
        deadline: Instant,
    ) -> Result<Page, FetchError> {
        for _ in 0..=REDIRECTS {
            let response = match timeout_at(deadline, dialer.get(&target, wanted)).await {
                Ok(answer) => answer?,
                Err(_) => return Err(FetchError::Timeout { target }),
            };
            match response.status() {
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => {
                    match target.follow(text(response.headers(), &header::LOCATION)) {
                        Some(next) => target = next,
                        None => return Err(FetchError::Redirects { target }),
                    }
                }
                _ => return Page::of(target, response),
            }
        }
        Err(FetchError::Redirects { target })
    }

    /// The page that was answered, if it is one.
    fn of(target: Target, response: Response<Incoming>) -> Result<Page, FetchError> {
        let status = response.status();
        if !status.is_success() {
            return Err(FetchError::Status { target, status });
        }
        let format = negotiate::sent(text(response.headers(), &header::CONTENT_TYPE));
        let body = response.into_body();
        Ok(Page {
            target,
            format,
            body,
        })
    }

    /// What it says it is written in.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// The next piece, until the deadline; `None` at the end.
    pub(super) async fn next(&mut self, deadline: Instant) -> Result<Option<Bytes>, FetchError> {
        loop {
            let frame = timeout_at(deadline, self.body.frame()).await;
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

fn text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> &'a str {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

fn broken(target: &Target, error: &dyn fmt::Display) -> FetchError {
    FetchError::Connection {
        target: target.clone(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
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
}
