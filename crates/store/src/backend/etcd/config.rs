//! The settings of a store in etcd.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use legate_identity::tls::ClientTls;
use legate_model::Secret;

use crate::open_error::OpenError;

/// The default prefix of keys.
pub(crate) const PREFIX: &str = "legate";

/// The connection settings and the key prefix of a store in etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// The members: `http://host:port`, `https://host:port`, or `host:port`, which uses TLS if one
    /// of the files is set. At least one. If a member does not answer, the next one is used.
    pub endpoints: Vec<String>,
    /// PEM file with the CAs that etcd's certificates are verified against. Default: the roots of
    /// the system. Like the other files it is read for each new connection.
    pub ca_file: Option<PathBuf>,
    /// PEM files with the client certificate and its key.
    pub client_cert: Option<(PathBuf, PathBuf)>,
    /// An etcd user with its password, if authentication is enabled. The user needs read and write
    /// access to all keys that start with the prefix and a slash.
    pub user: Option<(String, Secret)>,
    /// The prefix of all keys, without a trailing slash. Servers with the same prefix share one
    /// store. The default is `legate`.
    pub prefix: String,
    /// The file with the key that seals secrets: 32 bytes in hexadecimal or base64. All servers
    /// need the same key; it is never generated here.
    pub key_file: PathBuf,
    /// Where this server listens for the other servers of the store; connections prove the key. Port
    /// 0 picks a free port. The default is a free port of 127.0.0.1.
    pub listen: SocketAddr,
    /// The address at which the other servers reach this one, at the same port. Default: that of
    /// `listen`.
    pub advertise: Option<IpAddr>,
}

impl EtcdConfig {
    /// Settings without TLS and without a user.
    pub fn new(endpoints: Vec<String>, key_file: impl Into<PathBuf>) -> Self {
        Self {
            endpoints,
            ca_file: None,
            client_cert: None,
            user: None,
            prefix: PREFIX.to_owned(),
            key_file: key_file.into(),
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            advertise: None,
        }
    }

    /// The members, validated.
    pub(crate) fn members(&self) -> Result<Vec<Member>, OpenError> {
        let bad = |reason: String| OpenError::EtcdSetting { reason };
        if self.endpoints.is_empty() {
            return Err(bad("name at least one endpoint".to_owned()));
        }
        if self.prefix.trim_matches('/').is_empty() || self.prefix.ends_with('/') {
            let reason = format!(
                "the prefix {:?} must not be empty or end with a slash",
                self.prefix
            );
            return Err(bad(reason));
        }
        let files = self.ca_file.is_some() || self.client_cert.is_some();
        let members = self.endpoints.iter().map(|endpoint| {
            let (scheme, authority) = endpoint
                .split_once("://")
                .unwrap_or((if files { "https" } else { "http" }, endpoint.as_str()));
            let authority = authority.trim_end_matches('/');
            let parsed: Option<http::uri::Authority> = authority.parse().ok();
            let with_port = parsed.filter(|a| a.port_u16().is_some() && !a.as_str().contains('@'));
            match (scheme, with_port) {
                ("http", Some(_)) if files => Err(bad(format!(
                    "the endpoint {endpoint:?} is without TLS, but certificates are set: use \
                     https://, or remove the certificates"
                ))),
                ("http" | "https", Some(authority)) => Ok(Member {
                    tls: scheme == "https",
                    authority,
                }),
                _ => Err(bad(format!(
                    "the endpoint {endpoint:?} is not http://host:port or https://host:port"
                ))),
            }
        });
        members.collect()
    }

    pub(crate) fn tls(&self) -> ClientTls {
        ClientTls {
            ca: self.ca_file.clone(),
            client_cert: self.client_cert.clone(),
            insecure_skip_verify: false,
            alpn_h2: true,
        }
    }
}

/// One member of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) tls: bool,
    pub(crate) authority: http::uri::Authority,
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_the_forms_of_etcdctl() {
        let mut config = EtcdConfig::new(vec!["http://a:2379".to_owned()], "key");
        assert_eq!(config.members().unwrap()[0].to_string(), "http://a:2379");
        config.endpoints = vec!["[::1]:2379".to_owned(), "https://b:1/".to_owned()];
        let members = config.members().unwrap();
        assert_eq!(members[0].to_string(), "http://[::1]:2379");
        assert_eq!(members[1].to_string(), "https://b:1");
        config.ca_file = Some("ca.pem".into());
        assert!(config.members().unwrap()[0].tls);
        for bad in ["", "a", "ftp://a:1", "http://a:1", "https://u@a:1", "a:b"] {
            config.endpoints = vec![bad.to_owned()];
            let error = config.members().unwrap_err().to_string();
            assert!(error.contains(bad), "{error}");
        }
        config.endpoints.clear();
        assert!(config.members().is_err());
        config.endpoints = vec!["a:1".to_owned()];
        for bad in ["", "/", "a/"] {
            config.prefix = bad.to_owned();
            assert!(config.members().is_err());
        }
    }
}
