//! `service-defaults`: settings of one service, for all its instances and callers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::destination::{self, Destination};
use super::entry::{Entry, EntryRights};
use crate::extension::validate_extensions;
use crate::invalid::Invalid;
use crate::json::shown::is_zero;
use crate::name::{self, WILDCARD};
use crate::protocol::Protocol;
use crate::proxy::{
    EnvoyExtension, Expose, MeshGateway, MutualTlsMode, ProxyMode, TransparentProxy,
};
use crate::rate_limits::{self, RateLimits};
use crate::served::field::Served::{Inside, Yes};
use crate::served::field::{REFUSED, REPORTED, Rows};
use crate::tenancy::TenancyName;
use crate::{duration, meta};

/// Limits of one caller towards one upstream; unset means Envoy's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PassiveHealthCheck {
    /// Interval of the analysis.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    pub interval: Duration,
    /// Consecutive failures before ejection.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_failures: u32,
    /// Probability of an ejection, in percent.
    #[serde(
        rename = "EnforcingConsecutive5xx",
        skip_serializing_if = "Option::is_none"
    )]
    pub enforcing_consecutive_5xx: Option<u32>,
    /// The maximum share of ejected instances, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ejection_percent: Option<u32>,
    /// Duration of the first ejection.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    pub base_ejection_time: Duration,
}

/// Settings of a caller for its upstreams.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct UpstreamConfiguration {
    /// For individual upstreams, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<UpstreamDefaults>,
    /// For all upstreams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defaults: Option<UpstreamDefaults>,
}

/// Settings of one service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceDefaults {
    /// Name of the service.
    pub name: String,
    /// Namespace; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// `tcp`, `http`, `http2`, `grpc`; empty means that of `proxy-defaults`, or tcp.
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
    pub balance_inbound_connections: String,
    /// Extensions, applied after those of `proxy-defaults`.
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
    const SERVED: &'static [Rows] = &[
        (
            "ServiceDefaults",
            &[
                (
                    Yes,
                    "Name Protocol MaxInboundConnections LocalConnectTimeoutMs \
                 LocalRequestTimeoutMs BalanceInboundConnections Meta Hash CreateIndex \
                 ModifyIndex",
                ),
                (Yes, "Namespace Partition"),
                (Yes, "Mode MutualTLSMode"),
                (
                    Inside,
                    "TransparentProxy MeshGateway Expose UpstreamConfig EnvoyExtensions \
                     RateLimits Destination",
                ),
                (REPORTED, "ExternalSNI"),
            ],
        ),
        destination::SERVED,
        rate_limits::SERVED[0],
        rate_limits::SERVED[1],
        rate_limits::SERVED[2],
        ("UpstreamConfiguration", &[(Inside, "Overrides Defaults")]),
        (
            "UpstreamDefaults",
            &[
                (
                    Yes,
                    "Name Protocol ConnectTimeoutMs BalanceOutboundConnections \
                     EnvoyListenerJSON EnvoyClusterJSON",
                ),
                (Yes, "Namespace Partition"),
                (REFUSED, "Peer"),
                (Inside, "Limits PassiveHealthCheck MeshGateway"),
            ],
        ),
        (
            "UpstreamLimits",
            &[(
                Yes,
                "MaxConnections MaxPendingRequests MaxConcurrentRequests",
            )],
        ),
        (
            "PassiveHealthCheck",
            &[(
                Yes,
                "Interval MaxFailures EnforcingConsecutive5xx MaxEjectionPercent \
                 BaseEjectionTime",
            )],
        ),
    ];

    fn name(&self) -> &str {
        &self.name
    }

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
            if !defaults.name.is_empty() {
                return Err(Invalid::new(
                    "UpstreamConfig.Defaults.Name",
                    "it must be left out, because the defaults are for every upstream",
                ));
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
            }
        }
    }
}

impl UpstreamDefaults {
    fn validate(&self) -> Result<(), Invalid> {
        validate_protocol(&self.protocol)?;
        if !self.peer.is_empty() {
            return Err(Invalid::new(
                "Peer",
                "it is not served: cluster peering does not exist here, leave it out",
            ));
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
