//! The row types of all tables, with their keys and index entries.
//!
//! A new row type is one entry of `rows!`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use legate_model::acl::{AuthMethod, BindingRule, Policy, Role, Token};
use legate_model::virtual_ip::VirtualIp;
use legate_model::{
    AutopilotConfiguration, CaConfiguration, CheckType, ConfigEntry, FederationState, HealthCheck,
    KvEntry, Namespace, Node, NodeCoordinate, Partition, PeerTrustBundle, Peering, PeeringStream,
    PreparedQuery, ServiceInstance, ServiceName, Session, Tenancy, TenancyName,
};
use serde::{Deserialize, Serialize};

use crate::ca_state::CaState;
use crate::gateway_status::GatewayStatusRow;
use crate::gateways::{
    GatewayEndpointsRow, GatewayListenerRow, GatewayRow, GatewaySecretRow, port_name,
};
use crate::key::{Key, Table};
use crate::replication::FollowedRow;
use crate::row::Row;
use crate::sessions::sortable;
use crate::stored_tables::StoredTable;

/// An instance with the name of its node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InstanceRow {
    pub(crate) node: String,
    pub(crate) instance: Arc<ServiceInstance>,
}

/// How a node's agent runs a check.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AgentCheckRow {
    pub(crate) node: String,
    pub(crate) check_id: String,
    pub(crate) definition: Arc<CheckType>,
    #[serde(default)]
    pub(crate) source: Source,
    pub(crate) modify_index: u64,
}

/// The source of an agent's definition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The API: it remains until it is removed by the API.
    #[default]
    Api,
    /// The agent's configuration files: it is removed with its file.
    Files,
}

/// An instance that is defined in the configuration files of its node's agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FileServiceRow {
    pub(crate) node: String,
    pub(crate) id: String,
    pub(crate) modify_index: u64,
}

/// The CA's state, and the index of its last change.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CaRow {
    pub(crate) ca: Arc<CaState>,
    pub(crate) modify_index: u64,
}

/// The index at which ACLs were bootstrapped. It remains when the first token is removed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ManagementRow {
    pub(crate) since: u64,
}

/// The virtual IPs of a service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VirtualIpRow {
    pub(crate) service: String,
    pub(crate) ip: VirtualIp,
    /// Manually assigned ones. No two services share one.
    #[serde(default)]
    pub(crate) manual: BTreeSet<Ipv4Addr>,
    /// The tenancy of the service, for lookups by address.
    #[serde(default, skip_serializing_if = "TenancyName::is_empty")]
    pub(crate) namespace: TenancyName,
    #[serde(default, skip_serializing_if = "TenancyName::is_empty")]
    pub(crate) partition: TenancyName,
    pub(crate) modify_index: u64,
}

/// A virtual IP that was freed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FreedVirtualIpRow {
    pub(crate) ip: VirtualIp,
    pub(crate) modify_index: u64,
}

impl FreedVirtualIpRow {
    /// Its number in its key, padded so that keys sort by number.
    pub(crate) fn name(ip: VirtualIp) -> String {
        format!("{:010}", ip.number())
    }
}

/// The highest virtual IP that was ever allocated.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LastVirtualIpRow {
    pub(crate) ip: VirtualIp,
    pub(crate) modify_index: u64,
}

/// A session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SessionRow {
    pub(crate) session: Arc<Session>,
    /// Older servers, which expect this field, store renewals. It is always 0 otherwise.
    pub(crate) renewals: u64,
}

/// A lock delay, which starts when the row is written.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LockDelayRow {
    pub(crate) key: String,
    pub(crate) delay: Duration,
    pub(crate) modify_index: u64,
}

/// The network coordinate of a node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CoordinateRow {
    pub(crate) coordinate: Arc<NodeCoordinate>,
    pub(crate) modify_index: u64,
}

