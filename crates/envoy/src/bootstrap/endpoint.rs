//! Addresses on this host, and clusters with one endpoint.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

/// The cluster through which Envoy reaches the dataplane's xDS relay. Servers expect this name in
/// the resources they send.
pub const LOCAL_AGENT_CLUSTER: &str = "consul-dataplane";

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// A cluster with one fixed endpoint on this host.
pub(super) fn cluster(name: &str, connect_timeout: &str, protocol: &str, address: &Value) -> Value {
    json!({
        "name": name,
        "connect_timeout": connect_timeout,
        "type": "STATIC",
        "typed_extension_protocol_options": { HTTP_OPTIONS: {
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "explicit_http_config": { protocol: {} },
        } },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address } }] }],
        },
    })
}

pub(super) fn socket_address(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip(), "port_value": address.port() } })
}

/// A unix socket. Settings are UTF-8, so the conversion is lossless.
pub(super) fn pipe(path: &Path) -> Value {
    json!({ "pipe": { "path": path.to_string_lossy() } })
}
