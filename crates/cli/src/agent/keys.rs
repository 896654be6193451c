//! Consul's keys that have no effect here: ignored keys, with the actual behaviour, and refused
//! keys, with the reason. Also maps keys that Consul has renamed.

use std::cmp::Reverse;

use legate_model::json::same_key;
use serde_json::{Map, Value};

const GOSSIP: &str = "there is no gossip and no RPC among agents; servers share their state through \
                      etcd (legate-server --etcd-endpoints)";
const ALONE: &str = "agents are not joined: servers share their state through etcd (legate-server \
                     --etcd-endpoints)";
const VERIFIED: &str = "connections of servers are TLS, verified in both directions, with the name \
                        server.<datacenter>.<domain>";
const RAFT: &str = "there is no Raft: the state is in memory, in a file or in etcd";
const CACHED: &str = "tokens and policies are always current, and nothing is cached";
const UI: &str = "there is no web interface";
const CLIENTS: &str = "there are no client agents to configure";
const SYSLOG: &str = "the log goes to standard error, and to log_file";
const RPC: &str = "there is no RPC among agents";
const FRESH: &str = "answers are never stale or cached";
const INTERNAL: &str = "it is an internal setting";

/// Ignored keys, each with all keys below it, by what happens instead. `=` separates a value that requests
/// nothing but that; `*` stands for any.
#[rustfmt::skip]
const TAKEN: &[(&str, &str)] = &[
    (CACHED, "acl.down_policy acl.policy_ttl acl.role_ttl acl.token_ttl"),
    (VERIFIED, "\
        tls.internal_rpc.use_auto_cert=* tls.internal_rpc.verify_incoming=true \
        tls.internal_rpc.verify_outgoing=true tls.internal_rpc.verify_server_hostname=true"),
    (GOSSIP, "\
        advertise_reconnect_timeout disable_keyring_file=* encrypt encrypt_verify_incoming=* \
        encrypt_verify_outgoing=* gossip_lan gossip_wan ports.serf_lan ports.serf_wan protocol \
        reconnect_timeout reconnect_timeout_wan serf_lan serf_lan_allowed_cidrs serf_wan \
        serf_wan_allowed_cidrs"),
    (INTERNAL, "\
        ae_interval build_date=* check_deregister_interval_min check_reap_interval \
        connect.test_ca_leaf_root_change_spread consul disable_anonymous_signature=* \
        license_poll_base_time license_poll_max_time license_update_base_time \
        license_update_max_time peering.test_allow_peer_registrations=* revision=* segment_limit=* \
        segment_name_limit=* sync_coordinate_interval_min=* sync_coordinate_rate_target=* \
        version=* version_metadata=* version_prerelease=*"),
    ("the audit log records HTTP requests", "audit.rpc_enabled=false"),
    (CLIENTS, "\
        auto_config auto_encrypt tls.defaults.use_auto_cert=* tls.grpc.use_auto_cert=* \
        tls.https.use_auto_cert=*"),
    (RAFT, "\
        autopilot performance raft_boltdb raft_logstore raft_prevote_disabled raft_protocol \
        raft_snapshot_interval raft_snapshot_threshold raft_trailing_logs read_replica=false \
        non_voting_server=false"),
    (FRESH, "\
        cache discovery_max_stale dns_config.allow_stale=* dns_config.cache_max_age \
        dns_config.max_stale dns_config.use_cache=false"),
    ("no HashiCorp service is contacted", "cloud"),
    ("the node's id is random or set by node_id, and persistent", "disable_host_node_id=true"),
    ("paths may contain any characters", "disable_http_unprintable_char_filter=true"),
    ("there is no update check", "disable_update_check=true"),
    (SYSLOG, "enable_syslog=false syslog_facility"),
    ("there are none", "experiments"),
    ("?cached is answered from the current state", "http_config.use_cache"),
    ("no licence is needed", "license_path"),
    (RPC, "\
        limits.rpc_client_timeout limits.rpc_handshake_timeout limits.rpc_max_burst \
        limits.rpc_max_conns_per_client limits.rpc_rate rpc.enable_streaming=* \
        server_name tls.defaults.verify_outgoing=* tls.defaults.verify_server_hostname=* \
        tls.grpc.verify_outgoing=* tls.grpc.verify_server_hostname=* tls.https.verify_outgoing=* \
        tls.https.verify_server_hostname=* use_streaming_backend=*"),
    (EXPOSED, "ports.expose_max_port ports.expose_min_port"),
    (SIDECARS, "\
        ports.proxy_max_port=* ports.proxy_min_port=* ports.sidecar_max_port \
        ports.sidecar_min_port"),
    (ALONE, "rejoin_after_leave=* retry_interval retry_join retry_max server_rejoin_age_max"),
    ("nothing is reported", "reporting"),
    ("there is no snapshot agent; GET /v1/snapshot saves the state", "snapshot_agent"),
    ("names of metrics never contain the host name", "telemetry.disable_hostname=*"),
    (METRICS, "\
        telemetry.disable_per_tenancy_usage_metrics=* telemetry.enable_host_metrics=false \
        telemetry.filter_default=true telemetry.metrics_prefix telemetry.prefix_filter \
        telemetry.retry_failed_connection=*"),
    ("metrics are always available at /v1/agent/metrics?format=prometheus", "\
        telemetry.prometheus_retention_time=*"),
    (SENT, "\
        telemetry.statsite_address telemetry.circonus_api_app telemetry.circonus_api_token \
        telemetry.circonus_api_url telemetry.circonus_broker_id \
        telemetry.circonus_broker_select_tag telemetry.circonus_check_display_name \
        telemetry.circonus_check_force_metric_activation telemetry.circonus_check_id \
        telemetry.circonus_check_instance_id telemetry.circonus_check_search_tag \
        telemetry.circonus_check_tags telemetry.circonus_submission_interval \
        telemetry.circonus_submission_url"),
    ("the TLS library determines the order", "tls_prefer_server_cipher_suites=*"),
    (UI, "\
        ui=false ui_config.content_path ui_config.dashboard_url_templates ui_config.dir ui_config.enabled=false \
        ui_config.metrics_provider ui_config.metrics_provider_files ui_config.metrics_provider_options_json \
        ui_config.metrics_proxy ui_content_path ui_dir"),
];

