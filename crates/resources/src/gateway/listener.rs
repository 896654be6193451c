//! One listener of a gateway: its filter chains, by server name where they have different
//! certificates.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{
    Filter, FilterChain, FilterChainMatch, Listener, QuicProtocolOptions, UdpListenerConfig,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, Rds,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::CodecType;
use envoy_types::pb::google::protobuf::{Any, BoolValue};
use legate_model::Protocol;

use super::edge;
use super::tls::ServerTls;
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::listener::normalization::Normalization;
use crate::listener::{self, Bind, RouteSpecifier};
use crate::memo::Memo;
use crate::part::{Made, made};
use crate::retry;
use crate::settings::ProxySettings;
use crate::telemetry::Telemetry;
use crate::tls;

/// The name of listeners for HTTP/3 without their address.
pub(crate) const HTTP3: &str = "http3";

/// A listener of a gateway.
#[derive(Hash)]
pub(crate) struct GatewayListener<'a> {
    /// Its name without its address.
    pub(crate) name: &'a str,
    pub(crate) bind: &'a Bind,
    pub(crate) chains: &'a [Chain],
    /// Envoy's initial fetch timeout for routes.
    pub(crate) fetch_timeout: Option<Duration>,
    pub(crate) telemetry: &'a Telemetry,
    /// Whether each TCP connection begins with a header of the PROXY protocol.
    pub(crate) proxy_protocol: bool,
    /// The number of proxies whose `X-Forwarded-For` is trusted; `None` for that of every client.
    pub(crate) trusted_hops: Option<u32>,
}

impl<'a> GatewayListener<'a> {
    pub(crate) fn new(
        name: &'a str,
        bind: &'a Bind,
        chains: &'a [Chain],
        settings: &'a ProxySettings,
    ) -> Self {
        Self {
            name,
            bind,
            chains,
            fetch_timeout: settings.fetch_timeout,
            telemetry: &settings.telemetry,
            proxy_protocol: settings.edge.proxy_protocol,
            trusted_hops: settings.edge.trusted_hops,
        }
    }
}

/// One filter chain.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Chain {
    /// The server names of its connections. Without any, the connections that no other chain
    /// matches.
    pub(crate) server_names: Vec<String>,
    pub(crate) tls: Option<ServerTls>,
    /// Whether its connections have TLS that does not end here.
    pub(crate) is_passed_through: bool,
    /// The prefix of its statistics.
    pub(crate) stats: String,
    pub(crate) leads_to: LeadsTo,
}

/// The target of a filter chain.
#[derive(Clone, Debug, Hash)]
pub(crate) enum LeadsTo {
    /// The routes of this name.
    Routes {
        name: String,
        protocol: Protocol,
        requests: Requests,
    },
    /// A cluster, for each connection.
    Cluster {
        name: String,
        /// Whether connections from one address use the same instance.
        hash_source_ip: bool,
    },
    /// One of these clusters, by weight, for each connection.
    Clusters(Vec<(String, u32)>),
    /// Nowhere: connections are closed.
    Nowhere,
}

/// What happens to requests before they are routed.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Requests {
    /// The names and configurations of HTTP filters.
    pub(crate) filters: Vec<(&'static str, Any)>,
    /// How their paths are normalized, if they are.
    pub(crate) normalization: Option<Normalization>,
}

impl LeadsTo {
    pub(crate) fn routes(&self) -> Option<&str> {
        match self {
            Self::Routes { name, .. } => Some(name),
            Self::Cluster { .. } | Self::Clusters(_) | Self::Nowhere => None,
        }
    }
}

/// Whether HTTP/3 can be served: all connections have TLS of a version for it, and carry requests.
pub(crate) fn can_http3(chains: &[Chain]) -> bool {
    let can = |chain: &Chain| {
        let tls = chain.tls.as_ref();
        chain.leads_to.routes().is_some() && tls.is_some_and(|tls| tls.settings.allows_1_3())
    };
    !chains.is_empty() && chains.iter().all(can)
}

/// The listener.
pub(crate) fn listener(
    memo: &Memo,
    input: &GatewayListener<'_>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    memo.get(input, |input| {
        let name = format!("{}:{}", input.name, input.bind.suffix());
        let routes = input.chains.iter();
        let routes: Vec<&str> = routes.filter_map(|chain| chain.leads_to.routes()).collect();
        Ok(encode::resource(&name, &build(&name, input), &routes))
    })
}

