//! Clusters and endpoints of a gateway's backends: ports of Services in Kubernetes.
//!
//! Endpoints are a resource of their own, so that a rollout changes no cluster. What TLS trusts is
//! part of the cluster; what it presents is a secret.
//!
//! An endpoint with an identity is called by mutual TLS, and the cluster has a socket for each
//! identity among its endpoints. With other identities it is another cluster, of another name: one
//! that lacks the socket of an endpoint never gets the endpoint, and cannot call it in plain text.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::{Cluster, cluster};
use envoy_types::pb::envoy::config::core::v3::{
    Address, DataSource, Metadata, SocketAddress, TransportSocket, address, data_source,
    socket_address,
};
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint as EnvoyEndpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, SubjectAltNameMatcher, UpstreamTlsContext,
    common_tls_context, subject_alt_name_matcher,
};
use envoy_types::pb::envoy::r#type::matcher::v3::{StringMatcher, string_matcher};
use envoy_types::pb::google::protobuf::{Struct, Value, value};
use legate_model::{ServiceName, TrustDomain, sni};
use legate_proxycfg::Proxy;
use legate_routes::{
    AltName, Authorities, Backend, BackendProtocol, BackendTls, Certificate, Endpoint, Transport,
};
use sha2::{Digest, Sha256};

use crate::cluster::{http2_only, identity, set_http_options};
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::memo::Memo;
use crate::names::LEAF;
use crate::tls::{self, TlsSettings};

/// The timeout of a connection, Envoy's default.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The authorities of the gateway's image.
const OF_SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The key of endpoints' metadata by which Envoy chooses their socket, and the name in it.
const SOCKET_MATCH: &str = "envoy.transport_socket_match";
const SIDECAR: &str = "sidecar";

/// The name of a cluster without sidecars. Different ways to call one port are different
/// clusters.
fn name(backend: &Backend) -> String {
    let Backend {
        namespace,
        name,
        port,
        protocol,
        tls,
    } = backend;
    let protocol = match protocol {
        BackendProtocol::Http1 => "http",
        BackendProtocol::Http2 => "http2",
        BackendProtocol::Tcp => Transport::Tcp.as_str(),
        BackendProtocol::Udp => Transport::Udp.as_str(),
    };
    let plain = format!("{protocol}.{port}.{name}.{namespace}.kubernetes");
    match tls {
        None => plain,
        Some(tls) => {
            let settings = serde_json::to_vec(tls).expect("the settings are JSON in the store");
            format!("{plain}.tls-{}", fingerprint(&settings))
        }
    }
}

/// A digest, long enough that those of different bytes differ.
fn fingerprint(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let hex = digest.iter().take(16).map(|byte| format!("{byte:02x}"));
    hex.collect()
}

/// The services of the mesh that endpoints belong to, as their callers verify them: the SPIFFE id by
/// the server name of the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sidecars(BTreeMap<String, String>);

impl Sidecars {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn of(proxy: &Proxy, endpoints: &[Endpoint]) -> Self {
        let services = endpoints.iter();
        let services = services.filter_map(|one| Some((one.identity.as_ref()?, one.application)));
        let services: BTreeSet<_> = services.collect();
        let (datacenter, domain) = (&*proxy.datacenter, &proxy.trust_domain);
        let all = services.into_iter().map(|(service, application)| {
            let sni = server_name(service, application, (datacenter, domain));
            (sni, identity(domain, service, datacenter))
        });
        Self(all.collect())
    }

    /// The name of the cluster of a backend with these sidecars, and of its endpoints.
    pub(crate) fn cluster(&self, backend: &Backend) -> String {
        let name = name(backend);
        if self.is_empty() {
            return name;
        }
        let sidecars: Vec<&str> = self.0.keys().map(String::as_str).collect();
        format!("{name}.mesh-{}", fingerprint(sidecars.join(" ").as_bytes()))
    }
}

/// The cluster of a backend with endpoints at these sidecars. `settings` are those of connections to
/// them. `has_secret`: whether the gateway has a secret of this name.
pub(crate) fn cluster(
    memo: &Memo,
    backend: &Backend,
    sidecars: &Sidecars,
    settings: &TlsSettings,
    has_secret: impl Fn(&str) -> bool,
) -> Result<Arc<EncodedResource>, GenerateError> {
    if let Some(Certificate::Secret(secret)) = presented(backend)
        && !has_secret(secret)
    {
        return Err(GenerateError::NoSecret(secret.clone()));
    }
    let input = ("backend", backend, sidecars, settings);
    memo.get(&input, |(_, backend, sidecars, settings)| {
        let name = sidecars.cluster(backend);
        let matches = sidecars
            .0
            .iter()
            .map(|(sni, identity)| cluster::TransportSocketMatch {
                name: sni.clone(),
                r#match: Some(sidecar(sni)),
                transport_socket: Some(tls::upstream(settings, sni, identity)),
            });
        let mut cluster = build(&name, backend);
        cluster.transport_socket_matches = matches.collect();
        Ok(encode::resource(&name, &cluster, &[&name]))
    })
}

fn presented(backend: &Backend) -> Option<&Certificate> {
    backend.tls.as_ref()?.presented.as_ref()
}