/// Keys that are refused, because their users rely on a feature that does not exist; by the reason.
#[rustfmt::skip]
const REFUSED: &[(&str, &str)] = &[
    ("ACLs can always be bootstrapped once", "acl.msp_disable_bootstrap=false"),
    ("the initial management token is the only token that files can create", "\
        acl.tokens.managed_service_provider"),
    (CLIENTS, "auto_config.enabled=false auto_encrypt.tls=false"),
    ("checks with TLS present no certificate", "enable_agent_tls_for_checks=false"),
    ("proxies always use config entries", "enable_central_service_config=true"),
    ("there is no gossip and therefore no segments", "segment segments"),
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
    let refused = requested(fields, REFUSED, "is not supported");
    lines.extend(requested(fields, TAKEN, "has no effect"));
    match refused.is_empty() {
        true => Ok(lines),
        false => Err(refused.join("; ")),
    }
}

/// Removes the keys of a table. Returns a line for each that requests something, sorted.
fn requested(fields: &mut Map<String, Value>, table: &[(&str, &str)], what: &str) -> Vec<String> {
    let rows = table
        .iter()
        .flat_map(|(reason, keys)| keys.split(' ').map(move |key| (key, *reason)));
    let mut rows: Vec<(&str, &str)> = rows.collect();
    // Keys below others first.
    rows.sort_by_key(|(key, _)| (Reverse(key.matches('.').count()), *key));
    let mut lines = Vec::new();
    for (row, reason) in rows {
        let (key, quiet) = row.split_once('=').unwrap_or((row, ""));
        let silent: Option<bool> = quiet.parse().ok();
        let is_silent = |value: &Value| silent.is_some() && value.as_bool() == silent;
        let is_quiet = |value: &Value| is_empty(value) || quiet == "*" || is_silent(value);
        if !take(fields, key).iter().all(is_quiet) {
            lines.push(format!("{key} {what}: {reason}"));
        }
    }
    lines.sort_unstable();
    lines
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
        assert_eq!(
            left,
            json!({"ports": [{"http": 1}, {}], "peering": {"enabled": true}})
        );
        let lines = lines.unwrap();
        let keys: Vec<_> = lines
            .iter()
            .filter_map(|line| line.split_once(" has no effect: "))
            .map(|(key, _)| key)
            .collect();
        assert_eq!(keys, ["ports.serf_lan", "raft_protocol", "retry_join"]);
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
            "segment": "b", "segments": [{"name": "a"}], "performance": {},
        }));
        let text = lines.unwrap_err();
        assert!(text.contains("segment is not supported"), "{text}");
        assert!(text.contains("segments is not supported"), "{text}");
        assert!(!text.contains("performance"), "{text}");
    }
}
