//! The CA: signs certificates for services, servers and requesters.
//!
//! The store is authoritative. Root, key and configuration are read from it again whenever they
//! change, so that all replicas sign with the same ones.

use std::fmt;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use legate_identity::{
    CertificateInfo, CsrNames, CsrProfile, IssuedCertificate, LeafRequest, csr_names,
};
use legate_model::{CaConfiguration, CaRoot, Secret, SpiffeId, TrustDomain};
use legate_runtime::{Backoff, BackoffPolicy, Clock};
use legate_store::{CaState, Reader, Store, Watch};
use tokio::time::timeout;

use crate::config::SHORTEST_LEAF;
use crate::leaf::{Leaf, LeafId};
use crate::limit::{SigningLimit, Turn};
use crate::provider::{self, Mesh, Provider};
use crate::settings::{BUILT_IN, ProviderSettings, Settings};
use crate::{CaConfig, CaError, first};

/// Domain of the names by which clients verify servers, as in `server.dc1.consul`.
const DOMAIN: &str = "consul";
/// Timeout of an attempt to create the CA with a remote provider. What an unfinished attempt has created there is used
/// by the next one.
const ATTEMPT: Duration = Duration::from_secs(15);

/// A validated certificate request: its signature is valid, and it contains exactly one identity of
/// this mesh.
#[derive(Debug)]
pub struct CheckedRequest<'a> {
    csr_pem: &'a str,
    identity: SpiffeId,
    dns_names: Vec<String>,
}

impl CheckedRequest<'_> {
    /// The requested identity.
    pub fn identity(&self) -> &SpiffeId {
        &self.identity
    }

    /// The requested DNS names. Always empty for identities of services and of other partitions.
    pub fn dns_names(&self) -> &[String] {
        &self.dns_names
    }
}

/// Signs certificates for one mesh with the keys in the store, and never writes to the store. Clones
/// are handles to the same CA.
#[derive(Clone)]
pub struct Ca {
    inner: Arc<Inner>,
}

struct Inner {
    store: Reader,
    datacenter: String,
    clock: Clock,
    trust_domain: TrustDomain,
    /// `None` until the CA is used for the first time.
    signer: Mutex<Option<Arc<Signer>>>,
    /// The settings of a new mesh.
    first: CaConfig,
    limit: SigningLimit,
    /// The configuration that applies while the store has none.
    unconfigured: Arc<CaConfiguration>,
    /// The index of the newest leaf.
    leaf_index: AtomicU64,
}

/// The CA and its configuration at one index of the store.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) ca: Arc<CaState>,
    pub(crate) configuration: Arc<CaConfiguration>,
}

/// The active root with its settings and provider.
pub(crate) struct Signer {
    stored: Stored,
    pub(crate) root: CaRoot,
    /// The end of the validity of the intermediate of a secondary datacenter.
    intermediate_ends: Option<SystemTime>,
    pub(crate) settings: Settings,
    pub(crate) provider: Arc<dyn Provider>,
}

impl Signer {
    fn of(stored: Stored, clock: &Clock, before: Option<&Signer>) -> Result<Signer, CaError> {
        let ca = &stored.ca;
        let root = ca.roots.active().ok_or_else(|| CaError::Stored {
            reason: format!("its active root {:?} is missing", ca.roots.active_root_id),
        })?;
        let settings = Settings::parse(&stored.configuration)?;
        // A provider may have a session with an external CA, which is worth retaining.
        let same = before.filter(|before| {
            before.root.root_cert == root.root_cert
                && before.stored.ca.signing_key == ca.signing_key
                && before.settings == settings
        });
        let provider = match same {
            Some(before) => Arc::clone(&before.provider),
            None => {
                let mesh = mesh(ca, clock);
                let own = ca.secondary.as_ref().map(|own| own.intermediate.as_str());
                let certificate = own.unwrap_or(&root.root_cert);
                provider::of_active(&settings, certificate, &ca.signing_key, &mesh)?.into()
            }
        };
        let intermediate = ca.secondary.as_ref();
        let intermediate = intermediate
            .map(|own| CertificateInfo::from_pem(&own.intermediate).map(|own| own.not_after));
        Ok(Signer {
            intermediate_ends: intermediate.transpose()?,
            root: root.clone(),
            settings,
            provider,
            stored,
        })
    }

    fn serves(&self, now: &Stored) -> bool {
        Arc::ptr_eq(&self.stored.ca, &now.ca)
            && Arc::ptr_eq(&self.stored.configuration, &now.configuration)
    }

