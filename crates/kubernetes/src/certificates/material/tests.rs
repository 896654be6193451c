use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn policy() -> Policy {
    Policy {
        ca_ttl: 300 * HOUR,
        leaf_ttl: 30 * HOUR,
        overlap: 5 * HOUR,
        ..Policy::webhook("legate", "mesh")
    }
}

fn step(material: &mut Option<Material>, policy: &Policy, now: SystemTime) -> Step {
    let step = Step::due(material.as_ref(), policy, now).unwrap();
    if let Some(new) = step.take(material.clone(), policy, now).unwrap() {
        *material = Some(new);
    }
    step
}

/// Whether a client with `bundle` accepts the certificate.
fn verifies(bundle: &str, leaf: &Pair, now: SystemTime) -> bool {
    let leaf = CertificateInfo::from_pem(&leaf.cert).unwrap();
    let known = bundle.split_inclusive("-----END CERTIFICATE-----\n");
    let signer = known
        .map(|pem| CertificateInfo::from_pem(pem).unwrap())
        .find(|ca| leaf.authority_key_id.as_ref() == Some(&ca.subject_key_id));
    let valid = |info: &CertificateInfo| info.not_before <= now && now < info.not_after;
    signer.is_some_and(|ca| valid(&ca)) && valid(&leaf)
}

#[test]
fn the_lifecycle_of_two_cas() {
    let (policy, start) = (policy(), start());
    let mut material = None;
    assert_eq!(step(&mut material, &policy, start), Step::Create);
    let first = material.clone().unwrap();
    assert!(verifies(&first.bundle(), &first.leaf, start));
    let Step::Keep(until) = step(&mut material, &policy, start) else {
        panic!("made once");
    };
    assert!(until > start + 19 * HOUR && until < start + 20 * HOUR);
    assert_eq!(step(&mut material, &policy, until), Step::RenewLeaf);
    // After two thirds of the CA's lifetime the next one is published, but does not sign yet.
    let later = start + 201 * HOUR;
    assert_eq!(step(&mut material, &policy, later), Step::PublishNext);
    assert_eq!(step(&mut material, &policy, later), Step::RenewLeaf);
    let published = material.clone().unwrap();
    assert_eq!(published.bundle().matches("BEGIN").count(), 2);
    assert!(verifies(&first.bundle(), &published.leaf, later));
    let Step::Keep(promotion) = step(&mut material, &policy, later) else {
        panic!("waits");
    };
    assert_eq!(promotion, later + policy.overlap);
    assert_eq!(step(&mut material, &policy, promotion), Step::Promote);
    let promoted = material.clone().unwrap();
    // Clients with the bundle from before the promotion verify the new certificate, as do those that still
    // have the old CA.
    assert!(verifies(&published.bundle(), &promoted.leaf, promotion));
    assert!(verifies(&promoted.bundle(), &published.leaf, promotion));
    assert!(!verifies(&first.bundle(), &promoted.leaf, promotion));
    let expiry = start + 301 * HOUR;
    let _ = step(&mut material, &policy, expiry);
    assert_eq!(step(&mut material, &policy, expiry), Step::ForgetPrevious);
    assert_eq!(material.unwrap().bundle().matches("BEGIN").count(), 1);
}

#[test]
fn after_a_long_outage_the_operator_starts_over() {
    let (policy, start) = (policy(), start());
    let mut material = None;
    step(&mut material, &policy, start);
    let late = start + 400 * HOUR;
    assert_eq!(step(&mut material, &policy, late), Step::Create);
    assert!(matches!(step(&mut material, &policy, late), Step::Keep(_)));
    // If a next CA was published, it takes over.
    let published = late + 201 * HOUR;
    assert_eq!(step(&mut material, &policy, published), Step::PublishNext);
    assert_eq!(
        step(&mut material, &policy, late + 302 * HOUR),
        Step::Promote
    );
}

#[test]
fn changed_names_are_signed_at_once() {
    let (policy, now) = (policy(), start());
    let mut material = None;
    step(&mut material, &policy, now);
    let other = Policy {
        dns_names: vec!["other".to_owned()],
        ..policy
    };
    assert_eq!(step(&mut material, &other, now), Step::RenewLeaf);
    assert!(matches!(step(&mut material, &other, now), Step::Keep(_)));
}

#[test]
fn the_content_of_a_secret() {
    let (policy, now) = (policy(), start());
    let mut material = None;
    step(&mut material, &policy, now);
    step(&mut material, &policy, now + 201 * HOUR);
    let mut full = material.unwrap();
    full.previous = Some(full.ca.cert.clone());
    let data = full.data();
    assert_eq!(Material::read(&data).unwrap().as_ref(), Some(&full));
    assert_eq!(Material::read(&BTreeMap::new()), Ok(None));
    for key in [CA_CERT, CA_KEY, LEAF_CERT, LEAF_KEY] {
        let mut data = full.data();
        data.remove(key);
        let error = Material::read(&data).unwrap_err();
        assert_eq!(error, format!("{key} is missing"));
        data.insert(key.to_owned(), ByteString(b"garbage".to_vec()));
        let error = Material::read(&data).unwrap_err();
        assert!(!error.contains("garbage"), "{error}");
    }
    assert!(!format!("{full:?}").contains("PRIVATE"));
}

#[test]
fn the_names_of_the_servers() {
    let policy = Policy::servers("legate", "mesh", "dc1");
    for name in [
        "legate-server.mesh.svc",
        "*.legate-server.mesh.svc",
        "server.dc1.consul",
        "*.server.dc1.consul",
        "localhost",
    ] {
        assert!(policy.dns_names.iter().any(|one| one == name), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Replicas check at irregular times. As long as one checks in time, every replica's certificate is
    /// accepted by all clients whose bundle is not older than the overlap.
    #[test]
    fn no_client_is_ever_cut_off(waits in proptest::collection::vec(1_u32..4, 1..60)) {
        let policy = Policy {
            ca_ttl: 60 * HOUR,
            leaf_ttl: 20 * HOUR,
            overlap: 4 * HOUR,
            ..Policy::webhook("legate", "mesh")
        };
        let mut now = start();
        let mut material = None;
        let mut before: Option<Material> = None;
        for wait in waits {
            let mut steps = 0;
            while !matches!(step(&mut material, &policy, now), Step::Keep(_)) {
                steps += 1;
                prop_assert!(steps < 5, "it comes to rest");
            }
            let current = material.clone().unwrap();
            prop_assert!(verifies(&current.bundle(), &current.leaf, now));
            if let Some(before) = before.replace(current.clone()) {
                // A replica with the previous certificate, and an API server with the previous bundle.
                prop_assert!(verifies(&current.bundle(), &before.leaf, now));
                prop_assert!(verifies(&before.bundle(), &current.leaf, now));
            }
            now += wait * HOUR;
        }
    }
}
