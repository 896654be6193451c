//! The tables at one moment. A state never changes; the next one shares with it what stayed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use legate_model::acl::{AuthMethod, BindingRule, Token};
use legate_model::{
    CaRoots, CheckServiceNode, ConfigEntry, ConfigKind, HealthCheck, Intention, Node,
    ServiceInstance,
};

use crate::access::Access;
use crate::catalog::Catalog;
use crate::command::{CaState, Rejected};
use crate::entries::Entries;
use crate::topic::{Family, Topic};

/// The index of the empty tables. The first write must be newer than what a client has seen, and
/// clients never see an index below 1.
const FIRST_INDEX: u64 = 1;

/// The tables at one moment. Names are compared without regard to case.
#[derive(Clone)]
pub struct State {
    index: u64,
    /// When each topic with rows changed last.
    topics: OrdMap<Topic, u64>,
    /// When a topic of each family lost its last row, the last time that happened. It stands for
    /// every topic without rows, so that indexes never go back and never pile up.
    extinctions: OrdMap<Family, u64>,
    pub(crate) catalog: Catalog,
    pub(crate) entries: Entries,
    pub(crate) access: Access,
    ca: Option<Arc<CaState>>,
    roots: Option<Arc<CaRoots>>,
}

impl State {
    pub(crate) fn empty() -> Self {
        Self {
            index: FIRST_INDEX,
            topics: OrdMap::new(),
            extinctions: OrdMap::new(),
            catalog: Catalog::default(),
            entries: Entries::default(),
            access: Access::default(),
            ca: None,
            roots: None,
        }
    }

    /// The index of the last change of anything, at least 1.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The index of the last change of a topic, at least 1. It never goes back, also when the
    /// topic's rows vanish; a topic without rows may move forward without having changed.
    pub fn topic_index(&self, topic: &Topic) -> u64 {
        let topic = topic.clone().folded();
        let own = |topic: &Topic| {
            let last = self.topics.get(topic);
            let gone = || topic.family().and_then(|f| self.extinctions.get(&f));
            last.or_else(gone).copied().unwrap_or(FIRST_INDEX)
        };
        let implied = topic.implied().map_or(FIRST_INDEX, |other| own(&other));
        own(&topic).max(implied)
    }

    /// The index of the last change of any of these topics, at least 1.
    pub fn newest_index(&self, topics: &[Topic]) -> u64 {
        let indexes = topics.iter().map(|topic| self.topic_index(topic));
        indexes.max().unwrap_or(FIRST_INDEX)
    }

