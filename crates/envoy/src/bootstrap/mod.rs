//! Builds Envoy's bootstrap document: identity of the proxy, addresses of its admin interface and of
//! the xDS relay, and the effect of the proxy's telemetry keys. A user's template can replace the
//! document. Pure except for [`PrometheusTls::load`]. Tokens and private keys are never included.
//!
//! Field names are Envoy's own (snake case, v3). User values are inserted as parsed JSON, never as
//! text.

mod listeners;
mod prometheus_tls;
mod proxy_config;
mod rendered;
mod sink_address;
mod stats;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

pub(crate) use listeners::is_own;
pub use listeners::reachable;
pub use prometheus_tls::PrometheusTls;
pub use proxy_config::ProxyConfig;
pub use sink_address::SinkAddress;

/// The cluster through which Envoy reaches the dataplane's xDS relay. Servers expect this name in
/// the resources they send.
pub const LOCAL_AGENT_CLUSTER: &str = "consul-dataplane";

/// Maximum size of RE2 programs. Consul's stats tags and intentions need more than Envoy's default of
/// 100.
const REGEX_SIZE_LIMIT: u32 = 1_048_576;

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// A complete bootstrap document.
#[derive(Debug, Clone, PartialEq)]
pub struct Bootstrap {
    /// The JSON document for Envoy.
    pub document: Value,
    /// Corrections of the user's values, which the user should make permanent.
    pub warnings: Vec<String>,
}

/// Why there is no bootstrap document. The message names the proxy configuration key or the setting
/// to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BootstrapError(String);

impl BootstrapError {
    /// An error in a key of the proxy's configuration.
    fn key(key: &str, reason: impl std::fmt::Display) -> Self {
        Self(format!("proxy config key {key}: {reason}"))
    }
}

/// All inputs of a bootstrap document.
#[derive(Debug, Clone, PartialEq)]
pub struct BootstrapInputs {
    /// Identity of the proxy.
    pub node: NodeInputs,
    /// Address that Envoy's admin interface binds to.
    pub admin: SocketAddr,
    /// Access logs of the admin interface: one JSON object each, verbatim from the server. Empty
    /// disables logging.
    pub access_logs: Vec<String>,
    /// Address of the xDS relay.
    pub xds: XdsAddress,
    /// Address that the ready listener binds to; `None` disables it.
    pub ready: Option<SocketAddr>,
    /// The Prometheus listener. It exists only if `envoy_prometheus_bind_addr` is set.
    pub prometheus: PrometheusInputs,
    /// The proxy's telemetry keys; default if central configuration is disabled.
    pub proxy_config: ProxyConfig,
}

/// Identity of the proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeInputs {
    /// The proxy's service id.
    pub id: String,
    /// The identity, or else the service, that the proxy represents.
    pub cluster: String,
    /// The name of its node; empty when unknown.
    pub node_name: String,
    /// Empty means `default`.
    pub namespace: String,
    /// Empty means `default`.
    pub partition: String,
    /// The datacenter; empty when unknown.
    pub datacenter: String,
}

impl NodeInputs {
    fn namespace(&self) -> &str {
        or_default(&self.namespace)
    }

    fn partition(&self) -> &str {
        or_default(&self.partition)
    }
}

fn or_default(name: &str) -> &str {
    if name.is_empty() { "default" } else { name }
}

/// Address of the xDS relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XdsAddress {
    /// A loopback address. In settings, port 0 selects a free one; in a bootstrap it is the actual
    /// port.
    Tcp(SocketAddr),
    /// A unix socket (`unix://PATH` in settings).
    Unix(PathBuf),
}

/// The Prometheus listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusInputs {
    /// The path that Prometheus scrapes.
    pub scrape_path: String,
    /// Address at which the dataplane serves merged metrics.
    pub backend: SocketAddr,
    /// TLS of the listener.
    pub tls: Option<PrometheusTls>,
}