    /// The lifetime of leaves that are signed now. They end with the intermediate.
    fn leaf_ttl(&self, now: SystemTime) -> Duration {
        let ttl = self.settings.common.leaf_ttl;
        let left = self.intermediate_ends.map(|end| end.duration_since(now));
        left.map_or(ttl, |left| {
            ttl.min(left.unwrap_or_default().max(SHORTEST_LEAF))
        })
    }

    /// Whether leaves are signed with an intermediate of another datacenter's root.
    pub(crate) fn is_of_secondary(&self) -> bool {
        self.intermediate_ends.is_some()
    }

    /// The URI in the certificates of this mesh's authorities.
    pub(crate) fn mesh_uri(&self) -> String {
        let trust_domain = TrustDomain::of_cluster(&self.stored.ca.cluster_id);
        SpiffeId::Signing { trust_domain }.to_string()
    }

    /// Whether each signature is a remote request.
    fn is_remote(&self) -> bool {
        matches!(self.settings.provider, ProviderSettings::Vault(_))
    }

    /// A certificate followed by the intermediates that link it to the trusted roots. `issuer` is the
    /// intermediate that signed it, if it was not the root; another server may have created it just
    /// now.
    fn with_chain(&self, certificate: &str, issuer: Option<&str>) -> String {
        let known = || self.root.intermediate_certs.iter().map(String::as_str);
        let new = issuer.filter(|issuer| !known().any(|one| one.trim() == issuer.trim()));
        let certificates = iter::once(certificate).chain(known()).chain(new);
        let lines = certificates.flat_map(|pem| [pem.trim_end(), "\n"]);
        // Every proxy has a chain: `concat` allocates exactly its length.
        lines.collect::<Vec<_>>().concat()
    }
}

/// Data that providers are created from.
pub(crate) fn mesh(ca: &CaState, clock: &Clock) -> Mesh {
    Mesh {
        cluster_id: ca.cluster_id.clone(),
        clock: clock.clone(),
    }
}

impl Ca {
    /// Opens the CA in the store, or creates a root and cluster id if there is none. If the provider of a new mesh
    /// is away, there is no CA until [`Ca::create`] has succeeded.
    ///
    /// # Errors
    ///
    /// When the configuration is inconsistent, refused by the provider, or the store's CA is unusable.
    pub async fn initialise(
        store: &Store,
        datacenter: &str,
        clock: Clock,
        config: CaConfig,
    ) -> Result<Ca, CaError> {
        config.validate()?;
        let cluster_id = config.cluster_id.unwrap_or_else(uuid::Uuid::new_v4);
        let first = CaConfig {
            cluster_id: Some(cluster_id),
            ..config
        };
        let inner = Inner {
            store: store.reader(),
            datacenter: datacenter.to_owned(),
            clock,
            trust_domain: TrustDomain::of_cluster(&cluster_id.to_string()),
            signer: Mutex::default(),
            limit: SigningLimit::default(),
            unconfigured: Arc::new(first.lifetimes().configuration()),
            first,
            leaf_index: AtomicU64::new(0),
        };
        let ca = Ca {
            inner: Arc::new(inner),
        };
        match ca.make(store).await {
            Ok(()) => {
                let signer = ca.present_signer()?;
                if signer.intermediate_ends.is_some() && ca.primary().is_none() {
                    tracing::warn!(
                        "this datacenter was secondary and is not any more: the primary does not renew the certificate \
                         by which it signs leaves; create a root of its own (PUT /v1/connect/ca/configuration with \
                         ForceWithoutCrossSigning)"
                    );
                }
            }
            Err(error) if error.is_provider_away() => {
                tracing::error!(%error, "the mesh has no CA yet: it is created when its provider or the primary datacenter is available");
            }
            Err(error) => return Err(error),
        }
        Ok(ca)
    }

    /// Whether the mesh has a CA.
    #[must_use]
    pub fn is_created(&self) -> bool {
        self.inner.store.state().read().ca().is_some()
    }

    /// Creates the CA of a new mesh if [`Ca::initialise`] could not. Retries until it succeeds or another server has
    /// created it; each failure is passed to `report`. Cancel safe.
    pub async fn create(&self, store: &Store, report: impl Fn(&CaError)) {
        let mut backoff = Backoff::new(BackoffPolicy::SERVER);
        while !self.is_created() {
            if let Err(error) = self.make(store).await {
                tracing::warn!(%error, "the CA of the mesh cannot be created: trying again");
                report(&error);
                tokio::time::sleep(backoff.next(rand::random())).await;
            }
        }
    }

