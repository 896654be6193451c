//! The configuration of a session: addresses of servers, TLS, and credentials.
//!
//! Plain values. Reads no flags, files or environment.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use legate_identity::tls::{ClientTls, TlsError};
use legate_model::Secret;

use crate::addresses::{Addresses, AddressesError, without_zone};
use crate::http_proxy::HttpProxy;
use crate::tls::Name;

/// Configuration of a session.
#[derive(Debug)]
pub struct ClientConfig {
    /// Hosts of servers, or a command that prints them.
    pub addresses: Addresses,
    /// gRPC port of every server (`-grpc-port`; 8502 by convention).
    pub grpc_port: u16,
    /// Never request the list of servers (`-server-watch-disabled`): for load balancers, whose
    /// servers may have unreachable addresses.
    pub server_watch_disabled: bool,
    /// TLS settings; `None` for plaintext (`-tls-disabled`).
    pub tls: Option<TlsConfig>,
    /// How to obtain an ACL token.
    pub credentials: Credentials,
    /// HTTP proxy for connections to servers (`HTTPS_PROXY`, `NO_PROXY`).
    pub proxy: Option<HttpProxy>,
    /// Timeouts and intervals.
    pub timing: Timing,
}

/// TLS to servers.
///
/// Files are read again for every connection, and checked periodically ([`Timing::files`]): if they
/// have changed, a new connection replaces the current one. If they become unusable, the last valid
/// ones are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// A file or a directory of PEM files (`-ca-certs`); `None` for the system's roots.
    pub ca: Option<PathBuf>,
    /// Certificate and key of the client (`-tls-cert`, `-tls-key`).
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// Name that all certificates must have (`-tls-server-name`). If it is not set, certificates are
    /// verified against the host that resolved to the server; addresses from a command have none.
    pub server_name: Option<String>,
    /// Accept any certificate for any name (`-tls-insecure-skip-verify`).
    pub insecure_skip_verify: bool,
}

impl TlsConfig {
    pub(crate) fn options(&self) -> ClientTls {
        ClientTls {
            ca: self.ca.clone(),
            client_cert: self.client_certificate.clone(),
            insecure_skip_verify: self.insecure_skip_verify,
            alpn_h2: true,
        }
    }
}

/// Timeouts and intervals of a session.
///
/// A server that stops responding while its connection stays open is left after one and a quarter
/// times `silence` plus `answer`, 85 s by default. HTTP/2 pings and TCP keep-alive probes detect a
/// dead connection within 60 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Idle time, randomised by up to a quarter, after which the features of a connected server are
    /// requested as a health check. Default: 60 s.
    pub silence: Duration,
    /// Time limit of that health check. Default: 10 s.
    pub answer: Duration,
    /// Interval between checks of the files of certificates, keys and bearer tokens. Default: 30 s.
    pub files: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(60),
            answer: Duration::from_secs(10),
            files: Duration::from_secs(30),
        }
    }
}

/// How a session obtains its ACL token.
#[derive(Clone, Debug, PartialEq)]
pub enum Credentials {
    /// No token is sent.
    None,
    /// This token (`-credential-type=static`). An empty one means no token.
    Static(Secret),
    /// A login at the first server (`-credential-type=login`), another one when the token expires,
    /// and a logout at the end.
    Login(LoginConfig),
}

/// A login with an auth method.
#[derive(Clone, Debug, PartialEq)]
pub struct LoginConfig {
    /// Name of the auth method (`-login-auth-method`).
    pub auth_method: String,
    /// Namespace of the auth method (`-login-namespace`); empty for the default one.
    pub namespace: String,
    /// Partition of the auth method (`-login-partition`); empty for the default one.
    pub partition: String,
    /// Datacenter to log in to (`-login-datacenter`); empty for the server's own.
    pub datacenter: String,
    /// The credential that the auth method verifies.
    pub bearer: Bearer,
    /// Metadata of the token that the login creates (`-login-meta`).
    pub meta: BTreeMap<String, String>,
}

/// Source of the bearer token.
#[derive(Clone, Debug, PartialEq)]
pub enum Bearer {
    /// The token itself (`-login-bearer-token`).
    Token(Secret),
    /// A file that is read for every login (`-login-bearer-token-path`). White space around the token
    /// is removed.
    File(PathBuf),
}

impl fmt::Display for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("the token of -login-bearer-token"),
            Self::File(path) => write!(
                f,
                "the token in {} (-login-bearer-token-path)",
                path.display()
            ),
        }
    }
}

/// Invalid settings, detected before the first connection.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// `-addresses` is invalid.
    #[error(transparent)]
    Addresses(#[from] AddressesError),
    /// There is no name to verify certificates against.
    #[error(
        "addresses from a command have no name to verify certificates by: set -tls-server-name \
         (or -tls-insecure-skip-verify, or -tls-disabled)"
    )]
    NoServerName,
    /// A TLS file or name is unusable.
    #[error(
        "TLS to the servers cannot be set up: {0}; check -ca-certs, -tls-cert, -tls-key and -tls-server-name"
    )]
    Tls(#[from] TlsError),
    /// The token has characters that are not allowed in a header.
    #[error(
        "the ACL token of -static-token contains characters that cannot be sent: check for line breaks"
    )]
    Token,
    /// The registry already contains these metrics.
    #[error("metrics of the server session cannot be registered: {0}")]
    Metrics(#[from] legate_runtime::metrics::Error),
}

impl ClientConfig {
    /// Plaintext without credentials or proxy, with default timing.
    #[must_use]
    pub fn new(addresses: Addresses, grpc_port: u16) -> Self {
        Self {
            addresses,
            grpc_port,
            server_watch_disabled: false,
            tls: None,
            credentials: Credentials::None,
            proxy: None,
            timing: Timing::default(),
        }
    }

    /// The name to verify certificates against.
    pub(crate) fn server_name(&self, tls: &TlsConfig) -> Result<Name, ConfigError> {
        if let Some(name) = tls.server_name.as_ref().filter(|name| !name.is_empty()) {
            return Ok(Name::Given(name.clone()));
        }
        if tls.insecure_skip_verify {
            return Ok(Name::Unverified);
        }
        match self.addresses.hosts() {
            [] => Err(ConfigError::NoServerName),
            hosts => Ok(Name::OfHost(
                hosts
                    .iter()
                    .map(|host| without_zone(host).to_owned())
                    .collect(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_to_verify_is_set_inferred_or_missing() {
        let tls = |name: Option<&str>, insecure| TlsConfig {
            insecure_skip_verify: insecure,
            server_name: name.map(str::to_owned),
            ..TlsConfig::default()
        };
        let name = |addresses: &str, tls: &TlsConfig| {
            let config = ClientConfig::new(addresses.parse().unwrap(), 8502);
            config.server_name(tls)
        };
        let of_hosts =
            |hosts: &[&str]| Name::OfHost(hosts.iter().map(ToString::to_string).collect());
        assert_eq!(
            name("a", &tls(Some("b"), false)).unwrap(),
            Name::Given("b".into())
        );
        assert_eq!(name("a", &tls(None, false)).unwrap(), of_hosts(&["a"]));
        assert_eq!(
            name("a fe80::1%1", &tls(None, false)).unwrap(),
            of_hosts(&["a", "fe80::1"])
        );
        assert_eq!(name("a", &tls(None, true)).unwrap(), Name::Unverified);
        assert_eq!(name("exec=x", &tls(None, true)).unwrap(), Name::Unverified);
        assert!(matches!(
            name("exec=x", &tls(None, false)),
            Err(ConfigError::NoServerName)
        ));
    }
}
