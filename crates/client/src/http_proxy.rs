//! An HTTP proxy for connections to servers: which servers it is used for, and the tunnel.
//!
//! The caller passes the values of environment variables. The connection to the proxy itself does
//! not use TLS.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::header::{HOST, PROXY_AUTHORIZATION};
use http::{Request, Uri};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use legate_runtime::BoxError;
use tokio::net::TcpStream;

/// Default port of a proxy.
const PORT: u16 = 80;

/// An HTTP proxy, and the servers that are connected to directly.
///
/// Servers on loopback addresses always are. `NO_PROXY` is matched against a server's IP address
/// and against the host that resolved to it: an address, a network (`10.0.0.0/8`), a domain
/// including its subdomains (`example.com`, `.example.com` and `*.example.com` are equivalent),
/// each with or without a port, or `*` for all.
#[derive(Debug)]
pub struct HttpProxy {
    via: Result<Via, String>,
    /// Matches the servers to reach through the proxy.
    intercepted: Matcher,
}

/// A usable proxy. Its credentials are not shown.
#[derive(Debug)]
pub(crate) struct Via(Intercept);

impl HttpProxy {
    /// Creates it from the values of `HTTPS_PROXY` and `NO_PROXY`, for servers on this port; `None`
    /// if there is no proxy or it is never used. An invalid proxy is an error only for connections
    /// that need it.
    #[must_use]
    pub fn new(https_proxy: &str, no_proxy: &str, port: u16) -> Option<Self> {
        let url = https_proxy.trim();
        let entries: Vec<&str> = no_proxy
            .split(',')
            .filter_map(|entry| except(entry.trim(), port))
            .collect();
        if url.is_empty() || entries.contains(&"*") {
            return None;
        }
        Some(Self {
            via: via(url),
            intercepted: Matcher::builder()
                .https("http://proxy")
                .no(entries.join(","))
                .build(),
        })
    }

    /// The proxy for a server; `None` if it is connected to directly.
    ///
    /// # Errors
    ///
    /// When the proxy is needed for the server, and its URL is invalid.
    pub(crate) fn to(
        &self,
        server: SocketAddr,
        host: Option<&str>,
    ) -> Result<Option<&Via>, String> {
        let ip = server.ip().to_canonical();
        let address = match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let excepted = |name: &str| {
            let uri = format!("https://{name}/").parse::<Uri>();
            uri.is_ok_and(|uri| self.intercepted.intercept(&uri).is_none())
        };
        if ip.is_loopback() || excepted(&address) || host.is_some_and(excepted) {
            return Ok(None);
        }
        self.via.as_ref().map(Some).map_err(String::clone)
    }
}

fn via(url: &str) -> Result<Via, String> {
    let anybody = Uri::from_static("https://192.0.2.1/");
    let Some(via) = Matcher::builder().https(url).build().intercept(&anybody) else {
        return Err("HTTPS_PROXY is not the URL of a proxy: write http://HOST:PORT".to_owned());
    };
    match via.uri().scheme_str() {
        Some("http") => Ok(Via(via)),
        scheme => Err(format!(
            "HTTPS_PROXY names a proxy of the kind {:?}, and only http:// is supported; add the servers to \
             NO_PROXY to reach them directly",
            scheme.unwrap_or_default()
        )),
    }
}

/// An entry of `NO_PROXY` in the form of the library; `None` for one with another port.
fn except(entry: &str, port: u16) -> Option<&str> {
    let (host, wanted) = match entry.rsplit_once(':') {
        // A text with several colons and no brackets is an IPv6 address.
        Some((host, wanted)) if !host.contains(':') || host.ends_with(']') => (host, Some(wanted)),
        _ => (entry, None),
    };
    if wanted.is_some_and(|wanted| wanted.parse() != Ok(port)) {
        return None;
    }
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let host = host
        .strip_prefix('*')
        .filter(|rest| rest.starts_with('.'))
        .unwrap_or(host);
    (!host.is_empty()).then_some(host)
}

impl Via {
    /// Host and port of the proxy.
    pub(crate) fn authority(&self) -> (&str, u16) {
        let host = self.0.uri().host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (host, self.0.uri().port_u16().unwrap_or(PORT))
    }

