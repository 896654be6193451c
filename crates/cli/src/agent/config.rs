//! The configuration files of `consul agent` as types, with Consul's names. Unknown fields are
//! refused.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use legate_model::{CheckType, Locality, Secret, ServiceDefinition, duration};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::watches::WatchDefinition;

/// Defines types with optional settings, and how a later file overrides an earlier one.
macro_rules! settings {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)* })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub(super) struct $name {
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                pub(super) $field: Option<$type>,
            )*
        }

        impl $name {
            /// The keys of the type.
            #[cfg(test)]
            pub(super) const KEYS: &'static [&'static str] = &[$(stringify!($field)),*];
        }
    )+};
}

settings! {
    /// All settings with a single value, which a later file overrides.
    Settings {
        acl: Acl,
        addresses: Addresses,
        advertise_addr: String,
        advertise_addr_ipv4: String,
        advertise_addr_ipv6: String,
        advertise_addr_wan: String,
        advertise_addr_wan_ipv4: String,
        advertise_addr_wan_ipv6: String,
        alt_domain: String,
        audit: Audit,
        auto_reload_config: bool,
        bind_addr: String,
        bootstrap: bool,
        bootstrap_expect: i64,
        check_output_max_size: u64,
        check_update_interval: String,
        client_addr: String,
        connect: Connect,
        data_dir: String,
        datacenter: String,
        default_intention_policy: String,
        default_query_time: String,
        disable_coordinates: bool,
        disable_remote_exec: bool,
        dns_config: Dns,
        domain: String,
        enable_debug: bool,
        enable_local_script_checks: bool,
        enable_script_checks: bool,
        http_config: HttpApi,
        leave_on_terminate: bool,
        limits: Limits,
        locality: Locality,
        log_file: String,
        log_json: bool,
        log_level: String,
        log_rotate_bytes: i64,
        log_rotate_duration: String,
        log_rotate_max_files: i64,
        max_query_time: String,
        node_id: String,
        node_meta: BTreeMap<String, String>,
        node_name: String,
        partition: String,
        peering: Peering,
        pid_file: String,
        ports: Ports,
        primary_datacenter: String,
        primary_gateways: Vec<String>,
        primary_gateways_interval: String,
        recursors: Vec<String>,
        retry_interval_wan: String,
        retry_join_wan: Vec<String>,
        retry_max_wan: i64,
        rpc: Nothing,
        server: bool,
        session_ttl_min: String,
        skip_leave_on_interrupt: bool,
        tagged_addresses: BTreeMap<String, String>,
        telemetry: Telemetry,
        tls: Tls,
        translate_wan_addrs: bool,
        ui_config: Ui,
        unix_sockets: UnixSockets,
        xds: Xds,
    }
    /// `acl`
    Acl {
        enabled: bool,
        default_policy: String,
        enable_key_list_policy: bool,
        enable_token_persistence: bool,
        enable_token_replication: bool,
        tokens: Tokens,
    }
    /// `acl.tokens`
    Tokens {
        initial_management: Secret,
        default: Secret,
        agent: Secret,
        agent_recovery: Secret,
        replication: Secret,
        config_file_service_registration: Secret,
        dns: Secret,
    }
    /// `addresses`
    Addresses { dns: String, http: String, https: String, grpc: String, grpc_tls: String, }
    /// `audit`
    Audit { enabled: bool, sink: BTreeMap<String, Sink>, }
    /// `audit.sink`
    Sink {
        r#type: String,
        format: String,
        path: String,
        delivery_guarantee: String,
        mode: String,
        rotate_bytes: i64,
        rotate_duration: String,
        rotate_max_files: i64,
    }
    /// `connect`
    Connect {
        enabled: bool,
        enable_mesh_gateway_wan_federation: bool,
        ca_provider: String,
        ca_config: Map<String, Value>,
    }
    /// `peering`
    Peering { enabled: bool, }
    /// `dns_config`
    Dns {
        a_record_limit: i64,
        disable_compression: bool,
        enable_additional_node_meta_txt: bool,
        enable_truncate: bool,
        node_ttl: String,
        only_passing: bool,
        prefer_namespace: bool,
        recursor_strategy: String,
        recursor_timeout: String,
        service_ttl: BTreeMap<String, String>,
        soa: Soa,
        udp_answer_limit: i64,
    }
    /// `dns_config.soa`
    Soa { expire: u32, min_ttl: u32, refresh: u32, retry: u32, }
    /// `http_config`
    HttpApi {
        allow_write_http_from: Vec<String>,
        block_endpoints: Vec<String>,
        max_header_bytes: i64,
        response_headers: BTreeMap<String, String>,
    }
    /// `ui_config`
    Ui { hosts: Vec<String>, }
    /// `limits`
    Limits {
        http_max_conns_per_client: usize,
        https_handshake_timeout: String,
        kv_max_value_size: u64,
        request_limits: RequestRates,
        txn_max_req_len: u64,
    }
    /// `limits.request_limits`
    RequestRates { mode: String, read_rate: f64, write_rate: f64, }
    /// A key without any supported field.
    Nothing { }
    /// `ports`
    Ports { dns: i64, http: i64, https: i64, grpc: i64, grpc_tls: i64, server: i64, }
    /// `telemetry`
    Telemetry {
        dogstatsd_addr: String,
        dogstatsd_tags: Vec<String>,
        otlp_endpoint: String,
        otlp_headers: BTreeMap<String, Secret>,
        otlp_interval: String,
        otlp_traces_ratio: f64,
        statsd_address: String,
    }
    /// `tls`
    Tls { defaults: Protocol, https: Protocol, grpc: Protocol, internal_rpc: Protocol, }
    /// `tls.defaults`, `tls.https`, `tls.grpc` and `tls.internal_rpc`
    Protocol {
        ca_file: String,
        ca_path: String,
        cert_file: String,
        key_file: String,
        tls_cipher_suites: String,
        tls_min_version: String,
        verify_incoming: bool,
    }
    /// `unix_sockets`
    UnixSockets { user: String, group: String, mode: String, }
    /// `xds`
    Xds { update_max_per_second: f64, }
}

