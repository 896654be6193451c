//! Cross-signing: a certificate for another root, signed by this CA. It links certificates of the
//! other root to peers that trust only this one. Apart from issuer, validity and serial number, it
//! equals the other root.

use rcgen::string::{BmpString, Ia5String, PrintableString, TeletexString, UniversalString};
use rcgen::{CustomExtension, DistinguishedName, DnType, DnValue, IsCa, SubjectPublicKeyInfo};
use x509_parser::asn1_rs::Tag;
use x509_parser::oid_registry::OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use crate::authority::backdated;
use crate::certificate::first_certificate;
use crate::{Authority, CertificateInfo, CsrProfile, IdentityError};

impl Authority {
    /// Cross-signs the first certificate of `root`. Subject, key and extensions are unchanged.
    ///
    /// # Errors
    ///
    /// When it is not a CA certificate, or its subject cannot be encoded identically.
    pub fn cross_sign(&self, root: &str, profile: CsrProfile) -> Result<String, IdentityError> {
        let der = first_certificate(root)?;
        if !CertificateInfo::from_der(&der)?.is_ca {
            let reason = "its basic constraints do not include CA";
            return Err(IdentityError::NotAnAuthority { reason });
        }
        let (_, parsed) = X509Certificate::from_der(&der).map_err(unreadable)?;
        let mut params = backdated(profile)?;
        params.distinguished_name = name(parsed.subject())?;
        // Basic constraints and all other extensions are copied verbatim.
        params.is_ca = IsCa::NoCa;
        for extension in parsed.extensions() {
            if extension.oid == OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER {
                continue;
            }
            let oid: Option<Vec<u64>> = extension.oid.iter().map(Iterator::collect);
            let oid = oid.ok_or_else(|| unreadable("an extension has no usable number"))?;
            let mut copy = CustomExtension::from_oid_content(&oid, extension.value.to_vec());
            copy.set_criticality(extension.critical);
            params.custom_extensions.push(copy);
        }
        let key = SubjectPublicKeyInfo::from_der(parsed.public_key().raw).map_err(unreadable)?;
        let signed = params.signed_by(&key, &self.issuer);
        let signed = signed.map_err(IdentityError::Sign)?;
        let (_, copy) = X509Certificate::from_der(signed.der()).map_err(unreadable)?;
        if copy.subject().as_raw() != parsed.subject().as_raw() {
            return Err(unreadable("its subject cannot be encoded identically"));
        }
        Ok(signed.pem())
    }
}

/// The name in the library's form, which has a single value per attribute.
pub(crate) fn name(name: &X509Name<'_>) -> Result<DistinguishedName, IdentityError> {
    let mut copy = DistinguishedName::new();
    for part in name.iter() {
        let mut values = part.iter();
        let (Some(attribute), None) = (values.next(), values.next()) else {
            return Err(unreadable("a part of its subject has several values"));
        };
        let oid: Option<Vec<u64>> = attribute.attr_type().iter().map(Iterator::collect);
        let oid = oid.ok_or_else(|| unreadable("a part of its subject has no usable number"))?;
        copy.push(DnType::from_oid(&oid), value(attribute)?);
    }
    Ok(copy)
}

fn value(attribute: &AttributeTypeAndValue<'_>) -> Result<DnValue, IdentityError> {
    let bytes = attribute.attr_value().data;
    let text = || std::str::from_utf8(bytes).map_err(unreadable);
    Ok(match attribute.attr_value().header.tag() {
        Tag::Utf8String => DnValue::Utf8String(text()?.to_owned()),
        Tag::PrintableString => {
            DnValue::PrintableString(PrintableString::try_from(text()?).map_err(unreadable)?)
        }
        Tag::Ia5String => DnValue::Ia5String(Ia5String::try_from(text()?).map_err(unreadable)?),
        Tag::T61String => {
            DnValue::TeletexString(TeletexString::try_from(text()?).map_err(unreadable)?)
        }
        Tag::BmpString => {
            DnValue::BmpString(BmpString::from_utf16be(bytes.to_vec()).map_err(unreadable)?)
        }
        Tag::UniversalString => DnValue::UniversalString(
            UniversalString::from_utf32be(bytes.to_vec()).map_err(unreadable)?,
        ),
        _ => return Err(unreadable("a part of its subject is not text")),
    })
}

