//! Proxy settings of a registration.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::json::decode::{Opaque, UnknownFields, from_value};
use crate::json::shown::is_zero;
use crate::rate_limits::InstanceRateLimits;
use crate::schema;
use crate::tenancy::{Tenancy, TenancyName};

/// How traffic reaches the proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProxyMode {
    /// Unset: central configuration applies, otherwise `direct`.
    #[default]
    #[serde(rename = "")]
    Default,
    /// Traffic is captured and redirected into the proxy.
    Transparent,
    /// Callers connect to the proxy's listeners.
    Direct,
}

impl ProxyMode {
    pub(crate) fn is_default(&self) -> bool {
        *self == ProxyMode::Default
    }
}

/// Whether a service accepts connections without mutual TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MutualTlsMode {
    /// Unset, which means strict.
    #[default]
    #[serde(rename = "")]
    Default,
    /// Mutual TLS only.
    Strict,
    /// Captured connections to the application's own port are accepted without TLS as well. For
    /// transparent mode; requires permission in the `mesh` entry.
    Permissive,
}

impl MutualTlsMode {
    pub(crate) fn is_default(&self) -> bool {
        *self == MutualTlsMode::Default
    }
}

/// The mesh gateways for traffic to other networks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MeshGatewayMode {
    /// Unset.
    #[default]
    #[serde(rename = "")]
    Default,
    /// No gateway.
    None,
    /// The caller's own gateways.
    Local,
    /// The destination's gateways.
    Remote,
}

/// Mesh gateway settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshGateway {
    /// The gateways to use.
    #[serde(skip_serializing_if = "MeshGateway::mode_is_default")]
    pub mode: MeshGatewayMode,
}

impl MeshGateway {
    fn mode_is_default(mode: &MeshGatewayMode) -> bool {
        *mode == MeshGatewayMode::Default
    }
}

/// HTTP paths that are reachable without the mesh's mutual TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct Expose {
    /// Whether the paths of the instance's HTTP and gRPC checks are exposed to the agent that runs
    /// them, on the ports that the agent allocated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub checks: bool,
    /// Paths to expose.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub paths: Vec<ExposePath>,
}

/// One exposed path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExposePath {
    /// Port of the listener for the path.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(max = 65535))]
    pub listener_port: u16,
    /// The path, starting with `/`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = schema::PATH))]
    pub path: String,
    /// Port on which the application serves the path.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(max = 65535))]
    pub local_path_port: u16,
    /// `http` or `http2`; empty means `http`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["", "http", "http2"]))]
    pub protocol: String,
    /// Whether the path is that of an agent's check. Then only clients on the proxy's own machine may
    /// request it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(skip)]
    pub parsed_from_check: bool,
}

/// Settings for captured traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "!has(self.outboundListenerPort) || self.outboundListenerPort == 0",
        "outboundListenerPort cannot be set here: traffic of pods is redirected to port 15001",
    ),
]))]
pub struct TransparentProxy {
    /// Port of the listener for captured outbound traffic; 0 means 15001.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(max = 65535))]
    pub outbound_listener_port: u16,
    /// Whether callers may connect to instances by their own addresses.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dialed_directly: bool,
}

impl TransparentProxy {
    pub(crate) fn is_default(&self) -> bool {
        *self == TransparentProxy::default()
    }
}

/// Destination of access logs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccessLogsType {
    /// Standard output.
    #[default]
    #[serde(rename = "")]
    Default,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The file at [`AccessLogs::path`].
    File,
}

/// Access log settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "{path} == (has(self.type) && self.type == 'file')",
        "path is required for type file, and not allowed for other types",
    ),
    schema::rule(
        "!({jsonFormat} && {textFormat})",
        "only one of jsonFormat and textFormat can be given",
    ),
]))]
pub struct AccessLogs {
    /// Whether requests and connections are logged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enabled: bool,
    /// Whether connections that match no filter chain are not logged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_listener_logs: bool,
    /// Destination of the logs.
    #[serde(skip_serializing_if = "AccessLogs::type_is_default")]
    pub r#type: AccessLogsType,
    /// The file, with type `file`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// JSON object whose values are Envoy's format strings.
    #[serde(rename = "JSONFormat", skip_serializing_if = "String::is_empty")]
    pub json_format: String,
    /// One Envoy format string.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text_format: String,
}

impl AccessLogs {
    fn type_is_default(value: &AccessLogsType) -> bool {
        *value == AccessLogsType::Default
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == AccessLogs::default()
    }
}

/// A change to the generated Envoy configuration by a named extension.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["Name", "Arguments"]))]
pub struct EnvoyExtension {
    /// Name of the extension, e.g. `builtin/lua`.
    pub name: String,
    /// Whether an error of the extension invalidates the whole configuration.
    pub required: bool,
    /// The extension's arguments.
    pub arguments: Opaque,
    /// Constraint on the control plane's version.
    #[schemars(skip)]
    pub consul_version: String,
    /// Constraint on Envoy's version.
    #[schemars(skip)]
    pub envoy_version: String,
}

