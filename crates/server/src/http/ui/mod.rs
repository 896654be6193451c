//! `/v1/internal/ui`: read-only summaries of the catalog for Consul's web UI and for dashboards.

pub(super) mod gateways;
mod summary;
pub(super) mod topology;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use axum::extract::Path;
use axum::response::Response;
use legate_filter::{Field, Shape};
use legate_model::acl::Authorizer;
use legate_model::{
    CheckServiceNode, CheckStatus, HealthCheck, Node, ServiceInstance, TenancyName, filters,
};
use legate_store::ReadTxn;
use serde::Serialize;

use self::summary::{Summary, summaries};
use super::call::{Call, visible};
use super::gateway_services::pairs;
use crate::api_error::ApiError;

/// A node with its services and checks.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct NodeInfo {
    #[serde(rename = "ID")]
    id: String,
    node: String,
    address: String,
    tagged_addresses: BTreeMap<String, String>,
    meta: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    partition: TenancyName,
    services: Vec<Arc<ServiceInstance>>,
    checks: Vec<Arc<HealthCheck>>,
}

/// The fields available in filters of nodes.
static NODE_INFO: [Field; 9] = [
    Field::new("ID", Shape::Text),
    Field::new("Node", Shape::Text),
    Field::new("Partition", Shape::Text),
    Field::new("PeerName", Shape::Text),
    Field::new("Address", Shape::Text),
    Field::new("TaggedAddresses", Shape::Map(&Shape::Text)),
    Field::new("Meta", Shape::Map(&Shape::Text)),
    Field::new("Services", Shape::List(&filters::SERVICE)),
    Field::new("Checks", Shape::List(&filters::CHECK)),
];

/// The services and checks of a node.
#[derive(Default)]
struct OnNode {
    services: Vec<Arc<ServiceInstance>>,
    checks: Vec<Arc<HealthCheck>>,
}

impl OnNode {
    fn of(call: &Call, state: &ReadTxn<'_>, node: &str) -> Self {
        let mut checks = call.each(state, |state| state.checks_on(node));
        // Node checks appear in every namespace; keep each once.
        let mut seen = HashSet::new();
        checks.retain(|check| seen.insert(Arc::as_ptr(check)));
        Self {
            services: call.each(state, |state| state.instances_on(node)),
            checks,
        }
    }

    /// [`Self::of`] for all nodes, by lower-case name. Reads each table of a namespace once, however many nodes
    /// there are.
    fn of_all(call: &Call, state: &ReadTxn<'_>) -> HashMap<String, Self> {
        let mut all = HashMap::<String, Self>::new();
        for (node, service) in call.each(state, |state| state.instances_with_nodes()) {
            let on_node = all.entry(node.to_lowercase()).or_default();
            on_node.services.push(service);
        }
        let every = call.asks_every();
        let checks = match every {
            // Node checks are in the default namespace.
            true => call.each(state, |state| state.checks()),
            false => state.all_checks(),
        };
        for check in checks {
            let on_node = all.entry(check.node.to_lowercase()).or_default();
            on_node.checks.push(check);
        }
        if !every {
            for on_node in all.values_mut() {
                let checks = &mut on_node.checks;
                checks.sort_by_cached_key(|check| check.check_id.to_lowercase());
            }
        }
        all
    }
}

impl NodeInfo {
    fn new(node: &Node, on_node: OnNode) -> Self {
        Self {
            id: node.id.clone(),
            node: node.node.clone(),
            address: node.address.clone(),
            tagged_addresses: node.tagged_addresses.clone(),
            meta: node.meta.clone(),
            partition: node.partition.clone(),
            services: on_node.services,
            checks: on_node.checks,
        }
    }

    /// Removes services and checks that the caller may not see. Returns whether there were any.
    fn hide(&mut self, call: &Call, authorizer: &Authorizer) -> bool {
        let before = self.services.len() + self.checks.len();
        self.services.retain(|service| {
            let authorizer = call.at(authorizer, &service.namespace);
            authorizer.service_read(&service.service)
        });
        self.checks.retain(|check| {
            let authorizer = call.at(authorizer, &check.namespace);
            check.service_id.is_empty() || authorizer.service_read(&check.service_name)
        });
        self.services.len() + self.checks.len() < before
    }
}

/// `GET /v1/internal/ui/nodes`
pub(super) async fn nodes(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let filter = call.filter(&NODE_INFO)?;
    call.take_every();
    let answer = call
        .read(|state| {
            let mut all = OnNode::of_all(&call, state);
            let nodes = state.nodes();
            let infos = nodes.iter().map(|node| {
                let on_node = all.remove(&node.node.to_lowercase());
                NodeInfo::new(node, on_node.unwrap_or_default())
            });
            infos.collect::<Vec<_>>()
        })
        .await?;
    let (mut nodes, mut filtered) = visible(answer.value, |one| authorizer.node_read(&one.node));
    for node in &mut nodes {
        filtered |= node.hide(&call, &authorizer);
    }
    nodes.retain(|node| filter.matches(node));
    call.answer(answer.index, &nodes, filtered)
}