fn unreadable(reason: impl ToString) -> IdentityError {
    IdentityError::ParseCertificate {
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::{KeyKind, LeafRequest, PrivateKey, RootRequest, is_issued_by};

    /// A time with the resolution of certificates.
    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn root(name: &str, kind: KeyKind) -> Authority {
        let request = RootRequest {
            common_name: name.to_owned(),
            uri: "spiffe://a.consul".to_owned(),
            serial: 7,
            now: now(),
            ttl: Duration::from_secs(3600),
        };
        Authority::root_of(request, PrivateKey::generate_kind(kind).unwrap()).unwrap()
    }

    #[test]
    fn cross_signed_chains_are_valid_for_all_key_kinds() {
        let now = now();
        let profile = CsrProfile {
            serial: 99,
            now,
            ttl: Duration::from_secs(600),
        };
        for (old, new) in KeyKind::ALL.iter().zip(KeyKind::ALL.iter().rev()) {
            let (old, new) = (root("old", *old), root("new", *new));
            let link = old.cross_sign(new.cert_pem(), profile).unwrap();
            let (before, after) = (new.info(), &CertificateInfo::from_pem(&link).unwrap());
            assert_eq!(before.subject_key_id, after.subject_key_id);
            assert_eq!(
                after.authority_key_id.as_ref(),
                Some(&old.info().subject_key_id)
            );
            assert_eq!((&before.uris, before.is_ca), (&after.uris, after.is_ca));
            assert_eq!(
                after.not_after,
                before.not_before + Duration::from_secs(540)
            );
            let leaf = new.issue(LeafRequest {
                uris: vec!["spiffe://a.consul/ns/default/dc/dc1/svc/web".to_owned()],
                dns_names: Vec::new(),
                ips: Vec::new(),
                serial: 1,
                now,
                ttl: Duration::from_secs(60),
            });
            let leaf = leaf.unwrap().cert_pem;
            assert!(is_issued_by(&leaf, &link).unwrap());
            assert!(is_issued_by(&link, old.cert_pem()).unwrap());
            assert!(!is_issued_by(&link, new.cert_pem()).unwrap());
        }
    }

    #[test]
    fn subjects_are_copied_exactly() {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Constrained(1));
        let mut subject = DistinguishedName::new();
        let country = PrintableString::try_from("DE").unwrap();
        subject.push(DnType::CountryName, DnValue::PrintableString(country));
        subject.push(DnType::OrganizationName, "Ünïcode");
        let mail = Ia5String::try_from("a@b").unwrap();
        let oid = DnType::from_oid(&[1, 2, 840, 113_549, 1, 9, 1]);
        subject.push(oid, DnValue::Ia5String(mail));
        params.distinguished_name = subject;
        let key = PrivateKey::generate().unwrap();
        let new = params.self_signed(&key).unwrap().pem();
        let profile = CsrProfile {
            serial: 99,
            now: now(),
            ttl: Duration::from_secs(600),
        };
        let old = root("old", KeyKind::EcP256);
        let link = old.cross_sign(&new, profile).unwrap();
        let (first, second) = (
            first_certificate(&new).unwrap(),
            first_certificate(&link).unwrap(),
        );
        let (_, first) = X509Certificate::from_der(&first).unwrap();
        let (_, second) = X509Certificate::from_der(&second).unwrap();
        assert_eq!(first.subject().as_raw(), second.subject().as_raw());
        let constraints = second.basic_constraints().unwrap().unwrap();
        assert_eq!(constraints.value.path_len_constraint, Some(1));
        // A leaf is not a root.
        let leaf = rcgen::CertificateParams::default()
            .self_signed(&key)
            .unwrap();
        assert!(old.cross_sign(&leaf.pem(), profile).is_err());
    }
}
