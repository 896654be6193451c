//! Listeners: one for the mesh, one for each explicit upstream and exposed path, one for captured
//! traffic. This file has the building blocks that they share.

pub(crate) mod exposed;
mod guards;
pub(crate) mod inbound;
pub(crate) mod normalization;
pub(crate) mod outbound;
pub(crate) mod public;
pub(crate) mod upstream;

pub(crate) use http_connection_manager::RouteSpecifier;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{
    Address, Http2ProtocolOptions, Pipe, SocketAddress, TrafficDirection, address, socket_address,
};
use envoy_types::pb::envoy::config::listener::v3::listener::{
    ConnectionBalanceConfig, connection_balance_config,
};
use envoy_types::pb::envoy::config::listener::v3::{
    Filter, FilterChain, Listener, ListenerFilter, ListenerFilterChainMatchPredicate,
    UdpListenerConfig, filter, listener_filter, listener_filter_chain_match_predicate,
};
use envoy_types::pb::envoy::extensions::filters::http::grpc_http1_bridge::v3::Config as BridgeConfig;
use envoy_types::pb::envoy::extensions::filters::http::grpc_stats::v3::{
    FilterConfig as GrpcStatsConfig, filter_config,
};
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::listener::original_dst::v3::OriginalDst;
use envoy_types::pb::envoy::extensions::filters::listener::proxy_protocol::v3::ProxyProtocol;
use envoy_types::pb::envoy::extensions::filters::listener::tls_inspector::v3::TlsInspector;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, http_connection_manager, http_filter,
};
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::{TcpProxy, tcp_proxy};
use envoy_types::pb::envoy::r#type::v3::hash_policy::{self, SourceIp};
use envoy_types::pb::envoy::r#type::v3::{HashPolicy, Int32Range};
use envoy_types::pb::google::protobuf::{Any, BoolValue, UInt32Value};
use legate_model::Protocol;

use crate::encode;
use crate::error::GenerateError;
use crate::names::{
    GRPC_HTTP1_BRIDGE, GRPC_STATS, HTTP_CONNECTION_MANAGER, ORIGINAL_DST_FILTER, PROXY_PROTOCOL,
    ROUTER, TCP_PROXY, TLS_INSPECTOR,
};
use crate::telemetry::Telemetry;

/// The header with the identity of the caller.
pub(crate) const CLIENT_CERTIFICATE: &str = "x-forwarded-client-cert";

/// An address that Envoy listens on or connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Bind {
    Socket { address: IpAddr, port: u16 },
    Pipe { path: String, mode: u32 },
}

impl Bind {
    /// A TCP address; an empty host is 127.0.0.1.
    pub(crate) fn socket(setting: &str, host: &str, port: u16) -> Result<Self, GenerateError> {
        let address = match host {
            "" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.parse().map_err(|_| GenerateError::BindAddress {
                setting: setting.to_owned(),
                value: host.to_owned(),
            })?,
        };
        Ok(Self::Socket { address, port })
    }

    /// A Unix socket with unchanged permissions.
    pub(crate) fn pipe(path: &str) -> Self {
        Self::Pipe {
            path: path.to_owned(),
            mode: 0,
        }
    }

    /// Parses a message, `None` if it is neither an IP address with a port nor a path.
    pub(crate) fn of(address: &Address) -> Option<Self> {
        match address.address.as_ref()? {
            address::Address::SocketAddress(socket) => {
                let Some(socket_address::PortSpecifier::PortValue(port)) = socket.port_specifier
                else {
                    return None;
                };
                Some(Self::Socket {
                    address: socket.address.parse().ok()?,
                    port: port.try_into().ok()?,
                })
            }
            address::Address::Pipe(pipe) => Some(Self::Pipe {
                path: pipe.path.clone(),
                mode: pipe.mode,
            }),
            address::Address::EnvoyInternalAddress(_) => None,
        }
    }

    /// The address as a message.
    pub(crate) fn address(&self) -> Address {
        let address = match self {
            Self::Socket { address, port } => address::Address::SocketAddress(SocketAddress {
                address: address.to_string(),
                port_specifier: Some(socket_address::PortSpecifier::PortValue((*port).into())),
                ..SocketAddress::default()
            }),
            Self::Pipe { path, mode } => address::Address::Pipe(Pipe {
                path: path.clone(),
                mode: *mode,
            }),
        };
        Address {
            address: Some(address),
        }
    }

