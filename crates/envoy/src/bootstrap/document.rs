//! Envoy's bootstrap document as types, limited to what the dataplane writes. Field names are
//! Envoy's own (snake case, v3); values from users enter as parsed JSON, never as text. Only a
//! user's template replaces the types, by whatever object it makes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

/// A complete bootstrap document. Serialises to the JSON that Envoy reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Bootstrap {
    pub(super) content: Content,
    #[serde(skip)]
    pub(super) warnings: Vec<String>,
}

/// Where the document comes from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Content {
    /// The dataplane wrote it.
    Written(Box<Document>),
    /// The user's template made it.
    Rendered(Map<String, Value>),
}

/// The document that the dataplane writes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Document {
    pub(super) admin: Admin,
    pub(super) node: Node,
    pub(super) layered_runtime: LayeredRuntime,
    pub(super) static_resources: StaticResources,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) stats_sinks: Vec<Value>,
    pub(super) stats_config: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stats_flush_interval: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tracing: Option<Value>,
    pub(super) dynamic_resources: DynamicResources,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Admin {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) access_log: Vec<Value>,
    pub(super) address: Address,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Node {
    pub(super) cluster: String,
    pub(super) id: String,
    pub(super) metadata: NodeMetadata,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct NodeMetadata {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node_name: String,
    pub(super) namespace: String,
    pub(super) partition: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LayeredRuntime {
    pub(super) layers: [RuntimeLayer; 1],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RuntimeLayer {
    pub(super) name: &'static str,
    pub(super) static_layer: BTreeMap<&'static str, u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct StaticResources {
    pub(super) clusters: Vec<Given<Cluster>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) listeners: Vec<Given<Listener>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) secrets: Vec<Secret>,
}

/// Either written here, or taken over from the user as it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Given<T> {
    Own(T),
    User(Value),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Cluster {
    pub(super) name: &'static str,
    pub(super) connect_timeout: &'static str,
    #[serde(rename = "type")]
    pub(super) discovery: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) typed_extension_protocol_options: BTreeMap<&'static str, Value>,
    pub(super) load_assignment: LoadAssignment,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LoadAssignment {
    pub(super) cluster_name: &'static str,
    pub(super) endpoints: [LocalityEndpoints; 1],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LocalityEndpoints {
    pub(super) lb_endpoints: [LbEndpoint; 1],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LbEndpoint {
    pub(super) endpoint: Endpoint,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Endpoint {
    pub(super) address: Address,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Address {
    SocketAddress { address: String, port_value: u16 },
    Pipe { path: String },
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::SocketAddress {
            address: address.ip().to_string(),
            port_value: address.port(),
        }
    }
}

/// Settings are UTF-8, so that nothing is lost here.
impl From<&Path> for Address {
    fn from(path: &Path) -> Self {
        Self::Pipe {
            path: path.to_string_lossy().into_owned(),
        }
    }
}

impl Bootstrap {
    /// The document as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("text keys and plain values always serialise")
    }

    /// What was put right in the user's values and should be put right by the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Which protocol a cluster speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Http1,
    Http2,
}

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

impl Cluster {
    /// A cluster with one fixed endpoint on this host.
    pub(super) fn local(
        name: &'static str,
        timeout: &'static str,
        wire: Wire,
        to: Address,
    ) -> Self {
        let protocol = match wire {
            Wire::Http1 => "http_protocol_options",
            Wire::Http2 => "http2_protocol_options",
        };
        let options = serde_json::json!({
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "explicit_http_config": { protocol: {} },
        });
        Self {
            name,
            connect_timeout: timeout,
            discovery: "STATIC",
            typed_extension_protocol_options: BTreeMap::from([(HTTP_OPTIONS, options)]),
            load_assignment: LoadAssignment {
                cluster_name: name,
                endpoints: [LocalityEndpoints {
                    lb_endpoints: [LbEndpoint {
                        endpoint: Endpoint { address: to },
                    }],
                }],
            },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Listener {
    pub(super) name: String,
    pub(super) address: Address,
    pub(super) filter_chains: [FilterChain; 1],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct FilterChain {
    pub(super) filters: [NetworkFilter; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transport_socket: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct NetworkFilter {
    pub(super) name: &'static str,
    pub(super) typed_config: ConnectionManager,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ConnectionManager {
    #[serde(rename = "@type")]
    pub(super) type_url: &'static str,
    pub(super) stat_prefix: &'static str,
    pub(super) codec_type: &'static str,
    pub(super) route_config: RouteConfig,
    pub(super) http_filters: [HttpFilter; 1],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RouteConfig {
    pub(super) name: &'static str,
    pub(super) virtual_hosts: [VirtualHost; 1],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct VirtualHost {
    pub(super) name: &'static str,
    pub(super) domains: [&'static str; 1],
    pub(super) routes: [Route; 2],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Route {
    #[serde(rename = "match")]
    pub(super) matches: RouteMatch,
    #[serde(flatten)]
    pub(super) action: RouteAction,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RouteMatch {
    Path(String),
    Prefix(String),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RouteAction {
    Route {
        cluster: &'static str,
        prefix_rewrite: &'static str,
    },
    DirectResponse {
        status: u16,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct HttpFilter {
    pub(super) name: &'static str,
    pub(super) typed_config: TypeOnly,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TypeOnly {
    #[serde(rename = "@type")]
    pub(super) type_url: &'static str,
}

/// A static SDS secret. Names files; never holds a key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Secret {
    pub(super) name: &'static str,
    #[serde(flatten)]
    pub(super) content: SecretContent,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SecretContent {
    TlsCertificate {
        certificate_chain: DataSource,
        private_key: DataSource,
    },
    ValidationContext {
        trusted_ca: DataSource,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DataSource {
    Filename(String),
    InlineString(String),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct DynamicResources {
    pub(super) lds_config: AdsSource,
    pub(super) cds_config: AdsSource,
    pub(super) ads_config: AdsConfig,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct AdsSource {
    pub(super) ads: Empty,
    pub(super) initial_fetch_timeout: &'static str,
    pub(super) resource_api_version: &'static str,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Empty {}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct AdsConfig {
    pub(super) api_type: &'static str,
    pub(super) transport_api_version: &'static str,
    pub(super) grpc_services: [GrpcService; 1],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct GrpcService {
    pub(super) envoy_grpc: EnvoyGrpc,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct EnvoyGrpc {
    pub(super) cluster_name: &'static str,
}