    /// One attempt to create the CA, unless there is one.
    async fn make(&self, store: &Store) -> Result<(), CaError> {
        let Inner { first, clock, .. } = &*self.inner;
        let made = first::make(store, clock, first);
        if first.provider == BUILT_IN {
            return made.await;
        }
        let late = |_| CaError::Vault {
            reason: format!("the CA could not be created within {ATTEMPT:?}"),
            is_away: true,
        };
        timeout(ATTEMPT, made).await.map_err(late)?
    }

    /// The trust domain of this CA. Changes only if a snapshot of another mesh is restored.
    #[must_use]
    pub fn trust_domain(&self) -> TrustDomain {
        let stored = self.inner.store.state().read().ca();
        stored.map_or_else(
            || self.inner.trust_domain.clone(),
            |ca| TrustDomain::of_cluster(&ca.cluster_id),
        )
    }

    /// Issues a certificate for a server of this datacenter, followed by its intermediates.
    ///
    /// It is valid for `server.<datacenter>.consul`, the server name of peerings, `localhost`, the
    /// server's addresses, and the given names.
    ///
    /// # Errors
    ///
    /// When a name is not valid in certificates, or the CA cannot sign.
    pub async fn issue_server(
        &self,
        dns_names: &[String],
        ips: &[IpAddr],
    ) -> Result<IssuedCertificate, CaError> {
        let datacenter = &self.inner.datacenter;
        let mut names = vec![
            format!("server.{datacenter}.{DOMAIN}"),
            format!("server.{datacenter}.peering.{}", self.trust_domain()),
            "localhost".to_owned(),
        ];
        let mut addresses = vec![
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ];
        add_new(&mut names, dns_names);
        add_new(&mut addresses, ips);
        let identity = SpiffeId::Server {
            trust_domain: self.trust_domain(),
            datacenter: datacenter.clone(),
        };
        let signer = self.signer()?;
        let request = self.request(&signer, &identity, names, addresses);
        let issued = signer.provider.issue(request).await?;
        let issuer = issued.issuer.as_deref();
        let mut certificate = issued.certificate;
        certificate.cert_pem = signer.with_chain(&certificate.cert_pem, issuer);
        Ok(certificate)
    }

