//! TLS of a terminating gateway towards services outside the mesh, with certificates from files on
//! the gateway's machine.
//!
//! Each file is a secret that names it, because Envoy reads the files of secrets again when they are
//! replaced. A changed file so changes no resource and closes no connection.

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{DataSource, TransportSocket, data_source};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, Secret, SubjectAltNameMatcher, TlsCertificate,
    TlsParameters, UpstreamTlsContext, common_tls_context, secret, subject_alt_name_matcher,
};
use envoy_types::pb::envoy::r#type::matcher::v3::{StringMatcher, string_matcher};
use legate_model::LinkedService;

use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::memo::Memo;
use crate::tls;

/// TLS of the connections to one service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origination<'a> {
    authorities: Files<'a>,
    certificate: Option<Files<'a>>,
    /// The server name, which the server's certificate must have; empty means any.
    server_name: &'a str,
}

/// The files of one secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Files<'a> {
    /// Certificates of authorities.
    Authorities(&'a str),
    /// A certificate, and its key.
    Certificate(&'a str, &'a str),
}

impl<'a> Origination<'a> {
    /// As in Consul, only a service with a file of authorities has TLS.
    pub(crate) fn of(link: &'a LinkedService) -> Option<Self> {
        let (certificate, key) = (link.cert_file.as_str(), link.key_file.as_str());
        (!link.ca_file.is_empty()).then(|| Self {
            authorities: Files::Authorities(&link.ca_file),
            certificate: (!certificate.is_empty() && !key.is_empty())
                .then_some(Files::Certificate(certificate, key)),
            server_name: &link.sni,
        })
    }

    fn files(&self) -> impl Iterator<Item = Files<'a>> {
        [self.authorities].into_iter().chain(self.certificate)
    }

    /// The socket of a cluster. `http2`: the service is asked for HTTP/2.
    pub(crate) fn socket(&self, http2: bool) -> TransportSocket {
        use common_tls_context::{CombinedCertificateValidationContext, ValidationContextType};
        let names = match self.server_name {
            "" => Vec::new(),
            name => subjects(name),
        };
        let combined = CombinedCertificateValidationContext {
            default_validation_context: Some(CertificateValidationContext {
                match_typed_subject_alt_names: names,
                ..CertificateValidationContext::default()
            }),
            validation_context_sds_secret_config: Some(tls::sds(&self.authorities.secret())),
            ..CombinedCertificateValidationContext::default()
        };
        let certificates = self.certificate.iter();
        let context = UpstreamTlsContext {
            common_tls_context: Some(CommonTlsContext {
                tls_params: Some(TlsParameters::default()),
                tls_certificate_sds_secret_configs: certificates
                    .map(|files| tls::sds(&files.secret()))
                    .collect(),
                validation_context_type: Some(ValidationContextType::CombinedValidationContext(
                    combined,
                )),
                alpn_protocols: http2.then(|| "h2".to_owned()).into_iter().collect(),
                ..CommonTlsContext::default()
            }),
            sni: self.server_name.to_owned(),
            ..UpstreamTlsContext::default()
        };
        tls::socket(encode::any(&context))
    }
}

/// The certificate must have this name, of any type. As in Consul.
fn subjects(name: &str) -> Vec<SubjectAltNameMatcher> {
    use subject_alt_name_matcher::SanType;
    let types = [
        SanType::Uri,
        SanType::Dns,
        SanType::Email,
        SanType::IpAddress,
    ];
    let matcher = |kind: SanType| SubjectAltNameMatcher {
        san_type: kind.into(),
        matcher: Some(StringMatcher {
            match_pattern: Some(string_matcher::MatchPattern::Exact(name.to_owned())),
            ..StringMatcher::default()
        }),
        ..SubjectAltNameMatcher::default()
    };
    types.map(matcher).into()
}

impl Files<'_> {
    /// The name of their secret.
    pub(crate) fn secret(&self) -> String {
        match self {
            Self::Authorities(file) => format!("authorities in {file}"),
            Self::Certificate(file, key) => format!("certificate in {file} and {key}"),
        }
    }

    /// Their secret.
    pub(crate) fn resource(&self, memo: &Memo) -> Result<Arc<EncodedResource>, GenerateError> {
        memo.get(&("files", self), |(_, files)| {
            let content = match files {
                Self::Authorities(authorities) => {
                    secret::Type::ValidationContext(CertificateValidationContext {
                        trusted_ca: Some(file(authorities)),
                        ..CertificateValidationContext::default()
                    })
                }
                Self::Certificate(certificate, key) => {
                    secret::Type::TlsCertificate(TlsCertificate {
                        certificate_chain: Some(file(certificate)),
                        private_key: Some(file(key)),
                        ..TlsCertificate::default()
                    })
                }
            };
            let name = files.secret();
            let secret = Secret {
                name: name.clone(),
                r#type: Some(content),
            };
            Ok(encode::resource(&name, &secret, &[]))
        })
    }
}

fn file(path: &str) -> DataSource {
    DataSource {
        specifier: Some(data_source::Specifier::Filename(path.to_owned())),
        ..DataSource::default()
    }
}

/// The files of all services of a gateway, each once.
pub(crate) fn files<'a>(links: impl Iterator<Item = &'a LinkedService>) -> BTreeSet<Files<'a>> {
    let used = links.filter_map(Origination::of);
    used.flat_map(|one| one.files().collect::<Vec<_>>())
        .collect()
}