/// One file: its settings and its registrations.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Registered {
    pub(super) service: Vec<ServiceDefinition>,
    pub(super) services: Vec<ServiceDefinition>,
    pub(super) check: Vec<CheckType>,
    pub(super) checks: Vec<CheckType>,
    pub(super) config_entries: Entries,
    pub(super) watches: Vec<WatchDefinition>,
}

/// `config_entries`
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Entries {
    /// Decoded one by one, with the rules of `PUT /v1/config`.
    pub(super) bootstrap: Vec<Value>,
}

/// The keys of [`Registered`].
pub(super) const REGISTERED: [&str; 6] = [
    "service",
    "services",
    "check",
    "checks",
    "config_entries",
    "watches",
];

impl Settings {
    /// Refuses unsupported values in a file.
    ///
    /// # Errors
    /// Names the key and the reason.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.server == Some(false) {
            bail!("server = false is not supported: there are no client agents, run a server");
        }
        let partition = self.partition.as_deref();
        if let Some(set) = partition.filter(|set| !["", "default"].contains(set)) {
            bail!(
                "partition = {set:?} cannot be set: as in Consul, servers are in the partition \"default\"; \
                 register what runs in another one with PUT /v1/catalog/register"
            );
        }
        if self.bootstrap_expect.is_some_and(|servers| servers != 1) {
            bail!(
                "bootstrap_expect must be 1: several servers share their state through etcd \
                 (legate-server --etcd-endpoints)"
            );
        }
        Ok(())
    }
}

/// Merges a later source: it replaces values and adds keys.
pub(super) fn merge(into: &mut Value, later: Value) {
    match (into, later) {
        (Value::Object(into), Value::Object(later)) => {
            for (key, value) in later {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, later) => *into = later,
    }
}

/// A time, which files have in Go's notation.
pub(super) fn time(key: &str, text: Option<&str>) -> anyhow::Result<Option<Duration>> {
    let text = text.filter(|text| !text.is_empty());
    text.map(|text| duration::parse(text).map_err(|error| anyhow::anyhow!("{key}: {error}")))
        .transpose()
}
