//! Builds Envoy's bootstrap document: who the proxy is, where its admin interface and the xDS
//! relay are, and what the proxy's telemetry keys ask for. A user's template can replace the
//! document. Pure but for [`PrometheusTls::load`]; no token and no private key ever enters it.

mod document;
mod error;
mod listeners;
mod proxy_config;
mod rendered;
mod sink_address;
mod stats;
mod trusted_ca;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;

pub use document::Bootstrap;
pub use error::BootstrapError;
pub(crate) use listeners::{is_own, reachable};
pub use proxy_config::ProxyConfig;
pub use trusted_ca::{PrometheusTls, TrustedCa};

use document::{
    Address, Admin, AdsConfig, AdsSource, Cluster, Content, Document, DynamicResources, Empty,
    EnvoyGrpc, Given, GrpcService, LayeredRuntime, Node, NodeMetadata, RuntimeLayer,
    StaticResources, Wire,
};

/// The cluster through which Envoy reaches the dataplane's xDS relay. Servers expect this name in
/// the resources they send.
pub const LOCAL_AGENT_CLUSTER: &str = "consul-dataplane";

/// RE2 programs above this size are refused; Consul's stats tags and intentions need more than
/// Envoy's default of 100.
const REGEX_SIZE_LIMIT: u32 = 1_048_576;

/// Everything a bootstrap document is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct BootstrapInputs {
    /// Who the proxy is.
    pub node: NodeInputs,
    /// Where Envoy's admin interface binds.
    pub admin: SocketAddr,
    /// Admin access logs: one JSON object each, as the server sent them. None means no log.
    pub access_logs: Vec<String>,
    /// Where the xDS relay listens.
    pub xds: XdsAddress,
    /// Where the ready listener binds, when one is wanted.
    pub ready: Option<SocketAddr>,
    /// The Prometheus listener, which exists when `envoy_prometheus_bind_addr` is set.
    pub prometheus: PrometheusInputs,
    /// The proxy's telemetry keys; default when central configuration is off.
    pub proxy_config: ProxyConfig,
}

/// Who the proxy is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeInputs {
    /// The proxy's service id.
    pub id: String,
    /// The identity, or else the service, that the proxy stands for.
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
        if self.namespace.is_empty() {
            "default"
        } else {
            &self.namespace
        }
    }

    fn partition(&self) -> &str {
        if self.partition.is_empty() {
            "default"
        } else {
            &self.partition
        }
    }
}

/// Where the xDS relay listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XdsAddress {
    /// The bound address, with its real port.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// The Prometheus listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusInputs {
    /// The path that Prometheus asks for.
    pub scrape_path: String,
    /// Where the dataplane serves merged metrics.
    pub backend: SocketAddr,
    /// TLS of the listener.
    pub tls: Option<PrometheusTls>,
}

