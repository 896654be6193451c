//! Fields of requests that have no effect.
//!
//! Every field that the decoders know is served, refused, or reported. Refused fields are refused by their
//! type or by validation. Reported ones are stored and have no effect: Consul accepts them, and refusing
//! them would break registrations that work without them. The response to a write names them
//! ([`crate::json::Request::not_served`]).
//!
//! A test gives every field a value and compares the outcomes with a list, so that no field is accepted
//! and ignored without being in this table.

use serde_json::Value;

use crate::config_entry::ConfigKind;
use crate::json::decode::{KIND_TAGGED, same_key};

/// What is reported of a field; empty values never are.
#[derive(Debug, Clone, Copy)]
enum Reported {
    /// Any value but these.
    Except(&'static [&'static str]),
    /// Any key but these.
    Keys(&'static [&'static str]),
}

use Reported::{Except, Keys};

/// Every value.
const ALL: Reported = Except(&[]);

/// By type: its fields, separated by spaces.
const TABLE: &[(&str, &str, Reported)] = &[
    (
        "ServiceInstance",
        "Kind",
        Except(&[
            "connect-proxy",
            "ingress-gateway",
            "api-gateway",
            "mesh-gateway",
            "terminating-gateway",
        ]),
    ),
    (
        "ServiceDefinition",
        "Kind",
        Except(&[
            "connect-proxy",
            "ingress-gateway",
            "api-gateway",
            "mesh-gateway",
            "terminating-gateway",
        ]),
    ),
    ("ServiceDefinition", "Token", ALL),
    ("CheckType", "Token ProxyHTTP ProxyGRPC", ALL),
    ("ConnectProxy", "Config", PROXY_CONFIG),
    // As in Consul, those of config entries replace them.
    ("ConnectProxy", "EnvoyExtensions", ALL),
    ("Upstream", "Config", UPSTREAM_CONFIG),
    // Consul does not evaluate them either.
    ("EnvoyExtension", "ConsulVersion EnvoyVersion", ALL),
    // Autopilot never acts on servers here.
    (
        "AutopilotConfiguration",
        "CleanupDeadServers LastContactThreshold MaxTrailingLogs MinQuorum ServerStabilizationTime \
         RedundancyZoneTag DisableUpgradeMigration UpgradeVersionTag",
        ALL,
    ),
    // Config entries.
    ("ProxyDefaults", "Config", PROXY_CONFIG),
    ("ServiceDefaults", "ExternalSNI", ALL),
    (
        "SourceIntention",
        "LegacyID LegacyMeta LegacyCreateTime LegacyUpdateTime",
        ALL,
    ),
];

/// The keys that the server uses to build resources, or the dataplane to build Envoy's bootstrap.
const PROXY_CONFIG: Reported = Keys(&[
    "balance_inbound_connections",
    "bind_address",
    "bind_port",
    "connect_timeout_ms",
    "local_connect_timeout_ms",
    "local_idle_timeout_ms",
    "local_request_timeout_ms",
    "max_inbound_connections",
    "protocol",
    "xds_fetch_timeout_ms",
    "legate_ports",
    "envoy_listener_tracing_json",
    "envoy_local_cluster_json",
    "envoy_public_listener_json",
    "envoy_bootstrap_json_tpl",
    "envoy_dns_discovery_type",
    "envoy_dogstatsd_url",
    "envoy_extra_static_clusters_json",
    "envoy_extra_static_listeners_json",
    "envoy_extra_stats_sinks_json",
    "envoy_gateway_bind_addresses",
    "envoy_gateway_bind_tagged_addresses",
    "envoy_gateway_http3_ports",
    "envoy_gateway_no_default_bind",
    "envoy_gateway_proxy_protocol",
    "envoy_gateway_remote_tcp_enable_keepalive",
    "envoy_gateway_remote_tcp_keepalive_interval",
    "envoy_gateway_remote_tcp_keepalive_probes",
    "envoy_gateway_remote_tcp_keepalive_time",
    "envoy_gateway_send_proxy_protocol",
    "envoy_gateway_xff_num_trusted_hops",
    "envoy_mesh_gateway_bind_addresses",
    "envoy_mesh_gateway_bind_tagged_addresses",
    "envoy_mesh_gateway_no_default_bind",
    "envoy_prometheus_bind_addr",
    "envoy_stats_bind_addr",
    "envoy_stats_config_json",
    "envoy_stats_flush_interval",
    "envoy_stats_tags",
    "envoy_statsd_url",
    "envoy_tracing_json",
]);

const UPSTREAM_CONFIG: Reported = Keys(&[
    "balance_outbound_connections",
    "connect_timeout_ms",
    "envoy_cluster_json",
    "envoy_listener_json",
    "limits",
    "passive_health_check",
    "protocol",
]);

fn row(target: &str, field: &str) -> Option<Reported> {
    let rows = TABLE.iter().filter(|(name, ..)| *name == target);
    let mut rows = rows.filter(|(_, fields, _)| fields.split(' ').any(|name| name == field));
    rows.next().map(|(.., reported)| *reported)
}

/// The fields in the table, with their types.
pub fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE
        .iter()
        .flat_map(|(target, fields, _)| fields.split(' ').map(move |field| (*target, field)))
}

/// The parts of a field to report, as paths relative to its object.
pub(crate) fn unserved(target: &str, field: &str, value: &Value) -> Vec<String> {
    match row(target, field) {
        None if target == KIND_TAGGED && is_unserved_kind(value) => vec![field.to_owned()],
        Some(Except(served)) if !is_empty(value) && !is_one_of(value, served) => {
            vec![field.to_owned()]
        }
        Some(Keys(served)) => {
            let keys = value.as_object().into_iter().flatten();
            let others = keys.filter(|(key, value)| {
                !is_empty(value) && !served.iter().any(|known| same_key(known, key))
            });
            others.map(|(key, _)| format!("{field}.{key}")).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether a kind of config entry is stored without any effect.
fn is_unserved_kind(value: &Value) -> bool {
    let kind = value.as_str().map(str::parse::<ConfigKind>);
    kind.is_some_and(|kind| kind.is_ok_and(|kind| !kind.is_in_effect()))
}

fn is_one_of(value: &Value, served: &[&str]) -> bool {
    value.as_str().is_some_and(|text| served.contains(&text))
}

/// Whether a value is what Go's client sends for an unset field.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "0s",
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
    }
}