/// `GET /v1/internal/ui/node/:node`
pub(super) async fn node(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    call.take_every();
    let answer = call
        .read(|state| {
            let node = state.node(&name)?;
            let on_node = OnNode::of(&call, state, &node.node);
            Some(NodeInfo::new(&node, on_node))
        })
        .await?;
    let exists = answer.value.is_some();
    let Some(mut node) = answer.value.filter(|one| authorizer.node_read(&one.node)) else {
        let response = call.absent(answer.index, "")?;
        return call.mark(response, answer.index, exists);
    };
    let filtered = node.hide(&call, &authorizer);
    call.answer(answer.index, &node, filtered)
}

/// A service in the list of services.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    #[serde(flatten)]
    summary: Summary,
    connected_with_proxy: bool,
    /// Whether the entry of a registered gateway names the service.
    connected_with_gateway: bool,
}

/// `GET /v1/internal/ui/services`
pub(super) async fn services(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let filter = call.filter(&filters::INSTANCE)?;
    call.take_every();
    let answer = call
        .read(|state| {
            let instances = call.each(state, |state| state.instances());
            (instances, call.each(state, pairs))
        })
        .await?;
    let (instances, pairs) = answer.value;
    let (mut instances, filtered) = visible(instances, |one| {
        may_see(&call.at(&authorizer, &one.service.namespace), one)
    });
    instances.retain(|instance| instance.matches(&filter));
    let mut all = summaries(&instances);
    let mut connected = HashSet::new();
    for pair in &pairs {
        let service = pair.service();
        let authorizer = authorizer.within(&service.tenancy);
        let gateway = match authorizer.service_read(&service.name) {
            true => all.get_mut(&pair.gateway()),
            false => None,
        };
        if let Some(gateway) = gateway {
            gateway.behind += 1;
            connected.insert(service);
        }
    }
    let listed: Vec<Listed> = all
        .into_iter()
        .map(|(name, found)| Listed {
            connected_with_proxy: found.has_proxy,
            connected_with_gateway: !found.has_no_instance() && connected.contains(&name),
            summary: found.finish(&name),
        })
        .collect();
    call.answer(answer.index, &listed, filtered)
}

fn may_see(authorizer: &Authorizer, instance: &CheckServiceNode) -> bool {
    authorizer.node_read(&instance.node.node) && authorizer.service_read(&instance.service.service)
}

/// Counts of objects by their worst check status.
#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Health {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    total: u64,
    passing: u64,
    warning: u64,
    critical: u64,
}

impl Health {
    fn add(&mut self, status: CheckStatus) {
        self.total += 1;
        match status {
            CheckStatus::Passing => self.passing += 1,
            CheckStatus::Warning => self.warning += 1,
            CheckStatus::Critical => self.critical += 1,
        }
    }
}

/// Health of the whole catalog.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Overview {
    nodes: Vec<Health>,
    services: Vec<Health>,
    checks: Vec<Health>,
}

/// `GET /v1/internal/ui/catalog-overview`
pub(super) async fn overview(call: Call) -> Result<Response, ApiError> {
    let may = call.authorizer()?.permits("operator", "read", "");
    ApiError::require(may == Ok(true), "operator:read", "")?;
    call.refuse_filter()?;
    call.refuse_every()?;
    let state = call.reader.state();
    call.json(&overview_of(&call.txn(&state)))
}

fn overview_of(state: &ReadTxn<'_>) -> Overview {
    let named = |name: &str| Health {
        name: name.to_owned(),
        ..Health::default()
    };
    let mut checks = BTreeMap::<String, Health>::new();
    let mut worst = HashMap::<(String, String), CheckStatus>::new();
    for check in state.checks() {
        let sum = checks.entry(check.name.clone());
        sum.or_insert_with(|| named(&check.name)).add(check.status);
        let owner = (check.node.to_lowercase(), check.service_id.to_lowercase());
        let worst = worst.entry(owner).or_insert(check.status);
        *worst = (*worst).max(check.status);
    }
    let health = |node: &str, id: &str| {
        let found = worst.get(&(node.to_lowercase(), id.to_lowercase()));
        found.copied().unwrap_or(CheckStatus::Passing)
    };
    let mut services = BTreeMap::<String, Health>::new();
    for instance in state.instances() {
        let service = &instance.service;
        let sum = services.entry(service.service.clone());
        let status = health(&instance.node.node, &service.id);
        sum.or_insert_with(|| named(&service.service)).add(status);
    }
    let mut nodes = Health::default();
    for node in state.nodes() {
        nodes.add(health(&node.node, ""));
    }
    Overview {
        nodes: vec![nodes],
        services: services.into_values().collect(),
        checks: checks.into_values().collect(),
    }
}