/// Builds the document.
///
/// # Errors
/// When an access log or the user's template is invalid; the error names it.
pub fn build(inputs: &BootstrapInputs) -> Result<Bootstrap, BootstrapError> {
    let keys = &inputs.proxy_config;
    let mut warnings = keys.warnings();
    let mut document = document(inputs, &mut warnings)?;
    if let Some(text) = &keys.bootstrap_json_tpl {
        document = rendered::render(text, inputs, &document)?;
    }
    Ok(Bootstrap { document, warnings })
}

fn document(inputs: &BootstrapInputs, warnings: &mut Vec<String>) -> Result<Value, BootstrapError> {
    let (node, keys) = (&inputs.node, &inputs.proxy_config);
    Ok(without_empty(json!({
        "admin": without_empty(json!({
            "access_log": access_logs(&inputs.access_logs)?,
            "address": socket_address(inputs.admin),
        })),
        "node": {
            "cluster": node.cluster,
            "id": node.id,
            "metadata": without_empty(json!({
                "node_name": node.node_name,
                "namespace": node.namespace(),
                "partition": node.partition(),
            })),
        },
        "layered_runtime": { "layers": [{
            "name": "base",
            "static_layer": { "re2.max_program_size.error_level": REGEX_SIZE_LIMIT },
        }] },
        "static_resources": static_resources(inputs, warnings),
        "stats_sinks": stats::sinks(keys),
        "stats_config": stats::config(node, keys),
        "stats_flush_interval": keys.stats_flush_interval,
        "tracing": keys.tracing,
        "dynamic_resources": dynamic_resources(),
    })))
}

/// Clusters, listeners and secrets: the user's own, and those of the dataplane.
fn static_resources(inputs: &BootstrapInputs, warnings: &mut Vec<String>) -> Value {
    let keys = &inputs.proxy_config;
    let relay = match &inputs.xds {
        XdsAddress::Tcp(address) => socket_address(*address),
        XdsAddress::Unix(path) => pipe(path),
    };
    let protocol = "http2_protocol_options";
    let mut clusters = vec![cluster(LOCAL_AGENT_CLUSTER, "1s", protocol, &relay)];
    clusters.extend(keys.extra_static_clusters.iter().cloned());
    clusters.extend(listeners::clusters(inputs));
    clusters.extend(stats::collector_cluster(inputs));
    let mut listeners = keys.extra_static_listeners.clone();
    listeners.extend(listeners::listeners(inputs, warnings));
    without_empty(json!({
        "clusters": clusters,
        "listeners": listeners,
        "secrets": listeners::secrets(inputs),
    }))
}

/// A cluster with one fixed endpoint on this host.
fn cluster(name: &str, connect_timeout: &str, protocol: &str, address: &Value) -> Value {
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

fn socket_address(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip(), "port_value": address.port() } })
}

/// A unix socket. Settings are UTF-8, so the conversion is lossless.
fn pipe(path: &Path) -> Value {
    json!({ "pipe": { "path": path.to_string_lossy() } })
}

/// Clusters and listeners come over the relay's delta stream. Without a fetch timeout Envoy does not
/// become ready before both have arrived, so that it is never ready with an empty configuration.
fn dynamic_resources() -> Value {
    let ads = json!({ "ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3" });
    json!({
        "lds_config": ads,
        "cds_config": ads,
        "ads_config": {
            "api_type": "DELTA_GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{ "envoy_grpc": { "cluster_name": LOCAL_AGENT_CLUSTER } }],
        },
    })
}

/// Removes entries without content: `null`, `""` and `[]`.
fn without_empty(mut object: Value) -> Value {
    if let Value::Object(entries) = &mut object {
        entries.retain(|_, value| ![Value::Null, json!(""), json!([])].contains(value));
    }
    object
}

fn access_logs(logs: &[String]) -> Result<Vec<Value>, BootstrapError> {
    let logs = (1..).zip(logs).map(|(position, text)| {
        parse_object(text).map_err(|source| {
            BootstrapError(format!(
                "access log {position} of the bootstrap parameters is not a JSON object: {source}; \
                 see accessLogs in proxy-defaults"
            ))
        })
    });
    logs.collect()
}

fn parse_object(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str::<Map<String, Value>>(text).map(Value::Object)
}
