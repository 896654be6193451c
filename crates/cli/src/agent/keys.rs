//! Consul's keys that have no effect here: ignored keys, with the actual behaviour, and refused
//! keys, with the reason. Also maps keys that Consul has renamed.

use legate_model::json::same_key;
use serde_json::{Map, Value};

/// How a key without effect is treated.
enum Fate {
    /// Ignored; the text describes the actual behaviour.
    Taken(&'static str),
    /// Refused, because users of the key rely on a feature that does not exist.
    Refused(&'static str),
}

use Fate::{Refused, Taken};

/// The values that request nothing but the actual behaviour. `null` and empty lists and texts always
/// do.
enum Quiet {
    No,
    Is(bool),
    Any,
}

use Quiet::{Any, Is, No};

const GOSSIP: &str = "there is no gossip and no RPC among agents; servers share their state through \
                      etcd (legate-server --etcd-endpoints)";
const ALONE: &str = "agents are not joined: servers share their state through etcd (legate-server \
                     --etcd-endpoints)";
const WAN: &str = "a server serves one datacenter, and federation is not part of it";
const RAFT: &str = "there is no Raft: the state is in memory, in a file or in etcd";
const CACHED: &str = "tokens and policies are always current, and nothing is cached";
const UI: &str = "there is no web interface";
const CLIENTS: &str = "there are no client agents to configure";
const SYSLOG: &str = "the log goes to standard error, and to log_file";
const RPC: &str = "there is no RPC among agents";
const FRESH: &str = "answers are never stale or cached";
const INTERNAL: &str = "it is an internal setting";

/// Keys, each with all keys below it.
const KEYS: &[(&str, Quiet, Fate)] = &[
    ("acl.down_policy", No, Taken(CACHED)),
    ("acl.enable_token_replication", Is(false), Taken(WAN)),
    (
        "acl.msp_disable_bootstrap",
        Is(false),
        Refused("ACLs can always be bootstrapped once"),
    ),
    ("acl.policy_ttl", No, Taken(CACHED)),
    ("acl.role_ttl", No, Taken(CACHED)),
    ("acl.token_ttl", No, Taken(CACHED)),
    (
        "acl.tokens.managed_service_provider",
        No,
        Refused("the initial management token is the only token that files can create"),
    ),
    ("advertise_addr_wan", No, Taken(WAN)),
    ("advertise_addr_wan_ipv4", No, Taken(WAN)),
    ("advertise_addr_wan_ipv6", No, Taken(WAN)),
    ("advertise_reconnect_timeout", No, Taken(GOSSIP)),
    ("ae_interval", No, Taken(INTERNAL)),
    (
        "audit.rpc_enabled",
        Is(false),
        Taken("the audit log records HTTP requests"),
    ),
    ("auto_config.enabled", Is(false), Refused(CLIENTS)),
    ("auto_config", No, Taken(CLIENTS)),
    ("auto_encrypt.tls", Is(false), Refused(CLIENTS)),
    ("auto_encrypt", No, Taken(CLIENTS)),
    ("autopilot", No, Taken(RAFT)),
    ("build_date", Any, Taken(INTERNAL)),
    ("cache", No, Taken(FRESH)),
    ("check_deregister_interval_min", No, Taken(INTERNAL)),
    ("check_reap_interval", No, Taken(INTERNAL)),
    ("cloud", No, Taken("no HashiCorp service is contacted")),
    (
        "connect.enable_mesh_gateway_wan_federation",
        Is(false),
        Refused(WAN),
    ),
    (
        "connect.test_ca_leaf_root_change_spread",
        No,
        Taken(INTERNAL),
    ),
    ("consul", No, Taken(INTERNAL)),
    ("disable_anonymous_signature", Any, Taken(INTERNAL)),
    (
        "disable_coordinates",
        Is(true),
        Taken("no round-trip times are measured"),
    ),
    (
        "disable_host_node_id",
        Is(true),
        Taken("the node's id is random or set by node_id, and persistent"),
    ),
    (
        "disable_http_unprintable_char_filter",
        Is(true),
        Taken("paths may contain any characters"),
    ),
    ("disable_keyring_file", Any, Taken(GOSSIP)),
    (
        "disable_remote_exec",
        Is(true),
        Taken("there is no remote execution"),
    ),
    (
        "disable_update_check",
        Is(true),
        Taken("there is no update check"),
    ),
    ("discovery_max_stale", No, Taken(FRESH)),
    ("dns_config.allow_stale", Any, Taken(FRESH)),
    ("dns_config.cache_max_age", No, Taken(FRESH)),
    ("dns_config.max_stale", No, Taken(FRESH)),
    ("dns_config.use_cache", Is(false), Taken(FRESH)),
    (
        "enable_agent_tls_for_checks",
        Is(false),
        Refused("checks with TLS present no certificate"),
    ),
    (
        "enable_central_service_config",
        Is(true),
        Refused("proxies always use config entries"),
    ),
    ("enable_syslog", Is(false), Taken(SYSLOG)),
    ("encrypt", No, Taken(GOSSIP)),
    ("encrypt_verify_incoming", Any, Taken(GOSSIP)),
    ("encrypt_verify_outgoing", Any, Taken(GOSSIP)),
    ("experiments", No, Taken("there are none")),
    ("gossip_lan", No, Taken(GOSSIP)),
    ("gossip_wan", No, Taken(GOSSIP)),
    (
        "http_config.use_cache",
        No,
        Taken("?cached is answered from the current state"),
    ),
    ("license_path", No, Taken("no licence is needed")),
    ("license_poll_base_time", No, Taken(INTERNAL)),
    ("license_poll_max_time", No, Taken(INTERNAL)),
    ("license_update_base_time", No, Taken(INTERNAL)),
    ("license_update_max_time", No, Taken(INTERNAL)),
    ("limits.rpc_client_timeout", No, Taken(RPC)),
    ("limits.rpc_handshake_timeout", No, Taken(RPC)),
    ("limits.rpc_max_burst", No, Taken(RPC)),
    ("limits.rpc_max_conns_per_client", No, Taken(RPC)),
    ("limits.rpc_rate", No, Taken(RPC)),
    (
        "peering.enabled",
        Is(false),
        Taken("peerings are stored, but clusters do not connect to each other"),
    ),
    (
        "peering.test_allow_peer_registrations",
        Any,
        Taken(INTERNAL),
    ),
    ("performance", No, Taken(RAFT)),
    ("ports.expose_max_port", No, Taken(EXPOSED)),
    ("ports.expose_min_port", No, Taken(EXPOSED)),
    ("ports.proxy_max_port", Any, Taken(SIDECARS)),
    ("ports.proxy_min_port", Any, Taken(SIDECARS)),
    ("ports.serf_lan", No, Taken(GOSSIP)),
    ("ports.serf_wan", No, Taken(GOSSIP)),
    ("ports.server", No, Taken(RPC)),
    ("ports.sidecar_max_port", No, Taken(SIDECARS)),
    ("ports.sidecar_min_port", No, Taken(SIDECARS)),
    ("primary_gateways", No, Refused(WAN)),
    ("primary_gateways_interval", No, Taken(WAN)),
    ("protocol", No, Taken(GOSSIP)),
    ("raft_boltdb", No, Taken(RAFT)),
    ("raft_logstore", No, Taken(RAFT)),
    ("raft_prevote_disabled", No, Taken(RAFT)),
    ("raft_protocol", No, Taken(RAFT)),
    ("raft_snapshot_interval", No, Taken(RAFT)),
    ("raft_snapshot_threshold", No, Taken(RAFT)),
    ("raft_trailing_logs", No, Taken(RAFT)),
    ("read_replica", Is(false), Taken(RAFT)),
    ("non_voting_server", Is(false), Taken(RAFT)),
    ("reconnect_timeout", No, Taken(GOSSIP)),
    ("reconnect_timeout_wan", No, Taken(GOSSIP)),
    ("rejoin_after_leave", Any, Taken(ALONE)),
    ("reporting", No, Taken("nothing is reported")),
    ("retry_interval", No, Taken(ALONE)),
    ("retry_interval_wan", No, Taken(WAN)),
    ("retry_join", No, Taken(ALONE)),
    ("retry_join_wan", No, Refused(WAN)),
    ("retry_max", No, Taken(ALONE)),
    ("retry_max_wan", No, Taken(WAN)),
    ("revision", Any, Taken(INTERNAL)),
    ("rpc.enable_streaming", Any, Taken(RPC)),
    (
        "segment",
        No,
        Refused("there is no gossip and therefore no segments"),
    ),
    (
        "segments",
        No,
        Refused("there is no gossip and therefore no segments"),
    ),
    ("segment_limit", Any, Taken(INTERNAL)),
    ("segment_name_limit", Any, Taken(INTERNAL)),
    ("serf_lan", No, Taken(GOSSIP)),
    ("serf_lan_allowed_cidrs", No, Taken(GOSSIP)),
    ("serf_wan", No, Taken(GOSSIP)),
    ("serf_wan_allowed_cidrs", No, Taken(GOSSIP)),
    ("server_name", No, Taken(RPC)),
    ("server_rejoin_age_max", No, Taken(ALONE)),
    (
        "snapshot_agent",
        No,
        Taken("there is no snapshot agent; GET /v1/snapshot saves the state"),
    ),
    ("sync_coordinate_interval_min", Any, Taken(INTERNAL)),
    ("sync_coordinate_rate_target", Any, Taken(INTERNAL)),
    ("syslog_facility", No, Taken(SYSLOG)),
    (
        "telemetry.disable_hostname",
        Any,
        Taken("names of metrics never contain the host name"),
    ),
    (
        "telemetry.disable_per_tenancy_usage_metrics",
        Any,
        Taken(METRICS),
    ),
    ("telemetry.enable_host_metrics", Is(false), Taken(METRICS)),
    ("telemetry.filter_default", Is(true), Taken(METRICS)),
    ("telemetry.metrics_prefix", No, Taken(METRICS)),
    ("telemetry.prefix_filter", No, Taken(METRICS)),
    (
        "telemetry.prometheus_retention_time",
        Any,
        Taken("metrics are always available at /v1/agent/metrics?format=prometheus"),
    ),
    ("telemetry.retry_failed_connection", Any, Taken(METRICS)),
    ("telemetry.statsite_address", No, Taken(SENT)),
    ("telemetry.circonus_api_app", No, Taken(SENT)),
    ("telemetry.circonus_api_token", No, Taken(SENT)),
    ("telemetry.circonus_api_url", No, Taken(SENT)),
    ("telemetry.circonus_broker_id", No, Taken(SENT)),
    ("telemetry.circonus_broker_select_tag", No, Taken(SENT)),
    ("telemetry.circonus_check_display_name", No, Taken(SENT)),
    (
        "telemetry.circonus_check_force_metric_activation",
        No,
        Taken(SENT),
    ),
    ("telemetry.circonus_check_id", No, Taken(SENT)),
    ("telemetry.circonus_check_instance_id", No, Taken(SENT)),
    ("telemetry.circonus_check_search_tag", No, Taken(SENT)),
    ("telemetry.circonus_check_tags", No, Taken(SENT)),
    ("telemetry.circonus_submission_interval", No, Taken(SENT)),
    ("telemetry.circonus_submission_url", No, Taken(SENT)),
    ("tls.defaults.use_auto_cert", Any, Taken(CLIENTS)),
    ("tls.defaults.verify_outgoing", Any, Taken(RPC)),
    ("tls.defaults.verify_server_hostname", Any, Taken(RPC)),
    ("tls.grpc.use_auto_cert", Any, Taken(CLIENTS)),
    ("tls.grpc.verify_outgoing", Any, Taken(RPC)),
    ("tls.grpc.verify_server_hostname", Any, Taken(RPC)),
    ("tls.https.use_auto_cert", Any, Taken(CLIENTS)),
    ("tls.https.verify_outgoing", Any, Taken(RPC)),
    ("tls.https.verify_server_hostname", Any, Taken(RPC)),
    ("tls.internal_rpc", No, Taken(RPC)),
    (
        "tls_prefer_server_cipher_suites",
        Any,
        Taken("the TLS library determines the order"),
    ),
    ("translate_wan_addrs", Is(false), Taken(WAN)),
    ("ui", Is(false), Taken(UI)),
    ("ui_config.enabled", Is(false), Taken(UI)),
    ("ui_config", No, Taken(UI)),
    ("ui_content_path", No, Taken(UI)),
    ("ui_dir", No, Taken(UI)),
    ("use_streaming_backend", Any, Taken(RPC)),
    ("version", Any, Taken(INTERNAL)),
    ("version_metadata", Any, Taken(INTERNAL)),
    ("version_prerelease", Any, Taken(INTERNAL)),
    (
        "watches",
        No,
        Refused("no programs are started; use blocking queries to wait for changes"),
    ),
];

const METRICS: &str = "all metrics are exported under their own names";
const SENT: &str = "metrics are sent by OTLP, StatsD and DogStatsD";
const EXPOSED: &str = "ports of exposed checks are 21500 to 21755";
const SIDECARS: &str = "ports of sidecars are 21000 to 21255";

/// Names that Consul has replaced, with the current ones.
const RENAMED: &[(&str, &str)] = &[
    ("acl.tokens.agent_master", "acl.tokens.agent_recovery"),
    ("acl.tokens.master", "acl.tokens.initial_management"),
    ("acl_agent_master_token", "acl.tokens.agent_recovery"),
    ("acl_agent_token", "acl.tokens.agent"),
    ("acl_datacenter", "primary_datacenter"),
    ("acl_default_policy", "acl.default_policy"),
    ("acl_down_policy", "acl.down_policy"),
    ("acl_enable_key_list_policy", "acl.enable_key_list_policy"),
    ("acl_master_token", "acl.tokens.initial_management"),
    ("acl_replication_token", "acl.tokens.replication"),
    ("acl_token", "acl.tokens.default"),
    ("acl_ttl", "acl.token_ttl"),
    ("ca_file", "tls.defaults.ca_file"),
    ("ca_path", "tls.defaults.ca_path"),
    ("cert_file", "tls.defaults.cert_file"),
    ("enable_acl_replication", "acl.enable_token_replication"),
    ("key_file", "tls.defaults.key_file"),
    ("start_join", "retry_join"),
    ("start_join_wan", "retry_join_wan"),
    ("tls_cipher_suites", "tls.defaults.tls_cipher_suites"),
    ("tls_min_version", "tls.defaults.tls_min_version"),
    ("verify_incoming", "tls.defaults.verify_incoming"),
    ("verify_incoming_https", "tls.https.verify_incoming"),
    ("verify_incoming_rpc", "tls.internal_rpc.verify_incoming"),
    ("verify_outgoing", "tls.defaults.verify_outgoing"),
    (
        "verify_server_hostname",
        "tls.internal_rpc.verify_server_hostname",
    ),
];

/// Removes keys without effect from a configuration and renames deprecated keys. Returns a line for
/// each key that requests something else than the actual behaviour.
///
/// # Errors
/// Names every refused key with the reason.
pub(super) fn settle(fields: &mut Map<String, Value>) -> Result<Vec<String>, String> {
    let mut lines = rename(fields);
    let mut refused = Vec::new();
    for (key, quiet, fate) in KEYS {
        let found = take(fields, key);
        let asks = |value: &Value| match quiet {
            Any => false,
            Is(silent) => !is_empty(value) && value.as_bool() != Some(*silent),
            No => !is_empty(value),
        };
        if !found.iter().any(asks) {
            continue;
        }
        match fate {
            Taken(instead) => lines.push(format!("{key} has no effect: {instead}")),
            Refused(reason) => refused.push(format!("{key} is not supported: {reason}")),
        }
    }
    match refused.is_empty() {
        true => Ok(lines),
        false => Err(refused.join("; ")),
    }
}

fn rename(fields: &mut Map<String, Value>) -> Vec<String> {
    let mut lines = Vec::new();
    for (old, new) in RENAMED {
        let found = take(fields, old);
        let Some(value) = found.into_iter().rfind(|value| !value.is_null()) else {
            continue;
        };
        match *old {
            // As in Consul, an ACL datacenter implies ACLs.
            "acl_datacenter" => set_default(fields, "acl.enabled", Value::Bool(true)),
            // The setting is older than gRPC's client verification and does not apply to it.
            "verify_incoming" => set_default(fields, "tls.grpc.verify_incoming", false.into()),
            _ => {}
        }
        set_default(fields, new, value);
        lines.push(format!("{old} is deprecated: use {new}"));
    }
    lines
}

/// Whether a value sets nothing.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(is_empty),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Removes a key from an object. In HCL an object can be a list of several.
fn take(fields: &mut Map<String, Value>, key: &str) -> Vec<Value> {
    let (first, rest) = match key.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (key, None),
    };
    let names = fields.keys().filter(|name| same_key(name, first));
    let names: Vec<String> = names.cloned().collect();
    let mut taken = Vec::new();
    for name in names {
        let Some(rest) = rest else {
            taken.extend(fields.remove(&name));
            continue;
        };
        match fields.get_mut(&name) {
            Some(Value::Object(below)) => taken.extend(take(below, rest)),
            Some(Value::Array(items)) => {
                let objects = items.iter_mut().filter_map(Value::as_object_mut);
                taken.extend(objects.flat_map(|below| take(below, rest)));
            }
            _ => {}
        }
    }
    taken
}

/// Sets a key unless it is set already.
fn set_default(fields: &mut Map<String, Value>, key: &str, value: Value) {
    let (first, rest) = match key.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (key, None),
    };
    let known = fields.keys().find(|name| same_key(name, first)).cloned();
    let name = known.unwrap_or_else(|| first.to_owned());
    let place = fields.entry(name).or_insert(Value::Null);
    let Some(rest) = rest else {
        if place.is_null() {
            *place = value;
        }
        return;
    };
    if place.is_null() {
        *place = Value::Object(Map::new());
    }
    let below = match place {
        Value::Array(items) => items.last_mut(),
        other => Some(other),
    };
    // The decoder refuses a value that is not an object.
    if let Some(Value::Object(below)) = below {
        set_default(below, rest, value);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settled(value: Value) -> (Value, Result<Vec<String>, String>) {
        let Value::Object(mut fields) = value else {
            panic!("an object")
        };
        let lines = settle(&mut fields);
        (Value::Object(fields), lines)
    }

    #[test]
    fn each_ignored_key_is_reported_once() {
        let (left, lines) = settled(json!({
            "retry_join": ["a", "b"], "RaftProtocol": 3, "segments": null, "disable_update_check": true,
            "ports": [{"http": 1, "serf_lan": 2}, {"serf_lan": 3}], "peering": {"enabled": true},
        }));
        assert_eq!(left, json!({"ports": [{"http": 1}, {}], "peering": {}}));
        let lines = lines.unwrap();
        let keys: Vec<_> = lines
            .iter()
            .filter_map(|line| line.split_once(" has no effect: "))
            .map(|(key, _)| key)
            .collect();
        assert_eq!(
            keys,
            [
                "peering.enabled",
                "ports.serf_lan",
                "raft_protocol",
                "retry_join"
            ]
        );
    }

    #[test]
    fn deprecated_names_set_current_ones_unless_set() {
        let (left, lines) = settled(json!({
            "acl_datacenter": "dc1", "acl_default_policy": "deny", "verify_incoming": true,
            "acl": {"default_policy": "allow", "tokens": {"master": "x"}},
        }));
        assert_eq!(
            left,
            json!({
                "primary_datacenter": "dc1",
                "acl": {"enabled": true, "default_policy": "allow",
                        "tokens": {"initial_management": "x"}},
                "tls": {"defaults": {"verify_incoming": true}, "grpc": {"verify_incoming": false}},
            })
        );
        assert!(
            lines
                .unwrap()
                .iter()
                .all(|line| line.contains("is deprecated: use "))
        );
    }

    #[test]
    fn all_refused_keys_are_named() {
        let (_, lines) = settled(json!({
            "primary_gateways": ["a"], "watches": [{"type": "key"}], "retry_join_wan": [],
        }));
        let text = lines.unwrap_err();
        assert!(text.contains("primary_gateways is not supported"), "{text}");
        assert!(text.contains("watches is not supported"), "{text}");
        assert!(!text.contains("retry_join_wan"), "{text}");
    }
}
