//! Mutual TLS on both sides of a proxy: versions and ciphers from the mesh entry, certificates by
//! secret names, the peer's identity by its SPIFFE id.

use envoy_types::pb::envoy::config::core::v3::{
    AggregatedConfigSource, ApiVersion, ConfigSource, TransportSocket, config_source,
    transport_socket,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, SdsSecretConfig,
    SubjectAltNameMatcher, TlsParameters, UpstreamTlsContext, common_tls_context,
    subject_alt_name_matcher, tls_parameters,
};
use envoy_types::pb::envoy::r#type::matcher::v3::{StringMatcher, string_matcher};
use envoy_types::pb::google::protobuf::{BoolValue, Duration as ProtoDuration};
use legate_model::{Mesh, MeshTlsDirection};

use crate::encode;
use crate::error::GenerateError;
use crate::names::{self, LEAF, ROOTS, TLS_SOCKET};

/// Versions and ciphers of one direction. The default leaves all of them to Envoy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TlsSettings {
    min: i32,
    max: i32,
    ciphers: Vec<&'static str>,
}

impl TlsSettings {
    /// For connections that the proxy accepts.
    pub(crate) fn incoming(mesh: Option<&Mesh>) -> Result<Self, GenerateError> {
        let tls = mesh.and_then(|mesh| mesh.tls.as_ref());
        Self::of_mesh("TLS.Incoming", tls.and_then(|tls| tls.incoming.as_ref()))
    }

    /// For connections that the proxy opens.
    pub(crate) fn outgoing(mesh: Option<&Mesh>) -> Result<Self, GenerateError> {
        let tls = mesh.and_then(|mesh| mesh.tls.as_ref());
        Self::of_mesh("TLS.Outgoing", tls.and_then(|tls| tls.outgoing.as_ref()))
    }

    fn of_mesh(at: &str, direction: Option<&MeshTlsDirection>) -> Result<Self, GenerateError> {
        let Some(direction) = direction else {
            return Ok(Self::default());
        };
        let versions = (&*direction.tls_min_version, &*direction.tls_max_version);
        Self::read(versions, &direction.cipher_suites, |field| {
            format!("{at}.{field} of the mesh config entry")
        })
    }

    /// The lowest and highest version, and the cipher suites, by their names in config entries.
    /// `setting` describes a field in an error.
    pub(crate) fn read(
        (min, max): (&str, &str),
        suites: &[String],
        setting: impl Fn(&str) -> String,
    ) -> Result<Self, GenerateError> {
        let version = |field: &str, value: &str| {
            version(value).ok_or_else(|| GenerateError::TlsVersion {
                setting: setting(field),
                value: value.to_owned(),
            })
        };
        let min = version("TLSMinVersion", min)?;
        let max = version("TLSMaxVersion", max)?;
        // The cipher suites of TLS 1.3 are not configurable.
        let chosen: &[String] = match min {
            tls_parameters::TlsProtocol::TlSv13 => &[],
            _ => suites,
        };
        let ciphers = chosen.iter().map(|name| {
            cipher(name).ok_or_else(|| GenerateError::CipherSuite {
                setting: setting("CipherSuites"),
                value: name.clone(),
            })
        });
        Ok(Self {
            min: min.into(),
            max: max.into(),
            ciphers: ciphers.collect::<Result<_, _>>()?,
        })
    }

    /// Whether connections may have TLS 1.3.
    pub(crate) fn allows_1_3(&self) -> bool {
        use tls_parameters::TlsProtocol::{TlSv13, TlsAuto};
        self.max == i32::from(TlsAuto) || self.max == i32::from(TlSv13)
    }

    /// As a message.
    pub(crate) fn parameters(&self) -> TlsParameters {
        TlsParameters {
            tls_minimum_protocol_version: self.min,
            tls_maximum_protocol_version: self.max,
            cipher_suites: self.ciphers.iter().map(|name| (*name).to_owned()).collect(),
            ..TlsParameters::default()
        }
    }
}

fn version(name: &str) -> Option<tls_parameters::TlsProtocol> {
    use tls_parameters::TlsProtocol;
    Some(match name {
        "" | "TLS_AUTO" => TlsProtocol::TlsAuto,
        "TLSv1_0" => TlsProtocol::TlSv10,
        "TLSv1_1" => TlsProtocol::TlSv11,
        "TLSv1_2" => TlsProtocol::TlSv12,
        "TLSv1_3" => TlsProtocol::TlSv13,
        _ => return None,
    })
}

/// The suite's name in Envoy's TLS library.
fn cipher(name: &str) -> Option<&'static str> {
    Some(match name {
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" => "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" => "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" => "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" => "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA" => "ECDHE-ECDSA-AES128-SHA",
        "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA" => "ECDHE-RSA-AES128-SHA",
        "TLS_RSA_WITH_AES_128_GCM_SHA256" => "AES128-GCM-SHA256",
        "TLS_RSA_WITH_AES_128_CBC_SHA" => "AES128-SHA",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" => "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" => "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA" => "ECDHE-ECDSA-AES256-SHA",
        "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA" => "ECDHE-RSA-AES256-SHA",
        "TLS_RSA_WITH_AES_256_GCM_SHA384" => "AES256-GCM-SHA384",
        "TLS_RSA_WITH_AES_256_CBC_SHA" => "AES256-SHA",
        _ => return None,
    })
}

