//! `service-defaults`: settings of one service, for all its instances and callers.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::destination::Destination;
use super::entry::{Entry, EntryRights, entry};
use crate::extension::validate_extensions;
use crate::invalid::Invalid;
use crate::json::shown::is_zero;
use crate::name::{self, WILDCARD};
use crate::peering;
use crate::protocol::Protocol;
use crate::proxy::{
    EnvoyExtension, Expose, MeshGateway, MutualTlsMode, ProxyMode, TransparentProxy,
};
use crate::rate_limits::RateLimits;
use crate::schema;
use crate::tenancy::TenancyName;
use crate::{duration, meta};

/// Limits of one caller towards one upstream; unset means Envoy's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct UpstreamLimits {
    /// Concurrent connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    /// Pending requests: those that wait for a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pending_requests: Option<u32>,
    /// Concurrent requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_requests: Option<u32>,
}

/// Passive health checking: temporarily ejects instances that fail requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct PassiveHealthCheck {
    /// Interval of the analysis.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    #[schemars(with = "duration::Unsigned")]
    pub interval: Duration,
    /// Consecutive failures before ejection.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_failures: u32,
    /// Probability of an ejection, in percent.
    #[serde(
        rename = "EnforcingConsecutive5xx",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(max = 100))]
    pub enforcing_consecutive_5xx: Option<u32>,
    /// The maximum share of ejected instances, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 100))]
    pub max_ejection_percent: Option<u32>,
    /// Duration of the first ejection.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    #[schemars(with = "duration::Unsigned")]
    pub base_ejection_time: Duration,
}

/// Settings of a caller for its upstreams.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct UpstreamDefaults {
    /// Name of the upstream, in overrides only.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Namespace; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Cluster peer of the upstream, in overrides only.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer: String,
    /// Replaces the generated listener.
    #[serde(rename = "EnvoyListenerJSON", skip_serializing_if = "String::is_empty")]
    pub envoy_listener_json: String,
    /// Replaces the generated cluster.
    #[serde(rename = "EnvoyClusterJSON", skip_serializing_if = "String::is_empty")]
    pub envoy_cluster_json: String,
    /// Protocol of the upstream.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Connect timeout in milliseconds; 0 means 5000.
    #[serde(skip_serializing_if = "is_zero")]
    pub connect_timeout_ms: u32,
    /// Limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<UpstreamLimits>,
    /// Passive health checking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passive_health_check: Option<PassiveHealthCheck>,
    /// Mesh gateway mode.
    pub mesh_gateway: MeshGateway,
    /// `exact_balance` or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub balance_outbound_connections: String,
}

/// Settings of a caller for all upstreams and for individual ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "!({defaults.name} || {defaults.__namespace__} || {defaults.partition} || \
         {defaults.peer})",
        "defaults apply to every upstream and must not name one",
    ),
    schema::rule(
        "!has(self.overrides) || self.overrides.all(o, has(o.name) && size(o.name) > 0)",
        "each override must name its upstream",
    ),
]))]
pub struct UpstreamConfiguration {
    /// For individual upstreams, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub overrides: Vec<UpstreamDefaults>,
    /// For all upstreams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defaults: Option<UpstreamDefaults>,
}

entry! {
    /// Settings of one service.
    #[derive(JsonSchema)]
    #[schemars(extend("x-kubernetes-validations" = [schema::no_mode()]))]
    pub struct ServiceDefaults {
        /// Name of the service.
        pub name: String,
        /// `tcp`, `http`, `http2`, `grpc`; empty means that of `proxy-defaults`, or tcp.
        #[schemars(extend("enum" = schema::PROTOCOLS))]
        pub protocol: String,
        /// How traffic reaches its proxies.
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
        /// TLS server name (SNI) of a service outside the mesh.
        #[serde(rename = "ExternalSNI", skip_serializing_if = "String::is_empty")]
        pub external_sni: String,
        /// Settings for the service's upstreams.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub upstream_config: Option<UpstreamConfiguration>,
        /// Location of a service outside the mesh.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub destination: Option<Box<Destination>>,
        /// Limits on request rates.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub rate_limits: Option<Box<RateLimits>>,
        /// The maximum number of concurrent inbound connections of a proxy; 0 means no limit.
        #[serde(skip_serializing_if = "is_zero")]
        pub max_inbound_connections: u32,
        /// Connect timeout for the application in milliseconds; 0 means 5000.
        #[serde(skip_serializing_if = "is_zero")]
        pub local_connect_timeout_ms: u32,
        /// Request timeout for the application in milliseconds; 0 means Envoy's default.
        #[serde(skip_serializing_if = "is_zero")]
        pub local_request_timeout_ms: u32,
        /// `exact_balance` or empty.
        #[serde(skip_serializing_if = "String::is_empty")]
        #[schemars(extend("enum" = ["", "exact_balance"]))]
        pub balance_inbound_connections: String,
        /// Extensions, applied after those of `proxy-defaults`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(max = 64))]
        pub envoy_extensions: Vec<EnvoyExtension>,
    }
}

