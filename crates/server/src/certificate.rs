//! Certificates of TLS listeners: from files, which are reloaded when they change, or from the mesh CA, renewed
//! before they expire and when the root changes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use legate_ca::Ca;
use legate_identity::tls::{ServerPolicy, TlsError, restricted, server_config, server_config_of};
use legate_runtime::{BoxError, CancellationToken, Clock};
use legate_store::{Reader, Watch};
use rustls::ServerConfig as TlsConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::config::ServerConfig;
use crate::operations::{TlsPolicy, TlsVersion};
use crate::problems::Problems;

/// Fraction of the lifetime after which a certificate is renewed.
const RENEW_AFTER: f64 = 0.66;
/// What fails when there is no certificate.
const PROBLEM: &str = "certificate of the TLS listeners";
/// Delay before a failed renewal is retried.
const RETRY: Duration = Duration::from_secs(30);

/// Maximum wait between checks of the wall clock. It can be set, and it advances while the machine is
/// suspended, unlike timers.
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);
/// How often the files are polled for changes.
const READ_EVERY: Duration = Duration::from_secs(30);

/// Why a certificate cannot be loaded or issued.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A certificate or key file cannot be read.
    #[error("cannot read {}: {source}; check the TLS certificate and key files", .path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Certificate and key are invalid or do not match.
    #[error("the TLS certificate cannot be used: {0}; check the TLS certificate and key files")]
    Tls(#[from] TlsError),
    /// The mesh CA failed to issue a certificate.
    #[error("the mesh CA issued no certificate for the TLS listeners: {0}")]
    Ca(#[from] legate_ca::CaError),
}

/// The same configuration for HTTP: ALPN offers HTTP/1.1 only.
pub(crate) fn for_http(tls: &TlsConfig) -> Arc<TlsConfig> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(tls)
}

/// The same certificate, with the restrictions of a TLS policy.
pub(crate) fn with_policy(
    tls: &Arc<TlsConfig>,
    policy: &TlsPolicy,
) -> Result<Arc<TlsConfig>, CertificateError> {
    if *policy == TlsPolicy::default() {
        return Ok(Arc::clone(tls));
    }
    let asked = ServerPolicy {
        client_authorities: match policy.verify_incoming {
            true => policy.client_authorities.clone(),
            false => Vec::new(),
        },
        only_newest: policy.min_version == TlsVersion::V1_3,
        cipher_suites: policy.cipher_suites.clone(),
    };
    Ok(Arc::new(restricted(tls, &asked)?))
}

/// A certificate and key in files.
pub(crate) struct Files {
    cert: PathBuf,
    key: PathBuf,
    /// The contents last read, whether valid or not.
    seen: Pem,
    current: Arc<Current>,
}

/// The contents of the certificate and key files.
#[derive(PartialEq)]
struct Pem {
    cert: String,
    key: String,
}

impl Pem {
    fn read(cert: &Path, key: &Path) -> Result<Self, CertificateError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|source| CertificateError::File {
                path: path.to_owned(),
                source,
            })
        };
        let (cert, key) = (read(cert)?, read(key)?);
        Ok(Self { cert, key })
    }

    fn tls(&self) -> Result<Arc<TlsConfig>, CertificateError> {
        Ok(server_config(&self.cert, &self.key, None)?)
    }
}

impl Files {
    /// Loads the files.
    pub(crate) fn open(
        cert: &Path,
        key: &Path,
    ) -> Result<(Self, Arc<TlsConfig>), CertificateError> {
        let seen = Pem::read(cert, key)?;
        let (current, tls) = Current::of(&*seen.tls()?);
        let files = Self {
            cert: cert.to_owned(),
            key: key.to_owned(),
            seen,
            current,
        };
        Ok((files, tls))
    }

