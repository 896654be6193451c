//! Profiles of certificates, parsed with another library than the one that encoded them.

use super::*;
use rcgen::{CertificateParams, KeyPair};
use x509_parser::prelude::X509Certificate;

const DAY: Duration = Duration::from_secs(24 * 3600);
const SERVICE: &str = "spiffe://11111111.consul/ns/default/dc/dc1/svc/web";

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_500)
}

/// The time with the resolution of certificates.
fn whole_second() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn root() -> Authority {
    Authority::generate_root(RootRequest {
        common_name: "pri-1.legate.ca.11111111.consul".to_owned(),
        uri: "spiffe://11111111.consul".to_owned(),
        serial: 7,
        now: now(),
        ttl: 3650 * DAY,
    })
    .unwrap()
}

fn leaf_request() -> LeafRequest {
    LeafRequest {
        uris: vec![SERVICE.to_owned()],
        dns_names: vec!["web.example".to_owned()],
        ips: vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
        serial: 258,
        now: now(),
        ttl: 3 * DAY,
    }
}

fn with_parsed(pem: &str, check: impl FnOnce(&X509Certificate<'_>)) {
    let der = first_certificate(pem).unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).unwrap();
    check(&certificate);
}

/// A request as a proxy's agent would send it, modified by `change`.
fn csr(key: &KeyPair, change: impl FnOnce(&mut CertificateParams)) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![uri_name(SERVICE.to_owned()).unwrap()];
    change(&mut params);
    params.serialize_request(key).unwrap().pem().unwrap()
}

fn profile() -> CsrProfile {
    CsrProfile {
        serial: 3,
        now: now(),
        ttl: DAY,
    }
}

fn check_refused(csr_pem: &str, expected: &str) {
    let error = root().sign_csr(csr_pem, profile()).unwrap_err();
    assert!(matches!(error, IdentityError::InvalidRequest { .. }));
    assert_eq!(error.to_string(), format!("invalid CSR: {expected}"));
}

#[test]
fn a_root_has_the_profile_of_a_root() {
    let root = root();
    let info = root.info();
    assert!(info.is_ca);
    assert_eq!(info.uris, ["spiffe://11111111.consul"]);
    assert_eq!(info.serial, "07");
    assert_eq!(info.not_before, whole_second());
    assert_eq!(info.not_after, whole_second() + 3650 * DAY);
    // SHA-256 has 32 bytes, SHA-1 has 20.
    assert_eq!(info.subject_key_id.len(), 32 * 3 - 1);
    assert_eq!(info.id.len(), 20 * 3 - 1);
    assert_eq!(info.authority_key_id.as_ref(), Some(&info.subject_key_id));
    with_parsed(root.cert_pem(), |certificate| {
        let name = certificate.subject().to_string();
        assert_eq!(name, "CN=pri-1.legate.ca.11111111.consul");
        let usage = certificate.key_usage().unwrap().unwrap();
        assert!(usage.critical);
        assert_eq!(
            usage.value.to_string(),
            "Digital Signature, Key Cert Sign, CRL Sign"
        );
        assert!(certificate.extended_key_usage().unwrap().is_none());
        let constraints = certificate.basic_constraints().unwrap().unwrap();
        assert_eq!(constraints.value.path_len_constraint, None);
        let names = certificate.subject_alternative_name().unwrap().unwrap();
        assert!(!names.critical, "its subject is not empty");
        certificate.verify_signature(None).unwrap();
    });
}

#[test]
fn a_leaf_has_the_profile_of_a_leaf() {
    let root = root();
    let leaf = root.issue(leaf_request()).unwrap();
    let info = &leaf.info;
    assert!(!info.is_ca);
    assert_eq!(info.uris, [SERVICE]);
    assert_eq!(info.dns_names, ["web.example"]);
    assert_eq!(info.ips, leaf_request().ips);
    assert_eq!(info.serial, "01:02");
    assert_eq!(info.not_before, whole_second() - BACKDATE);
    assert_eq!(info.not_after, info.not_before + 3 * DAY);
    assert_eq!(
        info.authority_key_id.as_ref(),
        Some(&root.info().subject_key_id)
    );
    assert_ne!(info.subject_key_id, root.info().subject_key_id);
    assert_eq!(
        CertificateInfo::from_pem(&leaf.cert_pem).unwrap(),
        leaf.info
    );
    with_parsed(&leaf.cert_pem, |certificate| {
        assert_eq!(certificate.subject().iter().count(), 0);
        let names = certificate.subject_alternative_name().unwrap().unwrap();
        assert!(names.critical, "its subject is empty");
        let usage = certificate.key_usage().unwrap().unwrap();
        let expected = "Digital Signature, Key Encipherment, Data Encipherment, Key Agreement";
        assert_eq!(usage.value.to_string(), expected);
        let extended = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(extended.client_auth && extended.server_auth && !extended.any);
        assert!(certificate.basic_constraints().unwrap().is_some());
        with_parsed(root.cert_pem(), |root| {
            certificate
                .verify_signature(Some(root.public_key()))
                .unwrap();
        });
    });
}

