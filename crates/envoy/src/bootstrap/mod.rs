//! Builds Envoy's bootstrap document: identity of the proxy, addresses of its admin interface and of
//! the xDS relay, and the effect of the proxy's telemetry keys. A user's template can replace the
//! document. Pure except for [`PrometheusTls::load`]. Tokens and private keys are never included.
//!
//! Field names are Envoy's own (snake case, v3). User values are inserted as parsed JSON, never as
//! text.

mod endpoint;
mod error;
mod inputs;
mod listeners;
mod object;
mod prometheus_tls;
mod proxy_config;
mod rendered;
mod sink_address;
mod stats;

use serde_json::{Value, json};

pub use endpoint::LOCAL_AGENT_CLUSTER;
use endpoint::{cluster, pipe, socket_address};
pub use error::BootstrapError;
pub use inputs::{BootstrapInputs, NodeInputs, PrometheusInputs, XdsAddress};
pub(crate) use listeners::is_own;
pub use listeners::reachable;
use object::{parse_object, without_empty};
pub use prometheus_tls::PrometheusTls;
pub use proxy_config::ProxyConfig;
pub use sink_address::SinkAddress;

/// Maximum size of RE2 programs. Consul's stats tags and intentions need more than Envoy's default of
/// 100.
const REGEX_SIZE_LIMIT: u32 = 1_048_576;

/// A complete bootstrap document.
#[derive(Debug, Clone, PartialEq)]
pub struct Bootstrap {
    /// The JSON document for Envoy.
    pub document: Value,
    /// Corrections of the user's values, which the user should make permanent.
    pub warnings: Vec<String>,
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
        "stats_config": stats::config(inputs),
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