    /// Polls the files until `stop`. Open connections keep the old certificate.
    pub(crate) async fn keep(mut self, stop: CancellationToken) -> Result<(), BoxError> {
        let mut readable = true;
        let pause = || tokio::time::sleep(READ_EVERY);
        while stop.run_until_cancelled(pause()).await.is_some() {
            match Pem::read(&self.cert, &self.key) {
                Ok(pem) => {
                    readable = true;
                    self.take(pem);
                }
                Err(error) if readable => {
                    readable = false;
                    tracing::warn!(%error, "the TLS certificate cannot be reloaded; the previous one stays in use");
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Switches to a new certificate if it is valid. A mismatch may mean that only one of the files has been
    /// written yet.
    fn take(&mut self, pem: Pem) {
        if pem == self.seen {
            return;
        }
        match pem.tls() {
            Ok(tls) => {
                self.current.set(&tls);
                tracing::info!(file = %self.cert.display(), "TLS certificate reloaded");
            }
            Err(error) => {
                tracing::warn!(%error, "the TLS certificate cannot be reloaded; the previous one stays in use");
            }
        }
        self.seen = pem;
    }
}

/// A certificate of the mesh CA for this server.
pub(crate) struct Renewed {
    ca: Ca,
    clock: Clock,
    ips: Vec<IpAddr>,
    current: Arc<Current>,
    /// When it must be renewed.
    due: SystemTime,
}

impl Renewed {
    /// Issues the first certificate. If the CA's provider is away, there is none until [`Self::keep`] gets one.
    pub(crate) async fn issue(
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
        let (current, tls) = Current::none()?;
        let mut renewed = Self {
            ca: ca.clone(),
            clock: clock.clone(),
            ips,
            current,
            due: clock.now(),
        };
        match renewed.renew().await {
            // `keep` tries again.
            Err(CertificateError::Ca(error)) if error.is_provider_away() => {
                tracing::error!(%error, "the TLS listeners have no certificate yet and refuse connections");
            }
            issued => issued?,
        }
        Ok((renewed, tls))
    }

    /// Renews the certificate until `stop`. Open connections keep the old one. Failures are reported.
    pub(crate) async fn keep(
        mut self,
        store: Reader,
        problems: Problems,
        stop: CancellationToken,
    ) -> Result<(), BoxError> {
        let mut roots = watch_roots(&store);
        loop {
            let left = self.due.duration_since(self.clock.now());
            let wait = left.unwrap_or_default().min(LONGEST_WAIT);
            tokio::select! {
                () = tokio::time::sleep(wait) => {
                    if self.clock.now() < self.due {
                        continue;
                    }
                }
                // Watch again before the renewal, so that no change is missed.
                () = roots.changed() => roots = watch_roots(&store),
                () = stop.cancelled() => return Ok(()),
            }
            loop {
                let renewed = tokio::select! {
                    renewed = self.renew() => renewed,
                    () = stop.cancelled() => return Ok(()),
                };
                let Err(error) = renewed else {
                    problems.solved(PROBLEM);
                    break;
                };
                tracing::error!(%error, "the TLS certificate could not be renewed; retrying");
                problems.report(PROBLEM, &error);
                tokio::select! {
                    () = tokio::time::sleep(RETRY) => {}
                    () = roots.changed() => roots = watch_roots(&store),
                    () = stop.cancelled() => return Ok(()),
                }
            }
        }
    }

    async fn renew(&mut self) -> Result<(), CertificateError> {
        let (tls, expires) = sign(&self.ca, &self.ips).await?;
        self.current.set(&tls);
        self.due = due(self.clock.now(), expires);
        tracing::debug!("TLS certificate renewed");
        Ok(())
    }
}

/// A watch of the CA roots.
fn watch_roots(store: &Reader) -> Watch {
    let state = store.state();
    let txn = state.read();
    txn.ca_roots();
    store.watch(&txn.into_reads())
}

async fn sign(ca: &Ca, ips: &[IpAddr]) -> Result<(Arc<TlsConfig>, SystemTime), CertificateError> {
    let issued = ca.issue_server(&[], ips).await?;
    let tls = server_config(&issued.cert_pem, &issued.key.to_pem(), None)?;
    Ok((tls, issued.info.not_after))
}

/// When a certificate that is valid from `now` must be renewed.
fn due(now: SystemTime, expires: SystemTime) -> SystemTime {
    let left = expires.duration_since(now).unwrap_or_default();
    now + left.mul_f64(RENEW_AFTER)
}

/// Resolves to the newest certificate; `None` until there is one.
struct Current(ArcSwapOption<Arc<dyn ResolvesServerCert>>);

impl Current {
    /// Starts with the certificate of `tls`. Also returns a copy of `tls` whose certificate can be replaced.
    fn of(tls: &TlsConfig) -> (Arc<Self>, Arc<TlsConfig>) {
        let current = Arc::new(Self(ArcSwapOption::default()));
        current.set(tls);
        let mut shared = tls.clone();
        shared.cert_resolver = current.clone();
        (current, Arc::new(shared))
    }

    /// Starts without a certificate. Also returns a configuration for it.
    fn none() -> Result<(Arc<Self>, Arc<TlsConfig>), TlsError> {
        let current = Arc::new(Self(ArcSwapOption::default()));
        let tls = server_config_of(current.clone())?;
        Ok((current, tls))
    }

    fn set(&self, tls: &TlsConfig) {
        self.0.store(Some(Arc::new(tls.cert_resolver.clone())));
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().as_ref()?.resolve(hello)
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
    use legate_store::Store;

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
        let (renewed, _) = Renewed::issue(&ca, &clock, &ServerConfig::default())
            .await
            .unwrap();
        let current = renewed.current.clone();
        let first = current.0.load_full().unwrap();
        let scope = Scope::new("test");
        scope.spawn(
            "renewal",
            renewed.keep(store.reader(), Problems::default(), scope.token()),
        );

        tokio::time::sleep(HOUR / 2).await;
        assert!(Arc::ptr_eq(&first, &current.0.load_full().unwrap()));
        tokio::time::sleep(HOUR / 4).await;
        let second = current.0.load_full().unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        tokio::time::sleep(HOUR).await;
        assert!(!Arc::ptr_eq(&second, &current.0.load_full().unwrap()));
        scope.stop(HOUR).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_renewed_after_the_machine_was_suspended() {
        let clock = Clock::at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let store = Store::new();
        let ca = Ca::initialise(&store, "dc1", clock.clone(), CaConfig::default())
            .await
            .unwrap();
        let (renewed, _) = Renewed::issue(&ca, &clock, &ServerConfig::default())
            .await
            .unwrap();
        let current = renewed.current.clone();
        let first = current.0.load_full().unwrap();
        let scope = Scope::new("test");
        scope.spawn(
            "renewal",
            renewed.keep(store.reader(), Problems::default(), scope.token()),
        );

        tokio::time::sleep(HOUR).await;
        assert!(Arc::ptr_eq(&first, &current.0.load_full().unwrap()));
        // The certificate has expired, although timers have hardly advanced.
        clock.skip(CaConfig::default().leaf_ttl);
        tokio::time::sleep(LONGEST_WAIT * 2).await;
        assert!(!Arc::ptr_eq(&first, &current.0.load_full().unwrap()));
        scope.stop(HOUR).await.unwrap();
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let missing = Path::new("/nonexistent/cert.pem");
        let Err(error) = Files::open(missing, missing) else {
            panic!("there is no such file");
        };
        assert!(error.to_string().contains("/nonexistent/cert.pem"));
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_change_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (
            folder.path().join("cert.pem"),
            folder.path().join("key.pem"),
        );
        let write = |name: &str| {
            let pair = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
            std::fs::write(&cert, pair.cert.pem()).unwrap();
            std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
        };
        write("one.example");
        let (files, _) = Files::open(&cert, &key).unwrap();
        let current = files.current.clone();
        let first = current.0.load_full().unwrap();
        let scope = Scope::new("test");
        scope.spawn("files", files.keep(scope.token()));

        tokio::time::sleep(READ_EVERY * 2).await;
        assert!(
            Arc::ptr_eq(&first, &current.0.load_full().unwrap()),
            "no change"
        );
        std::fs::write(&key, "half a pair").unwrap();
        tokio::time::sleep(READ_EVERY * 2).await;
        std::fs::remove_file(&key).unwrap();
        tokio::time::sleep(READ_EVERY * 2).await;
        assert!(
            Arc::ptr_eq(&first, &current.0.load_full().unwrap()),
            "of no use"
        );
        write("two.example");
        tokio::time::sleep(READ_EVERY * 2).await;
        assert!(!Arc::ptr_eq(&first, &current.0.load_full().unwrap()));
        scope.stop(HOUR).await.unwrap();
    }
}
