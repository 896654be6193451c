//! TLS settings of gateways for clients outside the mesh, and validation of host names.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::mesh::{TLS_VERSIONS, validate_tls};
use crate::invalid::Invalid;

/// TLS of a gateway or of one of its listeners.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct GatewayTls {
    /// Whether connections must use TLS.
    pub enabled: bool,
    /// Source of the certificate; if unset, the mesh CA issues one.
    #[serde(rename = "SDS", skip_serializing_if = "Option::is_none")]
    pub sds: Option<GatewaySds>,
    /// `TLS_AUTO`, `TLSv1_0`, `TLSv1_1`, `TLSv1_2`, `TLSv1_3`.
    #[serde(rename = "TLSMinVersion", skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = TLS_VERSIONS))]
    pub tls_min_version: String,
    /// Same values as the other bound.
    #[serde(rename = "TLSMaxVersion", skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = TLS_VERSIONS))]
    pub tls_max_version: String,
    /// `TLS_…` names; not with TLS 1.3 as the lowest version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub cipher_suites: Vec<String>,
}

/// A certificate that Envoy fetches from another SDS server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct GatewaySds {
    /// Name of the static cluster of the SDS server in Envoy's bootstrap.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_name: String,
    /// Name of the resource on that server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cert_resource: String,
}

impl GatewayTls {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        validate_tls(
            "TLS",
            (&self.tls_min_version, &self.tls_max_version),
            &self.cipher_suites,
        )
    }
}

/// Whether a text is a DNS host name, as clients send it in `Host`.
pub(super) fn is_host_name(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    let label = |label: &str| {
        let visible = |b: u8| b.is_ascii_graphic() && !b"/\\\"".contains(&b);
        (1..=63).contains(&label.len()) && label.bytes().all(visible)
    };
    !name.is_empty() && name.len() <= 253 && name.split('.').all(label)
}