/// The socket for callers of a service, whose certificate is the secret `leaf`: they must present a
/// certificate that the secret `roots` accepts.
pub(crate) fn downstream(
    settings: &TlsSettings,
    (leaf, roots): (&str, &str),
    alpn: &[&str],
) -> TransportSocket {
    use common_tls_context::ValidationContextType;
    let context = DownstreamTlsContext {
        common_tls_context: Some(CommonTlsContext {
            alpn_protocols: alpn.iter().map(|name| (*name).to_owned()).collect(),
            validation_context_type: Some(ValidationContextType::ValidationContextSdsSecretConfig(
                sds(roots),
            )),
            ..common(settings, leaf)
        }),
        require_client_certificate: Some(BoolValue { value: true }),
        ..DownstreamTlsContext::default()
    };
    socket(encode::any(&context))
}

/// Who may answer the connections of a cluster: a server with one of some identities, proven by some roots. Never
/// anybody, because there is at least one identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Servers {
    /// The SPIFFE id, and further ones.
    identities: (String, Vec<String>),
    /// The secret with the roots.
    roots: String,
}

impl Servers {
    /// The instances of a service in this mesh.
    pub(crate) fn of_mesh(identity: String) -> Self {
        Self {
            identities: (identity, Vec::new()),
            roots: ROOTS.to_owned(),
        }
    }

    /// Those that a peer says may answer for its service; `None` if it names none.
    pub(crate) fn of_peer(peer: &str, identities: &[String]) -> Option<Self> {
        let (first, others) = identities.split_first()?;
        Some(Self {
            identities: (first.clone(), others.to_vec()),
            roots: names::peer_roots(peer),
        })
    }
}

/// The socket of a cluster in the mesh: the server must have exactly this identity.
pub(crate) fn upstream(settings: &TlsSettings, sni: &str, identity: &str) -> TransportSocket {
    upstream_to(settings, sni, &Servers::of_mesh(identity.to_owned()))
}

/// The socket of a cluster whose connections are answered by one of these servers.
pub(crate) fn upstream_to(settings: &TlsSettings, sni: &str, servers: &Servers) -> TransportSocket {
    use common_tls_context::{CombinedCertificateValidationContext, ValidationContextType};
    let matcher = |identity: &String| SubjectAltNameMatcher {
        san_type: subject_alt_name_matcher::SanType::Uri.into(),
        matcher: Some(StringMatcher {
            match_pattern: Some(string_matcher::MatchPattern::Exact(identity.clone())),
            ..StringMatcher::default()
        }),
        ..SubjectAltNameMatcher::default()
    };
    let (first, others) = &servers.identities;
    let combined = CombinedCertificateValidationContext {
        default_validation_context: Some(CertificateValidationContext {
            match_typed_subject_alt_names: [first].into_iter().chain(others).map(matcher).collect(),
            ..CertificateValidationContext::default()
        }),
        validation_context_sds_secret_config: Some(sds(&servers.roots)),
        ..CombinedCertificateValidationContext::default()
    };
    let context = UpstreamTlsContext {
        common_tls_context: Some(CommonTlsContext {
            validation_context_type: Some(ValidationContextType::CombinedValidationContext(
                combined,
            )),
            ..common(settings, LEAF)
        }),
        sni: sni.to_owned(),
        ..UpstreamTlsContext::default()
    };
    socket(encode::any(&context))
}

fn common(settings: &TlsSettings, leaf: &str) -> CommonTlsContext {
    CommonTlsContext {
        tls_params: Some(settings.parameters()),
        tls_certificate_sds_secret_configs: vec![sds(leaf)],
        ..CommonTlsContext::default()
    }
}

/// The secret of this name on the current ADS stream.
pub(crate) fn sds(name: &str) -> SdsSecretConfig {
    SdsSecretConfig {
        name: name.to_owned(),
        sds_config: Some(ads(None)),
    }
}

/// The config source that selects the current ADS stream.
pub(crate) fn ads(fetch_timeout: Option<ProtoDuration>) -> ConfigSource {
    ConfigSource {
        initial_fetch_timeout: fetch_timeout,
        resource_api_version: ApiVersion::V3.into(),
        config_source_specifier: Some(config_source::ConfigSourceSpecifier::Ads(
            AggregatedConfigSource {},
        )),
        ..ConfigSource::default()
    }
}

/// A TLS socket.
pub(crate) fn socket(config: envoy_types::pb::google::protobuf::Any) -> TransportSocket {
    TransportSocket {
        name: TLS_SOCKET.to_owned(),
        config_type: Some(transport_socket::ConfigType::TypedConfig(config)),
    }
}
