//! The row types of all tables, with their keys and index entries.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use legate_model::acl::{AuthMethod, BindingRule, Policy, Role, Token};
use legate_model::virtual_ip::VirtualIp;
use legate_model::{
    AutopilotConfiguration, CaConfiguration, CheckType, ConfigEntry, HealthCheck, KvEntry,
    Namespace, Node, NodeCoordinate, Partition, Peering, PreparedQuery, ServiceInstance,
    ServiceName, Session, Tenancy, TenancyName,
};
use serde::{Deserialize, Serialize};

use crate::ca_state::CaState;
use crate::key::{Key, Table};
use crate::row::Row;
use crate::sessions::sortable;

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

impl Row for Node {
    const TABLE: Table = Table::Nodes;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.node])
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        let id = Some(&self.id).filter(|id| !id.is_empty());
        let by_id = id.map(|id| Key::new(Table::NodeIds, tenancy, &[id]));
        let by_address = ip(&self.address)
            .map(|ip| Key::new(Table::NodesByAddress, tenancy, &[&ip, &self.node]));
        by_id.into_iter().chain(by_address).collect()
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for InstanceRow {
    const TABLE: Table = Table::Instances;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.node, &self.instance.id])
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        let key = |table, name: &str| {
            let names = [name, &self.node, &self.instance.id];
            Key::new(table, tenancy, &names)
        };
        let by_service = key(Table::InstancesByService, &self.instance.service);
        let destination = self.instance.destination();
        let by_destination = destination.map(|name| key(Table::InstancesByDestination, name));
        let address = ip(&self.instance.address);
        let by_address = address.map(|ip| key(Table::InstancesByAddress, &ip));
        std::iter::once(by_service)
            .chain(by_destination)
            .chain(by_address)
            .collect()
    }

    fn modify_index(&self) -> u64 {
        self.instance.modify_index
    }
}

/// An IP address in the form of index entries. `None` for a host name.
fn ip(address: &str) -> Option<String> {
    let ip: IpAddr = address.parse().ok()?;
    Some(ip.to_string())
}

impl Row for HealthCheck {
    const TABLE: Table = Table::Checks;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.node, &self.check_id])
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        let owner = [
            self.node.as_str(),
            self.service_id.as_str(),
            self.check_id.as_str(),
        ];
        let mut keys = vec![Key::new(Table::ChecksByOwner, tenancy, &owner)];
        if !self.service_id.is_empty() {
            let names = [&*self.service_name, &*self.node, &*self.check_id];
            keys.push(Key::new(Table::ChecksByService, tenancy, &names));
        }
        keys
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for AgentCheckRow {
    const TABLE: Table = Table::AgentChecks;
    // The headers of a request may contain a password or token.
    const SECRET: bool = true;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.node, &self.check_id])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for FileServiceRow {
    const TABLE: Table = Table::FileServices;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.node, &self.id])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for ConfigEntry {
    const TABLE: Table = Table::ConfigEntries;

    fn key(&self, tenancy: &Tenancy) -> Key {
        let names = [self.kind().as_str(), self.name()];
        Key::new(Self::TABLE, tenancy, &names)
    }

    /// Each entry is in the destination's tenancy, and contains that of the config entry.
    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        let key = |to: ServiceName| {
            let (kind, name) = (self.kind().as_str(), self.name());
            let names = [
                &*to.name,
                kind,
                name,
                &tenancy.partition,
                &tenancy.namespace,
            ];
            Key::new(Table::ConfigEntriesByDestination, &to.tenancy, &names)
        };
        self.destinations().into_iter().map(key).collect()
    }

    fn modify_index(&self) -> u64 {
        ConfigEntry::modify_index(self)
    }
}