    /// A node, by its name.
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.catalog.node(name)
    }

    /// A node, by its id.
    pub fn node_by_id(&self, id: &str) -> Option<&Arc<Node>> {
        self.catalog.node_by_id(id)
    }

    /// All nodes in the order of their names.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.catalog.nodes().cloned().collect()
    }

    /// One instance with its node and checks, by the node's name.
    pub fn instance(&self, node: &str, id: &str) -> Option<CheckServiceNode> {
        self.catalog.instance(node, id)
    }

    /// One instance with its node and checks, by the node's id.
    pub fn instance_by_node_id(&self, node_id: &str, id: &str) -> Option<CheckServiceNode> {
        let node = self.catalog.node_by_id(node_id)?;
        self.catalog.instance(&node.node, id)
    }

    /// The instances on a node in the order of their ids.
    pub fn instances_on(&self, node: &str) -> Vec<Arc<ServiceInstance>> {
        self.catalog.instances_on(node).cloned().collect()
    }

    /// The checks of a node itself, without those of its instances.
    pub fn node_checks(&self, node: &str) -> Vec<Arc<HealthCheck>> {
        self.catalog.checks_of(node, "")
    }

    /// One check, of the node or of an instance on it.
    pub fn check(&self, node: &str, check_id: &str) -> Option<&Arc<HealthCheck>> {
        self.catalog.check(node, check_id)
    }

    /// The instances of a service in the order of their nodes and ids.
    pub fn service(&self, name: &str) -> Vec<CheckServiceNode> {
        self.catalog.service(name)
    }

    /// Every service with the tags of its instances.
    pub fn services(&self) -> BTreeMap<String, Vec<String>> {
        self.catalog.services()
    }

    /// The instances through which a service is reached in the mesh: its `connect-proxy` instances
    /// and those that speak the mesh protocol themselves.
    pub fn connect(&self, destination: &str) -> Vec<CheckServiceNode> {
        self.catalog.connect(destination)
    }

    /// All intentions, the one that decides first before the others.
    pub fn intentions(&self) -> Vec<Arc<Intention>> {
        self.entries.intentions()
    }

    /// The intentions that apply to a destination, those for `*` included, the one that decides
    /// first before the others.
    pub fn intentions_for(&self, destination: &str) -> Vec<Arc<Intention>> {
        self.entries.intentions_for(destination)
    }

    /// The intention for exactly this pair. The source is compared with regard to case, as it is
    /// where the intention is enforced.
    pub fn intention(&self, source: &str, destination: &str) -> Option<Arc<Intention>> {
        self.entries.intention(source, destination)
    }

    /// One config entry.
    pub fn config_entry(&self, kind: ConfigKind, name: &str) -> Option<Arc<ConfigEntry>> {
        self.entries.get(kind, name).cloned()
    }

    /// All config entries of a kind in the order of their names.
    pub fn config_entries(&self, kind: ConfigKind) -> Vec<Arc<ConfigEntry>> {
        self.entries.of_kind(kind).cloned().collect()
    }

    /// The CA's state with its signing key, once there is one.
    pub fn ca(&self) -> Option<&CaState> {
        self.ca.as_deref()
    }

    /// The CA's public certificates, once there are any.
    pub fn ca_roots(&self) -> Option<Arc<CaRoots>> {
        self.roots.clone()
    }

    /// A token, by its secret half.
    pub fn token_by_secret(&self, secret: &str) -> Option<&Arc<Token>> {
        self.access.token_by_secret(secret)
    }

    /// A token, by its public half.
    pub fn token_by_accessor(&self, accessor: &str) -> Option<&Arc<Token>> {
        self.access.token(accessor)
    }

    /// All tokens in the order of their accessor ids.
    pub fn tokens(&self) -> Vec<Arc<Token>> {
        self.access.tokens().cloned().collect()
    }

    /// The index of the write of the first token that could do everything. It stays when the token
    /// goes: whoever takes the control plane over first, nobody does so a second time.
    pub fn managed_since(&self) -> Option<u64> {
        self.access.managed_since()
    }

    /// A way to log in.
    pub fn auth_method(&self, name: &str) -> Option<&Arc<AuthMethod>> {
        self.access.method(name)
    }

    /// All ways to log in, in the order of their names.
    pub fn auth_methods(&self) -> Vec<Arc<AuthMethod>> {
        self.access.methods().cloned().collect()
    }

    /// A binding rule.
    pub fn binding_rule(&self, id: &str) -> Option<&Arc<BindingRule>> {
        self.access.rule(id)
    }

    /// The binding rules of one auth method in the order of their ids.
    pub fn binding_rules(&self, auth_method: &str) -> Vec<Arc<BindingRule>> {
        self.access.rules_of(auth_method).cloned().collect()
    }

    /// All binding rules in the order of their ids.
    pub fn all_binding_rules(&self) -> Vec<Arc<BindingRule>> {
        self.access.rules().cloned().collect()
    }
}

impl State {
    /// Ends a change: the rows are written, what remains is to say when.
    pub(crate) fn commit(&mut self, index: u64, touched: &BTreeSet<Topic>) {
        self.index = index;
        for topic in touched {
            match topic.family() {
                Some(family) if !self.has_rows(topic) => {
                    self.topics.remove(topic);
                    self.extinctions.insert(family, index);
                }
                _ => {
                    self.topics.insert(topic.clone(), index);
                }
            }
        }
    }

    fn has_rows(&self, topic: &Topic) -> bool {
        match topic {
            Topic::IntentionsFor(name) => self.entries.has_intentions(name),
            Topic::ConfigEntry { kind, name } => self.entries.get(*kind, name).is_some(),
            other => self.catalog.has_rows(other),
        }
    }

    pub(crate) fn replace_ca(&mut self, ca: CaState) {
        self.roots = Some(Arc::new(ca.roots.clone()));
        self.ca = Some(Arc::new(ca));
    }

    pub(crate) fn reserve_serial(&mut self) -> Result<u64, Rejected> {
        let ca = self.ca.as_mut().ok_or(Rejected::NoCa)?;
        let ca = Arc::make_mut(ca);
        ca.serial += 1;
        Ok(ca.serial)
    }

    /// How many topics the state keeps an index for.
    #[cfg(test)]
    pub(crate) fn topic_count(&self) -> usize {
        self.topics.len()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}
