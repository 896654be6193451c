//! Health checks and the status that they report for an instance.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;
use crate::json::shown::is_zero;
use crate::named::named;
use crate::tenancy::{PeerName, TenancyName};

/// Result of a check, from best to worst.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// Healthy.
    Passing,
    /// Healthy, but with warnings.
    Warning,
    /// Unhealthy; also the status of a check before its first result.
    #[default]
    #[serde(alias = "")]
    Critical,
}

named! {
    CheckStatus {
        Passing = "passing",
        Warning = "warning",
        Critical = "critical",
    } UnknownStatus
}

/// A text that is not the name of a status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a check status: it must be passing, warning or critical")]
pub struct UnknownStatus(String);

/// A check of a node or of one service instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HealthCheck {
    /// Node that the check belongs to.
    pub node: String,
    /// Unique on its node; defaults to the name.
    #[serde(rename = "CheckID")]
    pub check_id: String,
    /// Human-readable name.
    pub name: String,
    /// Latest result.
    pub status: CheckStatus,
    /// Free text for operators; not interpreted.
    pub notes: String,
    /// Output of the latest run.
    pub output: String,
    /// Id of the checked instance; empty for node checks.
    #[serde(rename = "ServiceID")]
    pub service_id: String,
    /// Name of that instance's service.
    pub service_name: String,
    /// Tags of that instance.
    pub service_tags: Vec<String>,
    /// `http`, `tcp`, `ttl`, … or empty when an external program runs it.
    pub r#type: String,
    /// Time between runs in Go's notation, or empty.
    pub interval: String,
    /// Timeout of a run in Go's notation, or empty.
    pub timeout: String,
    /// Port exposed by the sidecar for the check.
    pub exposed_port: u16,
    /// How the check is run.
    pub definition: CheckDefinition,
    /// The peer that it was imported from; omitted for those of this cluster. Requests cannot set it.
    #[serde(skip_serializing_if = "PeerName::is_empty")]
    pub peer_name: PeerName,
    /// Namespace; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// How the owner of a catalog check runs it. The catalog only stores it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CheckDefinition {
    /// URL to request.
    #[serde(rename = "HTTP", skip_serializing_if = "String::is_empty")]
    pub http: String,
    /// TLS server name to verify instead of the URL's host.
    #[serde(rename = "TLSServerName", skip_serializing_if = "String::is_empty")]
    pub tls_server_name: String,
    /// Whether any server certificate is accepted.
    #[serde(rename = "TLSSkipVerify", skip_serializing_if = "std::ops::Not::not")]
    pub tls_skip_verify: bool,
    /// Request headers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub header: BTreeMap<String, Vec<String>>,
    /// Request method; empty means GET.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// Request body.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// Whether redirects are not followed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_redirects: bool,
    /// `host:port` to connect to.
    #[serde(rename = "TCP", skip_serializing_if = "String::is_empty")]
    pub tcp: String,
    /// Whether the TCP connection uses TLS.
    #[serde(rename = "TCPUseTLS", skip_serializing_if = "std::ops::Not::not")]
    pub tcp_use_tls: bool,
    /// `host:port` to send to.
    #[serde(rename = "UDP", skip_serializing_if = "String::is_empty")]
    pub udp: String,
    /// `host:port/service` of an HTTP/2 server to ping.
    #[serde(rename = "H2PING", skip_serializing_if = "String::is_empty")]
    pub h2ping: String,
    /// Whether HTTP/2 pings use TLS.
    #[serde(rename = "H2PingUseTLS", skip_serializing_if = "std::ops::Not::not")]
    pub h2ping_use_tls: bool,
    /// Service of the operating system to query.
    #[serde(rename = "OSService", skip_serializing_if = "String::is_empty")]
    pub os_service: String,
    /// Command to run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub script_args: Vec<String>,
    /// Container to run the command in.
    #[serde(rename = "DockerContainerID", skip_serializing_if = "String::is_empty")]
    pub docker_container_id: String,
    /// Shell in that container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub shell: String,
    /// Node whose health is mirrored.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub alias_node: String,
    /// Instance whose health is mirrored.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub alias_service: String,
    /// How long a reported status remains valid.
    #[serde(
        rename = "TTL",
        with = "duration::text",
        skip_serializing_if = "Duration::is_zero"
    )]
    pub ttl: Duration,
    /// `host:port[/service]` of a gRPC health service.
    #[serde(rename = "GRPC", skip_serializing_if = "String::is_empty")]
    pub grpc: String,
    /// Whether the gRPC connection uses TLS.
    #[serde(rename = "GRPCUseTLS", skip_serializing_if = "std::ops::Not::not")]
    pub grpc_use_tls: bool,
    /// Time between runs.
    #[serde(with = "duration::text", skip_serializing_if = "Duration::is_zero")]
    pub interval: Duration,
    /// Maximum number of bytes of output that is stored.
    #[serde(skip_serializing_if = "is_zero")]
    pub output_max_size: u64,
    /// Timeout of a run.
    #[serde(with = "duration::text", skip_serializing_if = "Duration::is_zero")]
    pub timeout: Duration,
    /// Deregister the service after it has been critical for this long.
    #[serde(with = "duration::text", skip_serializing_if = "Duration::is_zero")]
    pub deregister_critical_service_after: Duration,
}

impl CheckDefinition {
    /// The default of the check's `Type`; empty without a definition.
    pub(crate) fn type_name(&self) -> &'static str {
        let probes = [
            ("grpc", !self.grpc.is_empty()),
            ("http", !self.http.is_empty()),
            ("tcp", !self.tcp.is_empty()),
            ("udp", !self.udp.is_empty()),
            ("docker", !self.docker_container_id.is_empty()),
            ("script", !self.script_args.is_empty()),
            ("h2ping", !self.h2ping.is_empty()),
            ("os_service", !self.os_service.is_empty()),
        ];
        let is_alias = !self.alias_node.is_empty() || !self.alias_service.is_empty();
        match probes.into_iter().find(|(_, set)| *set) {
            Some((name, _)) if !self.interval.is_zero() => name,
            _ if !self.ttl.is_zero() => "ttl",
            _ if is_alias => "alias",
            _ => "",
        }
    }
}
