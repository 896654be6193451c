//! Listeners of exposed paths (`Proxy.Expose.Paths`): one path of the application each, for callers
//! without an identity of the mesh, such as the probes of a node. No intention is asked.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{FilterChain, Listener};
use legate_model::{ExposePath, Protocol};
use legate_proxycfg::Snapshot;

use super::{Bind, RouteSpecifier};
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::memo::Memo;
use crate::names::LOCAL_APP;
use crate::settings::ProxySettings;
use crate::{listener, route};

#[derive(Hash)]
struct Input<'a> {
    bind: &'a Bind,
    path: &'a str,
    cluster: String,
    protocol: Protocol,
}

/// What is spoken at a path; registrations name nothing else.
pub(crate) fn protocol(path: &ExposePath) -> Protocol {
    match path.protocol.as_str() {
        "http2" => Protocol::Http2,
        _ => Protocol::Http,
    }
}

/// The cluster that a path leads to: the application's own, or one for its other port.
pub(crate) fn cluster(snapshot: &Snapshot, path: &ExposePath) -> String {
    match path.local_path_port == snapshot.instance.proxy.local_service_port {
        true => LOCAL_APP.to_owned(),
        false => format!("exposed_cluster_{}", path.local_path_port),
    }
}

/// Where it listens: at the proxy's own address, like the listener for the mesh.
pub(crate) fn bind(
    snapshot: &Snapshot,
    settings: &ProxySettings,
    path: &ExposePath,
) -> Result<Bind, GenerateError> {
    let own = &snapshot.instance.address;
    let address = settings.bind_address.as_deref().unwrap_or(own);
    let address = match address {
        "" => "0.0.0.0",
        address => address,
    };
    Bind::socket(
        "Address of the proxy's registration",
        address,
        path.listener_port,
    )
}

/// The listener of one path.
pub(crate) fn listener(
    memo: &Memo,
    snapshot: &Snapshot,
    path: &ExposePath,
    bind: &Bind,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = Input {
        bind,
        path: &path.path,
        cluster: cluster(snapshot, path),
        protocol: protocol(path),
    };
    memo.get(&input, |input| {
        let name = format!("exposed_path_{}:{}", word(input.path), input.bind.suffix());
        Ok(encode::resource(&name, &build(&name, input), &[]))
    })
}

fn build(name: &str, input: &Input<'_>) -> Listener {
    let port = match input.bind {
        Bind::Socket { port, .. } => *port,
        Bind::Pipe { .. } => 0,
    };
    let filter = format!("exposed_path_filter_{}_{port}", word(input.path));
    let routes = route::path_to(&input.cluster, &filter, input.path);
    let routes = RouteSpecifier::RouteConfig(routes);
    let manager = listener::connection_manager(&filter, input.protocol, routes, Vec::new());
    let chain = FilterChain {
        filters: vec![listener::http_connection(&manager)],
        ..FilterChain::default()
    };
    listener::listener(
        name,
        input.bind,
        TrafficDirection::Inbound,
        false,
        vec![chain],
    )
}

/// A path as a part of names.
fn word(path: &str) -> String {
    path.chars().filter(char::is_ascii_alphanumeric).collect()
}
