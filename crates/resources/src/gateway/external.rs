//! Clusters of services outside the mesh.
//!
//! Instances with IP addresses are endpoints, which change without the cluster. Envoy resolves host
//! names only in clusters, so instances with host names are part of theirs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::{
    Cluster, OutlierDetection, UpstreamConnectionOptions, cluster,
};
use envoy_types::pb::envoy::config::core::v3::{
    Address, HealthStatus, ProxyProtocolConfig, SocketAddress, TcpKeepalive, TransportSocket,
    address, proxy_protocol_config, socket_address, transport_socket,
};
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint,
};
use envoy_types::pb::envoy::extensions::transport_sockets::proxy_protocol::v3::ProxyProtocolUpstreamTransport;
use envoy_types::pb::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;
use envoy_types::pb::google::protobuf::UInt32Value;
use legate_proxycfg::Instances;
use prost::{Message, Name};

use super::origination::Origination;
use super::settings::{GatewaySettings, Keepalive, ProxyProtocol};
use crate::balancing::Balancing;
use crate::cluster::{http2_only, set_http_options};
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::endpoint::{self, Health};
use crate::error::GenerateError;
use crate::memo::Memo;
use crate::names::{PLAINTEXT_SOCKET, PROXY_PROTOCOL_SOCKET};
use crate::tls;

/// How often Envoy resolves host names, as in Consul.
const RESOLVED_EVERY: Duration = Duration::from_secs(10);

/// A cluster of a service outside the mesh.
#[derive(Hash)]
pub(crate) struct ExternalCluster<'a> {
    pub(crate) name: &'a str,
    pub(crate) discovery: Discovery<'a>,
    pub(crate) connect_timeout: Duration,
    pub(crate) http2: bool,
    pub(crate) balancing: Balancing,
    pub(crate) keepalive: Option<Keepalive>,
    pub(crate) tls: Option<Origination<'a>>,
    /// The header with which connections begin, before TLS.
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    /// Envoy's initial fetch timeout for endpoints.
    pub(crate) fetch_timeout: Option<Duration>,
}

/// Where Envoy finds the instances.
#[derive(Hash)]
pub(crate) enum Discovery<'a> {
    /// In the endpoints of the cluster's name.
    Endpoints,
    /// At host names.
    Names {
        /// Whether all addresses of all names are used, instead of one address of one name.
        strict: bool,
        hosts: Vec<Host<'a>>,
    },
    /// At one address outside the catalog.
    Address(&'a str, u16),
    /// There are none, and there will be none.
    Nowhere,
}

/// An instance with a host name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host<'a> {
    name: &'a str,
    port: u16,
    health: Health,
}

/// Whether an instance of a service has a host name. Then those with IP addresses are left out, as
/// in Consul.
pub(crate) fn has_names(instances: &Instances) -> bool {
    instances.iter().any(|one| !is_ip(one.address().0))
}

fn is_ip(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok()
}

impl<'a> Discovery<'a> {
    /// That of instances, of which some have host names.
    pub(crate) fn of_names(
        service: &str,
        instances: &'a Instances,
        settings: &GatewaySettings,
        warnings: &mut Vec<String>,
    ) -> Self {
        let strict = Some(settings.strict_dns);
        Self::at_names(service, instances, strict, warnings)
    }

    /// The same for the gateways of a peer. As in Consul, one host name is used.
    pub(crate) fn of_peer(
        service: &str,
        instances: &'a Instances,
        warnings: &mut Vec<String>,
    ) -> Self {
        Self::at_names(service, instances, None, warnings)
    }