/// The listener for HTTP/3 at the same address, over QUIC. `None` with a warning if not every chain
/// can serve it.
pub(crate) fn http3(
    memo: &Memo,
    input: &GatewayListener<'_>,
    port: u16,
    warnings: &mut Vec<String>,
) -> Result<Option<Made>, GenerateError> {
    if !can_http3(input.chains) {
        warnings.push(edge::without_http3(port));
        return Ok(None);
    }
    made(memo.get(&(HTTP3, input), |(prefix, input)| {
        let name = format!("{prefix}:{}", input.bind.suffix());
        let routes = input.chains.iter();
        let routes: Vec<&str> = routes.filter_map(|chain| chain.leads_to.routes()).collect();
        Ok(encode::resource(&name, &over_quic(&name, input), &routes))
    }))
}

fn over_quic(name: &str, input: &GatewayListener<'_>) -> Listener {
    let chains = input.chains.iter().map(|chain| FilterChain {
        transport_socket: chain.tls.as_ref().map(ServerTls::quic_socket),
        ..filter_chain(chain, input, CodecType::Http3)
    });
    let mut listener = listener::listener(
        name,
        input.bind,
        TrafficDirection::Outbound,
        false,
        input.telemetry,
        chains.collect(),
    );
    let quic = UdpListenerConfig {
        quic_options: Some(QuicProtocolOptions::default()),
        ..UdpListenerConfig::default()
    };
    listener::to_udp(&mut listener, quic);
    listener
}

fn build(name: &str, input: &GatewayListener<'_>) -> Listener {
    let chains = input.chains.iter();
    let chains = chains.map(|chain| filter_chain(chain, input, CodecType::Auto));
    let mut chains_of = input.chains.iter();
    let by_name = chains_of.any(|one| !one.server_names.is_empty() || one.is_passed_through);
    let inspector = by_name.then(listener::tls_inspector);
    let header = input.proxy_protocol.then(listener::proxy_protocol);
    Listener {
        listener_filters: header.into_iter().chain(inspector).collect(),
        ..listener::listener(
            name,
            input.bind,
            TrafficDirection::Outbound,
            false,
            input.telemetry,
            chains.collect(),
        )
    }
}

fn filter_chain(chain: &Chain, input: &GatewayListener<'_>, codec: CodecType) -> FilterChain {
    let is_chosen = !chain.server_names.is_empty() || chain.is_passed_through;
    let matched = is_chosen.then(|| FilterChainMatch {
        // Envoy compares server names in lower case.
        server_names: chain
            .server_names
            .iter()
            .map(|name| name.to_lowercase())
            .collect(),
        transport_protocol: match chain.is_passed_through {
            true => "tls".to_owned(),
            false => String::new(),
        },
        ..FilterChainMatch::default()
    });
    FilterChain {
        filter_chain_match: matched,
        // Without a filter, Envoy closes connections.
        filters: filter(chain, input, codec).into_iter().collect(),
        transport_socket: chain.tls.as_ref().map(ServerTls::socket),
        ..FilterChain::default()
    }
}

fn filter(chain: &Chain, input: &GatewayListener<'_>, codec: CodecType) -> Option<Filter> {
    // As in Consul, requests from outside the mesh are not traced.
    let telemetry = input.telemetry.without_tracing();
    let outside = |manager: &mut HttpConnectionManager| {
        manager.codec_type = codec.into();
        if let Some(hops) = input.trusted_hops {
            manager.use_remote_address = Some(BoolValue { value: true });
            manager.xff_num_trusted_hops = hops;
        }
    };
    leading_to(
        &chain.leads_to,
        &chain.stats,
        (input.fetch_timeout, &telemetry),
        outside,
    )
}

/// The filter of connections that lead somewhere; `None` if they are closed. `adjust` gets the manager of requests.
pub(crate) fn leading_to(
    leads_to: &LeadsTo,
    stats: &str,
    (fetch_timeout, telemetry): (Option<Duration>, &Telemetry),
    adjust: impl FnOnce(&mut HttpConnectionManager),
) -> Option<Filter> {
    Some(match leads_to {
        LeadsTo::Nowhere => return None,
        LeadsTo::Clusters(clusters) => {
            listener::weighted_tcp_proxy(stats, clusters, retry::ATTEMPTS, telemetry)
        }
        LeadsTo::Cluster {
            name,
            hash_source_ip,
        } => listener::tcp_proxy(stats, name, retry::ATTEMPTS, *hash_source_ip, telemetry),
        LeadsTo::Routes {
            name,
            protocol,
            requests,
        } => {
            let routes = RouteSpecifier::Rds(Rds {
                config_source: Some(tls::ads(fetch_timeout.map(proto_duration))),
                route_config_name: name.clone(),
            });
            let filters = requests.filters.iter();
            let filters = filters.map(|(name, config)| listener::http_filter(name, config.clone()));
            let mut manager = listener::connection_manager(
                stats,
                *protocol,
                routes,
                telemetry,
                filters.collect(),
            );
            adjust(&mut manager);
            if let Some(normalization) = &requests.normalization {
                normalization.apply(&mut manager);
            }
            listener::http_connection(&manager)
        }
    })
}