    /// The suffix that makes a listener's name unique for its address, because Envoy cannot change
    /// the address of a listener.
    pub(crate) fn suffix(&self) -> String {
        match self {
            Self::Socket { address, port } => format!("{address}:{port}"),
            Self::Pipe { path, .. } => path.clone(),
        }
    }
}

/// Makes a listener one of UDP.
pub(crate) fn to_udp(listener: &mut Listener, config: UdpListenerConfig) {
    let address = listener.address.as_mut();
    if let Some(address::Address::SocketAddress(socket)) =
        address.and_then(|address| address.address.as_mut())
    {
        socket.protocol = socket_address::Protocol::Udp.into();
    }
    listener.udp_listener_config = Some(config);
}

/// How long [`server_name`] waits for a TLS handshake before the connection continues without one.
/// On ports where the server name is matched, a server that speaks first is delayed by this time. A
/// client that starts a handshake sends its first bytes at once.
pub(crate) const SERVER_NAME_WAIT: Duration = Duration::from_secs(1);

/// A listener with filter chains.
pub(crate) fn listener(
    name: &str,
    bind: &Bind,
    direction: TrafficDirection,
    exact_balance: bool,
    telemetry: &Telemetry,
    filter_chains: Vec<FilterChain>,
) -> Listener {
    use connection_balance_config::{BalanceType, ExactBalance};
    let balance = exact_balance.then_some(ConnectionBalanceConfig {
        balance_type: Some(BalanceType::ExactBalance(ExactBalance {})),
    });
    Listener {
        name: name.to_owned(),
        address: Some(bind.address()),
        traffic_direction: direction.into(),
        connection_balance_config: balance,
        access_log: telemetry.listener_logs(),
        filter_chains,
        ..Listener::default()
    }
}

/// The filter that recovers the original destination of a captured connection.
pub(crate) fn original_destination() -> ListenerFilter {
    ListenerFilter {
        name: ORIGINAL_DST_FILTER.to_owned(),
        config_type: Some(listener_filter::ConfigType::TypedConfig(encode::any(
            &OriginalDst {},
        ))),
        ..ListenerFilter::default()
    }
}

/// The filter that extracts the server name of a TLS handshake, limited to these ports: it delays
/// connections to servers that speak first, see [`SERVER_NAME_WAIT`]. `None` without ports.
pub(crate) fn server_name(ports: &BTreeSet<u16>) -> Option<ListenerFilter> {
    use listener_filter_chain_match_predicate::{MatchSet, Rule};
    let predicate = |rule| ListenerFilterChainMatchPredicate { rule: Some(rule) };
    let range = |port: &u16| {
        predicate(Rule::DestinationPortRange(Int32Range {
            start: i32::from(*port),
            end: i32::from(*port) + 1,
        }))
    };
    let mut ranges: Vec<_> = ports.iter().map(range).collect();
    let any = match ranges.len() {
        0 | 1 => ranges.pop()?,
        _ => predicate(Rule::OrMatch(MatchSet { rules: ranges })),
    };
    Some(ListenerFilter {
        filter_disabled: Some(predicate(Rule::NotMatch(Box::new(any)))),
        ..tls_inspector()
    })
}

/// The filter that extracts the server name of a TLS handshake.
pub(crate) fn tls_inspector() -> ListenerFilter {
    ListenerFilter {
        name: TLS_INSPECTOR.to_owned(),
        config_type: Some(listener_filter::ConfigType::TypedConfig(encode::any(
            &TlsInspector::default(),
        ))),
        ..ListenerFilter::default()
    }
}

/// The filter that reads the client's address from the header of the PROXY protocol with which each
/// connection has to begin.
pub(crate) fn proxy_protocol() -> ListenerFilter {
    ListenerFilter {
        name: PROXY_PROTOCOL.to_owned(),
        config_type: Some(listener_filter::ConfigType::TypedConfig(encode::any(
            &ProxyProtocol::default(),
        ))),
        ..ListenerFilter::default()
    }
}