    /// `strict`: the setting for it, if there is one.
    fn at_names(
        service: &str,
        instances: &'a Instances,
        strict: Option<bool>,
        warnings: &mut Vec<String>,
    ) -> Self {
        let hosts = instances.iter().filter_map(|instance| {
            let (name, port) = instance.address();
            (!is_ip(name)).then(|| Host {
                name,
                port,
                health: endpoint::health(instance, instances.only_passing),
            })
        });
        let hosts: Vec<_> = hosts.collect();
        if hosts.is_empty() {
            // A subset without such instances: no endpoints.
            return Self::Endpoints;
        }
        if hosts.len() < instances.len() {
            warnings.push(format!(
                "instances of {service} with IP addresses get no traffic, because others have host names"
            ));
        }
        let advice = match strict {
            Some(_) => {
                "; set envoy_dns_discovery_type to strict_dns in Proxy.Config of the gateway to use all"
            }
            None => "",
        };
        let strict = strict.unwrap_or_default();
        let (names, hosts) = used(hosts, strict);
        if names > 1 && !strict {
            warnings.push(format!(
                "instances of {service} have {names} host names, of which only {:?} is used{advice}",
                hosts[0].name
            ));
        }
        if hosts.iter().all(|host| !host.health.is_healthy) {
            warnings.push(format!("no instance of {service} is healthy"));
        }
        Self::Names { strict, hosts }
    }
}

/// The number of distinct names, and the hosts to use: healthy ones, or else the last one. As in
/// Consul.
fn used(hosts: Vec<Host<'_>>, strict: bool) -> (usize, Vec<Host<'_>>) {
    let names: BTreeSet<_> = hosts.iter().map(|host| host.name).collect();
    let most = if strict { hosts.len() } else { 1 };
    let last = hosts.last().cloned();
    let healthy = hosts.into_iter().filter(|host| host.health.is_healthy);
    let mut used: Vec<_> = healthy.take(most).collect();
    if used.is_empty() {
        used.extend(last);
    }
    (names.len(), used)
}

/// The cluster.
pub(crate) fn cluster(
    memo: &Memo,
    input: &ExternalCluster<'_>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    memo.get(input, |input| {
        let waits_for = input.discovery.waits_for(input.name);
        Ok(encode::resource(
            input.name,
            &build(input),
            waits_for.as_slice(),
        ))
    })
}

fn build(input: &ExternalCluster<'_>) -> Cluster {
    let socket = input.tls.as_ref().map(|tls| tls.socket(input.http2));
    let socket = match input.proxy_protocol {
        Some(version) => Some(after_header(version, socket)),
        None => socket,
    };
    let mut cluster = Cluster {
        name: input.name.to_owned(),
        connect_timeout: Some(proto_duration(input.connect_timeout)),
        outlier_detection: Some(OutlierDetection::default()),
        upstream_connection_options: input.keepalive.map(keepalive),
        transport_socket: socket,
        ..Cluster::default()
    };
    input.discovery.set(&mut cluster, input.fetch_timeout);
    input.balancing.apply(&mut cluster);
    if input.http2 {
        set_http_options(&mut cluster, http2_only());
    }
    cluster
}

impl Discovery<'_> {
    /// The names of the endpoints that a cluster of this name waits for.
    pub(crate) fn waits_for<'n>(&self, name: &'n str) -> Option<&'n str> {
        matches!(self, Self::Endpoints).then_some(name)
    }

    /// Sets where a cluster finds its instances. `fetch_timeout`: Envoy's initial fetch timeout for endpoints.
    pub(crate) fn set(&self, cluster: &mut Cluster, fetch_timeout: Option<Duration>) {
        let name = &cluster.name.clone();
        match self {
            Discovery::Endpoints => {
                cluster.eds_cluster_config = Some(cluster::EdsClusterConfig {
                    eds_config: Some(tls::ads(fetch_timeout.map(proto_duration))),
                    ..cluster::EdsClusterConfig::default()
                });
                discover(cluster, cluster::DiscoveryType::Eds);
            }
            Discovery::Names { strict, hosts } => {
                let endpoints = hosts.iter().map(|host| LbEndpoint {
                    health_status: host.health.status().into(),
                    load_balancing_weight: Some(UInt32Value {
                        value: host.health.weight,
                    }),
                    ..at(host.name, host.port)
                });
                cluster.load_assignment = Some(assignment(name, endpoints.collect()));
                let discovery = match strict {
                    true => cluster::DiscoveryType::StrictDns,
                    false => cluster::DiscoveryType::LogicalDns,
                };
                resolve(cluster, discovery);
            }
            Discovery::Address(host, port) => {
                cluster.load_assignment = Some(assignment(name, vec![at(host, *port)]));
                match is_ip(host) {
                    true => discover(cluster, cluster::DiscoveryType::Static),
                    false => resolve(cluster, cluster::DiscoveryType::LogicalDns),
                }
            }
            Discovery::Nowhere => {
                cluster.load_assignment = Some(assignment(name, Vec::new()));
                discover(cluster, cluster::DiscoveryType::Static);
            }
        }
    }
}

