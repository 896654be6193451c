//! Paths of the application that are reachable without the mesh's TLS: `Proxy.Expose.Paths`. Each
//! has its own listener, which answers requests for other paths with 404.
//!
//! Used by Kubernetes' probes. As in Consul, intentions do not apply. Paths of an agent's checks
//! (`Proxy.Expose.Checks`) are reachable only from the agent's machine.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{CidrRange, TrafficDirection};
use envoy_types::pb::envoy::config::listener::v3::{FilterChain, FilterChainMatch, Listener};
use envoy_types::pb::google::protobuf::UInt32Value;
use legate_model::{ExposePath, Protocol, ServiceInstance};
use legate_proxycfg::Proxy;

use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::listener::{self, Bind, RouteSpecifier};
use crate::memo::Memo;
use crate::names;
use crate::route;
use crate::telemetry::Telemetry;

/// The HTTP versions used for the exposed paths of one application port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PathHttp {
    Http1,
    Http2,
    /// Some paths use one version, some the other.
    Both,
}

/// The HTTP versions of the exposed paths, by application port.
pub(crate) fn path_http(instance: &ServiceInstance, speaks: Protocol) -> HashMap<u16, PathHttp> {
    let mut all = HashMap::new();
    let exposed = instance.proxy.expose.paths.iter();
    for path in exposed.filter(|path| !goes_to_application(instance, speaks, path)) {
        let one = match protocol(path) {
            Protocol::Http2 => PathHttp::Http2,
            _ => PathHttp::Http1,
        };
        all.entry(path.local_path_port)
            .and_modify(|known| {
                if *known != one {
                    *known = PathHttp::Both;
                }
            })
            .or_insert(one);
    }
    all
}

/// Empty means HTTP/1. Other values are refused when they are written.
fn protocol(path: &ExposePath) -> Protocol {
    match path.protocol.as_str() {
        "http2" => Protocol::Http2,
        _ => Protocol::Http,
    }
}

/// Whether a path uses the cluster of the application, which speaks `speaks`: it is on the application's port, and the cluster
/// supports its HTTP version. Consul also sends HTTP/2 there if the application is registered with
/// another protocol, which fails for gRPC health checks.
fn goes_to_application(instance: &ServiceInstance, speaks: Protocol, path: &ExposePath) -> bool {
    path.local_path_port == instance.proxy.local_service_port
        && (protocol(path) != Protocol::Http2 || speaks.is_http2())
}

/// The cluster of a path, `None` if it uses the application's.
pub(crate) fn own_cluster(
    instance: &ServiceInstance,
    speaks: Protocol,
    path: &ExposePath,
) -> Option<String> {
    let own = !goes_to_application(instance, speaks, path);
    own.then(|| names::exposed_cluster(path.local_path_port))
}

#[derive(Hash)]
struct Input<'a> {
    path: &'a str,
    protocol: Protocol,
    cluster: &'a str,
    bind: &'a Bind,
    telemetry: &'a Telemetry,
    /// The allowed source addresses; empty allows all.
    callers: Vec<CidrRange>,
}

/// The listener of one exposed path.
pub(crate) fn listener(
    memo: &Memo,
    path: &ExposePath,
    cluster: &str,
    bind: &Bind,
    telemetry: &Telemetry,
    proxy: &Proxy,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = Input {
        path: &path.path,
        protocol: protocol(path),
        cluster,
        bind,
        telemetry,
        callers: match path.parsed_from_check {
            true => machine(bind, proxy),
            false => Vec::new(),
        },
    };
    memo.get(&input, |input| {
        let listener = names::exposed_listener(input.path);
        let name = format!("{listener}:{}", input.bind.suffix());
        let filter = names::exposed_filter(input.path, path.listener_port);
        let resource = build(&name, &filter, input);
        Ok(encode::resource(&name, &resource, &[]))
    })
}

/// The addresses of an agent's machine, including its registered address. Envoy refuses IPv6 ranges
/// on machines without IPv6.
fn machine(bind: &Bind, proxy: &Proxy) -> Vec<CidrRange> {
    let range = |address: IpAddr, length: u32| CidrRange {
        address_prefix: address.to_string(),
        prefix_len: Some(UInt32Value { value: length }),
    };
    let is_v6 =
        proxy.agent_ipv6 || matches!(bind, Bind::Socket { address, .. } if address.is_ipv6());
    let mut ranges = vec![range(Ipv4Addr::new(127, 0, 0, 0).into(), 8)];
    if let Ok(agent) = proxy.node_address.parse::<IpAddr>() {
        ranges.push(range(agent, if agent.is_ipv4() { 32 } else { 128 }));
    }
    ranges.extend(is_v6.then(|| range(Ipv6Addr::LOCALHOST.into(), 128)));
    ranges
}

/// The warning about a path with the port of the public listener.
pub(crate) fn on_the_public_listener(path: &ExposePath, bind: &Bind) -> String {
    format!(
        "Proxy.Expose.Paths: {} has no listener, because {} is the address of the public listener; set another \
         ListenerPort",
        path.path,
        bind.suffix()
    )
}

fn build(name: &str, filter: &str, input: &Input<'_>) -> Listener {
    let routes = route::path_to(input.path, input.cluster, filter);
    let routes = RouteSpecifier::RouteConfig(routes);
    let manager =
        listener::connection_manager(filter, input.protocol, routes, input.telemetry, Vec::new());
    let callers = (!input.callers.is_empty()).then(|| FilterChainMatch {
        source_prefix_ranges: input.callers.clone(),
        ..FilterChainMatch::default()
    });
    let chain = FilterChain {
        filter_chain_match: callers,
        filters: vec![listener::http_connection(&manager)],
        ..FilterChain::default()
    };
    let direction = TrafficDirection::Inbound;
    listener::listener(
        name,
        input.bind,
        direction,
        false,
        input.telemetry,
        vec![chain],
    )
}