    /// Requests a tunnel to the server from the proxy, over a connection to the proxy.
    pub(crate) async fn tunnel(
        &self,
        stream: TcpStream,
        server: SocketAddr,
    ) -> Result<TokioIo<Upgraded>, BoxError> {
        let server = SocketAddr::new(server.ip(), server.port()).to_string();
        let mut request = Request::connect(&server).header(HOST, &server);
        if let Some(authorization) = self.0.basic_auth() {
            request = request.header(PROXY_AUTHORIZATION, authorization);
        }
        let request = request.body(String::new())?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let exchange = async move {
            let response = sender.send_request(request).await?;
            match response.status() {
                status if status.is_success() => Ok(hyper::upgrade::on(response).await?),
                status => Err(format!("it answers CONNECT with {status}").into()),
            }
        };
        // If the connection fails, the exchange fails with the same error.
        let (upgraded, _) = tokio::join!(exchange, connection.with_upgrades());
        upgraded.map(TokioIo::new)
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = self.authority();
        write!(f, "the proxy {host}:{port} (HTTPS_PROXY)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 8502;

    fn routes(proxy: &str, except: &str) -> Option<HttpProxy> {
        HttpProxy::new(proxy, except, PORT)
    }

    #[track_caller]
    fn through(routes: &Option<HttpProxy>, ip: &str, host: Option<&str>) -> bool {
        let server = SocketAddr::new(ip.parse().unwrap(), PORT);
        let via = routes
            .as_ref()
            .map(|routes| routes.to(server, host).unwrap());
        via.flatten().is_some()
    }

    #[test]
    fn loopback_is_never_proxied_and_others_are() {
        assert!(routes("  ", "").is_none());
        let routes = routes("http://proxy:3128", "");
        for ip in ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(!through(&routes, ip, None), "{ip}");
        }
        for ip in ["10.0.0.1", "fd00::1"] {
            assert!(through(&routes, ip, Some("consul.example")), "{ip}");
        }
    }

    #[test]
    fn exceptions_are_addresses_networks_domains_and_ports() {
        let cases = [
            ("10.0.0.1", "10.0.0.1", None, false),
            ("10.0.0.1", "10.0.0.2", None, true),
            ("10.0.0.0/8, 192.168.0.0/16", "192.168.3.4", None, false),
            ("10.0.0.0/8", "11.0.0.1", None, true),
            ("fd00::/8", "fd12::1", None, false),
            ("[fd12::1]", "fd12::1", None, false),
            ("[fd12::1]:8502", "fd12::1", None, false),
            ("fd12::1", "fd12::2", None, true),
            ("10.0.0.1:8502", "10.0.0.1", None, false),
            ("10.0.0.1:9999", "10.0.0.1", None, true),
            ("*", "10.0.0.1", None, false),
            (" , ,", "10.0.0.1", None, true),
            ("consul.example", "10.0.0.1", Some("consul.example"), false),
            ("example", "10.0.0.1", Some("consul.example"), false),
            (".example", "10.0.0.1", Some("consul.example"), false),
            ("*.example", "10.0.0.1", Some("consul.example"), false),
            (
                "consul.example:8502",
                "10.0.0.1",
                Some("consul.example"),
                false,
            ),
            ("sul.example", "10.0.0.1", Some("consul.example"), true),
            ("consul.example", "10.0.0.1", Some("10.0.0.1"), true),
        ];
        for (except, ip, host, wanted) in cases {
            let routes = routes("http://proxy:3128", except);
            assert_eq!(
                through(&routes, ip, host),
                wanted,
                "{except} for {ip} {host:?}"
            );
        }
    }

    #[test]
    fn the_proxy_is_a_url_or_a_host_with_a_port() {
        for (url, host, port) in [
            ("http://proxy:3128", "proxy", 3128),
            ("proxy:3128", "proxy", 3128),
            ("http://proxy", "proxy", 80),
            ("http://[fd00::1]:3128/", "fd00::1", 3128),
        ] {
            let via = via(url).unwrap();
            assert_eq!(via.authority(), (host, port), "{url}");
            assert!(via.0.basic_auth().is_none());
        }
        let with_user = via("http://user:secret@proxy:3128").unwrap();
        assert_eq!(with_user.0.basic_auth().unwrap(), "Basic dXNlcjpzZWNyZXQ=");
        assert!(
            !format!("{with_user:?} {with_user}").contains("secret"),
            "{with_user:?}"
        );
        assert!(via("https://proxy:3128").unwrap_err().contains("http://"));
        assert!(via("socks5://proxy:3128").unwrap_err().contains("NO_PROXY"));
        for unusable in ["ftp://proxy:21", "http://", "no url"] {
            assert!(
                via(unusable).unwrap_err().contains("HTTPS_PROXY"),
                "{unusable}"
            );
        }
        let proxy = routes("http://user:secret@proxy", "x").unwrap();
        assert!(!format!("{proxy:?}").contains("secret"));
    }

    #[test]
    fn an_unusable_proxy_does_not_affect_direct_connections() {
        assert!(!through(
            &routes("https://proxy:1", "10.0.0.0/8"),
            "10.0.0.1",
            None
        ));
        assert!(!through(&routes("no url", ""), "127.0.0.1", None));
        assert!(!through(&routes("no url", "*"), "10.0.0.1", None));
    }
}