/// A network filter.
pub(crate) fn network_filter(name: &str, config: Any) -> Filter {
    Filter {
        name: name.to_owned(),
        config_type: Some(filter::ConfigType::TypedConfig(config)),
    }
}

/// An HTTP filter.
pub(crate) fn http_filter(name: &str, config: Any) -> HttpFilter {
    HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..HttpFilter::default()
    }
}

/// The filter that proxies every connection to one cluster, trying at most `attempts` instances.
/// `hash_source_ip`: hash-based balancing uses the caller's address.
pub(crate) fn tcp_proxy(
    stats: &str,
    cluster: &str,
    attempts: u32,
    hash_source_ip: bool,
    telemetry: &Telemetry,
) -> Filter {
    let hash = HashPolicy {
        policy_specifier: Some(hash_policy::PolicySpecifier::SourceIp(SourceIp {})),
    };
    let config = TcpProxy {
        stat_prefix: stats.to_owned(),
        cluster_specifier: Some(tcp_proxy::ClusterSpecifier::Cluster(cluster.to_owned())),
        access_log: telemetry.filter_logs(),
        hash_policy: hash_source_ip.then_some(hash).into_iter().collect(),
        max_connect_attempts: (attempts > 1).then_some(UInt32Value { value: attempts }),
        ..TcpProxy::default()
    };
    network_filter(TCP_PROXY, encode::any(&config))
}

/// The filter that proxies every connection to one of several clusters, by weight.
pub(crate) fn weighted_tcp_proxy(
    stats: &str,
    clusters: &[(String, u32)],
    attempts: u32,
    telemetry: &Telemetry,
) -> Filter {
    use tcp_proxy::weighted_cluster::ClusterWeight;
    let clusters = clusters.iter().map(|(name, weight)| ClusterWeight {
        name: name.clone(),
        weight: *weight,
        ..ClusterWeight::default()
    });
    let weighted = tcp_proxy::WeightedCluster {
        clusters: clusters.collect(),
    };
    let config = TcpProxy {
        stat_prefix: stats.to_owned(),
        cluster_specifier: Some(tcp_proxy::ClusterSpecifier::WeightedClusters(weighted)),
        access_log: telemetry.filter_logs(),
        max_connect_attempts: (attempts > 1).then_some(UInt32Value { value: attempts }),
        ..TcpProxy::default()
    };
    network_filter(TCP_PROXY, encode::any(&config))
}

/// A connection manager. `stats` is the prefix of its statistics. The filters in `between` run
/// after those of the protocol and before the router.
pub(crate) fn connection_manager(
    stats: &str,
    protocol: Protocol,
    routes: RouteSpecifier,
    telemetry: &Telemetry,
    between: Vec<HttpFilter>,
) -> HttpConnectionManager {
    use http_connection_manager::{CodecType, UpgradeConfig};
    let mut filters = Vec::new();
    if protocol == Protocol::Grpc {
        filters.extend(grpc_filters());
    }
    filters.extend(between);
    filters.push(http_filter(ROUTER, encode::any(&Router::default())));
    HttpConnectionManager {
        codec_type: CodecType::Auto.into(),
        stat_prefix: stats.to_owned(),
        http_filters: filters,
        tracing: Some(telemetry.tracing()),
        upgrade_configs: vec![UpgradeConfig {
            upgrade_type: "websocket".to_owned(),
            ..UpgradeConfig::default()
        }],
        http2_protocol_options: protocol.is_http2().then(Http2ProtocolOptions::default),
        route_specifier: Some(routes),
        access_log: telemetry.filter_logs(),
        ..HttpConnectionManager::default()
    }
}

/// The network filter of a connection manager.
pub(crate) fn http_connection(manager: &HttpConnectionManager) -> Filter {
    network_filter(HTTP_CONNECTION_MANAGER, encode::any(manager))
}

fn grpc_filters() -> [HttpFilter; 2] {
    let stats = GrpcStatsConfig {
        per_method_stat_specifier: Some(filter_config::PerMethodStatSpecifier::StatsForAllMethods(
            BoolValue { value: true },
        )),
        ..GrpcStatsConfig::default()
    };
    [
        http_filter(GRPC_STATS, encode::any(&stats)),
        http_filter(GRPC_HTTP1_BRIDGE, encode::any(&BridgeConfig::default())),
    ]
}