impl Row for Token {
    const TABLE: Table = Table::Tokens;
    const SECRET: bool = true;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.accessor_id])
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        let secret = self.secret_id.expose();
        let mut keys = vec![Key::exact(Table::TokensBySecret, tenancy, secret)];
        if !self.auth_method.is_empty() {
            // In the tenancy of the auth method, which may create tokens in other namespaces.
            let of_method = self.method_tenancy();
            let names = [&*self.auth_method, &*tenancy.namespace, &*self.accessor_id];
            keys.push(Key::new(Table::TokensByMethod, &of_method, &names));
        }
        keys
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for Policy {
    const TABLE: Table = Table::Policies;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.id])
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        vec![Key::new(Table::PoliciesByName, tenancy, &[&self.name])]
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for Role {
    const TABLE: Table = Table::Roles;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.id])
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        vec![Key::new(Table::RolesByName, tenancy, &[&self.name])]
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for AuthMethod {
    const TABLE: Table = Table::AuthMethods;
    // The settings of some types contain a password or token.
    const SECRET: bool = true;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.name])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for BindingRule {
    const TABLE: Table = Table::BindingRules;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.id])
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        let names = [&*self.auth_method, &*self.id];
        vec![Key::new(Table::BindingRulesByMethod, tenancy, &names)]
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for AutopilotConfiguration {
    const TABLE: Table = Table::Autopilot;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for Peering {
    const TABLE: Table = Table::Peerings;
    const SECRET: bool = true;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.name])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for PreparedQuery {
    const TABLE: Table = Table::PreparedQueries;
    // It may contain the token for its execution.
    const SECRET: bool = true;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.id])
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        let key = |table| Key::new(table, tenancy, &[&self.name]);
        let by_name = (!self.name.is_empty()).then(|| key(Table::PreparedQueriesByName));
        let template = self
            .is_template()
            .then(|| key(Table::PreparedQueryTemplates));
        let bound = !self.session.is_empty();
        let by_session = bound.then(|| {
            let names = [&*self.session, &*self.id];
            Key::new(Table::PreparedQueriesBySession, tenancy, &names)
        });
        by_name
            .into_iter()
            .chain(template)
            .chain(by_session)
            .collect()
    }

    fn size(&self) -> usize {
        PreparedQuery::size(self)
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for CaRow {
    const TABLE: Table = Table::Ca;
    const SECRET: bool = true;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for ManagementRow {
    const TABLE: Table = Table::Management;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[])
    }

    fn modify_index(&self) -> u64 {
        self.since
    }
}

impl Row for VirtualIpRow {
    const TABLE: Table = Table::VirtualIps;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.service])
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        let key = |ip: &Ipv4Addr| Key::new(Table::ManualVirtualIps, tenancy, &[&ip.to_string()]);
        self.manual.iter().map(key).collect()
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for FreedVirtualIpRow {
    const TABLE: Table = Table::FreedVirtualIps;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&Self::name(self.ip)])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for LastVirtualIpRow {
    const TABLE: Table = Table::LastVirtualIp;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for KvEntry {
    const TABLE: Table = Table::Kv;
    // Values may contain applications' passwords.
    const SECRET: bool = true;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::path(Self::TABLE, tenancy, &[], &self.key)
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        let by_session = || Key::path(Table::KvBySession, tenancy, &[&self.session], &self.key);
        let locked = !self.session.is_empty();
        locked.then(by_session).into_iter().collect()
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for SessionRow {
    const TABLE: Table = Table::Sessions;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.session.id])
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        let Session { id, node, .. } = &*self.session;
        let by_check = |namespace: &str, check: &str| {
            let names = [node, namespace, check, id];
            Key::new(Table::SessionsByCheck, tenancy, &names)
        };
        let mut keys = vec![Key::new(Table::SessionsByNode, tenancy, &[node, id])];
        for check in self.session.checks.iter().chain(&self.session.node_checks) {
            keys.push(by_check(&tenancy.namespace, check));
            // It may be a node check, which is in the default namespace.
            keys.push(by_check(&tenancy.of_partition().namespace, check));
        }
        for check in self.session.service_checks.iter().flatten() {
            let namespace = tenancy.in_namespace(&check.namespace).namespace;
            keys.push(by_check(&namespace, &check.id));
        }
        keys.dedup();
        if self.session.time_to_live().is_some() {
            let since = sortable(self.session.create_index);
            let names = [&*since, &*tenancy.partition, id.as_str()];
            keys.push(Key::new(Table::SessionsByChange, tenancy, &names));
        }
        keys
    }

    fn modify_index(&self) -> u64 {
        self.session.modify_index
    }
}

impl Row for LockDelayRow {
    const TABLE: Table = Table::LockDelays;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::path(Self::TABLE, tenancy, &[], &self.key)
    }

    fn indexes(&self, tenancy: &Tenancy) -> Vec<Key> {
        let since = sortable(self.modify_index);
        let names = [&*since, &*tenancy.partition, &*tenancy.namespace];
        let by_change = Key::path(Table::LockDelaysByChange, tenancy, &names, &self.key);
        vec![by_change]
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

/// The network coordinate of a node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CoordinateRow {
    pub(crate) coordinate: Arc<NodeCoordinate>,
    pub(crate) modify_index: u64,
}

impl Row for CoordinateRow {
    const TABLE: Table = Table::Coordinates;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[&self.coordinate.node])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for CaConfiguration {
    const TABLE: Table = Table::CaConfiguration;
    // It may contain a private key, or a token for an external CA.
    const SECRET: bool = true;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for Namespace {
    const TABLE: Table = Table::Namespaces;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[self.name.as_str()])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}

impl Row for Partition {
    const TABLE: Table = Table::Partitions;

    fn key(&self, tenancy: &Tenancy) -> Key {
        Key::new(Self::TABLE, tenancy, &[self.name.as_str()])
    }

    fn modify_index(&self) -> u64 {
        self.modify_index
    }
}
