//! One listener of a gateway: its filter chains, by server name where they have different
//! certificates.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{
    Filter, FilterChain, FilterChainMatch, Listener,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::Rds;
use envoy_types::pb::google::protobuf::Any;
use legate_model::Protocol;

use super::tls::ServerTls;
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::listener::normalization::Normalization;
use crate::listener::{self, Bind, RouteSpecifier};
use crate::memo::Memo;
use crate::retry;
use crate::telemetry::Telemetry;
use crate::tls;

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
}

/// One filter chain.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Chain {
    /// The server names of its connections. Without any, the connections that no other chain
    /// matches.
    pub(crate) server_names: Vec<String>,
    pub(crate) tls: Option<ServerTls>,
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
    fn routes(&self) -> Option<&str> {
        match self {
            Self::Routes { name, .. } => Some(name),
            Self::Cluster { .. } => None,
        }
    }
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

fn build(name: &str, input: &GatewayListener<'_>) -> Listener {
    let chains = input.chains.iter().map(|chain| filter_chain(chain, input));
    let by_name = input.chains.iter().any(|one| !one.server_names.is_empty());
    let inspector = by_name.then(listener::tls_inspector);
    Listener {
        listener_filters: inspector.into_iter().collect(),
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

fn filter_chain(chain: &Chain, input: &GatewayListener<'_>) -> FilterChain {
    let matched = (!chain.server_names.is_empty()).then(|| FilterChainMatch {
        // Envoy compares server names in lower case.
        server_names: chain
            .server_names
            .iter()
            .map(|name| name.to_lowercase())
            .collect(),
        ..FilterChainMatch::default()
    });
    FilterChain {
        filter_chain_match: matched,
        filters: vec![filter(chain, input)],
        transport_socket: chain.tls.as_ref().map(ServerTls::socket),
        ..FilterChain::default()
    }
}

fn filter(chain: &Chain, input: &GatewayListener<'_>) -> Filter {
    // As in Consul, requests from outside the mesh are not traced.
    let telemetry = input.telemetry.without_tracing();
    match &chain.leads_to {
        LeadsTo::Cluster {
            name,
            hash_source_ip,
        } => listener::tcp_proxy(
            &chain.stats,
            name,
            retry::ATTEMPTS,
            *hash_source_ip,
            &telemetry,
        ),
        LeadsTo::Routes {
            name,
            protocol,
            requests,
        } => {
            let routes = RouteSpecifier::Rds(Rds {
                config_source: Some(tls::ads(input.fetch_timeout.map(proto_duration))),
                route_config_name: name.clone(),
            });
            let filters = requests.filters.iter();
            let filters = filters.map(|(name, config)| listener::http_filter(name, config.clone()));
            let mut manager = listener::connection_manager(
                &chain.stats,
                *protocol,
                routes,
                &telemetry,
                filters.collect(),
            );
            if let Some(normalization) = &requests.normalization {
                normalization.apply(&mut manager);
            }
            listener::http_connection(&manager)
        }
    }
}
