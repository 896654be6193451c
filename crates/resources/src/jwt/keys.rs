//! Clusters of the servers from which proxies fetch keys.

use std::net::IpAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::cluster::v3::{Cluster, cluster};
use envoy_types::pb::envoy::config::core::v3::{
    Address, DataSource, SocketAddress, TransportSocket, address, data_source, socket_address,
};
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, SubjectAltNameMatcher, UpstreamTlsContext,
    common_tls_context, subject_alt_name_matcher,
};
use envoy_types::pb::envoy::r#type::matcher::v3::{StringMatcher, string_matcher};
use legate_model::{JwksTrustedCa, JwtProvider, KeyServer, RemoteJwks};

use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::memo::Memo;
use crate::names;
use crate::part::{UnitBuilder, made};
use crate::resource_type::Type;
use crate::tls;

/// Adds a cluster for each provider whose keys are on a server.
pub(crate) fn add_servers<'p>(
    unit: &mut UnitBuilder<'_>,
    memo: &Memo,
    providers: impl Iterator<Item = &'p JwtProvider>,
    unchanged: bool,
) {
    for provider in providers {
        let keys = provider.json_web_key_set.as_ref();
        let Some(remote) = keys.and_then(|keys| keys.remote.as_ref()) else {
            continue;
        };
        let name = || names::jwks_cluster(&provider.name);
        unit.part(Type::Cluster, name, unchanged, |warnings| {
            made(cluster(memo, &provider.name, remote, warnings))
        });
    }
}

/// The cluster of the server with a provider's keys.
fn cluster(
    memo: &Memo,
    provider: &str,
    remote: &RemoteJwks,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let Some(server) = remote.server() else {
        return Err(GenerateError::JwtKeys(provider.to_owned()));
    };
    let authority = remote.trusted_ca();
    if authority.is_some_and(|ca| certificates(ca).is_none()) {
        return Err(GenerateError::JwtKeys(provider.to_owned()));
    }
    if server.tls && authority.is_none() {
        warnings.push(format!(
            "the server of the keys of the jwt-provider {provider:?}, {}, is not verified; set \
             JWKSCluster.TLSCertificates.TrustedCA to the authority of its certificate",
            server.host
        ));
    }
    memo.get(&(provider, remote), |(provider, remote)| {
        let name = names::jwks_cluster(provider);
        let cluster = build(&name, remote, &server);
        Ok(encode::resource(&name, &cluster, &[]))
    })
}

fn build(name: &str, remote: &RemoteJwks, server: &KeyServer) -> Cluster {
    use cluster::{DiscoveryType, DnsLookupFamily};
    let (discovery, family) = match remote.discovery_type() {
        // Envoy accepts only IP addresses in STATIC clusters, but Consul any host: other hosts are
        // resolved.
        "STATIC" if server.host.parse::<IpAddr>().is_ok() => {
            (DiscoveryType::Static, DnsLookupFamily::Auto)
        }
        "LOGICAL_DNS" => (DiscoveryType::LogicalDns, DnsLookupFamily::All),
        _ => (DiscoveryType::StrictDns, DnsLookupFamily::V4Preferred),
    };
    let connect_timeout = remote.jwks_cluster.as_ref().map(|one| one.connect_timeout);
    Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(cluster::ClusterDiscoveryType::Type(discovery.into())),
        dns_lookup_family: family.into(),
        connect_timeout: connect_timeout
            .filter(|time| !time.is_zero())
            .map(proto_duration),
        load_assignment: Some(assignment(name, server)),
        transport_socket: server.tls.then(|| socket(remote, server)),
        ..Cluster::default()
    }
}

fn assignment(name: &str, server: &KeyServer) -> ClusterLoadAssignment {
    let port = socket_address::PortSpecifier::PortValue(server.port.into());
    let address = Address {
        address: Some(address::Address::SocketAddress(SocketAddress {
            address: server.host.clone(),
            port_specifier: Some(port),
            ..SocketAddress::default()
        })),
    };
    let endpoint = LbEndpoint {
        host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(Endpoint {
            address: Some(address),
            ..Endpoint::default()
        })),
        ..LbEndpoint::default()
    };
    ClusterLoadAssignment {
        cluster_name: name.to_owned(),
        endpoints: vec![LocalityLbEndpoints {
            lb_endpoints: vec![endpoint],
            ..LocalityLbEndpoints::default()
        }],
        ..ClusterLoadAssignment::default()
    }
}

fn socket(remote: &RemoteJwks, server: &KeyServer) -> TransportSocket {
    let is_name = server.host.parse::<IpAddr>().is_err();
    let validation = CertificateValidationContext {
        trusted_ca: remote.trusted_ca().and_then(certificates),
        // Without a CA nothing is verified, and Envoy refuses a name to match.
        match_typed_subject_alt_names: remote
            .trusted_ca()
            .map(|_| subject(server, is_name))
            .into_iter()
            .collect(),
        ..CertificateValidationContext::default()
    };
    let context = common_tls_context::ValidationContextType::ValidationContext(validation);
    tls::socket(encode::any(&UpstreamTlsContext {
        common_tls_context: Some(CommonTlsContext {
            validation_context_type: Some(context),
            ..CommonTlsContext::default()
        }),
        sni: match remote.use_sni && is_name {
            true => server.host.clone(),
            false => String::new(),
        },
        ..UpstreamTlsContext::default()
    }))
}

/// The server's certificate must be valid for the host in the URI.
fn subject(server: &KeyServer, is_name: bool) -> SubjectAltNameMatcher {
    use subject_alt_name_matcher::SanType;
    let kind = match is_name {
        true => SanType::Dns,
        false => SanType::IpAddress,
    };
    let exact = string_matcher::MatchPattern::Exact(server.host.clone());
    SubjectAltNameMatcher {
        san_type: kind.into(),
        matcher: Some(StringMatcher {
            match_pattern: Some(exact),
            ..StringMatcher::default()
        }),
        ..SubjectAltNameMatcher::default()
    }
}

fn certificates(ca: &JwksTrustedCa) -> Option<DataSource> {
    use data_source::Specifier;
    let specifier = if !ca.filename.is_empty() {
        Specifier::Filename(ca.filename.clone())
    } else if !ca.environment_variable.is_empty() {
        Specifier::EnvironmentVariable(ca.environment_variable.clone())
    } else {
        Specifier::InlineString(ca.inline()?)
    };
    Some(DataSource {
        specifier: Some(specifier),
        ..DataSource::default()
    })
}