/// A socket that sends a header with the caller's address before what the inner one sends.
fn after_header(version: ProxyProtocol, inner: Option<TransportSocket>) -> TransportSocket {
    let version = match version {
        ProxyProtocol::V1 => proxy_protocol_config::Version::V1,
        ProxyProtocol::V2 => proxy_protocol_config::Version::V2,
    };
    let inner = inner.unwrap_or_else(|| named(PLAINTEXT_SOCKET, &RawBuffer::default()));
    let transport = ProxyProtocolUpstreamTransport {
        config: Some(ProxyProtocolConfig {
            version: version.into(),
            ..ProxyProtocolConfig::default()
        }),
        transport_socket: Some(inner),
        ..ProxyProtocolUpstreamTransport::default()
    };
    named(PROXY_PROTOCOL_SOCKET, &transport)
}

fn named<M: Message + Name>(name: &str, config: &M) -> TransportSocket {
    TransportSocket {
        name: name.to_owned(),
        config_type: Some(transport_socket::ConfigType::TypedConfig(encode::any(
            config,
        ))),
    }
}

fn discover(cluster: &mut Cluster, discovery: cluster::DiscoveryType) {
    let discovery = cluster::ClusterDiscoveryType::Type(discovery.into());
    cluster.cluster_discovery_type = Some(discovery);
}

#[expect(
    deprecated,
    reason = "the new field is of a cluster extension, in place of the type that Consul sets"
)]
fn resolve(cluster: &mut Cluster, discovery: cluster::DiscoveryType) {
    discover(cluster, discovery);
    cluster.dns_refresh_rate = Some(proto_duration(RESOLVED_EVERY));
    cluster.dns_lookup_family = cluster::DnsLookupFamily::V4Only.into();
}

fn keepalive(keepalive: Keepalive) -> UpstreamConnectionOptions {
    let number = |value: u32| (value > 0).then_some(UInt32Value { value });
    UpstreamConnectionOptions {
        tcp_keepalive: Some(TcpKeepalive {
            keepalive_probes: number(keepalive.probes),
            keepalive_time: number(keepalive.time),
            keepalive_interval: number(keepalive.interval),
        }),
        ..UpstreamConnectionOptions::default()
    }
}

/// An endpoint of unknown health.
fn at(host: &str, port: u16) -> LbEndpoint {
    let address = SocketAddress {
        address: host.to_owned(),
        port_specifier: Some(socket_address::PortSpecifier::PortValue(port.into())),
        ..SocketAddress::default()
    };
    LbEndpoint {
        health_status: HealthStatus::Unknown.into(),
        host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(Endpoint {
            address: Some(Address {
                address: Some(address::Address::SocketAddress(address)),
            }),
            ..Endpoint::default()
        })),
        ..LbEndpoint::default()
    }
}

fn assignment(cluster: &str, lb_endpoints: Vec<LbEndpoint>) -> ClusterLoadAssignment {
    ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![LocalityLbEndpoints {
            lb_endpoints,
            ..LocalityLbEndpoints::default()
        }],
        ..ClusterLoadAssignment::default()
    }
}