    /// Validates a request, so that the caller can decide whether to grant the identity.
    ///
    /// # Errors
    ///
    /// Errors with [`CaError::is_invalid_request`]: the request is malformed or not signed with its
    /// own key, does not have exactly one URI, contains an identity that is not signed here or not
    /// in canonical form, or a name of a server with the identity of something else. [`CaError::Missing`] while there
    /// is no CA.
    pub fn check_csr<'a>(&self, csr_pem: &'a str) -> Result<CheckedRequest<'a>, CaError> {
        if !self.is_created() {
            // Nobody knows its trust domain yet.
            return Err(CaError::Missing);
        }
        let names = csr_names(csr_pem)?;
        let uris = &names.uris;
        let [uri] = uris.as_slice() else {
            let reason = format!("it has {} URI names, exactly one is needed", uris.len());
            let error = legate_identity::IdentityError::InvalidRequest { reason };
            return Err(CaError::InvalidCsr(error));
        };
        let identity: SpiffeId = uri.parse()?;
        let refuse = |reason: String| {
            let identity = uri.clone();
            Err(CaError::Identity { identity, reason })
        };
        let own = self.trust_domain();
        if *identity.trust_domain() != own {
            return refuse(format!("this mesh is {own}"));
        }
        // Dataplanes identify servers by host name or address, under the same roots.
        let of_tenant = matches!(identity, SpiffeId::Service { .. })
            || !identity.tenancy().is_default_partition();
        let has_hosts = !names.dns_names.is_empty() || !names.ips.is_empty();
        if of_tenant && has_hosts {
            return refuse(
                "it is identified by the URI alone, and a host name or address could impersonate a \
                 server: leave DNS names and IP addresses out"
                    .to_owned(),
            );
        }
        if matches!(identity, SpiffeId::MeshGateway { .. })
            && let Some(name) = server_name_in(&names)
        {
            return refuse(format!(
                "it could impersonate a server by {name}: a gateway is identified by the URI, and by names of its \
                 registration"
            ));
        }
        match identity.datacenter() {
            None => refuse("it is the CA itself".to_owned()),
            Some(datacenter) if datacenter != self.inner.datacenter => {
                refuse(format!("this datacenter is {}", self.inner.datacenter))
            }
            // Proxies compare texts: denials would not apply to another spelling.
            Some(_) if identity.to_string() != *uri => {
                refuse(format!("in this mesh it is written {identity}"))
            }
            Some(_) => Ok(CheckedRequest {
                csr_pem,
                identity,
                dns_names: names.dns_names,
            }),
        }
    }

    /// Signs a request. Returns the certificate, followed by its intermediates.
    ///
    /// Callers must first decide whether the requester may have the identity.
    ///
    /// # Errors
    ///
    /// When the CA cannot sign, or the signing limit is exceeded.
    pub async fn sign_csr(&self, request: &CheckedRequest<'_>) -> Result<String, CaError> {
        let signer = self.signer()?;
        let _turn = self.limited(&signer).await?;
        let profile = self.profile(signer.leaf_ttl(self.inner.clock.now()));
        let signed = signer.provider.sign(request.csr_pem, profile).await?;
        Ok(signer.with_chain(&signed.cert_pem, signed.issuer.as_deref()))
    }

    /// The primary datacenter, if this one is secondary.
    pub(crate) fn primary(&self) -> Option<&str> {
        self.inner.first.primary.as_deref()
    }

    /// The configuration of a new CA.
    pub(crate) fn first_configuration(&self) -> CaConfiguration {
        self.inner.first.configuration()
    }

    /// A watch that wakes when the CA or its configuration changes.
    pub(crate) fn watch(&self) -> Watch {
        let state = self.inner.store.state();
        let txn = state.read();
        txn.ca();
        txn.ca_configuration();
        self.inner.store.watch(&txn.into_reads())
    }

    /// Waits for permission of the signing limit, as requests do.
    pub(crate) async fn turn(&self) -> Result<(), CaError> {
        let signer = self.signer()?;
        self.limited(&signer).await?;
        Ok(())
    }

    /// Permission of the signing limit.
    pub(crate) async fn limited(&self, signer: &Signer) -> Result<Turn, CaError> {
        self.inner.limit.turn(&signer.settings.common).await
    }

    /// Issues a certificate for proxies.
    ///
    /// # Errors
    ///
    /// When a DNS name could be a server's, or the CA cannot sign.
    pub(crate) async fn issue(&self, id: &LeafId) -> Result<Leaf, CaError> {
        let identity = id.identity(self.trust_domain(), &self.inner.datacenter);
        if let Some(name) = id.dns_names.iter().find(|name| self.may_be_servers(name)) {
            return Err(CaError::Identity {
                identity: identity.to_string(),
                reason: format!("it could impersonate a server by its DNS name {name}"),
            });
        }
        let signer = self.signer()?;
        // Local renewals are spread over time already.
        let _turn = match signer.is_remote() {
            true => Some(self.limited(&signer).await?),
            false => None,
        };
        let request = self.request(&signer, &identity, id.dns_names.to_vec(), Vec::new());
        let issued = signer.provider.issue(request).await?;
        let certificate = issued.certificate;
        let issuer = issued.issuer.as_deref();
        let intermediate = issuer.and(certificate.info.authority_key_id.clone());
        let root = || signer.root.signing_key_id.clone();
        Ok(Leaf {
            id: id.clone(),
            uri: identity.to_string(),
            cert_pem: signer.with_chain(&certificate.cert_pem, issuer),
            key_pem: Secret::new(certificate.key.to_pem()),
            serial: certificate.info.serial,
            valid_after: certificate.info.not_before,
            valid_before: certificate.info.not_after,
            authority_key_id: intermediate.unwrap_or_else(root),
            index: self.next_leaf_index(),
        })
    }

    /// Whether a server of this mesh could be identified by a host name, which may begin with a
    /// wildcard. See [`Ca::issue_server`]; servers reached through mesh gateways are
    /// `<node>.server.<datacenter>.consul`. Listeners of ingress gateways need `*.ingress.consul`.
    fn may_be_servers(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let Some(rest) = name.strip_prefix("*.") else {
            return is_like_a_servers(&name) || name.contains('*');
        };
        let datacenter = rest
            .strip_suffix(DOMAIN)
            .and_then(|it| it.strip_suffix('.'));
        let is_datacenter = |of: &str| {
            let own = self.inner.datacenter.eq_ignore_ascii_case(of);
            own || (!of.contains('.') && of != "ingress") || of.contains(".peering.")
        };
        rest.is_empty()
            || rest.contains('*')
            || rest == DOMAIN
            || is_like_a_servers(rest)
            || datacenter.is_some_and(is_datacenter)
    }

    /// Leaf indexes of a server are unique, and never below the store's index.
    fn next_leaf_index(&self) -> u64 {
        let at = self.inner.store.state().index().max(1);
        let next = |last: u64| Some((last + 1).max(at));
        let counter = &self.inner.leaf_index;
        match counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(last) | Err(last) => (last + 1).max(at),
        }
    }

    /// The id of the current signing key, and a watch that wakes when the CA changes. `None` if the
    /// store's CA is unusable.
    pub(crate) fn watch_signing_key(&self) -> (Option<String>, Watch) {
        let state = self.inner.store.state();
        let txn = state.read();
        let roots = txn.ca_roots();
        let active = roots.as_ref().and_then(|roots| roots.active());
        let key_id = active.map(|root| root.signing_key_id.clone());
        (key_id, self.inner.store.watch(&txn.into_reads()))
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    fn request(
        &self,
        signer: &Signer,
        identity: &SpiffeId,
        dns_names: Vec<String>,
        ips: Vec<IpAddr>,
    ) -> LeafRequest {
        LeafRequest {
            uris: vec![identity.to_string()],
            dns_names,
            ips,
            serial: random_serial(),
            now: self.inner.clock.now(),
            ttl: signer.leaf_ttl(self.inner.clock.now()),
        }
    }

    /// Serial number and validity of a certificate with this lifetime.
    pub(crate) fn profile(&self, ttl: Duration) -> CsrProfile {
        CsrProfile {
            serial: random_serial(),
            now: self.inner.clock.now(),
            ttl,
        }
    }

    /// The cluster id of the primary whose rows are replicated, if there is one.
    pub(crate) fn followed(&self) -> Option<String> {
        let followed = self.inner.store.state().read().followed();
        let mesh = followed.map(|followed| followed.mesh);
        mesh.filter(|mesh| !mesh.is_empty())
    }

    /// The CA in the store's current state.
    pub(crate) fn stored(&self) -> Result<Stored, CaError> {
        Stored::of(&self.inner.store, &self.inner.unconfigured)
    }

    /// The current signer.
    ///
    /// # Errors
    ///
    /// When the store's CA is unusable, or its root or intermediate has expired.
    pub(crate) fn signer(&self) -> Result<Arc<Signer>, CaError> {
        let signer = self.present_signer()?;
        let (now, not_after) = (self.inner.clock.now(), signer.root.not_after);
        if now > not_after {
            let id = signer.root.id.clone();
            return Err(CaError::RootExpired { id, not_after });
        }
        match signer.intermediate_ends {
            Some(not_after) if now > not_after => Err(CaError::IntermediateExpired { not_after }),
            _ => Ok(signer),
        }
    }

    /// The current signer, even if its root has expired.
    pub(crate) fn present_signer(&self) -> Result<Arc<Signer>, CaError> {
        let stored = self.stored()?;
        let mut known = self
            .inner
            .signer
            .lock()
            // The value behind the lock is only replaced as a whole.
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(signer) = known.as_ref().filter(|signer| signer.serves(&stored)) {
            return Ok(Arc::clone(signer));
        }
        let signer = Signer::of(stored, &self.inner.clock, known.as_deref())?;
        Ok(Arc::clone(known.insert(Arc::new(signer))))
    }
}

