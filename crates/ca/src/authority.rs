//! The CA itself: makes the root once, and signs for services, servers and requesters.
//!
//! The store holds the truth. The signing key is looked up there again whenever another root has
//! become active, so that every replica signs with the same one.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use legate_identity::{
    Authority, CsrProfile, IssuedCertificate, LeafRequest, RootRequest, csr_names_hosts, csr_uris,
};
use legate_model::{CaRoot, CaRoots, Secret, SpiffeId, TrustDomain};
use legate_runtime::{Clock, Spawner};
use legate_store::{CaState, Reader, Store, Watch, WriteTxn};

use crate::leaves::{Leaf, LeafStore};
use crate::{CaConfig, CaError};

/// The serial number of the first root. All others are random.
const FIRST_SERIAL: u64 = 1;

/// The domain of the names that clients verify servers by, as in `server.dc1.consul`.
const DOMAIN: &str = "consul";

/// Signs for one mesh, and writes nothing: what it signs with is read from the store. Clones are
/// handles to the same CA.
#[derive(Clone)]
pub struct Ca {
    inner: Arc<Inner>,
}

struct Inner {
    store: Reader,
    datacenter: String,
    clock: Clock,
    config: CaConfig,
    trust_domain: TrustDomain,
    signer: Mutex<Arc<Signer>>,
}

/// The active root with what belongs to it.
struct Signer {
    root: CaRoot,
    key: Secret,
    authority: Authority,
}

impl Signer {
    fn of(ca: &CaState) -> Result<Signer, CaError> {
        let root = ca.roots.active().ok_or_else(|| CaError::Stored {
            reason: format!("its active root {:?} is missing", ca.roots.active_root_id),
        })?;
        let key = ca.signing_key.clone();
        let authority = Authority::from_pem(&root.root_cert, key.expose()).map_err(|error| {
            CaError::Stored {
                reason: format!("root {}: {error}", root.id),
            }
        })?;
        Ok(Signer {
            root: root.clone(),
            key,
            authority,
        })
    }

    fn serves(&self, ca: &CaState) -> bool {
        ca.roots.active() == Some(&self.root) && ca.signing_key == self.key
    }

    /// A certificate followed by what links it to the root that peers trust.
    fn with_chain(&self, certificate: &str) -> String {
        let mut chain = certificate.trim_end().to_owned();
        chain.push('\n');
        for intermediate in &self.root.intermediate_certs {
            chain.push_str(intermediate.trim_end());
            chain.push('\n');
        }
        chain
    }
}

impl Ca {
    /// The CA in the store, or a new root and cluster id when there is none.
    ///
    /// # Errors
    ///
    /// When the configuration contradicts itself, or the store's CA cannot be used.
    pub async fn initialise(
        store: &Store,
        datacenter: &str,
        clock: Clock,
        config: CaConfig,
    ) -> Result<Ca, CaError> {
        config.validate()?;
        if store.state().read().ca().is_none() {
            let first = first_root(&clock, &config)?;
            let (_, created) = store
                .write(move |txn: &mut WriteTxn| -> Result<bool, CaError> {
                    // Another server may have been faster.
                    let missing = txn.read().ca().is_none();
                    if missing {
                        txn.put_ca(first.clone());
                    }
                    Ok(missing)
                })
                .await?;
            if created {
                tracing::info!("created the root of a new mesh");
            }
        }
        let ca = store.state().read().ca().ok_or(CaError::Missing)?;
        let inner = Inner {
            store: store.reader(),
            datacenter: datacenter.to_owned(),
            clock,
            config,
            trust_domain: TrustDomain::of_cluster(&ca.cluster_id),
            signer: Mutex::new(Arc::new(Signer::of(&ca)?)),
        };
        Ok(Ca {
            inner: Arc::new(inner),
        })
    }

