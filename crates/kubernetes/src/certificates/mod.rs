//! The installation's certificates: the webhook's, and the servers' if the operator issues them.
//!
//! Every replica maintains the same Secrets; no leader is needed. `material` decides what is due. The
//! servers themselves issue the certificates of the mesh.

mod bundle;
mod given;
mod material;
mod secrets;
mod serving;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use legate_identity::CertificateInfo;
use legate_model::Secret as Hidden;
use legate_runtime::metrics::{self, Gauge, GaugeVec, IntCounter, IntCounterVec, Opts, Registry};
use legate_runtime::{Backoff, BackoffPolicy, CancellationToken, Clock, ReadyHandle};
use rustls::ServerConfig;
use tokio::sync::watch;

use self::material::Policy;
use self::secrets::Damaged;
pub(crate) use self::secrets::copy as copy_secret;
use self::serving::Serving;
use crate::context::Context;

/// How often Secrets and files are checked for changes by others.
const LOOK: Duration = Duration::from_secs(30);
/// The backoff after a failure.
const RETRY: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(250),
    multiplier: 1.5,
    jitter: 0.5,
    cap: Duration::from_secs(5),
};
/// The size limit of a file with CA certificates, in bytes: its content becomes an annotation of
/// every pod.
const CA_LIMIT: usize = 64 * 1024;

/// The certificates, as other components use them.
#[derive(Debug, Clone)]
pub struct Certificates {
    tls: Arc<ServerConfig>,
    servers_ca: watch::Receiver<Option<String>>,
    signing_ca: watch::Receiver<Option<SigningCa>>,
}

/// The CA that signs the servers' certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningCa {
    /// All certificates that servers are verified with, as PEM.
    pub certificates: String,
    /// The private key of the one that signs, as PEM.
    pub key: Hidden,
}

impl Certificates {
    /// The TLS configuration of the webhook's port, with the current certificate.
    #[must_use]
    pub fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.tls)
    }

    /// The CA certificates that the servers are verified with, as PEM; `None` until they are known,
    /// or if there are none.
    #[must_use]
    pub fn servers_ca(&self) -> watch::Receiver<Option<String>> {
        self.servers_ca.clone()
    }

    /// The CA that signs the servers' certificate; `None` until it is known, or if the operator does not sign.
    #[must_use]
    pub fn signing_ca(&self) -> watch::Receiver<Option<SigningCa>> {
        self.signing_ca.clone()
    }
}

/// State of the certificate tasks.
#[derive(Clone)]
struct Keeper {
    client: Client,
    clock: Clock,
    full_name: String,
    namespace: String,
    datacenter: String,
}

/// Starts the tasks that keep all certificates up to date, in the scope that serves requests.
///
/// # Errors
/// If TLS cannot be configured.
pub fn start(context: &Context) -> anyhow::Result<Certificates> {
    let (options, readiness) = (&context.options, &context.readiness);
    let keeper = Keeper {
        client: context.client.clone(),
        clock: context.clock.clone(),
        full_name: options.names.full_name.clone(),
        namespace: options.names.namespace.clone(),
        datacenter: options.servers.datacenter.clone(),
    };
    let stop = context.answers.token();
    let serving = Arc::new(Serving::default());
    let tls = serving.tls()?;
    let source = match &options.ports.webhook_cert_dir {
        Some(folder) => WebhookSource::Folder(folder.clone()),
        None => WebhookSource::Own(keeper.clone()),
    };
    let ready = readiness.register("webhook certificate");
    let (expiry, failures) = families(&context.registry)?;
    let of = |certificate: &str| CertificateMetrics {
        expiry: expiry.with_label_values(&[certificate]),
        failures: failures.with_label_values(&[certificate]),
    };
    let counted = of("webhook");
    let webhook = keep(
        stop.clone(),
        keeper.clock.clone(),
        ready,
        counted,
        move |now| {
            let (source, serving) = (source.clone(), Arc::clone(&serving));
            async move { source.look(&serving, now).await }
        },
    );
    context.answers.spawn("webhook certificate", webhook);

    let (bundle, servers_ca) = watch::channel(None);
    let (signing, signing_ca) = watch::channel(None);
    let servers = &options.servers;
    let files = (servers.http.ca_certs.clone(), servers.ca_key.clone());
    let source = match files {
        _ if servers.managed_ca => Some(CaSource::Own(keeper.clone())),
        (Some(certificates), Some(key)) => Some(CaSource::Given(keeper.clone(), certificates, key)),
        (Some(certificates), None) => Some(CaSource::File(certificates)),
        (None, _) => None,
    };
    if let Some(source) = source {
        let ready = readiness.register("servers' CA");
        let published = Arc::new(Published { bundle, signing });
        let counted = of("servers-ca");
        let servers = keep(stop, keeper.clock, ready, counted, move |now| {
            let (source, published) = (source.clone(), Arc::clone(&published));
            async move { source.look(&published, now).await }
        });
        context.answers.spawn("servers' CA", servers);
    }
    Ok(Certificates {
        tls,
        servers_ca,
        signing_ca,
    })
}