impl Stored {
    fn of(store: &Reader, unconfigured: &Arc<CaConfiguration>) -> Result<Stored, CaError> {
        let state = store.state();
        let txn = state.read();
        let configuration = txn.ca_configuration();
        Ok(Stored {
            ca: txn.ca().ok_or(CaError::Missing)?,
            configuration: configuration.unwrap_or_else(|| Arc::clone(unconfigured)),
        })
    }
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca")
            .field("trust_domain", &self.inner.trust_domain)
            .field("datacenter", &self.inner.datacenter)
            .finish_non_exhaustive()
    }
}

fn add_new<T: PartialEq + Clone>(list: &mut Vec<T>, more: &[T]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// Unique without coordination: 127 random bits, so that servers that share a root do not have to
/// agree on each certificate, and the number remains positive.
pub(crate) fn random_serial() -> u128 {
    rand::random::<u128>() >> 1
}

/// A name in a request by which a server could be identified: one like those of [`Ca::issue_server`], a wildcard, or
/// an IP address. Dataplanes verify servers by these under the same roots.
fn server_name_in(names: &CsrNames) -> Option<String> {
    let is_servers = |name: &&String| {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        name.contains('*') || is_like_a_servers(&name)
    };
    let name = names.dns_names.iter().find(is_servers).cloned();
    name.or_else(|| names.ips.first().map(ToString::to_string))
}

/// Whether a name in lower case without a final dot has the form of a server's.
fn is_like_a_servers(name: &str) -> bool {
    let of_domain = name
        .strip_suffix(DOMAIN)
        .is_some_and(|it| it.ends_with('.'));
    let is_servers = name.starts_with("server.") || name.contains(".server.");
    name == "localhost" || (of_domain && is_servers)
}
