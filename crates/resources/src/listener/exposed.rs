//! Paths of the application that callers reach without the mesh's TLS: `Proxy.Expose.Paths`. Each
//! has a listener of its own, and a request for any other path is answered with 404.
//!
//! Kubernetes' probes come this way. Intentions do not apply here, as in Consul. Paths that come from the
//! checks of an agent (`Proxy.Expose.Checks`) are there for the agent's machine only.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{CidrRange, TrafficDirection};
use envoy_types::pb::envoy::config::listener::v3::{FilterChain, FilterChainMatch, Listener};
use envoy_types::pb::google::protobuf::UInt32Value;
use legate_model::{ExposePath, Protocol};
use legate_proxycfg::Snapshot;

use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::listener::{self, Bind, RouteSpecifier};
use crate::memo::Memo;
use crate::names;
use crate::route;
use crate::telemetry::Telemetry;

/// Which HTTP the paths of one port of the application are asked in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Asked {
    Http1,
    Http2,
    /// Some paths in one, some in the other.
    Both,
}

/// The HTTP of the paths that are exposed, by the application's port.
pub(crate) fn asked(snapshot: &Snapshot) -> HashMap<u16, Asked> {
    let mut all = HashMap::new();
    let exposed = snapshot.instance.proxy.expose.paths.iter();
    for path in exposed.filter(|path| !goes_to_application(snapshot, path)) {
        let one = match protocol(path) {
            Protocol::Http2 => Asked::Http2,
            _ => Asked::Http1,
        };
        all.entry(path.local_path_port)
            .and_modify(|asked| {
                if *asked != one {
                    *asked = Asked::Both;
                }
            })
            .or_insert(one);
    }
    all
}

/// Empty is HTTP/1. Anything but these two is refused when it is written.
fn protocol(path: &ExposePath) -> Protocol {
    match path.protocol.as_str() {
        "http2" => Protocol::Http2,
        _ => Protocol::Http,
    }
}

/// Whether the cluster of the application serves a path: it is on the application's port, and is
/// asked in what that cluster can speak. Consul sends HTTP/2 there also where the application is
/// registered with another protocol, which fails for gRPC health checks.
fn goes_to_application(snapshot: &Snapshot, path: &ExposePath) -> bool {
    path.local_path_port == snapshot.instance.proxy.local_service_port
        && (protocol(path) != Protocol::Http2 || snapshot.protocol.is_http2())
}

/// The cluster of a path, where it is not the application's own.
pub(crate) fn own_cluster(snapshot: &Snapshot, path: &ExposePath) -> Option<String> {
    let own = !goes_to_application(snapshot, path);
    own.then(|| names::exposed_cluster(path.local_path_port))
}

#[derive(Hash)]
struct Input<'a> {
    path: &'a str,
    protocol: Protocol,
    cluster: &'a str,
    bind: &'a Bind,
    telemetry: &'a Telemetry,
    /// Whose connections are taken; empty means everybody's.
    callers: Vec<CidrRange>,
}

/// The listener of one path.
pub(crate) fn listener(
    memo: &Memo,
    path: &ExposePath,
    cluster: &str,
    bind: &Bind,
    telemetry: &Telemetry,
    snapshot: &Snapshot,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = Input {
        path: &path.path,
        protocol: protocol(path),
        cluster,
        bind,
        telemetry,
        callers: match path.parsed_from_check {
            true => machine(bind, snapshot),
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

/// The addresses of the machine that an agent is on, the one that it is known by among them. Envoy
/// refuses those of IPv6 on machines without it.
fn machine(bind: &Bind, snapshot: &Snapshot) -> Vec<CidrRange> {
    let range = |address: IpAddr, length: u32| CidrRange {
        address_prefix: address.to_string(),
        prefix_len: Some(UInt32Value { value: length }),
    };
    let is_v6 =
        snapshot.agent_ipv6 || matches!(bind, Bind::Socket { address, .. } if address.is_ipv6());
    let mut ranges = vec![range(Ipv4Addr::new(127, 0, 0, 0).into(), 8)];
    if let Ok(agent) = snapshot.node_address.parse::<IpAddr>() {
        ranges.push(range(agent, if agent.is_ipv4() { 32 } else { 128 }));
    }
    ranges.extend(is_v6.then(|| range(Ipv6Addr::LOCALHOST.into(), 128)));
    ranges
}

/// The warning about a path that has the port of the public listener.
pub(crate) fn on_the_public_listener(path: &ExposePath, bind: &Bind) -> String {
    format!(
        "Proxy.Expose.Paths: {} has no listener, for {} is the public listener's; set another \
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
