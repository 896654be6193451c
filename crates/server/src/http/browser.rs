//! Refuses writes that a browser sends for the page of another site, and writes to a host name that is not this
//! server's (DNS rebinding). Without ACLs, being able to connect is the only permission, and a browser on the
//! machine or in the network lends it to every page that it shows.
//!
//! Browsers mark their writes with `Origin` or `Sec-Fetch-Site`, which pages cannot change. Requests without either
//! are never judged here.

use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, HOST, HeaderMap, HeaderName, ORIGIN};
use http::{HeaderValue, StatusCode};

use super::connections::Transport;
use crate::api_error::ApiError;
use crate::config::ServerConfig;
use crate::config::dns::DnsDomains;

/// How the sites of page and server are related. Browsers send it with TLS and to loopback only.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What browsers may write to.
#[derive(Debug, Clone)]
pub(crate) struct Browsers {
    /// Host names of this server, in lower case: its node name, and those of the settings.
    hosts: Vec<String>,
    /// All names below the domains of DNS are this server's to give.
    domains: DnsDomains,
    /// The origins whose pages may write according to the configured response headers.
    origins: Vec<HeaderValue>,
}

impl Browsers {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let policy = &config.http_policy;
        let names = policy.hosts.iter().chain([&config.node_name]);
        let allowed = policy.response_headers.iter();
        let allowed = allowed.filter(|(name, _)| *name == ACCESS_CONTROL_ALLOW_ORIGIN);
        Self {
            hosts: names.map(|name| name.to_ascii_lowercase()).collect(),
            domains: config.dns_domains.clone(),
            origins: allowed.map(|(_, value)| value.clone()).collect(),
        }
    }

    /// Judges the headers of a write.
    ///
    /// # Errors
    /// 403 for a page of another site, 421 for another host name.
    pub(super) fn check(&self, headers: &HeaderMap, transport: Transport) -> Result<(), ApiError> {
        let (site, origin) = (headers.get(SITE), headers.get(ORIGIN));
        if site.is_none() && origin.is_none() {
            return Ok(());
        }
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = host.unwrap_or_default().to_ascii_lowercase();
        // Names in the certificate prove themselves, and no name leads to a socket.
        if transport == Transport::Plain && !self.is_own(&host) {
            let text = format!(
                "a browser wrote to the host name {host:?}, which is not one of this server's: use its address, or \
                 add the name to ui_config.hosts"
            );
            return Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, text));
        }
        let own_site = match (site, origin) {
            (Some(site), _) => site == "same-origin" || site == "none",
            (None, Some(origin)) => is_same(origin, &host),
            (None, None) => true,
        };
        let is_allowed = |origin: &HeaderValue| {
            let mut origins = self.origins.iter();
            origins.any(|one| one == "*" || one == origin)
        };
        if own_site || origin.is_some_and(is_allowed) {
            return Ok(());
        }
        let text = "a page of another site may not write to this server: its origin is not permitted by \
                    Access-Control-Allow-Origin in http_config.response_headers";
        Err(ApiError::new(StatusCode::FORBIDDEN, text))
    }

    /// Whether a `Host` cannot be a name of somebody else that was made to resolve to this server.
    fn is_own(&self, host: &str) -> bool {
        // Brackets are for IPv6 addresses only, which are no names.
        if host.starts_with('[') {
            return true;
        }
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.parse::<std::net::Ipv4Addr>().is_ok() || self.hosts.iter().any(|own| own == name) {
            return true;
        }
        let labels: Vec<String> = name.split('.').map(ToOwned::to_owned).collect();
        labels.last().is_some_and(|last| last == "localhost") || self.domains.of(&labels).is_some()
    }
}

/// Whether an origin, `scheme://host:port`, is that of the host, which may lack the scheme's port. `null` is none.
fn is_same(origin: &HeaderValue, host: &str) -> bool {
    let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
    let Some((scheme, authority)) = origin.split_once("://") else {
        return false;
    };
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let plain = |authority: &str| {
        let plain = authority.strip_suffix(port).unwrap_or(authority);
        plain.to_owned()
    };
    plain(authority) == plain(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_those_of_the_host() {
        for (origin, host, is_own) in [
            ("http://a:8500", "a:8500", true),
            ("http://a", "a:80", true),
            ("https://A:443", "a", true),
            ("http://[::1]:8500", "[::1]:8500", true),
            ("http://a:8500", "a:8501", false),
            ("http://a", "a:443", false),
            ("http://b", "a", false),
            ("http://b.a", "a", false),
            ("null", "null", false),
            ("chrome-extension://a", "a", false),
            ("", "", false),
        ] {
            let origin = HeaderValue::from_static(origin);
            assert_eq!(is_same(&origin, host), is_own, "{origin:?} {host}");
        }
    }

    #[test]
    fn own_host_names() {
        let mut config = ServerConfig {
            node_name: "Node-1".to_owned(),
            ..ServerConfig::default()
        };
        config.http_policy.hosts = vec!["Mesh.example.com".to_owned()];
        let browsers = Browsers::new(&config);
        for (host, is_own) in [
            ("127.0.0.1:8500", true),
            ("10.0.0.7", true),
            ("[::1]:8500", true),
            ("localhost:8500", true),
            ("app.localhost", true),
            ("localhost.:8500", true),
            ("node-1:8500", true),
            ("mesh.example.com", true),
            ("node-1.node.dc1.consul:8500", true),
            ("consul", true),
            ("", false),
            ("evil.example.com:8500", false),
            ("node-1.example.com", false),
            ("localhost.example.com", false),
            ("127.0.0.1.example.com:8500", false),
            ("a.mesh.example.com", false),
            ("notconsul", false),
        ] {
            assert_eq!(browsers.is_own(host), is_own, "{host}");
        }
    }
}
