//! `proxy-defaults`: settings of every proxy.

use schemars::JsonSchema;

use super::entry::{Entry, EntryRights, entry};
use super::service_resolver::FailoverPolicy;
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
use crate::schema;
use crate::tenancy::NotServed;
use crate::validate::validate_bind_address;

entry! {
    /// Settings of every proxy; the only name is `global`.
    #[derive(JsonSchema)]
    #[schemars(extend("x-kubernetes-validations" = [schema::no_mode()]))]
    pub struct ProxyDefaults {
        /// `global`.
        pub name: String,
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
        #[schemars(with = "FailoverPolicy")]
        pub failover_policy: NotServed,
        /// Whether callers prefer nearby instances, unless the service's resolver sets it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub prioritize_by_locality: Option<PrioritizeByLocality>,
        /// Extensions, applied before those of `service-defaults`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(max = 64))]
        pub envoy_extensions: Vec<EnvoyExtension>,
    }
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
