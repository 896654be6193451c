//! `service-defaults`: settings of one service, for every instance and caller.

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
    /// Connections at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    /// Requests that wait for a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pending_requests: Option<u32>,
    /// Requests at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_requests: Option<u32>,
}

/// When an instance that fails requests is left out for a while.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PassiveHealthCheck {
    /// Time between looks.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    pub interval: Duration,
    /// Failures in a row that count.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_failures: u32,
    /// Percentage of cases in which they count.
    #[serde(
        rename = "EnforcingConsecutive5xx",
        skip_serializing_if = "Option::is_none"
    )]
    pub enforcing_consecutive_5xx: Option<u32>,
    /// Largest share of instances left out at a time, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ejection_percent: Option<u32>,
    /// First time out.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    pub base_ejection_time: Duration,
}

/// Settings of a caller for its upstreams.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct UpstreamDefaults {
    /// The upstream, in overrides only.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The namespace; empty for the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition; empty for the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// The upstream's cluster peer, in overrides only.
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
    /// Longest time to connect, in milliseconds; 0 means 5000.
    #[serde(skip_serializing_if = "is_zero")]
    pub connect_timeout_ms: u32,
    /// Limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<UpstreamLimits>,
    /// Passive health checking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passive_health_check: Option<PassiveHealthCheck>,
    /// Gateways.
    pub mesh_gateway: MeshGateway,
    /// `exact_balance` or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub balance_outbound_connections: String,
}

/// Settings of a caller for all and for single upstreams.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct UpstreamConfiguration {
    /// For single upstreams, by name.
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
    /// The service.
    pub name: String,
    /// The namespace that it is in; empty for `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition that it is in; empty for `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// `tcp`, `http`, `http2`, `grpc`; empty means what `proxy-defaults` says, else tcp.
    pub protocol: String,
    /// How traffic reaches its proxies.
    #[serde(skip_serializing_if = "ProxyMode::is_default")]
    pub mode: ProxyMode,
    /// Settings for captured traffic.
    pub transparent_proxy: TransparentProxy,
    /// Whether plain connections are taken.
    #[serde(
        rename = "MutualTLSMode",
        skip_serializing_if = "MutualTlsMode::is_default"
    )]
    pub mutual_tls_mode: MutualTlsMode,
    /// Gateways.
    pub mesh_gateway: MeshGateway,
    /// Paths reachable without mutual TLS.
    pub expose: Expose,
    /// Server name for services outside the mesh.
    #[serde(rename = "ExternalSNI", skip_serializing_if = "String::is_empty")]
    pub external_sni: String,
    /// Settings for the services that it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_config: Option<UpstreamConfiguration>,
    /// Where the service is, when it is outside the mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<Box<Destination>>,
    /// Limits on request rates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limits: Option<Box<RateLimits>>,
    /// Inbound connections of a proxy at a time; 0 means no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_inbound_connections: u32,
    /// Longest time to connect to the application, in milliseconds; 0 means 5000.
    #[serde(skip_serializing_if = "is_zero")]
    pub local_connect_timeout_ms: u32,
    /// Longest request to the application, in milliseconds; 0 means Envoy's default.
    #[serde(skip_serializing_if = "is_zero")]
    pub local_request_timeout_ms: u32,
    /// `exact_balance` or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub balance_inbound_connections: String,
    /// Extensions, after those of `proxy-defaults`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub envoy_extensions: Vec<EnvoyExtension>,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Written by Consul when it shows an entry, so that one can be copied from there; not used.
    #[serde(skip_serializing)]
    pub hash: IgnoredAny,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

impl ServiceDefaults {
    /// The protocol when this entry says one.
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