/// Builds the document. `variable` looks up environment variables that a sink's address refers to.
///
/// # Errors
/// When a telemetry key, an access log or the user's template cannot be used; the error names it.
pub fn build(
    inputs: &BootstrapInputs,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Bootstrap, BootstrapError> {
    let mut warnings = Vec::new();
    let document = document(inputs, variable, &mut warnings)?;
    let content = match &inputs.proxy_config.bootstrap_json_tpl {
        Some(text) => Content::Rendered(rendered::render(text, inputs, &document)?),
        None => Content::Written(Box::new(document)),
    };
    Ok(Bootstrap { content, warnings })
}

fn document(
    inputs: &BootstrapInputs,
    variable: &dyn Fn(&str) -> Option<String>,
    warnings: &mut Vec<String>,
) -> Result<Document, BootstrapError> {
    let keys = &inputs.proxy_config;
    let users = |key, text: &Option<String>| {
        text.as_deref()
            .map_or_else(|| Ok(Vec::new()), |text| fragments(key, text))
    };
    let user_clusters = users(
        "envoy_extra_static_clusters_json",
        &keys.extra_static_clusters_json,
    )?;
    let user_listeners = users(
        "envoy_extra_static_listeners_json",
        &keys.extra_static_listeners_json,
    )?;
    let taken: Vec<&str> = user_clusters
        .iter()
        .filter_map(|cluster| cluster.get("name")?.as_str())
        .collect();
    let added = listeners::additions(inputs, &taken)?;
    let collector = keys
        .telemetry_collector_bind_socket_dir
        .as_deref()
        .map(|folder| {
            let socket = stats::collector_socket(folder, &inputs.node);
            Cluster::local(
                stats::COLLECTOR_CLUSTER,
                "1s",
                Wire::Http2,
                socket.as_path().into(),
            )
        });
    warnings.extend(added.warnings);
    let stats_config = stats::config(&inputs.node, keys)?;
    let static_resources = StaticResources {
        clusters: std::iter::once(Given::Own(relay_cluster(&inputs.xds)))
            .chain(user_clusters.into_iter().map(Given::User))
            .chain(added.clusters.into_iter().chain(collector).map(Given::Own))
            .collect(),
        listeners: (user_listeners.into_iter().map(Given::User))
            .chain(added.listeners.into_iter().map(Given::Own))
            .collect(),
        secrets: added.secrets,
    };
    Ok(Document {
        admin: Admin {
            access_log: access_logs(&inputs.access_logs)?,
            address: inputs.admin.into(),
        },
        node: node(&inputs.node),
        layered_runtime: LayeredRuntime {
            layers: [RuntimeLayer {
                name: "base",
                static_layer: BTreeMap::from([(
                    "re2.max_program_size.error_level",
                    REGEX_SIZE_LIMIT,
                )]),
            }],
        },
        static_resources,
        stats_sinks: stats::sinks(keys, variable, warnings)?,
        stats_config,
        stats_flush_interval: keys
            .stats_flush_interval
            .as_deref()
            .map(flush_interval)
            .transpose()?,
        tracing: (keys.tracing_json.as_deref())
            .map(|text| object("envoy_tracing_json", text))
            .transpose()?,
        dynamic_resources: dynamic_resources(),
    })
}

fn node(inputs: &NodeInputs) -> Node {
    Node {
        cluster: inputs.cluster.clone(),
        id: inputs.id.clone(),
        metadata: NodeMetadata {
            node_name: inputs.node_name.clone(),
            namespace: inputs.namespace().to_owned(),
            partition: inputs.partition().to_owned(),
        },
    }
}

fn relay_cluster(xds: &XdsAddress) -> Cluster {
    let address = match xds {
        XdsAddress::Tcp(address) => Address::from(*address),
        XdsAddress::Unix(path) => Address::from(path.as_path()),
    };
    Cluster::local(LOCAL_AGENT_CLUSTER, "1s", Wire::Http2, address)
}

/// Clusters and listeners over the relay's delta stream. Without a fetch timeout Envoy is not
/// ready before both have arrived, so that ready never means empty.
fn dynamic_resources() -> DynamicResources {
    let ads = || AdsSource {
        ads: Empty {},
        initial_fetch_timeout: "0s",
        resource_api_version: "V3",
    };
    DynamicResources {
        lds_config: ads(),
        cds_config: ads(),
        ads_config: AdsConfig {
            api_type: "DELTA_GRPC",
            transport_api_version: "V3",
            grpc_services: [GrpcService {
                envoy_grpc: EnvoyGrpc {
                    cluster_name: LOCAL_AGENT_CLUSTER,
                },
            }],
        },
    }
}

fn access_logs(logs: &[String]) -> Result<Vec<Value>, BootstrapError> {
    (1..)
        .zip(logs)
        .map(|(position, text)| {
            parse_object(text).map_err(|source| BootstrapError::AccessLog { position, source })
        })
        .collect()
}

/// JSON objects separated by commas, as the `envoy_extra_*_json` keys take them.
fn fragments(key: &'static str, text: &str) -> Result<Vec<Value>, BootstrapError> {
    let objects: Result<Vec<serde_json::Map<String, Value>>, _> =
        serde_json::from_str(&format!("[{text}]"));
    match objects {
        Ok(objects) => Ok(objects.into_iter().map(Value::Object).collect()),
        Err(source) => Err(BootstrapError::Json {
            key,
            expected: "objects separated by commas",
            source,
        }),
    }
}

fn object(key: &'static str, text: &str) -> Result<Value, BootstrapError> {
    parse_object(text).map_err(|source| BootstrapError::Json {
        key,
        expected: "one object",
        source,
    })
}

fn parse_object(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str::<serde_json::Map<String, Value>>(text).map(Value::Object)
}

/// A duration as Envoy's JSON has it, within the limits that Envoy sets.
fn flush_interval(value: &str) -> Result<String, BootstrapError> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let valid = value.strip_suffix('s').is_some_and(|seconds| {
        let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
        // Envoy reads nanoseconds at most.
        digits(whole)
            && digits(fraction)
            && fraction.len() <= 9
            && (seconds.parse()).is_ok_and(|seconds: f64| (0.001..300.0).contains(&seconds))
    });
    if valid {
        Ok(value.to_owned())
    } else {
        Err(BootstrapError::FlushInterval {
            value: value.to_owned(),
        })
    }
}
