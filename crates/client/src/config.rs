//! What a session is made of: where servers are, how to trust them, how to log in.
//!
//! Plain values; reading flags, files and the environment is the caller's business.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use legate_identity::tls::{ClientTls, TlsError};
use legate_model::Secret;

/// Marks an address that is a command.
const EXEC: &str = "exec=";

/// Where the addresses of servers come from (`-addresses`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// A DNS name, all of whose A and AAAA records are servers, or an IP address.
    Host(String),
    /// A command and its arguments. It prints IP addresses, separated by white space, on standard
    /// output. It runs without a shell, in the working directory and environment of this process.
    Exec(Vec<String>),
}

impl FromStr for Addresses {
    type Err = ConfigError;

    /// Reads a flag's text: `exec=COMMAND ARGUMENTS…` split at white space without quoting, or a
    /// host without a port.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        if let Some(command) = text.strip_prefix(EXEC) {
            let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            return if words.is_empty() {
                Err(ConfigError::EmptyCommand)
            } else {
                Ok(Self::Exec(words))
            };
        }
        let host = text.trim();
        if host.is_empty() {
            return Err(ConfigError::NoAddress);
        }
        // What has a colon and is no IPv6 address is meant to be host:port.
        let unzoned = host.split('%').next().unwrap_or(host);
        if host.contains(':') && unzoned.parse::<Ipv6Addr>().is_err() {
            return Err(ConfigError::AddressWithPort {
                address: host.to_owned(),
            });
        }
        Ok(Self::Host(host.to_owned()))
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => f.write_str(host),
            Self::Exec(words) => write!(f, "{EXEC}{}", words.join(" ")),
        }
    }
}

/// Everything a session needs.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where the addresses of servers come from.
    pub addresses: Addresses,
    /// gRPC port of every server (`-grpc-port`; 8502 by convention).
    pub grpc_port: u16,
    /// Never ask servers for the list of servers (`-server-watch-disabled`): for load balancers,
    /// whose servers have addresses that cannot be reached from here.
    pub server_watch_disabled: bool,
    /// How to do TLS; `None` is plaintext (`-tls-disabled`).
    pub tls: Option<TlsConfig>,
    /// How to get an ACL token.
    pub credentials: Credentials,
}

/// TLS to servers.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// Trust and client certificate. Files are read again for every connection, so that rotated
    /// ones are picked up; when they have become unreadable, the last good ones are used.
    pub options: ClientTls,
    /// Name that the certificate must have (`-tls-server-name`). Without one it is the host of the
    /// addresses, which do not have one when they come from a command.
    pub server_name: Option<String>,
}

/// How a session gets its ACL token.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// No token is sent.
    None,
    /// This token. An empty one is as good as none.
    Static(Secret),
    /// A login at the first server, with a logout at the end.
    Login(LoginConfig),
}

/// A login with an auth method.
#[derive(Clone, Debug)]
pub struct LoginConfig {
    /// Name of the auth method (`-login-auth-method`).
    pub auth_method: String,
    /// Namespace of the auth method; empty for the default one.
    pub namespace: String,
    /// Partition of the auth method; empty for the default one.
    pub partition: String,
    /// Datacenter in which to log in; empty for the server's own.
    pub datacenter: String,
    /// What the auth method verifies.
    pub bearer: Bearer,
    /// Free text that ends up in the token's description.
    pub meta: BTreeMap<String, String>,
}

/// Where the bearer token is.
#[derive(Clone, Debug)]
pub enum Bearer {
    /// Here (`-login-bearer-token`).
    Token(Secret),
    /// In a file that is read for every login (`-login-bearer-token-path`); white space around the
    /// token is dropped.
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

/// Settings that cannot work, found before anything is tried.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No addresses.
    #[error(
        "no server address is given: set -addresses to a DNS name, an IP address or exec=COMMAND"
    )]
    NoAddress,
    /// `exec=` and nothing else.
    #[error("-addresses is exec= without a command: write exec=COMMAND ARGUMENTS")]
    EmptyCommand,
    /// `host:port`.
    #[error(
        "-addresses takes a host without a port, not {address:?}: set the port with -grpc-port"
    )]
    AddressWithPort {
        /// What was given.
        address: String,
    },
    /// Port 0.
    #[error("no gRPC port of the servers is given: set -grpc-port")]
    NoPort,
    /// Verification without a name to verify.
    #[error(
        "addresses from a command have no name to verify certificates by: set -tls-server-name \
         (or -tls-insecure-skip-verify, or -tls-disabled)"
    )]
    NoServerName,
    /// A TLS file or name that cannot be used.
    #[error(
        "TLS to the servers cannot be set up: {0}; check -ca-certs, -tls-cert, -tls-key and -tls-server-name"
    )]
    Tls(#[from] TlsError),
    /// A token that no header can hold.
    #[error(
        "the ACL token of -static-token holds characters that cannot be sent: check for line breaks"
    )]
    Token,
    /// A login without a method.
    #[error("no auth method is given for the login: set -login-auth-method")]
    NoAuthMethod,
    /// The registry has these metrics already.
    #[error("metrics of the server session cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
}