/// Calls `look` at least every [`LOOK`], and when a renewal is due. `look` returns the expiry of the
/// certificate that it found and the time of the next renewal.
///
/// Failures are retried with backoff. Readiness is lost only when the certificate expires.
async fn keep<F: Future<Output = Result<Validity, String>>>(
    stop: CancellationToken,
    clock: Clock,
    ready: ReadyHandle,
    metrics: CertificateMetrics,
    look: impl Fn(SystemTime) -> F,
) -> Result<(), Infallible> {
    let (mut valid_until, mut backoff) = (None, Backoff::new(RETRY));
    loop {
        let now = clock.now();
        let Some(found) = stop.run_until_cancelled(look(now)).await else {
            break;
        };
        let wait = match found {
            Ok(found) => {
                valid_until = Some(found.valid_until);
                metrics.expires(found.valid_until);
                backoff.reset();
                let due = found.due.duration_since(now).unwrap_or_default();
                due.clamp(Duration::from_secs(1), LOOK)
            }
            Err(reason) => {
                metrics.failures.inc();
                tracing::warn!(reason, "failed to update certificates: retrying");
                if valid_until.is_none() {
                    ready.pending(reason);
                }
                backoff.next(rand::random())
            }
        };
        match valid_until {
            Some(until) if clock.now() < until => ready.ready(),
            Some(_) => ready.failed("the certificate has expired"),
            None => {}
        }
        let waited = stop.run_until_cancelled(tokio::time::sleep(wait)).await;
        if waited.is_none() {
            break;
        }
    }
    ready.remove();
    Ok(())
}

/// Metrics of one certificate.
struct CertificateMetrics {
    expiry: Gauge,
    failures: IntCounter,
}

impl CertificateMetrics {
    fn expires(&self, at: SystemTime) {
        let since = at.duration_since(SystemTime::UNIX_EPOCH);
        self.expiry.set(since.unwrap_or_default().as_secs_f64());
    }
}

fn families(registry: &Registry) -> Result<(GaugeVec, IntCounterVec), metrics::Error> {
    let expiry = Opts::new(
        "legate_k8s_certificate_expiry_timestamp_seconds",
        "Expiry of a certificate that the operator maintains, in Unix time.",
    );
    let failures = Opts::new(
        "legate_k8s_certificate_failures_total",
        "Failed attempts to read or renew a certificate.",
    );
    let expiry = GaugeVec::new(expiry, &["certificate"])?;
    let failures = IntCounterVec::new(failures, &["certificate"])?;
    registry.register(Box::new(expiry.clone()))?;
    registry.register(Box::new(failures.clone()))?;
    Ok((expiry, failures))
}

/// The result of one check.
#[derive(Debug, Clone, Copy)]
struct Validity {
    valid_until: SystemTime,
    due: SystemTime,
}

#[derive(Clone)]
enum WebhookSource {
    Folder(PathBuf),
    Own(Keeper),
}

impl WebhookSource {
    async fn look(&self, serving: &Serving, now: SystemTime) -> Result<Validity, String> {
        match self {
            WebhookSource::Folder(folder) => {
                let valid_until = serving::from_folder(folder, serving)?;
                let due = now + LOOK;
                Ok(Validity { valid_until, due })
            }
            WebhookSource::Own(keeper) => keeper.webhook(serving, now).await,
        }
    }
}

