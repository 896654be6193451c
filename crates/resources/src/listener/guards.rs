//! Adds TLS and access rules to public listeners that users wrote; neither can be left out.

use envoy_types::pb::envoy::config::core::v3::{
    TrafficDirection, TransportSocket, address, socket_address,
};
use envoy_types::pb::envoy::config::listener::v3::{FilterChain, Listener, filter};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, http_connection_manager::RouteSpecifier,
};
use envoy_types::pb::google::protobuf::Any;
use prost::{Message, Name};

use crate::encode;
use crate::error::GenerateError;
use crate::listener;
use crate::listener::normalization::Normalization;
use crate::names::NETWORK_RBAC;

/// The guards of a public listener.
pub(crate) struct Guards {
    /// The socket that accepts only clients of the mesh.
    pub(crate) tls: TransportSocket,
    /// The network filter with the rules for connections.
    pub(crate) connections: Any,
    /// The HTTP filters to run first, if there are rules for requests.
    pub(crate) requests: Option<Vec<HttpFilter>>,
    /// The normalization of requests, unless the listener configures its own.
    pub(crate) normalization: Normalization,
}

/// Adds the guards to every filter chain. A chain without a connection manager gets the rules for
/// connections, which deny the callers of rules for requests.
pub(crate) fn guard(
    setting: &str,
    listener: &mut Listener,
    guards: &Guards,
) -> Result<(), GenerateError> {
    if is_udp(listener) {
        return Err(GenerateError::Custom {
            setting: setting.to_owned(),
            reason: "it listens for UDP, which has neither TLS nor access rules".to_owned(),
        });
    }
    if listener.traffic_direction() == TrafficDirection::Unspecified {
        listener.set_traffic_direction(TrafficDirection::Inbound);
    }
    let chains = listener.filter_chains.iter_mut();
    for chain in chains.chain(&mut listener.default_filter_chain) {
        chain.transport_socket = Some(guards.tls.clone());
        let guarded = match &guards.requests {
            Some(filters) => guard_requests(setting, chain, filters, guards.normalization)?,
            None => false,
        };
        if !guarded {
            let rules = listener::network_filter(NETWORK_RBAC, guards.connections.clone());
            chain.filters.insert(0, rules);
        }
    }
    Ok(())
}

fn is_udp(listener: &Listener) -> bool {
    let additional = listener.additional_addresses.iter();
    let additional = additional.filter_map(|one| one.address.as_ref());
    let mut addresses = listener.address.iter().chain(additional);
    listener.udp_listener_config.is_some()
        || addresses.any(|address| match &address.address {
            Some(address::Address::SocketAddress(socket)) => {
                socket.protocol() == socket_address::Protocol::Udp
            }
            _ => false,
        })
}

/// Whether all routes are in the document, which has been checked.
fn has_own_routes(manager: &HttpConnectionManager) -> bool {
    match &manager.route_specifier {
        Some(RouteSpecifier::RouteConfig(routes)) => routes.vhds.is_none(),
        Some(RouteSpecifier::Rds(_) | RouteSpecifier::ScopedRoutes(_)) => false,
        None => true,
    }
}

/// Adds the filters to all connection managers of a chain. Returns whether there is one.
fn guard_requests(
    setting: &str,
    chain: &mut FilterChain,
    filters: &[HttpFilter],
    normalization: Normalization,
) -> Result<bool, GenerateError> {
    let mut guarded = false;
    for filter in &mut chain.filters {
        let Some(filter::ConfigType::TypedConfig(config)) = &mut filter.config_type else {
            continue;
        };
        if config.type_url != HttpConnectionManager::type_url() {
            continue;
        }
        let manager = HttpConnectionManager::decode(&*config.value);
        let mut manager = manager.map_err(|reason| GenerateError::Custom {
            setting: setting.to_owned(),
            reason: reason.to_string(),
        })?;
        if !has_own_routes(&manager) {
            return Err(GenerateError::Custom {
                setting: setting.to_owned(),
                reason:
                    "routes from elsewhere can turn off the rules of intentions; write them in \
                         routeConfig"
                        .to_owned(),
            });
        }
        manager.http_filters.splice(0..0, filters.iter().cloned());
        for upgrade in &mut manager.upgrade_configs {
            // For upgrades, a separate list replaces the other filters.
            if !upgrade.filters.is_empty() {
                upgrade.filters.splice(0..0, filters.iter().cloned());
            }
        }
        normalization.fill(&mut manager);
        *config = encode::any(&manager);
        guarded = true;
    }
    Ok(guarded)
}
