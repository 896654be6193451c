//! Ports of UDP: a cluster for each, its endpoints, and a listener at each address.
//!
//! Envoy sends the datagrams of a port to one cluster. So the shares of backends are weights of
//! endpoints. Weights of localities would not do: the share of a locality without endpoints goes to
//! the others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::{
    CircuitBreakers, Cluster, circuit_breakers, cluster,
};
use envoy_types::pb::envoy::config::core::v3::{TrafficDirection, socket_address};
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LocalityLbEndpoints};
use envoy_types::pb::envoy::config::listener::v3::{
    Listener, ListenerFilter, UdpListenerConfig, listener_filter,
};
use envoy_types::pb::envoy::extensions::filters::udp::udp_proxy::v3::{
    Route, UdpProxyConfig, udp_proxy_config,
};
use envoy_types::pb::google::protobuf::UInt32Value;
use envoy_types::pb::xds::core::v3::TypedExtensionConfig;
use envoy_types::pb::xds::r#type::matcher::v3::{Matcher, matcher};
use legate_routes::Endpoint;

use super::backend;
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::listener::{self, Bind};
use crate::memo::Memo;
use crate::names::DATAGRAMS;
use crate::tls;

const UDP_PROXY: &str = "envoy.filters.udp_listener.udp_proxy";

/// How long the datagrams of a client's address and port go to the same endpoint after the last
/// one. Each such session is a socket.
const IDLE: Duration = Duration::from_secs(30);

/// The most sessions of a port. Datagrams of other clients are dropped.
const MAX_SESSIONS: u32 = 16_384;

/// The sum of all weights, which Envoy adds in 32 bits.
const WHOLE: u64 = 1 << 31;

/// Where datagrams are dropped: nothing may be sent to this address from a socket that has not asked
/// for it, so the kernel refuses to.
const NOWHERE: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::BROADCAST), 9);

/// The name of the cluster of a port and of its endpoints.
pub(crate) fn name(port: u16) -> String {
    format!("{DATAGRAMS}.{port}")
}

/// The cluster of a port.
pub(crate) fn cluster(memo: &Memo, port: u16) -> Result<Arc<EncodedResource>, GenerateError> {
    memo.get(&(DATAGRAMS, port), |(_, port)| {
        let name = name(*port);
        let eds = cluster::EdsClusterConfig {
            eds_config: Some(tls::ads(None)),
            ..cluster::EdsClusterConfig::default()
        };
        let sessions = circuit_breakers::Thresholds {
            max_connections: Some(number(MAX_SESSIONS)),
            ..circuit_breakers::Thresholds::default()
        };
        let cluster = Cluster {
            name: name.clone(),
            cluster_discovery_type: Some(cluster::ClusterDiscoveryType::Type(
                cluster::DiscoveryType::Eds.into(),
            )),
            eds_cluster_config: Some(eds),
            circuit_breakers: Some(CircuitBreakers {
                thresholds: vec![sessions],
                ..CircuitBreakers::default()
            }),
            ..Cluster::default()
        };
        Ok(encode::resource(&name, &cluster, &[&name]))
    })
}

/// The endpoints of a port, from the weights and endpoints of its backends. The share of one without
/// endpoints is dropped.
pub(crate) fn endpoints(
    memo: &Memo,
    port: u16,
    backends: &[(u32, &[Endpoint])],
) -> Result<Arc<EncodedResource>, GenerateError> {
    let weights = weights(backends);
    memo.get(&(DATAGRAMS, port, &weights), |(_, port, weights)| {
        let name = name(*port);
        let all = weights.iter().map(|((address, port), weight)| {
            let udp = socket_address::Protocol::Udp;
            let mut endpoint = backend::endpoint(*address, *port, udp);
            endpoint.load_balancing_weight = Some(number(*weight));
            endpoint
        });
        let localities = (!weights.is_empty()).then(|| LocalityLbEndpoints {
            lb_endpoints: all.collect(),
            ..LocalityLbEndpoints::default()
        });
        let assignment = ClusterLoadAssignment {
            cluster_name: name.clone(),
            endpoints: localities.into_iter().collect(),
            ..ClusterLoadAssignment::default()
        };
        Ok(encode::resource(&name, &assignment, &[]))
    })
}