    /// The mesh whose identities this CA signs. Only a restored snapshot of another mesh changes it.
    #[must_use]
    pub fn trust_domain(&self) -> TrustDomain {
        let stored = self.inner.store.state().read().ca();
        stored.map_or_else(
            || self.inner.trust_domain.clone(),
            |ca| TrustDomain::of_cluster(&ca.cluster_id),
        )
    }

    /// Certificates of services, kept and renewed by tasks of the spawner's scope.
    #[must_use]
    pub fn leaves(&self, spawner: &Spawner) -> LeafStore {
        LeafStore::new(self.clone(), spawner.clone())
    }

    /// A certificate for a server of this datacenter, followed by its intermediates.
    ///
    /// It is valid for `server.<datacenter>.consul`, the name that peerings use, `localhost` and
    /// its addresses, and for what is given here.
    ///
    /// # Errors
    ///
    /// When a name cannot stand in a certificate, or the CA cannot sign.
    pub fn issue_server(
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
        let mut issued = signer
            .authority
            .issue(self.request(&identity, names, addresses))?;
        issued.cert_pem = signer.with_chain(&issued.cert_pem);
        Ok(issued)
    }

    /// Who a request asks to be, so that the caller can decide whether it may.
    ///
    /// # Errors
    ///
    /// [`CaError::is_invalid_request`] ones: the request is malformed or not signed with its own
    /// key, has not exactly one URI, or names an identity that is not signed here.
    pub fn csr_identity(&self, csr_pem: &str) -> Result<SpiffeId, CaError> {
        let uris = csr_uris(csr_pem)?;
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
        // Dataplanes know a server by its host name or address under the same roots.
        if matches!(identity, SpiffeId::Service { .. }) && csr_names_hosts(csr_pem)? {
            return refuse(
                "a service is known by its URI alone, and a host name or address could pass for \
                 a server's: leave DNS names and IP addresses out"
                    .to_owned(),
            );
        }
        match identity.datacenter() {
            None => refuse("it is the CA itself".to_owned()),
            Some(datacenter) if datacenter != self.inner.datacenter => {
                refuse(format!("this datacenter is {}", self.inner.datacenter))
            }
            Some(_) => Ok(identity),
        }
    }

    /// Signs a request: the identity it got, and the certificate followed by its intermediates.
    ///
    /// Whether the requester may have that identity is the caller's to check first, with
    /// [`Ca::csr_identity`].
    ///
    /// # Errors
    ///
    /// As [`Ca::csr_identity`], or when the CA cannot sign.
    pub fn sign_csr(&self, csr_pem: &str) -> Result<(SpiffeId, String), CaError> {
        let identity = self.csr_identity(csr_pem)?;
        let signer = self.signer()?;
        let profile = CsrProfile {
            serial: random_serial(),
            now: self.inner.clock.now(),
            ttl: self.inner.config.leaf_ttl,
        };
        let signed = signer.authority.sign_csr(csr_pem, profile)?;
        Ok((identity, signer.with_chain(&signed)))
    }

    /// A certificate for the proxies of a service.
    pub(crate) fn issue_service(&self, service: &str) -> Result<Leaf, CaError> {
        let identity = SpiffeId::Service {
            trust_domain: self.trust_domain(),
            datacenter: self.inner.datacenter.clone(),
            service: service.to_owned(),
        };
        let signer = self.signer()?;
        let request = self.request(&identity, Vec::new(), Vec::new());
        let issued = signer.authority.issue(request)?;
        Ok(Leaf {
            service: service.to_owned(),
            uri: identity.to_string(),
            cert_pem: signer.with_chain(&issued.cert_pem),
            key_pem: Secret::new(issued.key.to_pem()),
            serial: issued.info.serial,
            valid_after: issued.info.not_before,
            valid_before: issued.info.not_after,
            authority_key_id: signer.root.signing_key_id.clone(),
        })
    }

