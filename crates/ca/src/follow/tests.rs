//! A secondary CA with a real one as its primary, in paused time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use legate_identity::{
    CertificateInfo, IdentityError, PrivateKey, split_certificates, verify_chain,
};
use legate_model::CaConfiguration;
use legate_runtime::{Clock, Scope};
use legate_store::Store;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::*;
use crate::{Ca, CaConfig, Leaf};

const HOUR: Duration = Duration::from_secs(3600);

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

/// The CA of a datacenter.
#[derive(Clone)]
struct Datacenter {
    store: Store,
    ca: Ca,
    manager: CaManager,
}

impl Datacenter {
    async fn new(store: Store, name: &str, clock: &Clock, config: CaConfig) -> Self {
        let ca = Ca::initialise(&store, name, clock.clone(), config).await;
        let ca = ca.unwrap();
        let manager = CaManager::new(ca.clone(), store.writer());
        Self { store, ca, manager }
    }

    fn roots(&self) -> Arc<CaRoots> {
        self.store.state().read().ca_roots().unwrap()
    }

    fn active(&self) -> String {
        self.roots().active_root_id.clone()
    }

    /// The certificate of the active root.
    fn root(&self) -> String {
        self.roots().active().unwrap().root_cert.clone()
    }

    /// Changes keys of the configuration.
    async fn change(&self, keys: Value) -> Result<(), CaError> {
        let mut configuration = self.manager.configuration().unwrap();
        for (key, value) in keys.as_object().unwrap() {
            configuration.config.insert(key.clone(), value.clone());
        }
        self.manager.reconfigure(configuration).await
    }

    async fn leaf(&self) -> Result<Leaf, CaError> {
        self.ca.issue(&"web".into()).await
    }
}

/// The primary as the secondary reaches it.
#[derive(Clone)]
struct Link {
    primary: Datacenter,
    is_away: Arc<AtomicBool>,
    /// By how much the state of the server that answers is behind.
    lag: Arc<AtomicU64>,
}

impl Primary for Link {
    async fn roots(&self, index: u64, wait: Duration) -> Result<PrimaryRoots, BoxError> {
        let deadline = Instant::now() + wait;
        loop {
            if self.is_away.load(Ordering::Relaxed) {
                return Err("it is away".into());
            }
            let mut watch = self.primary.ca.watch();
            let at = self.primary.store.state().index();
            let roots = CaRoots::clone(&self.primary.roots());
            if at != index || timeout_at(deadline, watch.changed()).await.is_err() {
                return Ok(PrimaryRoots {
                    roots,
                    index: at,
                    state: at.saturating_sub(self.lag.load(Ordering::Relaxed)),
                });
            }
        }
    }

    async fn sign(&self, csr_pem: &str, ttl: Duration) -> Result<String, BoxError> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err("it is away".into());
        }
        Ok(self.primary.manager.sign_intermediate(csr_pem, ttl).await?)
    }
}

fn of_secondary() -> CaConfig {
    CaConfig {
        primary: Some("dc1".to_owned()),
        ..CaConfig::default()
    }
}

struct Fixture {
    clock: Clock,
    link: Link,
    secondary: Datacenter,
    scope: Scope,
    problem: Arc<Mutex<Option<String>>>,
}

impl Fixture {
    /// Two datacenters; the second one has this store, and does not follow yet.
    async fn new(store: Store) -> Self {
        let clock = Clock::at(start());
        let primary = Datacenter::new(Store::new(), "dc1", &clock, CaConfig::default()).await;
        let secondary = Datacenter::new(store, "dc2", &clock, of_secondary()).await;
        Self {
            clock,
            link: Link {
                primary,
                is_away: Arc::default(),
                lag: Arc::default(),
            },
            secondary,
            scope: Scope::new("test"),
            problem: Arc::default(),
        }
    }

    fn follow(&self) {
        let problem = Arc::clone(&self.problem);
        let report = move |error: Option<&CaError>| {
            *problem.lock().unwrap() = error.map(ToString::to_string);
        };
        let leadership = self.secondary.store.leadership().clone();
        let stop = self.scope.token();
        let manager = self.secondary.manager.clone();
        let follow = manager.follow(self.link.clone(), leadership, report, stop);
        self.scope.spawn("follow", follow);
    }

    /// Two datacenters of which the second one has its CA from the first one.
    async fn following() -> Self {
        let fixture = Self::new(Store::new()).await;
        fixture.follow();
        fixture.until(|one| one.secondary.ca.is_created()).await;
        fixture
    }

    /// Runs the periodic maintenance of a CA.
    fn maintain(&self, of: &Datacenter) {
        let leadership = of.store.leadership().clone();
        let run = of.manager.clone().run(leadership, self.scope.token());
        self.scope.spawn("maintenance", run);
    }