#[test]
fn every_leaf_has_its_own_key() {
    let root = root();
    let first = root.issue(leaf_request()).unwrap();
    let second = root.issue(leaf_request()).unwrap();
    assert_ne!(first.key.to_pem(), second.key.to_pem());
}

#[test]
fn a_short_lived_leaf_is_valid_when_issued() {
    let mut request = leaf_request();
    request.ttl = Duration::from_secs(20);
    let info = root().issue(request).unwrap().info;
    // Backdated by two seconds from half a second past, in whole seconds.
    assert_eq!(info.not_before, whole_second() - Duration::from_secs(2));
    assert_eq!(info.not_after, whole_second() + Duration::from_secs(18));
}

#[test]
fn an_authority_survives_a_round_trip_through_pem() {
    let root = root();
    let read = Authority::from_pem(root.cert_pem(), &root.key_pem()).unwrap();
    assert_eq!(read.info(), root.info());
    let leaf = read.issue(leaf_request()).unwrap();
    with_parsed(&leaf.cert_pem, |leaf| {
        with_parsed(root.cert_pem(), |root| {
            leaf.verify_signature(Some(root.public_key())).unwrap();
            assert_eq!(leaf.issuer().to_string(), root.subject().to_string());
        });
    });
}

#[test]
fn an_authority_needs_a_ca_certificate_and_its_own_key() {
    let (one, other) = (root(), root());
    let error = Authority::from_pem(one.cert_pem(), &other.key_pem()).unwrap_err();
    assert!(matches!(error, IdentityError::KeyMismatch));
    let leaf = one.issue(leaf_request()).unwrap();
    let error = Authority::from_pem(&leaf.cert_pem, &leaf.key.to_pem()).unwrap_err();
    assert!(matches!(error, IdentityError::NotAnAuthority { .. }));
    let error = Authority::from_pem("nothing", &one.key_pem()).unwrap_err();
    assert!(matches!(error, IdentityError::ParseCertificate { .. }));
}

#[test]
fn only_names_and_key_of_a_request_are_used() {
    let root = root();
    let key = KeyPair::generate().unwrap();
    let csr = csr(&key, |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "root of all");
        params
            .subject_alt_names
            .push(dns_name("web.example".to_owned()).unwrap());
    });
    assert_eq!(csr_names(&csr).unwrap().uris, [SERVICE]);
    let signed = root.sign_csr(&csr, profile()).unwrap();
    let info = CertificateInfo::from_pem(&signed).unwrap();
    assert!(!info.is_ca);
    assert_eq!((info.uris.len(), info.dns_names.len()), (1, 1));
    assert_eq!(info.not_after, whole_second() - BACKDATE + DAY);
    with_parsed(&signed, |certificate| {
        assert_eq!(certificate.public_key().raw, key.subject_public_key_info());
        assert_eq!(certificate.subject().iter().count(), 0);
        assert!(
            !certificate
                .key_usage()
                .unwrap()
                .unwrap()
                .value
                .key_cert_sign()
        );
    });
}

#[test]
fn keys_of_other_kinds_are_signed_too() {
    for kind in [&rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
        let key = KeyPair::generate_for(kind).unwrap();
        let signed = root().sign_csr(&csr(&key, |_| {}), profile()).unwrap();
        with_parsed(&signed, |certificate| {
            assert_eq!(certificate.public_key().raw, key.subject_public_key_info());
        });
    }
}

#[test]
fn requests_with_other_names_are_refused() {
    let key = KeyPair::generate().unwrap();
    let second = csr(&key, |params| {
        let other = uri_name("spiffe://other.consul".to_owned()).unwrap();
        params.subject_alt_names.push(other);
    });
    check_refused(&second, "it has 2 URI names, exactly one is needed");
    let none = csr(&key, |params| params.subject_alt_names.clear());
    check_refused(&none, "it has 0 URI names, exactly one is needed");
    let mail = csr(&key, |params| {
        let name = SanType::Rfc822Name("root@example.com".try_into().unwrap());
        params.subject_alt_names.push(name);
    });
    check_refused(&mail, "e-mail names are not allowed");
}

