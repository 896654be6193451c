//! What a proxy's registration says about how it is to be configured.

use std::fmt;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::json::decode::{Opaque, UnknownFields, from_value};
use crate::json::shown::is_zero;
use crate::rate_limits::InstanceRateLimits;
use crate::tenancy::{Tenancy, TenancyName};

/// How traffic is meant to reach the proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyMode {
    /// Not said here; central configuration or `direct` applies.
    #[default]
    #[serde(rename = "")]
    Default,
    /// Traffic is captured and redirected into the proxy.
    Transparent,
    /// Callers dial the proxy's listeners.
    Direct,
}

impl ProxyMode {
    pub(crate) fn is_default(&self) -> bool {
        *self == ProxyMode::Default
    }
}

/// Whether a service takes connections without mutual TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MutualTlsMode {
    /// Not said here: strict.
    #[default]
    #[serde(rename = "")]
    Default,
    /// Mutual TLS only.
    Strict,
    /// Connections to the application's own port, which are captured, are taken without TLS as well.
    /// It is for transparent mode, and needs the consent of the `mesh` entry.
    Permissive,
}

impl MutualTlsMode {
    pub(crate) fn is_default(&self) -> bool {
        *self == MutualTlsMode::Default
    }
}

/// Which mesh gateways carry traffic to other networks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeshGatewayMode {
    /// Not said here.
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MeshGateway {
    /// Which gateways to use.
    #[serde(skip_serializing_if = "MeshGateway::mode_is_default")]
    pub mode: MeshGatewayMode,
}

impl MeshGateway {
    fn mode_is_default(mode: &MeshGatewayMode) -> bool {
        *mode == MeshGatewayMode::Default
    }
}

/// HTTP paths that are reachable without the mesh's mutual TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Expose {
    /// Expose the paths of the instance's HTTP and gRPC checks to the agent that runs them and has given
    /// each a port.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub checks: bool,
    /// Paths to expose.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<ExposePath>,
}

/// One exposed path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExposePath {
    /// Port of the listener for the path.
    #[serde(skip_serializing_if = "is_zero")]
    pub listener_port: u16,
    /// The path, starting with `/`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Port on which the application serves the path.
    #[serde(skip_serializing_if = "is_zero")]
    pub local_path_port: u16,
    /// `http` or `http2`; empty is `http`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Set when the path comes from a check of an agent: only the proxy's own machine may ask for it
    /// then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub parsed_from_check: bool,
}

/// Settings for captured traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TransparentProxy {
    /// Where captured outbound traffic arrives; 0 means 15001.
    #[serde(skip_serializing_if = "is_zero")]
    pub outbound_listener_port: u16,
    /// Whether instances may be dialled by their own address.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dialed_directly: bool,
}

impl TransparentProxy {
    pub(crate) fn is_default(&self) -> bool {
        *self == TransparentProxy::default()
    }
}

/// Where access logs go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AccessLogs {
    /// Whether requests and connections are logged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enabled: bool,
    /// Leave out connections that no filter chain accepts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_listener_logs: bool,
    /// Where logs go.
    #[serde(skip_serializing_if = "AccessLogs::type_is_default")]
    pub r#type: AccessLogsType,
    /// File for [`AccessLogsType::File`].
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EnvoyExtension {
    /// Which extension, e.g. `builtin/lua`.
    pub name: String,
    /// Whether a failure of the extension makes the whole configuration fail.
    pub required: bool,
    /// The extension's own settings.
    pub arguments: Opaque,
    /// Control plane versions for which it applies.
    pub consul_version: String,
    /// Envoy versions for which it applies.
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
    /// Where the application listens; empty means 127.0.0.1.
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
    /// Opaque settings; keys are kept as they are.
    #[serde(skip_serializing_if = "Opaque::is_empty")]
    pub config: Opaque,
    /// Services that the application calls through its own proxy. Shared between the catalog and
    /// what is made from it for the proxy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub upstreams: Vec<Arc<Upstream>>,
    /// Gateways for upstreams in other networks.
    pub mesh_gateway: MeshGateway,
    /// Paths reachable without mutual TLS.
    pub expose: Expose,
    /// Settings for captured traffic.
    #[serde(skip_serializing_if = "TransparentProxy::is_default")]
    pub transparent_proxy: TransparentProxy,
    /// Set by the merge with central configuration only: a registration cannot say it.
    #[serde(skip)]
    pub mutual_tls_mode: MutualTlsMode,
    /// Set by the merge with central configuration only: a registration cannot say it.
    #[serde(skip)]
    pub rate_limits: Option<InstanceRateLimits>,
    /// Access log settings.
    #[serde(skip_serializing_if = "AccessLogs::is_default")]
    pub access_logs: AccessLogs,
    /// Extensions, applied in order. Those of a registration are kept and have no effect: those of
    /// config entries take their place.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "without_effect"
    )]
    pub envoy_extensions: Vec<EnvoyExtension>,
}

/// Reads extensions as one value, whose fields have no rows of their own in [`crate::served`].
fn without_effect<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<EnvoyExtension>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    from_value(value, UnknownFields::Ignore).map_err(D::Error::custom)
}

/// What an upstream's name refers to.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum UpstreamType {
    /// Not said, which means the same as the next.
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
    /// Whether the name is that of a service.
    pub fn is_service(self) -> bool {
        self != UpstreamType::PreparedQuery
    }
}

/// A service that the application calls through its own proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Upstream {
    /// What the name refers to.
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
    /// The service called.
    pub destination_name: String,
    /// Datacenter of the destination; empty means the proxy's own.
    pub datacenter: String,
    /// Where the application dials; empty means 127.0.0.1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_bind_address: String,
    /// The port that the application dials.
    #[serde(skip_serializing_if = "is_zero")]
    pub local_bind_port: u16,
    /// The unix socket that the application dials, instead of address and port.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_bind_socket_path: String,
    /// Permissions of that socket, octal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub local_bind_socket_mode: String,
    /// Opaque settings; keys are kept as they are.
    #[serde(skip_serializing_if = "Opaque::is_empty")]
    pub config: Opaque,
    /// Gateways for this upstream.
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

    /// The tenancy of the destination, for a proxy of this one.
    pub fn tenancy(&self, own: &Tenancy) -> Tenancy {
        own.resolve(&self.destination_partition, &self.destination_namespace)
    }

    /// Whether the application dials a unix socket.
    pub fn has_local_socket(&self) -> bool {
        !self.local_bind_socket_path.is_empty()
    }
}

/// Identifies an upstream of a proxy; prints as the name that Envoy's listeners, routes and
/// statistics carry: `<name>`, `<name>?dc=<dc>`, `<name>?peer=<peer>`, `prepared_query:<name>`. A namespace
/// that the upstream names stands before the name, `<namespace>/<name>`, and a partition before that.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpstreamId {
    /// What the name refers to.
    pub r#type: UpstreamType,
    /// Its partition, or empty for the proxy's own.
    pub partition: TenancyName,
    /// Its namespace, or empty for the proxy's own.
    pub namespace: TenancyName,
    /// The service called.
    pub name: String,
    /// Its datacenter, or empty for the proxy's own.
    pub datacenter: String,
    /// Its cluster peer, or empty; a peer hides the datacenter when printed.
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