    /// Identifier of the key that signs now, and a watch that wakes when the CA changes. `None`
    /// when the store's CA is unusable.
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
            ttl: self.inner.config.leaf_ttl,
        }
    }

    /// The active root and its key as the store has them now.
    fn signer(&self) -> Result<Arc<Signer>, CaError> {
        let ca = self.inner.store.state().read().ca();
        let ca = ca.ok_or(CaError::Missing)?;
        let mut known = self
            .inner
            .signer
            .lock()
            // What is behind the lock is replaced as a whole.
            .unwrap_or_else(PoisonError::into_inner);
        if !known.serves(&ca) {
            *known = Arc::new(Signer::of(&ca)?);
        }
        let signer = Arc::clone(&known);
        drop(known);
        let not_after = signer.root.not_after;
        if self.inner.clock.now() > not_after {
            let id = signer.root.id.clone();
            return Err(CaError::RootExpired { id, not_after });
        }
        Ok(signer)
    }
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca")
            .field("trust_domain", &self.inner.trust_domain)
            .field("datacenter", &self.inner.datacenter)
            .field("config", &self.inner.config)
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

/// Unique without anybody counting: 127 random bits, so that servers that share a root need not
/// agree on each certificate, and the number stays positive.
fn random_serial() -> u128 {
    rand::random::<u128>() >> 1
}

/// A new cluster id and the root of its mesh.
fn first_root(clock: &Clock, config: &CaConfig) -> Result<CaState, CaError> {
    let cluster_id = config.cluster_id.unwrap_or_else(uuid::Uuid::new_v4);
    let cluster_id = cluster_id.to_string();
    let trust_domain = TrustDomain::of_cluster(&cluster_id);
    let identity = SpiffeId::Signing {
        trust_domain: trust_domain.clone(),
    };
    let authority = Authority::generate_root(RootRequest {
        common_name: common_name(&cluster_id, rand::random()),
        uri: identity.to_string(),
        serial: FIRST_SERIAL.into(),
        now: clock.now(),
        ttl: config.root_ttl,
    })?;
    let info = authority.info();
    let root = CaRoot {
        id: info.id.clone(),
        name: "Legate CA Primary Cert".to_owned(),
        serial_number: FIRST_SERIAL,
        signing_key_id: info.subject_key_id.clone(),
        external_trust_domain: cluster_id.clone(),
        not_before: info.not_before,
        not_after: info.not_after,
        root_cert: authority.cert_pem().to_owned(),
        intermediate_certs: Vec::new(),
        active: true,
        private_key_type: "ec".to_owned(),
        private_key_bits: 256,
        create_index: 0,
        modify_index: 0,
    };
    Ok(CaState {
        roots: Arc::new(CaRoots {
            active_root_id: root.id.clone(),
            trust_domain: trust_domain.as_str().to_owned(),
            roots: vec![root],
        }),
        signing_key: Secret::new(authority.key_pem()),
        cluster_id,
    })
}

/// `pri-<eight digits to base 36>.legate.ca.<start of the cluster id>.consul`: tells the roots of a
/// mesh apart and is short enough for a common name.
fn common_name(cluster_id: &str, mut random: u64) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut unique = String::new();
    for _ in 0..8 {
        // The remainder is below 36.
        let digit = usize::try_from(random % 36).unwrap_or_default();
        unique.push(char::from(DIGITS[digit]));
        random /= 36;
    }
    let cluster: String = cluster_id.chars().take(8).collect();
    format!("pri-{unique}.legate.ca.{cluster}.{DOMAIN}")
}

#[cfg(test)]
mod tests {
    use super::common_name;

    #[test]
    fn the_common_name_has_the_documented_shape() {
        let name = common_name("01234567-89ab-cdef-0123-456789abcdef", u64::MAX);
        let (unique, rest) = name
            .strip_prefix("pri-")
            .and_then(|name| name.split_once('.'))
            .unwrap();
        assert_eq!(unique.len(), 8);
        assert_eq!(rest, "legate.ca.01234567.consul");
        assert_eq!(
            common_name("0123", 35),
            "pri-z0000000.legate.ca.0123.consul"
        );
    }
}