#[test]
fn a_request_must_be_signed_with_its_own_key() {
    let key = KeyPair::generate().unwrap();
    let good = csr(&key, |_| {});
    let mut der = request_der(&good).unwrap().to_vec();
    // The last byte belongs to the signature.
    *der.last_mut().unwrap() ^= 1;
    let error = parse_request(&der).err().unwrap();
    assert_eq!(
        error.to_string(),
        "invalid CSR: it is not signed with its own key"
    );
    assert!(root().sign_csr("no request", profile()).is_err());
}

#[test]
fn values_that_certificates_cannot_encode_are_refused() {
    let root = root();
    let mut request = leaf_request();
    request.dns_names = vec!["wäb.example".to_owned()];
    let error = root.issue(request).unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"wäb.example\" is not valid in a certificate: only ASCII is supported"
    );
    let mut request = leaf_request();
    request.ttl = Duration::from_secs(u64::MAX);
    assert!(matches!(root.issue(request), Err(IdentityError::Validity)));
    let mut request = leaf_request();
    request.now = SystemTime::UNIX_EPOCH;
    assert!(matches!(root.issue(request), Err(IdentityError::Validity)));
}

#[test]
fn keys_are_not_printed() {
    let root = root();
    let leaf = root.issue(leaf_request()).unwrap();
    for (text, key) in [
        (format!("{root:?}"), root.key_pem()),
        (format!("{leaf:?}"), leaf.key.to_pem()),
    ] {
        let body = key.lines().nth(1).unwrap();
        assert!(text.contains("***"));
        assert!(!text.contains(body) && !text.contains("PRIVATE KEY"));
    }
}

#[test]
fn an_intermediate_signs_leaves_and_no_authorities() {
    let root = root();
    let uri = "spiffe://11111111.consul";
    let name = "sec-1.legate.ca.11111111.consul";
    for kind in crate::KeyKind::ALL {
        let key = PrivateKey::generate_kind(kind).unwrap();
        let asked = crate::intermediate_request(&key, name, uri).unwrap();
        let pem = root.sign_intermediate(&asked, profile()).unwrap();
        with_parsed(&pem, |certificate| {
            assert_eq!(certificate.subject().to_string(), format!("CN={name}"));
            let constraints = certificate.basic_constraints().unwrap().unwrap();
            assert!(constraints.critical && constraints.value.ca);
            assert_eq!(constraints.value.path_len_constraint, Some(0));
            let usage = certificate.key_usage().unwrap().unwrap().value;
            assert!(usage.key_cert_sign() && usage.crl_sign() && usage.digital_signature());
            assert!(certificate.extended_key_usage().unwrap().is_none());
        });
        let own = Authority::from_pem(&pem, &key.to_pem()).unwrap();
        let info = own.info();
        assert_eq!(info.uris, [uri]);
        assert_eq!(info.public_key, key.public_key());
        assert_eq!(
            info.authority_key_id.as_ref(),
            Some(&root.info().subject_key_id)
        );
        assert_eq!(info.not_after, info.not_before + DAY);
        let verify = |chain: &str, at| crate::verify_chain(chain, root.cert_pem(), at);
        let leaf = own.issue(leaf_request()).unwrap();
        let chain = leaf.cert_pem.clone() + &pem;
        verify(&chain, now()).unwrap();
        assert!(verify(&leaf.cert_pem, now()).is_err(), "without its issuer");
        assert!(verify(&chain, now() + 2 * DAY).is_err(), "it has expired");
        let key = PrivateKey::generate().unwrap();
        let asked = crate::intermediate_request(&key, "another", uri).unwrap();
        let below = own.sign_intermediate(&asked, profile()).unwrap();
        let below_it = Authority::from_pem(&below, &key.to_pem()).unwrap();
        let leaf = below_it.issue(leaf_request()).unwrap().cert_pem;
        let chain = format!("{leaf}{below}{pem}");
        assert!(
            verify(&chain, now()).is_err(),
            "it may not sign authorities"
        );
    }
    let nameless = csr(&KeyPair::generate().unwrap(), |_| {});
    let error = root.sign_intermediate(&nameless, profile()).unwrap_err();
    assert_eq!(error.to_string(), "invalid CSR: it has no subject");
}