/// Proxy settings of a registration (Consul's `ConnectProxyConfig`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ConnectProxy {
    /// The service that the sidecar represents.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub destination_service_name: String,
    /// The instance of that service on the same node.
    #[serde(
        rename = "DestinationServiceID",
        skip_serializing_if = "String::is_empty"
    )]
    pub destination_service_id: String,
    /// Address that the application listens on; empty means 127.0.0.1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_service_address: String,
    /// The application's port.
    #[serde(skip_serializing_if = "is_zero")]
    pub local_service_port: u16,
    /// The application's unix socket, instead of address and port.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_service_socket_path: String,
    /// How traffic reaches the proxy.
    pub mode: ProxyMode,
    /// Opaque settings; keys are retained verbatim.
    #[serde(skip_serializing_if = "Opaque::is_empty")]
    pub config: Opaque,
    /// Services that the application calls through its proxy. Shared between the catalog and values
    /// that are derived from it for the proxy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub upstreams: Vec<Arc<Upstream>>,
    /// Mesh gateway mode for upstreams in other networks.
    pub mesh_gateway: MeshGateway,
    /// Paths reachable without mutual TLS.
    pub expose: Expose,
    /// Settings for captured traffic.
    #[serde(skip_serializing_if = "TransparentProxy::is_default")]
    pub transparent_proxy: TransparentProxy,
    /// Set only by the merge with central configuration; not part of registrations.
    #[serde(skip)]
    pub mutual_tls_mode: MutualTlsMode,
    /// Set only by the merge with central configuration; not part of registrations.
    #[serde(skip)]
    pub rate_limits: Option<InstanceRateLimits>,
    /// Access log settings.
    #[serde(skip_serializing_if = "AccessLogs::is_default")]
    pub access_logs: AccessLogs,
    /// Extensions, applied in order. Those of a registration are stored but have no effect; the merge
    /// replaces them with those of config entries.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "without_effect"
    )]
    pub envoy_extensions: Vec<EnvoyExtension>,
}

/// Deserialises extensions as opaque values whose fields have no rows in [`crate::served`].
fn without_effect<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<EnvoyExtension>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    from_value(value, UnknownFields::Ignore).map_err(D::Error::custom)
}

/// Kind of an upstream's destination.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum UpstreamType {
    /// Unset, which means a service.
    #[default]
    #[serde(rename = "")]
    Unset,
    /// A service.
    #[serde(rename = "service")]
    Service,
    /// A prepared query.
    #[serde(rename = "prepared_query")]
    PreparedQuery,
}

impl UpstreamType {
    /// Whether the destination is a service.
    pub fn is_service(self) -> bool {
        self != UpstreamType::PreparedQuery
    }
}

/// A service that the application calls through its proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Upstream {
    /// Kind of the destination.
    pub destination_type: UpstreamType,
    /// Namespace of the destination; empty means the proxy's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub destination_namespace: TenancyName,
    /// Partition of the destination; empty means the proxy's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub destination_partition: TenancyName,
    /// Cluster peer of the destination.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub destination_peer: String,
    /// Name of the destination.
    pub destination_name: String,
    /// Datacenter of the destination; empty means the proxy's own.
    pub datacenter: String,
    /// Address that the application connects to; empty means 127.0.0.1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_bind_address: String,
    /// Port that the application connects to.
    #[serde(skip_serializing_if = "is_zero")]
    pub local_bind_port: u16,
    /// Unix socket that the application connects to, instead of address and port.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_bind_socket_path: String,
    /// Octal permissions of that socket.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_bind_socket_mode: String,
    /// Opaque settings; keys are retained verbatim.
    #[serde(skip_serializing_if = "Opaque::is_empty")]
    pub config: Opaque,
    /// Mesh gateway mode for this upstream.
    pub mesh_gateway: MeshGateway,
}

impl Upstream {
    /// What identifies the upstream among a proxy's upstreams.
    pub fn id(&self) -> UpstreamId {
        UpstreamId {
            r#type: match self.destination_type {
                UpstreamType::Unset => UpstreamType::Service,
                known => known,
            },
            partition: self.destination_partition.clone(),
            namespace: self.destination_namespace.clone(),
            name: self.destination_name.clone(),
            datacenter: self.datacenter.clone(),
            peer: self.destination_peer.clone(),
        }
    }

    /// The destination's tenancy, for a proxy of tenancy `own`.
    pub fn tenancy(&self, own: &Tenancy) -> Tenancy {
        own.resolve(&self.destination_partition, &self.destination_namespace)
    }

    /// Whether the application connects to a Unix socket.
    pub fn has_local_socket(&self) -> bool {
        !self.local_bind_socket_path.is_empty()
    }
}

/// Identifies an upstream among those of a proxy. Its text form is used in the names of Envoy's
/// listeners, routes and statistics: `<name>`, `<name>?dc=<dc>`, `<name>?peer=<peer>`,
/// `prepared_query:<name>`. An explicit namespace precedes the name, `<namespace>/<name>`, and an
/// explicit partition precedes both.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpstreamId {
    /// Kind of the destination.
    pub r#type: UpstreamType,
    /// Partition; empty means the proxy's.
    pub partition: TenancyName,
    /// Namespace; empty means the proxy's.
    pub namespace: TenancyName,
    /// Name of the destination.
    pub name: String,
    /// Datacenter; empty means the proxy's.
    pub datacenter: String,
    /// Cluster peer, or empty. In the text form a peer replaces the datacenter.
    pub peer: String,
}

impl fmt::Display for UpstreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.r#type == UpstreamType::PreparedQuery {
            f.write_str("prepared_query:")?;
        }
        if !self.partition.is_empty() {
            let namespace = Tenancy::new(&self.partition, &self.namespace).namespace;
            write!(f, "{}/{namespace}/", self.partition)?;
        } else if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)?;
        if !self.peer.is_empty() {
            write!(f, "?peer={}", self.peer)
        } else if !self.datacenter.is_empty() {
            write!(f, "?dc={}", self.datacenter)
        } else {
            Ok(())
        }
    }
}