#[derive(Clone)]
enum CaSource {
    File(PathBuf),
    /// A CA in files signs, of which the second has the key.
    Given(Keeper, PathBuf, PathBuf),
    Own(Keeper),
}

/// What others get of the servers' CA.
struct Published {
    bundle: watch::Sender<Option<String>>,
    signing: watch::Sender<Option<SigningCa>>,
}

impl CaSource {
    async fn look(&self, published: &Published, now: SystemTime) -> Result<Validity, String> {
        let (signing, found) = match self {
            CaSource::File(file) => {
                let (bundle, found) = authorities(file, now)?;
                set(&published.bundle, bundle);
                return Ok(found);
            }
            CaSource::Given(keeper, certificates, key) => {
                keeper.given(certificates, key, now).await?
            }
            CaSource::Own(keeper) => keeper.servers(now).await?,
        };
        set(&published.bundle, signing.certificates.clone());
        set(&published.signing, signing);
        Ok(found)
    }
}

fn set<T: PartialEq>(sender: &watch::Sender<Option<T>>, value: T) {
    sender.send_if_modified(|known| {
        let changed = known.as_ref() != Some(&value);
        *known = Some(value);
        changed
    });
}

fn authorities(file: &Path, now: SystemTime) -> Result<(String, Validity), String> {
    let shown = file.display();
    let pem = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {shown} (--ca-certs): {error}"))?;
    if pem.len() > CA_LIMIT {
        return Err(format!(
            "{shown} (--ca-certs) is longer than {CA_LIMIT} bytes: include the servers' CAs only"
        ));
    }
    let info = CertificateInfo::from_pem(&pem)
        .map_err(|error| format!("{shown} (--ca-certs) cannot be used: {error}"))?;
    let due = now + LOOK;
    Ok((
        pem,
        Validity {
            valid_until: info.not_after,
            due,
        },
    ))
}

impl Keeper {
    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Publishes the CA before it serves a certificate of that CA.
    async fn webhook(&self, serving: &Serving, now: SystemTime) -> Result<Validity, String> {
        let name = format!("{}-webhook-cert", self.full_name);
        let policy = Policy::webhook(&self.full_name, &self.namespace);
        let (material, due) =
            secrets::ensure(&self.secrets(), &name, &policy, Damaged::Replace, now)
                .await
                .map_err(|error| error.to_string())?;
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let name = format!("{}-operator", self.full_name);
        bundle::publish(&configurations, &name, &material.bundle())
            .await
            .map_err(|error| error.to_string())?;
        serving
            .set(&material.leaf.cert, &material.leaf.key)
            .map_err(|error| error.to_string())?;
        let leaf = CertificateInfo::from_pem(&material.leaf.cert);
        let valid_until = leaf.map_err(|error| error.to_string())?.not_after;
        Ok(Validity { valid_until, due })
    }

    /// Everything is stored in one Secret, which is updated atomically. The servers and others read
    /// copies of the parts they need.
    async fn servers(&self, now: SystemTime) -> Result<(SigningCa, Validity), String> {
        let name = |end: &str| format!("{}-{end}", self.full_name);
        let policy = Policy::servers(&self.full_name, &self.namespace, &self.datacenter);
        let secrets = self.secrets();
        let kept = name("ca-key");
        let (material, due) = secrets::ensure(&secrets, &kept, &policy, Damaged::Refuse, now)
            .await
            .map_err(|error| error.to_string())?;
        let bundle = material.bundle();
        let leaf = [
            ("tls.crt", material.leaf.cert.as_str()),
            ("tls.key", material.leaf.key.as_str()),
        ];
        let failed = |error: secrets::SecretError| error.to_string();
        let authority = [("tls.crt", bundle.as_str())];
        // Verifiers get the CA before a server presents a certificate of it.
        secrets::copy(&secrets, &name("ca-cert"), &authority)
            .await
            .map_err(failed)?;
        secrets::copy(&secrets, &name("server-cert"), &leaf)
            .await
            .map_err(failed)?;
        let ca = CertificateInfo::from_pem(&material.ca.cert).map_err(|error| error.to_string())?;
        let valid_until = ca.not_after;
        let signing = SigningCa {
            certificates: bundle,
            key: Hidden::new(material.ca.key),
        };
        Ok((signing, Validity { valid_until, due }))
    }
}