/// Implements [`Row`] for the types of rows, and lists their tables in [`STORED_TABLES`].
///
/// An entry is a table and its type, the names in its key, and what differs from most tables: `path`,
/// a case-sensitive path at the end of the key; `secret`, see [`Row::SECRET`]; the function that
/// returns its `indexes`; its `size`; and the index `at` which it was changed, by default its
/// `modify_index`.
macro_rules! rows {
    ($(
        $table:ident: $row:ty = |$this:tt| [$($name:expr),*]
        $(, path $path:expr)?
        $(, secret = $why:literal)?
        $(, indexes = $indexes:path)?
        $(, size = $size:path)?
        $(, at = |$changed:ident| $at:expr)?;
    )*) => {
        /// All stored tables.
        pub(crate) const STORED_TABLES: &[StoredTable] = &[$(StoredTable::of::<$row>()),*];

        $(impl Row for $row {
            const TABLE: Table = Table::$table;
            $(const SECRET: Option<&'static str> = Some($why);)?

            fn key(&self, tenancy: &Tenancy) -> Key {
                let $this = self;
                rows!(@key tenancy, [$($name),*] $(, $path)?)
            }

            $(fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
                $indexes(self, tenancy)
            })?

            $(fn size(&self) -> usize {
                $size(self)
            })?

            fn modify_index(&self) -> u64 {
                rows!(@at self $(, $changed, $at)?)
            }
        })*
    };
    (@key $tenancy:ident, $names:expr) => { Key::new(Self::TABLE, $tenancy, &$names) };
    (@key $tenancy:ident, $names:expr, $path:expr) => {
        Key::path(Self::TABLE, $tenancy, &$names, $path)
    };
    (@at $this:ident) => { $this.modify_index };
    (@at $this:ident, $changed:ident, $at:expr) => {{
        let $changed = $this;
        $at
    }};
}

rows! {
    Nodes: Node = |row| [&row.node], indexes = indexes_of_node;
    Instances: InstanceRow = |row| [&row.node, &row.instance.id],
        indexes = indexes_of_instance, at = |row| row.instance.modify_index;
    Checks: HealthCheck = |row| [&row.node, &row.check_id], indexes = indexes_of_check;
    ConfigEntries: ConfigEntry = |row| [row.kind().as_str(), row.name()],
        indexes = indexes_of_config_entry, at = |row| row.modify_index();
    Tokens: Token = |row| [&row.accessor_id],
        secret = "its secret id", indexes = indexes_of_token;
    AuthMethods: AuthMethod = |row| [&row.name],
        secret = "the settings of some types contain a password or token";
    BindingRules: BindingRule = |row| [&row.id], indexes = indexes_of_binding_rule;
    Ca: CaRow = |_| [], secret = "private keys";
    Management: ManagementRow = |_| [], at = |row| row.since;
    VirtualIps: VirtualIpRow = |row| [&row.service], indexes = indexes_of_virtual_ip;
    FreedVirtualIps: FreedVirtualIpRow = |row| [&FreedVirtualIpRow::name(row.ip)];
    LastVirtualIp: LastVirtualIpRow = |_| [];
    Policies: Policy = |row| [&row.id], indexes = indexes_of_policy;
    Roles: Role = |row| [&row.id], indexes = indexes_of_role;
    AgentChecks: AgentCheckRow = |row| [&row.node, &row.check_id],
        secret = "the headers of a request may contain a password or token";
    PreparedQueries: PreparedQuery = |row| [&row.id],
        secret = "it may contain the token for its execution",
        indexes = indexes_of_prepared_query, size = PreparedQuery::size;
    Kv: KvEntry = |row| [], path &row.key,
        secret = "values may contain applications' passwords", indexes = indexes_of_kv;
    Sessions: SessionRow = |row| [&row.session.id],
        indexes = indexes_of_session, at = |row| row.session.modify_index;
    LockDelays: LockDelayRow = |row| [], path &row.key, indexes = indexes_of_lock_delay;
    Coordinates: CoordinateRow = |row| [&row.coordinate.node];
    Autopilot: AutopilotConfiguration = |_| [];
    Peerings: Peering = |row| [&row.name], secret = "the secrets of the peering",
        indexes = indexes_of_peering;
    FileServices: FileServiceRow = |row| [&row.node, &row.id];
    CaConfiguration: CaConfiguration = |_| [],
        secret = "it may contain a private key, or a token for an external CA";
    Gateways: GatewayRow = |row| [&row.name];
    GatewayListeners: GatewayListenerRow = |row| [
        &row.gateway, row.serves.transport().as_str(), &port_name(row.serves.port())
    ];
    GatewayEndpoints: GatewayEndpointsRow = |row| [
        &row.gateway, &row.of.namespace, &row.of.name, row.of.transport.as_str(),
        &port_name(row.of.port)
    ];
    GatewaySecrets: GatewaySecretRow = |row| [&row.gateway, &row.secret.name],
        secret = "private keys";
    GatewayStatuses: GatewayStatusRow = |row| [&row.gateway];
    Namespaces: Namespace = |row| [row.name.as_str()];
    Partitions: Partition = |row| [row.name.as_str()];
    Followed: FollowedRow = |_| [];
    FederationStates: FederationState = |row| [&row.datacenter];
    PeeringStreams: PeeringStream = |row| [&row.peer];
    TrustBundles: PeerTrustBundle = |row| [&row.peer_name];
}

