//! The certificate of the gRPC listener: from files, or from the mesh CA and then renewed before it
//! expires and when the CA's root changes. It listens nowhere itself.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use legate_ca::Ca;
use legate_identity::tls::{TlsError, server_config};
use legate_runtime::{BoxError, CancellationToken, Clock};
use legate_store::{Store, Watch};
use rustls::ServerConfig as TlsConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::config::ServerConfig;

/// The certificate is renewed when this part of its lifetime has passed.
const RENEW_AFTER: f64 = 0.66;
/// How long to wait before asking the CA again.
const RETRY: Duration = Duration::from_secs(30);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file of the gRPC certificate cannot be read.
    #[error("cannot read {}: {source}; check the gRPC TLS certificate and key files", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Certificate and key do not make a TLS server.
    #[error("the gRPC TLS certificate cannot be used: {0}")]
    Tls(#[from] TlsError),
    /// The mesh CA does not sign it.
    #[error("the mesh CA issued no certificate for the gRPC listener: {0}")]
    Ca(#[from] legate_ca::CaError),
}

/// TLS settings for certificate and key from files, which stay as they are.
pub(crate) fn from_files(cert: &Path, key: &Path) -> Result<Arc<TlsConfig>, CertificateError> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|source| CertificateError::File {
            path: path.to_owned(),
            source,
        })
    };
    Ok(server_config(&read(cert)?, &read(key)?, None)?)
}

/// Certificates of the mesh CA for this server.
pub(crate) struct Renewed {
    ca: Ca,
    clock: Clock,
    ips: Vec<IpAddr>,
    current: Arc<Current>,
    expires: SystemTime,
}

impl Renewed {
    /// Gets the first certificate.
    pub(crate) fn issue(
        ca: &Ca,
        clock: &Clock,
        config: &ServerConfig,
    ) -> Result<(Self, Arc<TlsConfig>), CertificateError> {
        let mut ips = vec![
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ];
        if !ips.contains(&config.advertise) {
            ips.push(config.advertise);
        }
        let (tls, expires) = sign(ca, &ips)?;
        let current = Arc::new(Current(ArcSwap::from_pointee(tls.cert_resolver.clone())));
        let mut shared = (*tls).clone();
        shared.cert_resolver = current.clone();
        let renewed = Self {
            ca: ca.clone(),
            clock: clock.clone(),
            ips,
            current,
            expires,
        };
        Ok((renewed, Arc::new(shared)))
    }

    /// Renews until the token is cancelled. Connections that are open keep the old certificate.
    pub(crate) async fn keep(
        mut self,
        store: Store,
        stop: CancellationToken,
    ) -> Result<(), BoxError> {
        loop {
            let mut roots = watch_roots(&store);
            let left = self.expires.duration_since(self.clock.now());
            let rest = left.unwrap_or_default().mul_f64(RENEW_AFTER);
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = roots.changed() => {}
                () = stop.cancelled() => return Ok(()),
            }
            while let Err(error) = self.renew() {
                tracing::error!(%error, "the gRPC certificate was not renewed: trying again");
                tokio::select! {
                    () = tokio::time::sleep(RETRY) => {}
                    () = stop.cancelled() => return Ok(()),
                }
            }
        }
    }

    fn renew(&mut self) -> Result<(), CertificateError> {
        let (tls, expires) = sign(&self.ca, &self.ips)?;
        self.current.0.store(Arc::new(tls.cert_resolver.clone()));
        self.expires = expires;
        tracing::debug!("the gRPC certificate was renewed");
        Ok(())
    }
}

/// Wakes when the roots change.
fn watch_roots(store: &Store) -> Watch {
    let state = store.state();
    let txn = state.read();
    txn.ca_roots();
    store.watch(&txn.into_reads())
}

fn sign(ca: &Ca, ips: &[IpAddr]) -> Result<(Arc<TlsConfig>, SystemTime), CertificateError> {
    let issued = ca.issue_server(&[], ips)?;
    let tls = server_config(&issued.cert_pem, &issued.key.to_pem(), None)?;
    Ok((tls, issued.info.not_after))
}

/// Hands out the newest certificate.
struct Current(ArcSwap<Arc<dyn ResolvesServerCert>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().resolve(hello)
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current")
    }
}

#[cfg(test)]
mod tests {
    use legate_ca::CaConfig;
    use legate_runtime::Scope;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[tokio::test(start_paused = true)]
    async fn it_is_renewed_before_it_expires_and_not_sooner() {
        let clock = Clock::at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let store = Store::new();
        let config = CaConfig {
            leaf_ttl: HOUR,
            ..CaConfig::default()
        };
        let ca = Ca::initialise(&store, "dc1", clock.clone(), config)
            .await
            .unwrap();
        let (renewed, _) = Renewed::issue(&ca, &clock, &ServerConfig::default()).unwrap();
        let current = renewed.current.clone();
        let first = current.0.load_full();
        let scope = Scope::new("test");
        scope.spawn("renewal", renewed.keep(store, scope.token()));

        tokio::time::sleep(HOUR / 2).await;
        assert!(Arc::ptr_eq(&first, &current.0.load_full()));
        tokio::time::sleep(HOUR / 4).await;
        let second = current.0.load_full();
        assert!(!Arc::ptr_eq(&first, &second));
        tokio::time::sleep(HOUR).await;
        assert!(!Arc::ptr_eq(&second, &current.0.load_full()));
        scope.stop(HOUR).await.unwrap();
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let missing = Path::new("/nonexistent/cert.pem");
        let error = from_files(missing, missing).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/cert.pem"));
    }
}
