//! A service in a few numbers, made of its instances and those of its proxies.

use std::collections::{BTreeMap, BTreeSet};

use legate_model::{CheckServiceNode, CheckStatus, ProxyMode, ServiceKind, TenancyName};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::is_typical;

/// Who wrote an instance, by its meta.
pub(super) const EXTERNAL_SOURCE: &str = "external-source";

/// A service as the user interface shows it.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Summary {
    #[serde(skip_serializing_if = "is_typical")]
    pub(super) kind: ServiceKind,
    pub(super) name: String,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    namespace: TenancyName,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    partition: TenancyName,
    pub(super) datacenter: String,
    #[serde(serialize_with = "as_go")]
    tags: BTreeSet<String>,
    #[serde(serialize_with = "as_go")]
    nodes: BTreeSet<String>,
    #[serde(serialize_with = "as_go")]
    external_sources: BTreeSet<String>,
    instance_count: usize,
    checks_passing: usize,
    checks_warning: usize,
    checks_critical: usize,
    gateway_config: Map<String, Value>,
    transparent_proxy: bool,
    connect_native: bool,
}

/// An empty list of Go's is `null`.
fn as_go<S: Serializer>(list: &BTreeSet<String>, serializer: S) -> Result<S::Ok, S::Error> {
    (!list.is_empty()).then_some(list).serialize(serializer)
}

/// What is known of a service while its instances are gone through.
#[derive(Default)]
pub(super) struct Found {
    kind: ServiceKind,
    name: String,
    namespace: TenancyName,
    partition: TenancyName,
    datacenter: String,
    tags: BTreeSet<String>,
    nodes: BTreeSet<String>,
    external_sources: BTreeSet<String>,
    instances: usize,
    /// By node and id: a check of a node counts once for all instances there.
    checks: BTreeMap<(String, String), CheckStatus>,
    /// The modes of its proxies: whether all are transparent.
    transparent: Option<bool>,
    native: bool,
    /// Whether an instance of a proxy of it is among them.
    pub(super) has_proxy: bool,
}

/// The services of these instances of one namespace by their names.
pub(super) fn summaries(instances: &[CheckServiceNode]) -> BTreeMap<String, Found> {
    let mut all = BTreeMap::<String, Found>::new();
    for instance in instances {
        let service = &instance.service;
        let found = named(&mut all, &service.service);
        found.kind = service.kind;
        found.namespace.clone_from(&service.namespace);
        found.partition.clone_from(&service.partition);
        found.datacenter.clone_from(&instance.node.datacenter);
        found.nodes.insert(instance.node.node.clone());
        found.tags.extend(service.tags.iter().cloned());
        let source = service.meta.get(EXTERNAL_SOURCE);
        found
            .external_sources
            .extend(source.filter(|source| !source.is_empty()).cloned());
        found.instances += 1;
        found.native |= service.connect.native;
        found.add_checks(instance);
        if service.kind == ServiceKind::ConnectProxy {
            let of = named(&mut all, &service.proxy.destination_service_name);
            of.has_proxy = true;
            let transparent = service.proxy.mode == ProxyMode::Transparent;
            of.transparent = Some(of.transparent.unwrap_or(true) && transparent);
            of.add_checks(instance);
        }
    }
    all
}

fn named<'a>(all: &'a mut BTreeMap<String, Found>, name: &str) -> &'a mut Found {
    all.entry(name.to_owned()).or_insert_with(|| Found {
        name: name.to_owned(),
        ..Found::default()
    })
}

impl Found {
    fn add_checks(&mut self, instance: &CheckServiceNode) {
        for check in &instance.checks {
            let id = (check.node.clone(), check.check_id.clone());
            self.checks.insert(id, check.status);
        }
    }

    /// Whether only its proxies are there.
    pub(super) fn has_no_instance(&self) -> bool {
        self.instances == 0
    }

    pub(super) fn is_shown_in_topologies(&self) -> bool {
        matches!(
            self.kind,
            ServiceKind::Typical | ServiceKind::IngressGateway | ServiceKind::ApiGateway
        )
    }

    pub(super) fn finish(self) -> Summary {
        let count = |status| self.checks.values().filter(|own| **own == status).count();
        Summary {
            checks_passing: count(CheckStatus::Passing),
            checks_warning: count(CheckStatus::Warning),
            checks_critical: count(CheckStatus::Critical),
            kind: self.kind,
            name: self.name,
            namespace: self.namespace,
            partition: self.partition,
            datacenter: self.datacenter,
            tags: self.tags,
            nodes: self.nodes,
            external_sources: self.external_sources,
            instance_count: self.instances,
            gateway_config: Map::new(),
            transparent_proxy: self.transparent.unwrap_or(false),
            connect_native: self.native,
        }
    }
}

impl Summary {
    /// A service without an instance.
    pub(super) fn empty(name: &str, datacenter: &str) -> Self {
        Found {
            name: name.to_owned(),
            datacenter: datacenter.to_owned(),
            ..Found::default()
        }
        .finish()
    }
}