impl ClientConfig {
    /// Checks what can be checked without a network or a file.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.grpc_port == 0 {
            return Err(ConfigError::NoPort);
        }
        match &self.addresses {
            Addresses::Host(host) if host.is_empty() => return Err(ConfigError::NoAddress),
            Addresses::Exec(words) if words.is_empty() => return Err(ConfigError::EmptyCommand),
            _ => {}
        }
        match &self.credentials {
            Credentials::Login(login) if login.auth_method.is_empty() => {
                Err(ConfigError::NoAuthMethod)
            }
            _ => Ok(()),
        }
    }

    /// Name that certificates must have; `None` when nothing is verified and none is given.
    pub(crate) fn server_name(&self, tls: &TlsConfig) -> Result<Option<String>, ConfigError> {
        if let Some(name) = tls.server_name.as_ref().filter(|name| !name.is_empty()) {
            return Ok(Some(name.clone()));
        }
        if tls.options.insecure_skip_verify {
            return Ok(None);
        }
        match &self.addresses {
            Addresses::Host(host) => Ok(Some(without_zone(host).to_owned())),
            Addresses::Exec(_) => Err(ConfigError::NoServerName),
        }
    }
}

/// An IPv6 address's zone says which interface to use; certificates know nothing of it.
fn without_zone(host: &str) -> &str {
    match host.split_once('%') {
        Some((address, _)) if address.parse::<IpAddr>().is_ok() => address,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str) -> String {
        text.parse::<Addresses>().unwrap_err().to_string()
    }

    #[test]
    fn hosts_and_commands_are_told_apart() {
        let host = |text: &str| Addresses::Host(text.to_owned());
        for text in ["consul.service", "10.0.0.1", "::1", "fe80::1%eth0"] {
            let parsed: Addresses = text.parse().unwrap();
            assert_eq!(parsed, host(text));
            assert_eq!(parsed.to_string(), text);
        }
        let command: Addresses = "exec=discover -q  addrs exec=twice".parse().unwrap();
        assert_eq!(
            command,
            Addresses::Exec(
                ["discover", "-q", "addrs", "exec=twice"]
                    .map(String::from)
                    .to_vec()
            )
        );
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_setting_to_change() {
        assert!(refused("").contains("-addresses"));
        assert!(refused("exec=  ").contains("exec=COMMAND"));
        assert!(refused("localhost:8502").contains("-grpc-port"));
    }

    #[test]
    fn a_name_to_verify_is_given_inferred_or_missed() {
        let tls = |name: Option<&str>, insecure| TlsConfig {
            options: ClientTls {
                insecure_skip_verify: insecure,
                ..ClientTls::default()
            },
            server_name: name.map(str::to_owned),
        };
        let name = |addresses: &str, tls: &TlsConfig| {
            let config = ClientConfig {
                addresses: addresses.parse().unwrap(),
                grpc_port: 8502,
                server_watch_disabled: false,
                tls: None,
                credentials: Credentials::None,
            };
            config.server_name(tls)
        };
        assert_eq!(
            name("a", &tls(Some("b"), false)).unwrap().as_deref(),
            Some("b")
        );
        assert_eq!(name("a", &tls(None, false)).unwrap().as_deref(), Some("a"));
        assert_eq!(
            name("fe80::1%1", &tls(None, false)).unwrap().as_deref(),
            Some("fe80::1")
        );
        assert_eq!(name("a", &tls(None, true)).unwrap(), None);
        assert_eq!(name("exec=x", &tls(None, true)).unwrap(), None);
        assert!(matches!(
            name("exec=x", &tls(None, false)),
            Err(ConfigError::NoServerName)
        ));
    }
}