fn indexes_of_node(node: &Node, tenancy: &Tenancy) -> Vec<Key> {
    let id = Some(&node.id).filter(|id| !id.is_empty());
    let by_id = id.map(|id| Key::new(Table::NodeIds, tenancy, &[id]));
    let by_address =
        ip(&node.address).map(|ip| Key::new(Table::NodesByAddress, tenancy, &[&ip, &node.node]));
    by_id.into_iter().chain(by_address).collect()
}

fn indexes_of_instance(row: &InstanceRow, tenancy: &Tenancy) -> Vec<Key> {
    let InstanceRow { node, instance } = row;
    let key = |table, name: &str| Key::new(table, tenancy, &[name, node, &instance.id]);
    let by_service = key(Table::InstancesByService, &instance.service);
    let destination = instance.destination();
    let by_destination = destination.map(|name| key(Table::InstancesByDestination, name));
    let by_address = ip(&instance.address).map(|ip| key(Table::InstancesByAddress, &ip));
    let names = [
        instance.kind.as_str(),
        &tenancy.namespace,
        &instance.service,
        node,
        &instance.id,
    ];
    let gateway = || Key::new(Table::GatewayInstances, tenancy, &names);
    std::iter::once(by_service)
        .chain(by_destination)
        .chain(by_address)
        .chain(instance.kind.is_gateway().then(gateway))
        .collect()
}

/// An IP address in the form of index entries. `None` for a host name.
fn ip(address: &str) -> Option<String> {
    let ip: IpAddr = address.parse().ok()?;
    Some(ip.to_string())
}

fn indexes_of_check(check: &HealthCheck, tenancy: &Tenancy) -> Vec<Key> {
    let owner = [&*check.node, &*check.service_id, &*check.check_id];
    let mut keys = vec![Key::new(Table::ChecksByOwner, tenancy, &owner)];
    if !check.service_id.is_empty() {
        let names = [&*check.service_name, &*check.node, &*check.check_id];
        keys.push(Key::new(Table::ChecksByService, tenancy, &names));
    }
    keys
}

/// Each key is in the destination's tenancy, and contains that of the config entry.
fn indexes_of_config_entry(entry: &ConfigEntry, tenancy: &Tenancy) -> Vec<Key> {
    let (kind, name) = (entry.kind().as_str(), entry.name());
    let key = |to: ServiceName| {
        let names = [
            &*to.name,
            kind,
            name,
            &tenancy.partition,
            &tenancy.namespace,
        ];
        Key::new(Table::ConfigEntriesByDestination, &to.tenancy, &names)
    };
    entry.destinations().into_iter().map(key).collect()
}