    fn away(&self, is_away: bool) {
        self.link.is_away.store(is_away, Ordering::Relaxed);
    }

    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        for _ in 0..3000 {
            if holds(self) {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("it does not happen: {:?}", self.problem.lock().unwrap());
    }

    async fn until_same_root(&self) {
        self.until(|one| one.secondary.active() == one.link.primary.active())
            .await;
    }

    fn intermediate(&self) -> String {
        let ca = self.secondary.store.state().read().ca().unwrap();
        ca.secondary.as_ref().unwrap().intermediate.clone()
    }

    /// Whether a leaf of the secondary is valid under this root.
    async fn verify(&self, root: &str) -> Result<(), IdentityError> {
        let leaf = self.secondary.leaf().await.unwrap();
        verify_chain(&leaf.cert_pem, root, self.clock.now())
    }
}

#[tokio::test(start_paused = true)]
async fn a_secondary_has_the_roots_of_the_primary_and_an_intermediate() {
    let fixture = Fixture::new(Store::new()).await;
    fixture.away(true);
    fixture.follow();
    let secondary = &fixture.secondary;
    let mut web = secondary.ca.leaves(&fixture.scope.spawner()).watch("web");
    sleep(10 * HOUR).await;
    assert!(!secondary.ca.is_created(), "it makes no root of its own");
    assert!(matches!(secondary.leaf().await, Err(CaError::Missing)));
    assert!(matches!(
        secondary.ca.check_csr("").unwrap_err(),
        CaError::Missing
    ));
    let problem = fixture.problem.lock().unwrap().clone();
    let expected = "the CA of the primary datacenter dc1: it is away";
    assert_eq!(problem.as_deref(), Some(expected));

    fixture.away(false);
    fixture.until(|one| one.secondary.ca.is_created()).await;
    let at_once = timeout(Duration::from_secs(1), web.changed());
    at_once.await.unwrap().unwrap();
    fixture
        .until(|one| one.problem.lock().unwrap().is_none())
        .await;
    let primary = &fixture.link.primary;
    assert_eq!(secondary.ca.trust_domain(), primary.ca.trust_domain());
    let (roots, theirs) = (secondary.roots(), primary.roots());
    assert_eq!(roots.active_root_id, theirs.active_root_id);
    let (own, their) = (roots.active().unwrap(), theirs.active().unwrap());
    assert_eq!((&own.root_cert, own.active), (&their.root_cert, true));
    assert_eq!(own.intermediate_certs, [fixture.intermediate()]);
    let info = CertificateInfo::from_pem(&fixture.intermediate()).unwrap();
    assert_eq!(own.signing_key_id, info.subject_key_id);
    let life = info.not_after.duration_since(info.not_before).unwrap();
    assert_eq!(life, 8760 * HOUR);
    let leaf = secondary.leaf().await.unwrap();
    assert_eq!(leaf.authority_key_id, own.signing_key_id);
    assert!(leaf.uri.ends_with("/dc/dc2/svc/web"), "{}", leaf.uri);
    assert_eq!(split_certificates(&leaf.cert_pem).unwrap().len(), 2);
    fixture.verify(&their.root_cert).await.unwrap();

    // A restart needs no primary.
    fixture.away(true);
    let store = secondary.store.clone();
    let again = Datacenter::new(store, "dc2", &fixture.clock, of_secondary());
    again.await.leaf().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_rotation_reaches_the_secondary() {
    let fixture = Fixture::following().await;
    let (primary, secondary) = (&fixture.link.primary, &fixture.secondary);
    let old = primary.root();
    let before = secondary.leaf().await.unwrap();
    let keys = json!({"PrivateKeyBits": 384});
    primary.change(keys).await.unwrap();
    fixture.until_same_root().await;
    let roots = secondary.roots();
    assert_eq!(roots.roots.len(), 2, "the old one stays trusted");
    let leaf = secondary.leaf().await.unwrap();
    assert_ne!(leaf.authority_key_id, before.authority_key_id);
    fixture.verify(&primary.root()).await.unwrap();
    fixture.verify(&old).await.unwrap();
    // Leaf, link and intermediate.
    assert_eq!(split_certificates(&leaf.cert_pem).unwrap().len(), 3);

    // Once its leaves have expired, the primary removes the old root, and then the secondary.
    fixture.maintain(primary);
    fixture.maintain(secondary);
    sleep(150 * HOUR).await;
    assert_eq!(primary.roots().roots.len(), 1);
    fixture
        .until(|one| one.secondary.roots().roots.len() == 1)
        .await;
}

#[tokio::test(start_paused = true)]
async fn roots_of_a_server_that_is_behind_are_not_taken() {
    let fixture = Fixture::following().await;
    let before = fixture.secondary.active();
    fixture.link.lag.store(1_000, Ordering::Relaxed);
    let keys = json!({"PrivateKeyBits": 384});
    fixture.link.primary.change(keys).await.unwrap();
    sleep(HOUR).await;
    assert_eq!(fixture.secondary.active(), before);
    let problem = fixture.problem.lock().unwrap().clone().unwrap();
    assert!(
        problem.contains("one of its servers is behind"),
        "{problem}"
    );
    fixture.link.lag.store(0, Ordering::Relaxed);
    fixture.until_same_root().await;
}

#[tokio::test(start_paused = true)]
async fn leaves_are_signed_while_the_primary_is_away_until_the_intermediate_expires() {
    let fixture = Fixture::following().await;
    let before = fixture.intermediate();
    let keys = json!({"IntermediateCertTTL": "30h", "LeafCertTTL": "10h", "PrivateKeyBits": 384});
    fixture.secondary.change(keys).await.unwrap();
    fixture.until(|one| one.intermediate() != before).await;
    let first = fixture.intermediate();
    sleep(14 * HOUR).await;
    assert_eq!(fixture.intermediate(), first);
    sleep(HOUR).await;
    let second = fixture.intermediate();
    assert_ne!(first, second, "it is renewed after half of its life");
    fixture.away(true);
    let info = CertificateInfo::from_pem(&second).unwrap();
    let left = info.not_after.duration_since(fixture.clock.now()).unwrap();
    sleep(left - 5 * HOUR).await;
    assert_eq!(fixture.intermediate(), second);
    let leaf = fixture.secondary.leaf().await.unwrap();
    assert!(leaf.valid_before <= info.not_after, "no leaf outlives it");
    let root = fixture.link.primary.root();
    fixture.verify(&root).await.unwrap();
    sleep(6 * HOUR).await;
    let expired = fixture.secondary.leaf().await.unwrap_err();
    assert!(
        matches!(expired, CaError::IntermediateExpired { .. }),
        "{expired}"
    );
    fixture.away(false);
    fixture.until(|one| one.intermediate() != second).await;
    fixture.verify(&root).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_secondary_changes_its_own_settings_and_no_roots() {
    let fixture = Fixture::following().await;
    let secondary = &fixture.secondary;
    let (roots, first) = (secondary.roots(), fixture.intermediate());
    for (keys, name) in [
        (json!({"PrivateKey": "x"}), "PrivateKey"),
        (json!({"root_cert": "y"}), "RootCert"),
        (json!({"DisableCrossSigning": true}), "DisableCrossSigning"),
    ] {
        let refused = secondary.change(keys).await.unwrap_err().to_string();
        let expected = format!("{name} is not served in a secondary datacenter");
        assert!(refused.starts_with(&expected), "{refused}");
    }
    let vault = CaConfiguration {
        provider: "vault".to_owned(),
        ..CaConfiguration::default()
    };
    let refused = secondary.manager.reconfigure(vault).await.unwrap_err();
    let expected = "CA provider \"vault\" is not served in a secondary";
    assert!(refused.to_string().starts_with(expected), "{refused}");
    assert_eq!(secondary.roots(), roots);

    let keys = json!({"LeafCertTTL": "5h", "PrivateKey": ""});
    secondary.change(keys).await.unwrap();
    let leaf = secondary.leaf().await.unwrap();
    assert_eq!(leaf.valid_before, leaf.valid_after + 5 * HOUR);
    let keys = json!({
        "PrivateKeyType": "rsa", "PrivateKeyBits": 2048, "IntermediateCertTTL": "100h",
    });
    secondary.change(keys).await.unwrap();
    fixture.until(|one| one.intermediate() != first).await;
    let info = CertificateInfo::from_pem(&fixture.intermediate()).unwrap();
    assert_eq!((info.key_type, info.key_bits), ("rsa", 2048));
    assert_eq!(info.not_after, info.not_before + 100 * HOUR);
    let root = roots.active().unwrap();
    assert_eq!(secondary.active(), root.id);
    fixture.verify(&root.root_cert).await.unwrap();
}

#[test]
fn what_a_secondary_cannot_have_ends_its_start() {
    let wrong = |change: &dyn Fn(&mut CaConfig)| {
        let mut config = of_secondary();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    };
    let vault = wrong(&|config| config.provider = "vault".to_owned());
    assert!(vault.contains("\"vault\""), "{vault}");
    let id = wrong(&|config| config.cluster_id = Some(uuid::Uuid::nil()));
    assert!(id.contains("cluster_id"), "{id}");
}

#[tokio::test(start_paused = true)]
async fn a_datacenter_with_its_own_root_joins_the_mesh_of_the_primary() {
    let store = Store::new();
    let mut config = CaConfig::default();
    config.more.0.insert("LeafCertTTL".to_owned(), "10h".into());
    let before = Datacenter::new(store.clone(), "dc2", &Clock::at(start()), config).await;
    let (own, domain) = (before.active(), before.ca.trust_domain());
    let fixture = Fixture::new(store).await;
    let secondary = &fixture.secondary;
    assert_eq!(secondary.ca.trust_domain(), domain);
    secondary.leaf().await.unwrap();
    fixture.follow();
    fixture.until_same_root().await;
    assert_ne!(secondary.ca.trust_domain(), domain);
    let trusts_own = |fixture: &Fixture| {
        let roots = fixture.secondary.roots();
        let mut roots = roots.roots.iter();
        roots.any(|root| root.id == own && !root.active)
    };
    assert!(trusts_own(&fixture), "its leaves are still valid");
    let leaf = secondary.leaf().await.unwrap();
    let life = leaf.valid_before.duration_since(leaf.valid_after);
    assert_eq!(life.unwrap(), 10 * HOUR, "the settings stay");
    fixture.maintain(secondary);
    sleep(19 * HOUR).await;
    assert!(trusts_own(&fixture));
    sleep(2 * HOUR).await;
    assert!(!trusts_own(&fixture));
}

#[tokio::test(start_paused = true)]
async fn a_datacenter_that_is_not_secondary_any_more_gets_its_own_root() {
    let fixture = Fixture::following().await;
    let store = fixture.secondary.store.clone();
    let Fixture { scope, clock, .. } = fixture;
    scope.stop(HOUR).await.unwrap();
    let own = Datacenter::new(store, "dc2", &clock, CaConfig::default()).await;
    own.leaf().await.unwrap();
    let refused = own.manager.sign_intermediate("", HOUR).await.unwrap_err();
    assert!(matches!(refused, CaError::NotPrimary));
    let mut same = own.manager.configuration().unwrap();
    let refused = own.manager.reconfigure(same.clone()).await.unwrap_err();
    // An intermediate signs no roots.
    assert!(matches!(refused, CaError::NoCrossSigning), "{refused}");
    same.force_without_cross_signing = true;
    own.manager.reconfigure(same).await.unwrap();
    assert_eq!(own.roots().roots.len(), 2);
    let leaf = own.leaf().await.unwrap();
    verify_chain(&leaf.cert_pem, &own.root(), clock.now()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_primary_signs_intermediates_of_its_mesh_only() {
    let clock = Clock::at(start());
    let primary = Datacenter::new(Store::new(), "dc1", &clock, CaConfig::default()).await;
    let key = PrivateKey::generate().unwrap();
    let sign = async |uri: &str, host: Option<&str>, ttl| {
        let hosts: Vec<String> = host.map(str::to_owned).into_iter().collect();
        let mut params = rcgen::CertificateParams::new(hosts).unwrap();
        let uri = rcgen::SanType::URI(uri.try_into().unwrap());
        params.subject_alt_names.push(uri);
        let csr = params.serialize_request(&key).unwrap().pem().unwrap();
        primary.manager.sign_intermediate(&csr, ttl).await
    };
    let own = format!("spiffe://{}", primary.ca.trust_domain());
    let service = format!("{own}/ns/default/dc/dc2/svc/web");
    for (uri, host) in [
        ("spiffe://other.consul", None),
        (service.as_str(), None),
        (own.as_str(), Some("server.dc1.consul")),
        (own.as_str(), Some("127.0.0.1")),
    ] {
        let refused = sign(uri, host, HOUR).await.unwrap_err();
        assert!(refused.is_invalid_request(), "{refused}");
    }
    // Not longer than the primary's setting permits.
    let keys = json!({"IntermediateCertTTL": "500h", "CSRMaxPerSecond": 1});
    primary.change(keys).await.unwrap();
    let signed = sign(&own, None, 8760 * HOUR).await.unwrap();
    let info = CertificateInfo::from_pem(&signed).unwrap();
    assert_eq!(info.not_after, info.not_before + 500 * HOUR);
    let limited = sign(&own, None, HOUR).await.unwrap_err();
    assert!(matches!(limited, CaError::RateLimited), "{limited}");
}

#[tokio::test(start_paused = true)]
async fn a_primary_that_is_back_is_followed_soon() {
    let fixture = Fixture::following().await;
    let has_problem = || fixture.problem.lock().unwrap().is_some();
    // The moment of the next attempt is random.
    for _ in 0..10 {
        fixture.away(true);
        sleep(HOUR).await;
        assert!(has_problem());
        fixture.away(false);
        sleep(Duration::from_secs(23)).await;
        assert!(!has_problem());
    }
}
