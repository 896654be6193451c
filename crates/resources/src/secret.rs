//! Certificates and roots as separate secrets, so that a renewal changes nothing else.

use std::borrow::Cow;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{DataSource, TypedExtensionConfig, data_source};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, SpiffeCertValidatorConfig, TlsCertificate, secret,
    spiffe_cert_validator_config::TrustDomain as TrustDomainRoots,
};
use legate_model::{CaRoots, PeerTrustBundle, TrustDomain};
use legate_proxycfg::gateways::api::{CertificateSource, GatewayCertificate};
use legate_proxycfg::{Leaf, Peers};

use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::memo::Memo;
use crate::names::{self, ROOTS};

/// Envoy's name of the extension.
const SPIFFE_VALIDATOR: &str = "envoy.tls.cert_validator.spiffe";

#[derive(Hash)]
struct LeafInput<'a> {
    name: &'a str,
    certificates: &'a str,
    key: &'a str,
}

#[derive(Hash)]
struct RootsInput<'a> {
    certificates: Vec<&'a str>,
}

/// A service's certificate and key, as the secret of this name.
pub(crate) fn leaf(
    memo: &Memo,
    name: &str,
    leaf: &Leaf,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = LeafInput {
        name,
        certificates: &leaf.cert_pem,
        key: leaf.key_pem.expose(),
    };
    if input.certificates.is_empty() || input.key.is_empty() {
        return Err(GenerateError::NoLeaf(leaf.id.to_string()));
    }
    memo.get(&input, |input| {
        let certificate = TlsCertificate {
            certificate_chain: Some(inline(input.certificates)),
            private_key: Some(inline(input.key)),
            ..TlsCertificate::default()
        };
        Ok(encode(
            input.name,
            secret::Type::TlsCertificate(certificate),
        ))
    })
}

/// A certificate that a gateway presents to clients.
pub(crate) fn presented(
    memo: &Memo,
    certificate: &GatewayCertificate,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let name = &certificate.secret;
    let file = |path: &str| DataSource {
        specifier: Some(data_source::Specifier::Filename(path.to_owned())),
        ..DataSource::default()
    };
    let (chain, key) = match &certificate.source {
        CertificateSource::Inline { certificate, key } => {
            (inline(certificate), inline(key.expose()))
        }
        CertificateSource::Files { certificate, key } => (file(certificate), file(key)),
    };
    let certificate = TlsCertificate {
        certificate_chain: Some(chain),
        private_key: Some(key),
        ..TlsCertificate::default()
    };
    memo.get(&(name, encode::any(&certificate)), |_| {
        Ok(encode(
            name,
            secret::Type::TlsCertificate(certificate.clone()),
        ))
    })
}

/// The roots that peers' certificates are verified against.
pub(crate) fn roots(memo: &Memo, roots: &CaRoots) -> Result<Arc<EncodedResource>, GenerateError> {
    let certificates = roots.roots.iter().map(|root| root.root_cert.trim_end());
    let input = RootsInput {
        certificates: certificates.collect(),
    };
    if input.certificates.iter().all(|pem| pem.trim().is_empty()) {
        return Err(GenerateError::NoRoots);
    }
    memo.get(&input, |_| Ok(trusted(ROOTS, &roots.bundle_pem())))
}

/// The roots that the certificates of a peer's services are verified against.
pub(crate) fn peer_roots(
    memo: &Memo,
    peer: &str,
    bundle: &PeerTrustBundle,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let name = names::peer_roots(peer);
    let mut all = String::new();
    for pem in bundle.root_pems.iter().map(|pem| pem.trim()) {
        all.push_str(pem);
        all.push('\n');
    }
    if all.trim().is_empty() {
        return Err(GenerateError::NoRoots);
    }
    memo.get(&("roots of a peer", &name, &all), |_| {
        Ok(trusted(&name, &all))
    })
}

fn trusted(name: &str, pem: &str) -> EncodedResource {
    let context = CertificateValidationContext {
        trusted_ca: Some(inline(pem)),
        ..CertificateValidationContext::default()
    };
    encode(name, secret::Type::ValidationContext(context))
}

#[derive(Hash)]
struct DomainsInput<'a> {
    name: &'a str,
    domains: Vec<(&'a str, Cow<'a, str>)>,
}

/// The certificates that callers of several trust domains are verified against, each against those of its own: of the
/// peers and, if `own` are given, of this mesh.
pub(crate) fn domains(
    memo: &Memo,
    name: &str,
    own: Option<(&TrustDomain, &CaRoots)>,
    peers: &Peers,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let own = own.map(|(domain, roots)| (domain.as_str(), Cow::from(roots.bundle_pem())));
    if own
        .as_ref()
        .is_some_and(|(_, roots)| roots.trim().is_empty())
    {
        return Err(GenerateError::NoRoots);
    }
    let peers = peers.values();
    let peers = peers.map(|peer| (peer.trust_domain.as_str(), Cow::from(&*peer.roots)));
    let input = DomainsInput {
        name,
        domains: own.into_iter().chain(peers).collect(),
    };
    memo.get(&input, |input| {
        let domains = input.domains.iter().map(|(name, roots)| TrustDomainRoots {
            name: (*name).to_owned(),
            trust_bundle: Some(inline(roots)),
            ..TrustDomainRoots::default()
        });
        let validator = SpiffeCertValidatorConfig {
            trust_domains: domains.collect(),
            ..SpiffeCertValidatorConfig::default()
        };
        let context = CertificateValidationContext {
            custom_validator_config: Some(TypedExtensionConfig {
                name: SPIFFE_VALIDATOR.to_owned(),
                typed_config: Some(encode::any(&validator)),
            }),
            ..CertificateValidationContext::default()
        };
        Ok(encode(input.name, secret::Type::ValidationContext(context)))
    })
}

fn encode(name: &str, content: secret::Type) -> EncodedResource {
    let secret = Secret {
        name: name.to_owned(),
        r#type: Some(content),
    };
    encode::resource(name, &secret, &[])
}

fn inline(text: &str) -> DataSource {
    DataSource {
        specifier: Some(data_source::Specifier::InlineString(text.to_owned())),
        ..DataSource::default()
    }
}
