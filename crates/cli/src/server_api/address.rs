//! Parses server addresses of `-http-addr` and `CONSUL_HTTP_ADDR`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{bail, ensure};

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) place: Endpoint,
    pub(super) https: bool,
    /// The prefix of every path, without a trailing slash.
    pub(super) prefix: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// Host and port, and the host alone.
    Tcp {
        authority: String,
        host: String,
    },
    Unix(PathBuf),
}

impl Address {
    /// Parses an address; `https` is the default for addresses without a scheme.
    ///
    /// # Errors
    ///
    /// If the scheme is not supported, or the host is missing.
    pub(super) fn parse(text: &str, https: bool) -> anyhow::Result<Address> {
        let (https, rest) = match text.split_once("://") {
            None => (https, text),
            Some(("http", rest)) => (https, rest),
            Some(("https", rest)) => (true, rest),
            Some(("unix", path)) => {
                return Ok(Address {
                    place: Endpoint::Unix(path.into()),
                    https: false,
                    prefix: String::new(),
                });
            }
            Some((scheme, _)) => bail!("Unknown protocol scheme: {scheme}"),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_end_matches('/');
        let prefix = match path.is_empty() {
            true => String::new(),
            false => format!("/{path}"),
        };
        let parts = authority.rsplit_once(':');
        let parts = parts.filter(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok() && !host.ends_with(':')
        });
        let (host, authority) = match parts {
            Some((host, _)) => (host, authority.to_owned()),
            None => {
                let port = if https { 443 } else { 80 };
                (authority, format!("{authority}:{port}"))
            }
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let named = bare.parse::<IpAddr>().is_ok() || !bare.contains([':', ' ']);
        ensure!(
            !bare.is_empty() && named,
            "the address {text:?} has no host: use HOST:PORT, https://HOST:PORT or unix:///PATH"
        );
        Ok(Address {
            place: Endpoint::Tcp {
                host: bare.to_owned(),
                authority,
            },
            https,
            prefix,
        })
    }

    pub(super) fn host_header(&self) -> &str {
        match &self.place {
            Endpoint::Tcp { authority, .. } => authority,
            Endpoint::Unix(_) => "127.0.0.1",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Endpoint::Unix(path) => write!(f, "http://{}", path.display()),
            Endpoint::Tcp { authority, .. } => {
                let scheme = if self.https { "https" } else { "http" };
                write!(f, "{scheme}://{authority}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let of = |text: &str| {
            let address = Address::parse(text, false).unwrap();
            let Endpoint::Tcp { authority, host } = address.place else {
                panic!("{text} is not a TCP address")
            };
            (authority, host, address.https, address.prefix)
        };
        let expected = |authority: &str, host: &str, https, prefix: &str| {
            (
                authority.to_owned(),
                host.to_owned(),
                https,
                prefix.to_owned(),
            )
        };
        assert_eq!(
            of("127.0.0.1:8500"),
            expected("127.0.0.1:8500", "127.0.0.1", false, "")
        );
        assert_eq!(
            of("https://a.b:8501/"),
            expected("a.b:8501", "a.b", true, "")
        );
        assert_eq!(
            of("http://[::1]:8500"),
            expected("[::1]:8500", "::1", false, "")
        );
        assert_eq!(
            of("https://a.b/x/y"),
            expected("a.b:443", "a.b", true, "/x/y")
        );
        let unix = Address::parse("unix:///run/consul.sock", true).unwrap();
        assert_eq!(unix.place, Endpoint::Unix("/run/consul.sock".into()));
        assert!(!unix.https);
        for wrong in ["", ":8500", "ftp://a:1"] {
            assert!(Address::parse(wrong, false).is_err(), "{wrong}");
        }
    }
}
