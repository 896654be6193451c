//! `proxy-defaults`: settings of every proxy.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights};
use crate::extension::validate_extensions;
use crate::invalid::Invalid;
use crate::json::decode::Opaque;
use crate::json::nesting::validate_nesting;
use crate::locality::PrioritizeByLocality;
use crate::meta;
use crate::protocol::Protocol;
use crate::proxy::{
    AccessLogs, EnvoyExtension, Expose, MeshGateway, MutualTlsMode, ProxyMode, TransparentProxy,
};
use crate::served::field::Served::{Inside, Yes};
use crate::served::field::{REFUSED, Rows};
use crate::served::table::PROXY_CONFIG;
use crate::tenancy::{NotServed, TenancyName};
use crate::validate::validate_bind_address;

/// Settings of every proxy; the only name is `global`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ProxyDefaults {
    /// `global`.
    pub name: String,
    /// Namespace; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Opaque proxy settings; keys are stored verbatim.
    pub config: Opaque,
    /// How traffic reaches proxies.
    #[serde(skip_serializing_if = "ProxyMode::is_default")]
    pub mode: ProxyMode,
    /// Settings for captured traffic.
    pub transparent_proxy: TransparentProxy,
    /// Whether plaintext connections are accepted.
    #[serde(
        rename = "MutualTLSMode",
        skip_serializing_if = "MutualTlsMode::is_default"
    )]
    pub mutual_tls_mode: MutualTlsMode,
    /// Mesh gateway mode.
    pub mesh_gateway: MeshGateway,
    /// Paths reachable without mutual TLS.
    pub expose: Expose,
    /// Access logs.
    pub access_logs: AccessLogs,
    /// Refused: failover by locality is not served.
    #[serde(skip_serializing)]
    pub failover_policy: NotServed,
    /// Whether callers prefer nearby instances, unless the service's resolver sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prioritize_by_locality: Option<PrioritizeByLocality>,
    /// Extensions, applied before those of `service-defaults`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub envoy_extensions: Vec<EnvoyExtension>,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Part of entries that Consul returns. Accepted so that they can be written back, and ignored.
    #[serde(skip_serializing)]
    pub hash: IgnoredAny,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

impl ProxyDefaults {
    /// The only name.
    pub const NAME: &'static str = "global";

    /// Checks only the nesting of `Config`, for entries that were accepted by another server.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the key that is nested too deeply.
    pub fn validate_nesting(&self) -> Result<(), Invalid> {
        validate_nesting("Config", &self.config)
    }

    /// The protocol in [`ProxyDefaults::config`], if it is set.
    pub fn protocol(&self) -> Option<Protocol> {
        match self.config.get("protocol")?.as_str()? {
            "" => None,
            text => text.parse().ok(),
        }
    }
}

impl Entry for ProxyDefaults {
    const RIGHTS: EntryRights = EntryRights::Mesh;
    const SERVED: &'static [Rows] = &[(
        "ProxyDefaults",
        &[
            (Yes, "Name Meta Hash CreateIndex ModifyIndex"),
            (Yes, "Namespace Partition"),
            (PROXY_CONFIG, "Config"),
            (Yes, "Mode MutualTLSMode"),
            (
                Inside,
                "TransparentProxy MeshGateway Expose AccessLogs EnvoyExtensions",
            ),
            (Inside, "PrioritizeByLocality"),
            (REFUSED, "FailoverPolicy"),
        ],
    )];

    fn name(&self) -> &str {
        &self.name
    }

    fn validate(&self) -> Result<(), Invalid> {
        if self.name != Self::NAME {
            return Err(Invalid::new(
                "Name",
                format!(
                    "{:?} must be {:?}: there is one entry of this kind",
                    self.name,
                    Self::NAME
                ),
            ));
        }
        if let Some(protocol) = self.config.get("protocol") {
            let text = protocol.as_str().ok_or_else(|| {
                Invalid::new(
                    "Config.protocol",
                    "it must be a text: tcp, http, http2 or grpc",
                )
            })?;
            text.parse::<Protocol>()
                .map_err(|error| Invalid::new("Config.protocol", error.to_string()))?;
        }
        validate_bind_address(&self.config)?;
        self.validate_nesting()?;
        validate_extensions(&self.envoy_extensions)?;
        self.access_logs
            .validate()
            .map_err(|e| e.within("AccessLogs"))?;
        self.expose.validate().map_err(|e| e.within("Expose"))?;
        meta::validate_entry("Meta", &self.meta)
    }

    fn normalise(&mut self) {
        if let Some(serde_json::Value::String(protocol)) = self.config.get_mut("protocol") {
            protocol.make_ascii_lowercase();
        }
    }
}
