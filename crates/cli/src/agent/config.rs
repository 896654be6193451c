//! The configuration files of `consul agent`, as values. Names are Consul's; what has no field here
//! is refused.

use std::collections::BTreeMap;

use legate_model::{CheckType, Secret, ServiceDefinition};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Defines settings that a file may have or not, and how those of a later file replace them.
macro_rules! settings {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)+ })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub(super) struct $name {
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                pub(super) $field: Option<$type>,
            )+
        }
    )+};
}

settings! {
    /// Everything that is one value, whichever file it stands in.
    Settings {
        acl: Acl,
        addresses: Addresses,
        advertise_addr: String,
        bind_addr: String,
        bootstrap: bool,
        bootstrap_expect: i64,
        client_addr: String,
        connect: Connect,
        data_dir: String,
        datacenter: String,
        default_intention_policy: String,
        dns_config: Dns,
        disable_remote_exec: bool,
        disable_update_check: bool,
        domain: String,
        enable_central_service_config: bool,
        enable_local_script_checks: bool,
        enable_script_checks: bool,
        limits: Limits,
        log_json: bool,
        log_level: String,
        node_meta: BTreeMap<String, String>,
        node_name: String,
        peering: Switch,
        ports: Ports,
        primary_datacenter: String,
        server: bool,
        tls: Tls,
        ui: bool,
        ui_config: Switch,
        xds: Xds,
    }
    /// `acl`
    Acl { enabled: bool, default_policy: String, tokens: Tokens, }
    /// `acl.tokens`
    Tokens { initial_management: Secret, }
    /// `addresses`
    Addresses { dns: String, http: String, https: String, grpc: String, grpc_tls: String, }
    /// `connect`
    Connect {
        enabled: bool,
        ca_provider: String,
        ca_config: CaSettings,
        enable_mesh_gateway_wan_federation: bool,
    }
    /// `connect.ca_config`
    CaSettings {
        leaf_cert_ttl: String,
        root_cert_ttl: String,
        private_key_type: String,
        private_key_bits: i64,
    }
    /// `dns_config`
    Dns { only_passing: bool, }
    /// `limits`
    Limits { http_max_conns_per_client: usize, }
    /// `ports`
    Ports { dns: i64, http: i64, https: i64, grpc: i64, grpc_tls: i64, }
    /// What is on or off.
    Switch { enabled: bool, }
    /// `tls`
    Tls { defaults: Files, https: Files, grpc: Files, }
    /// `tls.defaults`, `tls.https` and `tls.grpc`
    Files { cert_file: String, key_file: String, verify_incoming: bool, }
    /// `xds`
    Xds { update_max_per_second: f64, }
}

/// One file: settings, and what it registers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Registered {
    pub(super) service: Vec<ServiceDefinition>,
    pub(super) services: Vec<ServiceDefinition>,
    pub(super) check: Vec<CheckType>,
    pub(super) checks: Vec<CheckType>,
    pub(super) config_entries: Entries,
}

/// `config_entries`
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Entries {
    /// Decoded one by one, by the same rules as `PUT /v1/config`.
    pub(super) bootstrap: Vec<Value>,
}

/// The keys of [`Registered`].
pub(super) const REGISTERED: [&str; 5] =
    ["service", "services", "check", "checks", "config_entries"];
