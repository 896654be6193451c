//! Generated orders of events in a primary and a secondary datacenter, without IO.

use legate_identity::{
    Authority, CsrProfile, LeafRequest, RootRequest, intermediate_request, verify_chain,
};
use proptest::prelude::*;

use super::*;
use crate::first::root_entry;
use crate::intermediate::verified;
use crate::provider::Established;
use crate::settings::Settings;

const HOUR: Duration = Duration::from_secs(3600);
const INTERMEDIATE: Duration = Duration::from_secs(1000 * 3600);
const LEAF: Duration = Duration::from_secs(72 * 3600);
const URI: &str = "spiffe://11111111-2222-3333-4444-555555555555.consul";

fn authority(name: &str, now: SystemTime) -> Authority {
    Authority::generate_root(RootRequest {
        common_name: name.to_owned(),
        uri: URI.to_owned(),
        serial: 7,
        now,
        ttl: 1_000_000 * HOUR,
    })
    .unwrap()
}

fn entry(authority: &Authority, now: SystemTime) -> CaRoot {
    let established = Established {
        root_pem: authority.cert_pem().to_owned(),
        intermediate: None,
        key: Secret::default(),
    };
    let configuration = crate::CaConfig::default().configuration();
    let settings = Settings::parse(&configuration).unwrap();
    root_entry(
        &established,
        &settings,
        "11111111-2222-3333-4444-555555555555",
        now,
    )
    .unwrap()
}

/// The primary's CA.
struct PrimaryCa {
    roots: CaRoots,
    active: Authority,
}

impl PrimaryCa {
    fn new(now: SystemTime) -> Self {
        let active = authority("first", now);
        let root = entry(&active, now);
        let roots = CaRoots {
            active_root_id: root.id.clone(),
            trust_domain: URI.replace("spiffe://", ""),
            roots: vec![root],
        };
        Self { roots, active }
    }

    fn rotate(&mut self, now: SystemTime) {
        let next = authority("next", now);
        let profile = profile(now, HOUR * 168);
        let link = self.active.cross_sign(next.cert_pem(), profile).unwrap();
        let mut root = entry(&next, now);
        root.intermediate_certs.push(link);
        for old in &mut self.roots.roots {
            old.active = false;
        }
        self.roots.active_root_id.clone_from(&root.id);
        self.roots.roots.push(root);
        self.active = next;
    }

    fn prune(&mut self) {
        self.roots.roots.retain(|root| root.active);
    }
}

fn profile(now: SystemTime, ttl: Duration) -> CsrProfile {
    CsrProfile {
        serial: rand::random::<u128>() >> 1,
        now,
        ttl,
    }
}

/// What is wrong with an answer of the primary.
#[derive(Debug, Clone, Copy)]
enum Wrong {
    /// It is lost.
    Lost,
    /// Signed by another root.
    OtherRoot,
    /// For another key.
    OtherKey,
    /// For another mesh.
    OtherUri,
    /// A leaf.
    Leaf,
    /// It has expired.
    Expired,
    /// Not a certificate.
    Text,
}

#[derive(Debug, Clone)]
enum Event {
    /// The primary gets another root.
    Rotate,
    /// The primary forgets the roots that are not active.
    PrunePrimary,
    /// The roots that the secondary knows are those of now.
    Fetch,
    /// The secondary takes the next step, with the roots that it knows.
    Step(Option<Wrong>),
    /// The secondary removes what it does not need.
    Prune,
    /// A server starts with what is stored.
    Restart,
    /// The stored key is another one.
    LoseKey,
    /// The clock moves by these hours.
    Clock(i16),
    /// A leaf is signed.
    Sign,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let wrong = prop_oneof![
        Just(Wrong::Lost),
        Just(Wrong::OtherRoot),
        Just(Wrong::OtherKey),
        Just(Wrong::OtherUri),
        Just(Wrong::Leaf),
        Just(Wrong::Expired),
        Just(Wrong::Text),
    ];
    let event = prop_oneof![
        2 => Just(Event::Rotate),
        1 => Just(Event::PrunePrimary),
        4 => Just(Event::Fetch),
        6 => proptest::option::weighted(0.4, wrong).prop_map(Event::Step),
        1 => Just(Event::Prune),
        1 => Just(Event::Restart),
        1 => Just(Event::LoseKey),
        2 => (-300_i16..900).prop_map(Event::Clock),
        3 => Just(Event::Sign),
    ];
    proptest::collection::vec(event, 1..30)
}

struct World {
    primary: PrimaryCa,
    known: CaRoots,
    ca: Option<CaState>,
    now: SystemTime,
    /// The roots that must be trusted until these times.
    leaves: Vec<(String, SystemTime)>,
}