impl ServiceDefaults {
    /// The protocol, if it is set.
    pub fn protocol(&self) -> Option<Protocol> {
        match self.protocol.as_str() {
            "" => None,
            text => text.parse().ok(),
        }
    }
}

impl Entry for ServiceDefaults {
    const RIGHTS: EntryRights = EntryRights::Service;

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        validate_protocol(&self.protocol)?;
        validate_balance(
            "BalanceInboundConnections",
            &self.balance_inbound_connections,
        )?;
        validate_extensions(&self.envoy_extensions)?;
        if let Some(limits) = &self.rate_limits {
            limits
                .validate()
                .map_err(|error| error.within("RateLimits"))?;
        }
        if let Some(destination) = &self.destination {
            if self.upstream_config.is_some() {
                return Err(Invalid::new(
                    "Destination",
                    "UpstreamConfig and Destination are mutually exclusive for service defaults",
                ));
            }
            destination
                .validate()
                .map_err(|error| error.within("Destination"))?;
        }
        self.expose.validate().map_err(|e| e.within("Expose"))?;
        meta::validate_entry("Meta", &self.meta)?;
        let Some(upstreams) = &self.upstream_config else {
            return Ok(());
        };
        if let Some(defaults) = &upstreams.defaults {
            for (field, value) in [("Name", &defaults.name), ("Peer", &defaults.peer)] {
                if !value.is_empty() {
                    return Err(Invalid::new(
                        format!("UpstreamConfig.Defaults.{field}"),
                        "it must be left out, because the defaults are for every upstream",
                    ));
                }
            }
            defaults
                .validate()
                .map_err(|error| error.within("UpstreamConfig.Defaults"))?;
        }
        for (i, upstream) in upstreams.overrides.iter().enumerate() {
            let path = format!("UpstreamConfig.Overrides[{i}]");
            if upstream.name.is_empty() || upstream.name == WILDCARD {
                return Err(Invalid::new(
                    format!("{path}.Name"),
                    "it must name one upstream; settings for all of them go to Defaults",
                ));
            }
            let twice = upstreams.overrides[..i]
                .iter()
                .any(|other| (&other.name, &other.peer) == (&upstream.name, &upstream.peer));
            if twice {
                return Err(Invalid::new(
                    format!("{path}.Name"),
                    format!("{:?} is given twice", upstream.name),
                ));
            }
            upstream.validate().map_err(|error| error.within(path))?;
        }
        Ok(())
    }

    fn normalise(&mut self) {
        self.protocol.make_ascii_lowercase();
        if let Some(upstreams) = &mut self.upstream_config {
            let all = upstreams
                .overrides
                .iter_mut()
                .chain(&mut upstreams.defaults);
            for upstream in all {
                upstream.protocol.make_ascii_lowercase();
                upstream.peer.make_ascii_lowercase();
            }
        }
    }
}

impl UpstreamDefaults {
    fn validate(&self) -> Result<(), Invalid> {
        validate_protocol(&self.protocol)?;
        if !self.peer.is_empty() {
            peering::validate_reference("Peer", &self.peer)?;
            if !self.partition.is_default() {
                return Err(Invalid::new(
                    "Partition",
                    "a peering belongs to the partition of the entry: leave the partition out",
                ));
            }
        }
        validate_balance(
            "BalanceOutboundConnections",
            &self.balance_outbound_connections,
        )?;
        let percentages = self.passive_health_check.iter().flat_map(|check| {
            [
                ("EnforcingConsecutive5xx", check.enforcing_consecutive_5xx),
                ("MaxEjectionPercent", check.max_ejection_percent),
            ]
        });
        for (field, value) in percentages {
            if value.is_some_and(|percent| percent > 100) {
                return Err(Invalid::new(
                    format!("PassiveHealthCheck.{field}"),
                    "a percentage must be at most 100",
                ));
            }
        }
        Ok(())
    }
}

fn validate_protocol(protocol: &str) -> Result<(), Invalid> {
    match protocol.parse::<Protocol>() {
        Ok(_) => Ok(()),
        Err(error) => Err(Invalid::new("Protocol", error.to_string())),
    }
}

fn validate_balance(field: &str, value: &str) -> Result<(), Invalid> {
    if matches!(value, "" | "exact_balance") {
        Ok(())
    } else {
        Err(Invalid::new(
            field,
            format!("{value:?} must be exact_balance or left out"),
        ))
    }
}
