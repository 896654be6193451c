//! TLS for clients outside the mesh, which have no certificate of the mesh.
//!
//! No certificate is part of a listener: a renewed one is a changed secret, and no connection is
//! closed for it.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{
    ApiConfigSource, ApiVersion, ConfigSource, DataSource, GrpcService, TransportSocket,
    api_config_source, config_source, data_source, grpc_service, transport_socket,
};
use envoy_types::pb::envoy::extensions::transport_sockets::quic::v3::QuicDownstreamTransport;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::certificate_validation_context::TrustChainVerification;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, SdsSecretConfig,
    TlsParameters, common_tls_context,
};
use envoy_types::pb::google::protobuf::BoolValue;
use legate_model::{GatewaySds, Protocol};
use legate_routes::Clients;

use crate::duration::proto_duration;
use crate::encode;
use crate::names::QUIC_SOCKET;
use crate::tls::{self, TlsSettings};

/// The timeout of a request to the SDS server of a user, as in Consul.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// TLS of one filter chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServerTls {
    pub(crate) settings: TlsSettings,
    /// At least one. Of several, Envoy presents that of the server name, or else the first.
    pub(crate) certificates: Vec<Certificate>,
    /// The protocol of the listener, from which the protocols to negotiate follow.
    pub(crate) protocol: Protocol,
    /// How certificates of clients are verified; `None` if they are not asked for one.
    pub(crate) clients: Option<Clients>,
}

/// The source of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Certificate {
    /// The secret of this name among the resources of the gateway.
    Own(String),
    /// A resource of an SDS server, which is a static cluster in Envoy's bootstrap.
    Fetched {
        /// The cluster.
        cluster: String,
        /// The name of the resource.
        resource: String,
    },
}

impl Certificate {
    /// The certificate of an SDS server, if these settings are complete. Fields that are empty in
    /// one of them are taken from the next.
    pub(crate) fn fetched<'a>(
        sources: impl IntoIterator<Item = Option<&'a GatewaySds>>,
    ) -> Option<Self> {
        let (mut cluster, mut resource) = ("", "");
        for sds in sources.into_iter().flatten() {
            if cluster.is_empty() {
                cluster = &sds.cluster_name;
            }
            if resource.is_empty() {
                resource = &sds.cert_resource;
            }
        }
        let complete = !cluster.is_empty() && !resource.is_empty();
        complete.then(|| Self::Fetched {
            cluster: cluster.to_owned(),
            resource: resource.to_owned(),
        })
    }

    fn config(&self) -> SdsSecretConfig {
        let (cluster, resource) = match self {
            Self::Own(secret) => return tls::sds(secret),
            Self::Fetched { cluster, resource } => (cluster, resource),
        };
        let server = GrpcService {
            target_specifier: Some(grpc_service::TargetSpecifier::EnvoyGrpc(
                grpc_service::EnvoyGrpc {
                    cluster_name: cluster.clone(),
                    ..grpc_service::EnvoyGrpc::default()
                },
            )),
            timeout: Some(proto_duration(FETCH_TIMEOUT)),
            ..GrpcService::default()
        };
        let api = ApiConfigSource {
            api_type: api_config_source::ApiType::Grpc.into(),
            transport_api_version: ApiVersion::V3.into(),
            grpc_services: vec![server],
            ..ApiConfigSource::default()
        };
        SdsSecretConfig {
            name: resource.clone(),
            sds_config: Some(ConfigSource {
                resource_api_version: ApiVersion::V3.into(),
                config_source_specifier: Some(
                    config_source::ConfigSourceSpecifier::ApiConfigSource(api),
                ),
                ..ConfigSource::default()
            }),
        }
    }
}

impl ServerTls {
    /// The socket of a filter chain.
    pub(crate) fn socket(&self) -> TransportSocket {
        let alpn: &[&str] = match self.protocol {
            Protocol::Tcp => &[],
            Protocol::Http => &["http/1.1"],
            Protocol::Http2 | Protocol::Grpc => &["h2", "http/1.1"],
        };
        let parameters = self.settings.parameters();
        tls::socket(encode::any(&self.context(alpn, Some(parameters))))
    }

    /// The socket of a filter chain for HTTP/3, which always has TLS 1.3.
    pub(crate) fn quic_socket(&self) -> TransportSocket {
        let transport = QuicDownstreamTransport {
            downstream_tls_context: Some(self.context(&["h3"], None)),
            // Early data could be sent again by others, and so could its requests.
            enable_early_data: Some(BoolValue { value: false }),
            ..QuicDownstreamTransport::default()
        };
        TransportSocket {
            name: QUIC_SOCKET.to_owned(),
            config_type: Some(transport_socket::ConfigType::TypedConfig(encode::any(
                &transport,
            ))),
        }
    }

    fn context(&self, alpn: &[&str], parameters: Option<TlsParameters>) -> DownstreamTlsContext {
        let clients = self.clients.as_ref();
        let required = clients.is_some_and(|clients| clients.required);
        DownstreamTlsContext {
            common_tls_context: Some(CommonTlsContext {
                tls_params: parameters,
                tls_certificate_sds_secret_configs: self
                    .certificates
                    .iter()
                    .map(Certificate::config)
                    .collect(),
                alpn_protocols: alpn.iter().map(|name| (*name).to_owned()).collect(),
                validation_context_type: clients.map(validation),
                ..CommonTlsContext::default()
            }),
            require_client_certificate: Some(BoolValue { value: required }),
            ..DownstreamTlsContext::default()
        }
    }
}

/// How certificates of clients are verified. If none is required, an invalid one is as good as none.
fn validation(clients: &Clients) -> common_tls_context::ValidationContextType {
    let untrusted = match clients.required {
        true => TrustChainVerification::VerifyTrustChain,
        false => TrustChainVerification::AcceptUntrusted,
    };
    common_tls_context::ValidationContextType::ValidationContext(CertificateValidationContext {
        trusted_ca: Some(DataSource {
            specifier: Some(data_source::Specifier::InlineString(
                clients.authorities.clone(),
            )),
            ..DataSource::default()
        }),
        trust_chain_verification: untrusted.into(),
        ..CertificateValidationContext::default()
    })
}
