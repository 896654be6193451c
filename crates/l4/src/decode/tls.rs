//! Makes TLS contexts and secrets of their trees.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::parts;
use super::problem::Problem;
use super::tree::Node;
use crate::model::{
    Certificate, CommonTls, DownstreamTls, Name, Secret, Source, TlsVersion, UpstreamTls,
    Validation,
};

/// The longest server name.
const SNI: usize = 255;
/// `SubjectAltNameMatcher.SanType.URI`.
const URI: i32 = 3;

/// The cipher suites of TLS 1.2 that the proxy has.
const SUITES: [&str; 6] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-CHACHA20-POLY1305",
];

/// Makes what a filter chain needs to terminate TLS.
pub(super) fn downstream(node: &Node<'_>) -> Result<DownstreamTls, Problem> {
    let common = node
        .child("common_tls_context", common)?
        .unwrap_or_default();
    if common.certificate.is_none() {
        return Err(Problem::invalid(
            "No TLS certificates found for server context",
        ));
    }
    Ok(DownstreamTls {
        require_client_certificate: node
            .wrapped_flag("require_client_certificate")
            .unwrap_or_default(),
        common,
    })
}

/// Makes what a cluster needs for TLS towards its hosts.
pub(super) fn upstream(node: &Node<'_>) -> Result<UpstreamTls, Problem> {
    let mut common = node
        .child("common_tls_context", common)?
        .unwrap_or_default();
    // Envoy's newest version as a client is TLS 1.2 by default. The proxy also offers 1.3, unless suites were chosen,
    // which only apply to 1.2.
    if common.max_version == TlsVersion::Auto && !common.cipher_suites.is_empty() {
        common.max_version = TlsVersion::V1_2;
    }
    let sni = node.text("sni").to_owned();
    if sni.len() > SNI {
        let text = format!("value length must be at most {SNI} bytes");
        return Err(Problem::invalid(text).within("sni"));
    }
    Ok(UpstreamTls { common, sni })
}

/// Makes a secret, with its name.
pub(super) fn secret(node: &Node<'_>) -> Result<(Name, Secret), Problem> {
    let name = parts::required(node, "name")?;
    if let Some(made) = node.child("tls_certificate", certificate)? {
        return Ok((name, Secret::Certificate(Arc::new(made))));
    }
    let made = node.child("validation_context", |context| {
        let (validation, uris) = validation(context)?;
        if !uris.is_empty() {
            let what = "in a secret";
            return Err(Problem::needs_envoy(what).within("match_typed_subject_alt_names"));
        }
        validation.ok_or_else(|| Problem::needs_envoy("a context without authorities"))
    })?;
    let made = made.ok_or_else(|| Problem::needs_envoy("a secret of no type"))?;
    Ok((name, Secret::Validation(Arc::new(made))))
}

fn common(node: &Node<'_>) -> Result<CommonTls, Problem> {
    let mut common = CommonTls {
        alpn: node.texts("alpn_protocols").map(str::to_owned).collect(),
        ..CommonTls::default()
    };
    node.child("tls_params", |node| parameters(node, &mut common))?;
    let inline = node.each("tls_certificates", |node| {
        certificate(node).map(|made| Source::Inline(Arc::new(made)))
    })?;
    let named = node.each("tls_certificate_sds_secret_configs", |node| {
        parts::secret_name(node).map(Source::Named)
    })?;
    let mut certificates = inline.into_iter().chain(named);
    common.certificate = certificates.next();
    if certificates.next().is_some() {
        return Err(Problem::needs_envoy("several certificates"));
    }
    drop(certificates);
    let inline = node.child("validation_context", validation)?;
    let named = node.child("validation_context_sds_secret_config", parts::secret_name)?;
    let combined = node.child("combined_validation_context", combined)?;
    if let Some((validation, uris)) = inline {
        if validation.is_none() && !uris.is_empty() {
            let text = "SAN-based verification of peer certificates without trusted CA is insecure and not allowed";
            return Err(Problem::invalid(text).within("validation_context"));
        }
        let validation = validation.ok_or_else(|| {
            Problem::needs_envoy("without authorities").within("validation_context")
        })?;
        common.validation = Some(Source::Inline(Arc::new(validation)));
        common.uris = uris;
    } else if let Some(name) = named {
        common.validation = Some(Source::Named(name));
    } else if let Some((name, uris)) = combined {
        common.validation = Some(Source::Named(name));
        common.uris = uris;
    }
    Ok(common)
}