/// The weight of each endpoint: its part of the share of its backends. None if all is dropped.
fn weights(backends: &[(u32, &[Endpoint])]) -> BTreeMap<(IpAddr, u16), u32> {
    let mut weights: BTreeMap<(IpAddr, u16), u64> = BTreeMap::new();
    let sum: u64 = backends.iter().map(|(weight, _)| u64::from(*weight)).sum();
    for (weight, endpoints) in backends {
        let share = WHOLE * u64::from(*weight) / sum.max(1);
        let count = u64::try_from(endpoints.len()).unwrap_or(u64::MAX);
        let places = endpoints.iter().map(|one| (one.address, one.port));
        let part = share.checked_div(count);
        match part {
            Some(part) => places.for_each(|place| *weights.entry(place).or_default() += part),
            None => *weights.entry(NOWHERE).or_default() += share,
        }
    }
    if weights.keys().all(|place| *place == NOWHERE) {
        return BTreeMap::new();
    }
    let weights = weights.into_iter().filter(|(_, weight)| *weight > 0);
    weights
        .map(|(place, weight)| (place, u32::try_from(weight).unwrap_or(u32::MAX)))
        .collect()
}

/// The listener of a port at an address.
pub(crate) fn listener(
    memo: &Memo,
    bind: &Bind,
    port: u16,
) -> Result<Arc<EncodedResource>, GenerateError> {
    memo.get(&(DATAGRAMS, bind, port), |(prefix, bind, port)| {
        let name = format!("{prefix}:{}", bind.suffix());
        let mut listener = Listener {
            name: name.clone(),
            address: Some(bind.address()),
            traffic_direction: TrafficDirection::Outbound.into(),
            listener_filters: vec![proxy(*port)],
            ..Listener::default()
        };
        listener::to_udp(&mut listener, UdpListenerConfig::default());
        Ok(encode::resource(&name, &listener, &[]))
    })
}

/// The filter that sends datagrams to the cluster.
fn proxy(port: u16) -> ListenerFilter {
    let route = Route {
        cluster: name(port),
    };
    let action = TypedExtensionConfig {
        name: "route".to_owned(),
        typed_config: Some(encode::any(&route)),
    };
    let matched = matcher::OnMatch {
        on_match: Some(matcher::on_match::OnMatch::Action(action)),
        ..matcher::OnMatch::default()
    };
    let matcher = Matcher {
        on_no_match: Some(Box::new(matched)),
        ..Matcher::default()
    };
    let config = UdpProxyConfig {
        stat_prefix: name(port),
        idle_timeout: Some(proto_duration(IDLE)),
        route_specifier: Some(udp_proxy_config::RouteSpecifier::Matcher(matcher)),
        ..UdpProxyConfig::default()
    };
    ListenerFilter {
        name: UDP_PROXY.to_owned(),
        config_type: Some(listener_filter::ConfigType::TypedConfig(encode::any(
            &config,
        ))),
        ..ListenerFilter::default()
    }
}

fn number(value: u32) -> UInt32Value {
    UInt32Value { value }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    fn endpoint(last: u8) -> Endpoint {
        Endpoint {
            address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)),
            port: 53,
            identity: None,
            application: None,
        }
    }

    /// The percentage of each endpoint, and what is dropped.
    fn shares(backends: &[(u32, &[Endpoint])]) -> Vec<(String, u64)> {
        let weights = weights(backends);
        let sum: u64 = weights.values().copied().map(u64::from).sum();
        let percent = |weight: u32| (u64::from(weight) * 100 + sum / 2) / sum;
        let shares = weights.into_iter();
        shares
            .map(|((address, _), weight)| (address.to_string(), percent(weight)))
            .collect()
    }

    #[test]
    fn endpoints_divide_the_share_of_their_backend() {
        let [one, two, three] = &[1, 2, 3].map(endpoint);
        let pair = |address: &str, percent| (address.to_owned(), percent);
        let found = shares(&[
            (9, slice::from_ref(one)),
            (1, &[two.clone(), three.clone()]),
        ]);
        let expected = [
            pair("10.0.0.1", 90),
            pair("10.0.0.2", 5),
            pair("10.0.0.3", 5),
        ];
        assert_eq!(found, expected);
        let found = shares(&[(1, slice::from_ref(one)), (1, &[one.clone(), two.clone()])]);
        assert_eq!(found, [pair("10.0.0.1", 75), pair("10.0.0.2", 25)]);
        let found = shares(&[(3, slice::from_ref(one)), (1, &[])]);
        assert_eq!(found, [pair("10.0.0.1", 75), pair("255.255.255.255", 25)]);
        assert_eq!(shares(&[(3, &[]), (1, &[])]), [], "all is dropped");
        assert_eq!(shares(&[]), []);
        let all: Vec<_> = (0..200).map(endpoint).collect();
        let sum: u64 = weights(&[(u32::MAX - 1, &all), (1, slice::from_ref(one))])
            .values()
            .copied()
            .map(u64::from)
            .sum();
        assert!(sum <= WHOLE, "{sum}");
    }
}