fn indexes_of_token(token: &Token, tenancy: &Tenancy) -> Vec<Key> {
    let secret = token.secret_id.expose();
    let mut keys = vec![Key::exact(Table::TokensBySecret, tenancy, secret)];
    if !token.auth_method.is_empty() {
        // In the tenancy of the auth method, which may create tokens in other namespaces.
        let of_method = token.method_tenancy();
        let names = [
            &*token.auth_method,
            &*tenancy.namespace,
            &*token.accessor_id,
        ];
        keys.push(Key::new(Table::TokensByMethod, &of_method, &names));
    }
    keys
}

fn indexes_of_policy(policy: &Policy, tenancy: &Tenancy) -> Vec<Key> {
    vec![Key::new(Table::PoliciesByName, tenancy, &[&policy.name])]
}

fn indexes_of_role(role: &Role, tenancy: &Tenancy) -> Vec<Key> {
    vec![Key::new(Table::RolesByName, tenancy, &[&role.name])]
}

fn indexes_of_binding_rule(rule: &BindingRule, tenancy: &Tenancy) -> Vec<Key> {
    let names = [&*rule.auth_method, &*rule.id];
    vec![Key::new(Table::BindingRulesByMethod, tenancy, &names)]
}

fn indexes_of_prepared_query(query: &PreparedQuery, tenancy: &Tenancy) -> Vec<Key> {
    let mut keys = Vec::new();
    if !query.name.is_empty() {
        keys.push(Key::new(
            Table::PreparedQueriesByName,
            tenancy,
            &[&query.name],
        ));
    }
    if query.is_template() {
        keys.push(Key::new(
            Table::PreparedQueryTemplates,
            tenancy,
            &[&query.name],
        ));
    }
    if !query.session.is_empty() {
        let names = [&*query.session, &*query.id];
        keys.push(Key::new(Table::PreparedQueriesBySession, tenancy, &names));
    }
    keys
}

fn indexes_of_peering(peering: &Peering, tenancy: &Tenancy) -> Vec<Key> {
    vec![Key::new(Table::PeeringsById, tenancy, &[&peering.id])]
}

fn indexes_of_virtual_ip(row: &VirtualIpRow, tenancy: &Tenancy) -> Vec<Key> {
    let key = |ip: &Ipv4Addr| Key::new(Table::ManualVirtualIps, tenancy, &[&ip.to_string()]);
    row.manual.iter().map(key).collect()
}

fn indexes_of_kv(entry: &KvEntry, tenancy: &Tenancy) -> Vec<Key> {
    let by_session = || Key::path(Table::KvBySession, tenancy, &[&entry.session], &entry.key);
    let locked = !entry.session.is_empty();
    locked.then(by_session).into_iter().collect()
}

fn indexes_of_session(row: &SessionRow, tenancy: &Tenancy) -> Vec<Key> {
    let session = &*row.session;
    let Session { id, node, .. } = session;
    let by_check = |namespace: &str, check: &str| {
        let names = [node, namespace, check, id];
        Key::new(Table::SessionsByCheck, tenancy, &names)
    };
    let mut keys = vec![Key::new(Table::SessionsByNode, tenancy, &[node, id])];
    for check in session.checks.iter().chain(&session.node_checks) {
        keys.push(by_check(&tenancy.namespace, check));
        // It may be a node check, which is in the default namespace.
        keys.push(by_check(&tenancy.of_partition().namespace, check));
    }
    for check in session.service_checks.iter().flatten() {
        let namespace = tenancy.in_namespace(&check.namespace).namespace;
        keys.push(by_check(&namespace, &check.id));
    }
    keys.dedup();
    if session.time_to_live().is_some() {
        let since = sortable(session.create_index);
        let names = [&*since, &*tenancy.partition, id.as_str()];
        keys.push(Key::new(Table::SessionsByChange, tenancy, &names));
    }
    keys
}

fn indexes_of_lock_delay(row: &LockDelayRow, tenancy: &Tenancy) -> Vec<Key> {
    let since = sortable(row.modify_index);
    let names = [&*since, &*tenancy.partition, &*tenancy.namespace];
    vec![Key::path(
        Table::LockDelaysByChange,
        tenancy,
        &names,
        &row.key,
    )]
}