fn parameters(node: &Node<'_>, common: &mut CommonTls) -> Result<(), Problem> {
    let version = |name| {
        let version = match node.choice(name) {
            1 => TlsVersion::V1_0,
            2 => TlsVersion::V1_1,
            3 => TlsVersion::V1_2,
            4 => TlsVersion::V1_3,
            _ => TlsVersion::Auto,
        };
        match version {
            TlsVersion::V1_0 | TlsVersion::V1_1 => {
                Err(Problem::needs_envoy("a version before TLS 1.2").within(name))
            }
            version => Ok(version),
        }
    };
    common.min_version = version("tls_minimum_protocol_version")?;
    common.max_version = version("tls_maximum_protocol_version")?;
    if common.min_version == TlsVersion::V1_3 && common.max_version == TlsVersion::V1_2 {
        return Err(Problem::needs_envoy("no version of TLS is left"));
    }
    let suites: Vec<String> = node.texts("cipher_suites").map(str::to_owned).collect();
    // The suites are those up to TLS 1.2.
    if common.min_version == TlsVersion::V1_3 {
        return Ok(());
    }
    for suite in &suites {
        if !SUITES.contains(&suite.as_str()) {
            return Err(Problem::needs_envoy(suite).within("cipher_suites"));
        }
    }
    common.cipher_suites = suites;
    Ok(())
}

fn certificate(node: &Node<'_>) -> Result<Certificate, Problem> {
    let chain = node.child("certificate_chain", parts::data)?;
    let key = node.child("private_key", parts::data)?;
    match (chain, key) {
        (Some(chain), Some(key)) => Ok(Certificate { chain, key }),
        _ => Err(Problem::invalid(
            "Failed to load incomplete certificate: a chain and a key are necessary",
        )),
    }
}

/// The authorities of an own context, with the URIs of which one is required.
fn validation(node: &Node<'_>) -> Result<(Option<Validation>, Vec<String>), Problem> {
    let uris = node.each("match_typed_subject_alt_names", uri)?;
    let authorities = node.child("trusted_ca", parts::data)?;
    let domains = node.child("custom_validator_config", |config| {
        let spiffe = config.child("typed_config", trust_domains)?;
        spiffe.ok_or_else(|| Problem::needs_envoy("a validator without its configuration"))
    })?;
    // Envoy's validator of SPIFFE identities does not look at the other authorities.
    let validation = domains.map(Validation::TrustDomains);
    Ok((
        validation.or(authorities.map(Validation::Authorities)),
        uris,
    ))
}

fn trust_domains(node: &Node<'_>) -> Result<BTreeMap<String, String>, Problem> {
    let mut domains = BTreeMap::new();
    node.each("trust_domains", |domain| {
        let name = parts::required(domain, "name")?;
        let bundle = domain.child("trust_bundle", parts::data)?;
        let bundle =
            bundle.ok_or_else(|| Problem::needs_envoy("a trust domain without authorities"))?;
        if domains.insert(name.to_string(), bundle).is_some() {
            return Err(Problem::invalid(format!(
                "Multiple trust bundles are given for one trust domain for {name}"
            )));
        }
        Ok(())
    })?;
    if domains.is_empty() {
        return Err(
            Problem::invalid("value must contain at least 1 item(s)").within("trust_domains")
        );
    }
    Ok(domains)
}

fn uri(node: &Node<'_>) -> Result<String, Problem> {
    if node.choice("san_type") != URI {
        return Err(Problem::needs_envoy("another type than URI").within("san_type"));
    }
    let exact = node.child("matcher", |matcher| match matcher.has("exact") {
        true => Ok(matcher.text("exact").to_owned()),
        false => Err(Problem::needs_envoy("another match than exact")),
    })?;
    exact.ok_or_else(|| Problem::invalid("value is required").within("matcher"))
}

/// A context with URIs of its own, and authorities from a secret.
fn combined(node: &Node<'_>) -> Result<(Name, Vec<String>), Problem> {
    let name = node.child("validation_context_sds_secret_config", parts::secret_name)?;
    let name = name.ok_or_else(|| {
        Problem::invalid("value is required").within("validation_context_sds_secret_config")
    })?;
    let own = node.child("default_validation_context", |context| {
        match validation(context)? {
            (None, uris) => Ok(uris),
            (Some(_), _) => Err(Problem::needs_envoy(
                "authorities besides those of the secret",
            )),
        }
    })?;
    let uris = own.ok_or_else(|| {
        Problem::invalid("value is required").within("default_validation_context")
    })?;
    Ok((name, uris))
}