impl World {
    /// An empty store, or that of a datacenter with its own root.
    fn new(was_independent: bool) -> Self {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let primary = PrimaryCa::new(now);
        let own = authority("own", now);
        let root = entry(&own, now);
        let ca = CaState {
            roots: Arc::new(CaRoots {
                active_root_id: root.id.clone(),
                trust_domain: "own.consul".to_owned(),
                roots: vec![root],
            }),
            signing_key: own.key_pem().into(),
            cluster_id: "own".to_owned(),
            lives: BTreeMap::new(),
            secondary: None,
        };
        Self {
            known: primary.roots.clone(),
            primary,
            ca: was_independent.then_some(ca),
            now,
            leaves: Vec::new(),
        }
    }

    /// The answer to a request with this key.
    fn answer(&self, key: &PrivateKey, wrong: Option<Wrong>) -> String {
        let (now, active) = (self.now, &self.primary.active);
        let request = |key, uri| intermediate_request(key, "sec", uri).unwrap();
        let (own, profile) = (request(key, URI), profile(now, INTERMEDIATE));
        let signed = match wrong {
            None | Some(Wrong::Lost) => active.sign_intermediate(&own, profile),
            Some(Wrong::OtherRoot) => authority("first", now).sign_intermediate(&own, profile),
            Some(Wrong::OtherKey) => {
                let other = request(&PrivateKey::generate().unwrap(), URI);
                active.sign_intermediate(&other, profile)
            }
            Some(Wrong::OtherUri) => {
                active.sign_intermediate(&request(key, "spiffe://other.consul"), profile)
            }
            Some(Wrong::Leaf) => active.sign_csr(&own, profile),
            Some(Wrong::Expired) => {
                let now = now - 2 * INTERMEDIATE;
                active.sign_intermediate(&own, CsrProfile { now, ..profile })
            }
            Some(Wrong::Text) => Ok("nothing".to_owned()),
        };
        signed.unwrap()
    }

