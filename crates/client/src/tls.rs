//! TLS to servers: its files, the verified name, and the handshake.
//!
//! There is no background task: files are checked when a caller requests it.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use legate_identity::CertificateInfo;
use legate_identity::tls::{ClientTls, TlsError, client_config, server_name};
use legate_runtime::file_stamp::FileStamp;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The name to verify a server's certificate against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// This name, for all servers.
    Given(String),
    /// The host that resolved to the server. For servers without a host, the first of these.
    OfHost(Vec<String>),
    /// No name: certificates are not verified.
    Unverified,
}

/// TLS settings, with the files as last read.
pub(crate) struct Tls {
    options: ClientTls,
    name: Name,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    config: Arc<ClientConfig>,
    /// Stamp of the files when they were read.
    stamp: FileStamp,
    /// Stamp of unusable files that have been logged.
    unusable: Option<FileStamp>,
    certificate_expires: Option<SystemTime>,
}

impl Loaded {
    fn read(options: &ClientTls) -> Result<Self, TlsError> {
        Ok(Self {
            // Before the files are read, so that a concurrent change is not missed.
            stamp: FileStamp::of(files(options)),
            config: client_config(options)?,
            unusable: None,
            certificate_expires: certificate_expires(options),
        })
    }
}

impl Tls {
    /// Reads the files for the first time.
    pub(crate) fn new(options: ClientTls, name: Name) -> Result<Self, TlsError> {
        match &name {
            Name::Given(name) => drop(server_name(name)?),
            Name::OfHost(hosts) => {
                for host in hosts {
                    server_name(host)?;
                }
            }
            Name::Unverified => {}
        }
        Ok(Self {
            loaded: Mutex::new(Loaded::read(&options)?),
            options,
            name,
        })
    }

    /// Whether the settings use files.
    pub(crate) fn has_files(&self) -> bool {
        self.options.ca.is_some() || self.options.client_cert.is_some()
    }

    /// Reloads changed files. Returns whether they have changed since the last connection and are
    /// usable.
    pub(crate) fn has_changed(&self) -> bool {
        let mut loaded = self.loaded();
        loaded.stamp != FileStamp::of(files(&self.options)) && self.reload(&mut loaded)
    }

    /// When the client certificate expires; `None` without one.
    pub(crate) fn certificate_expires(&self) -> Option<SystemTime> {
        self.loaded().certificate_expires
    }

    /// The name of a server for its certificate and for `:authority`.
    pub(crate) fn name(&self, host: Option<&str>) -> Option<String> {
        match (&self.name, host) {
            (Name::Given(name), _) => Some(name.clone()),
            (Name::OfHost(_), Some(host)) => Some(crate::addresses::without_zone(host).to_owned()),
            (Name::OfHost(hosts), None) => hosts.first().cloned(),
            (Name::Unverified, _) => None,
        }
    }

    pub(crate) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        server: SocketAddr,
        host: Option<&str>,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let name = match self.name(host) {
            Some(name) => server_name(&name).map_err(io::Error::other)?,
            // Certificates are not verified, and for an IP address no name is sent.
            None => ServerName::IpAddress(server.ip().into()),
        };
        let config = self.current();
        TlsConnector::from(config).connect(name, stream).await
    }

    /// The current settings. Files are few and small, and connections are rare, so they are read
    /// synchronously.
    fn current(&self) -> Arc<ClientConfig> {
        let mut loaded = self.loaded();
        if self.has_files() {
            self.reload(&mut loaded);
        }
        Arc::clone(&loaded.config)
    }

    fn reload(&self, loaded: &mut Loaded) -> bool {
        match Loaded::read(&self.options) {
            Ok(read) => {
                *loaded = read;
                true
            }
            Err(error) => {
                // Certificate and key are often replaced one after the other.
                let stamp = Some(FileStamp::of(files(&self.options)));
                if loaded.unusable != stamp {
                    tracing::warn!(
                        target: "server-connection-manager",
                        %error,
                        "TLS files cannot be read again; the previous ones stay in use"
                    );
                    loaded.unusable = stamp;
                }
                false
            }
        }
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn files(options: &ClientTls) -> impl Iterator<Item = &Path> {
    let certificate = options.client_cert.iter();
    let pair = certificate.flat_map(|(certificate, key)| [certificate.as_path(), key.as_path()]);
    options.ca.as_deref().into_iter().chain(pair)
}

fn certificate_expires(options: &ClientTls) -> Option<SystemTime> {
    let (certificate, _) = options.client_cert.as_ref()?;
    let pem = fs::read_to_string(certificate).ok()?;
    Some(CertificateInfo::from_pem(&pem).ok()?.not_after)
}

#[cfg(test)]
mod tests {
    use legate_testkit::certs::TestCa;

    use super::*;

    #[test]
    fn half_a_rotation_is_waited_out() {
        let ca = TestCa::new();
        let (old, new) = (ca.client("dataplane"), ca.client("dataplane"));
        let options = ClientTls {
            ca: Some(ca.ca_file()),
            client_cert: Some((old.cert.clone(), old.key.clone())),
            ..ClientTls::default()
        };
        let tls = Tls::new(options, Name::Unverified).unwrap();
        assert!(tls.has_files() && !tls.has_changed());
        assert!(tls.certificate_expires().is_some());
        fs::write(&old.cert, &new.cert_pem).unwrap();
        assert!(!tls.has_changed(), "certificate and key are no pair");
        fs::write(&old.key, &new.key_pem).unwrap();
        assert!(tls.has_changed());
        assert!(!tls.has_changed(), "each change is reported once");
    }

    #[test]
    fn the_name_of_a_server_is_given_or_that_of_its_host() {
        let tls = |name| {
            Tls::new(
                ClientTls {
                    insecure_skip_verify: true,
                    ..ClientTls::default()
                },
                name,
            )
        };
        let given = tls(Name::Given("server.dc1.consul".into())).unwrap();
        assert_eq!(given.name(Some("a")).as_deref(), Some("server.dc1.consul"));
        let hosts = tls(Name::OfHost(vec!["a".into(), "b".into()])).unwrap();
        assert_eq!(hosts.name(Some("b")).as_deref(), Some("b"));
        assert_eq!(hosts.name(Some("fe80::1%1")).as_deref(), Some("fe80::1"));
        assert_eq!(hosts.name(None).as_deref(), Some("a"));
        assert_eq!(tls(Name::Unverified).unwrap().name(Some("a")), None);
        assert!(tls(Name::OfHost(vec!["a".into(), "no name".into()])).is_err());
    }
}