fn build(name: &str, backend: &Backend) -> Cluster {
    let eds = cluster::EdsClusterConfig {
        eds_config: Some(tls::ads(None)),
        ..cluster::EdsClusterConfig::default()
    };
    let is_http2 = backend.protocol == BackendProtocol::Http2;
    let mut cluster = Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(cluster::ClusterDiscoveryType::Type(
            cluster::DiscoveryType::Eds.into(),
        )),
        eds_cluster_config: Some(eds),
        connect_timeout: Some(proto_duration(CONNECT_TIMEOUT)),
        transport_socket: backend.tls.as_ref().map(|tls| socket(tls, is_http2)),
        ..Cluster::default()
    };
    if is_http2 {
        set_http_options(&mut cluster, http2_only());
    }
    cluster
}

/// TLS towards the backend.
fn socket(tls: &BackendTls, is_http2: bool) -> TransportSocket {
    let secrets = tls.presented.iter().map(|certificate| match certificate {
        Certificate::OfGateway => tls::sds(LEAF),
        Certificate::Secret(name) => tls::sds(name),
    });
    let authorities = match &tls.authorities {
        Authorities::OfSystem => data_source::Specifier::Filename(OF_SYSTEM.to_owned()),
        Authorities::Pem(pem) => data_source::Specifier::InlineString(pem.clone()),
    };
    let validation = CertificateValidationContext {
        trusted_ca: Some(DataSource {
            specifier: Some(authorities),
            ..DataSource::default()
        }),
        match_typed_subject_alt_names: tls.names.iter().map(alt_name).collect(),
        ..CertificateValidationContext::default()
    };
    let context = UpstreamTlsContext {
        sni: tls.server_name.clone(),
        common_tls_context: Some(CommonTlsContext {
            alpn_protocols: is_http2.then(|| "h2".to_owned()).into_iter().collect(),
            tls_certificate_sds_secret_configs: secrets.collect(),
            validation_context_type: Some(
                common_tls_context::ValidationContextType::ValidationContext(validation),
            ),
            ..CommonTlsContext::default()
        }),
        ..UpstreamTlsContext::default()
    };
    tls::socket(encode::any(&context))
}

fn alt_name(name: &AltName) -> SubjectAltNameMatcher {
    use subject_alt_name_matcher::SanType;
    let (kind, text) = match name {
        AltName::Host(host) => (SanType::Dns, host),
        AltName::Uri(uri) => (SanType::Uri, uri),
    };
    SubjectAltNameMatcher {
        san_type: kind.into(),
        matcher: Some(StringMatcher {
            match_pattern: Some(string_matcher::MatchPattern::Exact(text.clone())),
            ..StringMatcher::default()
        }),
        ..SubjectAltNameMatcher::default()
    }
}

/// The endpoints of a backend. Without any the assignment is empty, so that Envoy does not wait for
/// it.
pub(crate) fn endpoints(
    memo: &Memo,
    proxy: &Proxy,
    name: &str,
    endpoints: &[Endpoint],
) -> Result<Arc<EncodedResource>, GenerateError> {
    let mesh = (&*proxy.datacenter, &proxy.trust_domain);
    memo.get(&("backend endpoints", name, mesh, endpoints), |input| {
        let (_, name, (datacenter, domain), endpoints) = input;
        let all = endpoints.iter().map(|one| {
            let found = endpoint(one.address, one.port, socket_address::Protocol::Tcp);
            let service = one.identity.as_ref();
            let sni =
                service.map(|service| server_name(service, one.application, (datacenter, domain)));
            LbEndpoint {
                metadata: sni.map(|sni| Metadata {
                    filter_metadata: [(SOCKET_MATCH.to_owned(), sidecar(&sni))].into(),
                    ..Metadata::default()
                }),
                ..found
            }
        });
        let localities = (!endpoints.is_empty()).then(|| LocalityLbEndpoints {
            lb_endpoints: all.collect(),
            ..LocalityLbEndpoints::default()
        });
        let assignment = ClusterLoadAssignment {
            cluster_name: (*name).to_owned(),
            endpoints: localities.into_iter().collect(),
            ..ClusterLoadAssignment::default()
        };
        Ok(encode::resource(name, &assignment, &[]))
    })
}

/// The server name of the handshake with a sidecar, which says to which port of the application it leads.
fn server_name(
    service: &ServiceName,
    application: Option<u16>,
    (datacenter, domain): (&str, &TrustDomain),
) -> String {
    match application {
        None => sni::service(service, datacenter, domain),
        Some(port) => sni::application(service, port, datacenter, domain),
    }
}

/// The metadata of endpoints at the sidecars of a service.
fn sidecar(sni: &str) -> Struct {
    let kind = value::Kind::StringValue(sni.to_owned());
    Struct {
        fields: [(SIDECAR.to_owned(), Value { kind: Some(kind) })].into(),
    }
}

pub(super) fn endpoint(host: IpAddr, port: u16, transport: socket_address::Protocol) -> LbEndpoint {
    let address = SocketAddress {
        protocol: transport.into(),
        address: host.to_string(),
        port_specifier: Some(socket_address::PortSpecifier::PortValue(port.into())),
        ..SocketAddress::default()
    };
    LbEndpoint {
        host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(EnvoyEndpoint {
            address: Some(Address {
                address: Some(address::Address::SocketAddress(address)),
            }),
            ..EnvoyEndpoint::default()
        })),
        ..LbEndpoint::default()
    }
}