    /// Takes a step as the driver does.
    fn step(&mut self, wrong: Option<Wrong>) -> Step {
        let ca = self.ca.as_ref();
        let step = next_step(ca, &self.known, KeyKind::EcP256, self.now);
        match step {
            Step::Nothing => {}
            Step::Adopt => {
                let ca = ca.unwrap();
                let own = ca.secondary.as_ref().unwrap();
                self.ca = Some(adopted(ca, own, &self.known, self.now));
            }
            Step::Request => {
                let key = PrivateKey::generate().unwrap();
                let answer = self.answer(&key, wrong);
                let root = self.known.active().unwrap();
                let checked = verified(&answer, &key, root, URI, self.now);
                if wrong.is_some_and(|wrong| !matches!(wrong, Wrong::Lost)) {
                    assert!(checked.is_err(), "{wrong:?}");
                }
                if let (Ok(signed), None) = (checked, wrong) {
                    let signer = (signed, key.to_pem().into());
                    self.ca = Some(installed(ca, &self.known, signer, LEAF, self.now));
                }
            }
        }
        step
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Rotate => self.primary.rotate(self.now),
            Event::PrunePrimary => self.primary.prune(),
            Event::Fetch => self.known = consistent(self.primary.roots.clone()).unwrap(),
            Event::Step(wrong) => {
                self.step(wrong);
            }
            Event::Prune => {
                let pruned = self
                    .ca
                    .as_ref()
                    .and_then(|ca| rotation::pruned(ca, self.now, LEAF));
                self.ca = pruned.or(self.ca.take());
            }
            Event::Restart => {
                let text = serde_json::to_vec(&self.ca).unwrap();
                let read: Option<CaState> = serde_json::from_slice(&text).unwrap();
                assert_eq!(read, self.ca);
            }
            Event::LoseKey => {
                if let Some(ca) = &mut self.ca
                    && ca.secondary.is_some()
                {
                    ca.signing_key = PrivateKey::generate().unwrap().to_pem().into();
                }
            }
            Event::Clock(hours) => {
                let by = HOUR * u32::from(hours.unsigned_abs());
                self.now = match hours < 0 {
                    true => self.now - by,
                    false => self.now + by,
                };
            }
            Event::Sign => {
                if let Some(ca) = &self.ca {
                    let active = ca.roots.active_root_id.clone();
                    self.leaves.push((active, self.now + LEAF));
                }
            }
        }
    }

    /// What holds at any time.
    fn check(&self) {
        let Some(ca) = &self.ca else { return };
        let roots = &ca.roots.roots;
        let active: Vec<_> = roots.iter().filter(|root| root.active).collect();
        assert_eq!(active.len(), 1);
        assert_eq!(active[0].id, ca.roots.active_root_id);
        let trusted = |id: &String| roots.iter().any(|root| root.id == *id);
        for (signer, until) in &self.leaves {
            assert!(*until <= self.now || trusted(signer), "{signer} is missing");
        }
        if let Some(own) = &ca.secondary {
            assert!(own.primary.roots.iter().all(|root| trusted(&root.id)));
            let root = &active[0].root_cert;
            assert!(legate_identity::is_issued_by(&own.intermediate, root).unwrap());
            assert_eq!(active[0].intermediate_certs.last(), Some(&own.intermediate));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// For any order of events, nothing unverified is stored, roots of valid leaves stay trusted, and in the end an
    /// intermediate of the primary's active root signs.
    #[test]
    fn the_secondary_follows_the_primary(was_independent: bool, events in events()) {
        let mut world = World::new(was_independent);
        for event in events {
            // Leaves that were signed in the future, before the clock was set back, need no root by now.
            if matches!(event, Event::Clock(hours) if hours < 0) {
                world.leaves.clear();
            }
            world.apply(event);
            world.check();
        }
        let root = CertificateInfo::from_pem(world.primary.active.cert_pem()).unwrap();
        world.now = world.now.max(root.not_before);
        world.apply(Event::Fetch);
        let steps: Vec<_> = (0..3).map(|_| world.step(None)).collect();
        prop_assert_eq!(steps[2], Step::Nothing, "{:?}", steps);
        world.check();
        let ca = world.ca.as_ref().unwrap();
        prop_assert_eq!(&ca.roots.active_root_id, &world.primary.roots.active_root_id);
        prop_assert_eq!(&ca.roots.trust_domain, &world.primary.roots.trust_domain);
        let signer = &ca.secondary.as_ref().unwrap().intermediate;
        let signer = Authority::from_pem(signer, ca.signing_key.expose()).unwrap();
        let leaf = signer.issue(LeafRequest {
            uris: vec![format!("{URI}/ns/default/dc/dc2/svc/web")],
            dns_names: Vec::new(),
            ips: Vec::new(),
            serial: 1,
            now: world.now,
            ttl: LEAF,
        }).unwrap();
        let active = ca.roots.active().unwrap();
        let chain = leaf.cert_pem + &active.intermediate_certs.concat();
        verify_chain(&chain, world.primary.active.cert_pem(), world.now).unwrap();
        prop_assert_eq!(&leaf.info.authority_key_id.unwrap(), &active.signing_key_id);
    }
}

#[test]
fn roots_that_no_ca_has_are_refused() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let mut primary = PrimaryCa::new(now);
    primary.rotate(now);
    let good = primary.roots.clone();
    assert_eq!(consistent(good.clone()), Ok(good.clone()));
    let refused = |change: &dyn Fn(&mut CaRoots), expected: &str| {
        let mut roots = good.clone();
        change(&mut roots);
        let reason = consistent(roots).unwrap_err();
        assert!(reason.contains(expected), "{reason}");
    };
    refused(&|roots| roots.trust_domain = "consul".to_owned(), "dotted");
    refused(
        &|roots| roots.trust_domain = "a.b.consul".to_owned(),
        "cluster id",
    );
    refused(&|roots| roots.roots[0].active = true, "whether root");
    refused(&|roots| roots.roots[1].active = false, "whether root");
    refused(&|roots| roots.roots.truncate(1), "no active root");
    refused(
        &|roots| roots.roots[0].id = "other".to_owned(),
        "of this id",
    );
    refused(&|roots| roots.roots[0].root_cert.clear(), "certificate");
    let leaf = primary.active.issue(LeafRequest {
        uris: vec![URI.to_owned()],
        dns_names: Vec::new(),
        ips: Vec::new(),
        serial: 1,
        now,
        ttl: LEAF,
    });
    let leaf = leaf.unwrap().cert_pem;
    refused(&|roots| roots.roots[0].root_cert += &leaf, "not a root");
    let many = |roots: &mut CaRoots| roots.roots = vec![good.roots[0].clone(); 65];
    refused(&many, "more than 64");
}

#[test]
fn an_intermediate_is_replaced_after_half_of_its_life_and_for_another_kind_of_key() {
    let mut world = World::new(false);
    assert_eq!(world.step(None), Step::Request);
    assert_eq!(world.step(None), Step::Nothing);
    let ca = world.ca.clone().unwrap();
    let next = |key, after: Duration| next_step(Some(&ca), &world.known, key, world.now + after);
    assert_eq!(
        next(KeyKind::EcP256, INTERMEDIATE / 2 - HOUR),
        Step::Nothing
    );
    assert_eq!(next(KeyKind::EcP256, INTERMEDIATE / 2), Step::Request);
    assert_eq!(next(KeyKind::EcP384, HOUR), Step::Request);
    let info = CertificateInfo::from_pem(&ca.secondary.unwrap().intermediate).unwrap();
    assert_eq!((info.uris, info.dns_names), (vec![URI.to_owned()], vec![]));
}
