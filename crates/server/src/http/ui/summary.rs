//! Summaries of services, aggregated from their instances and proxies.

use std::collections::{BTreeMap, BTreeSet};

use legate_model::{
    CheckServiceNode, CheckStatus, ProxyMode, ServiceKind, ServiceName, TenancyName,
};
use serde::{Serialize, Serializer};

/// Metadata key with the tool that created an instance or intention.
pub(super) const EXTERNAL_SOURCE: &str = "external-source";

/// A service as shown in the UI.
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
    gateway_config: GatewayConfig,
    transparent_proxy: bool,
    connect_native: bool,
}

/// Gateway details of a service.
#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct GatewayConfig {
    #[serde(skip_serializing_if = "is_zero")]
    associated_service_count: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<String>,
}

/// Applications have no kind in the response.
fn is_typical(kind: &ServiceKind) -> bool {
    *kind == ServiceKind::Typical
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// `null` if empty, as in Go.
fn as_go<S: Serializer>(list: &BTreeSet<String>, serializer: S) -> Result<S::Ok, S::Error> {
    (!list.is_empty()).then_some(list).serialize(serializer)
}

/// The aggregation state of a service.
#[derive(Default)]
pub(super) struct Aggregate {
    kind: ServiceKind,
    datacenter: String,
    tags: BTreeSet<String>,
    nodes: BTreeSet<String>,
    external_sources: BTreeSet<String>,
    instances: usize,
    /// By node and check id, so that a node check counts once for all instances on the node.
    checks: BTreeMap<(String, String), CheckStatus>,
    /// Whether all proxies are transparent; `None` if there are no proxies.
    transparent: Option<bool>,
    native: bool,
    /// Whether one of the instances is a proxy of the service.
    pub(super) has_proxy: bool,
    /// Number of services named by this gateway's config entry.
    pub(super) behind: usize,
    /// Where the gateway exposes it.
    addresses: Vec<String>,
}

/// Aggregates instances by service name.
pub(super) fn summaries(instances: &[CheckServiceNode]) -> BTreeMap<ServiceName, Aggregate> {
    let mut all = BTreeMap::<ServiceName, Aggregate>::new();
    for instance in instances {
        let service = &instance.service;
        let tenancy = service.tenancy();
        let name = ServiceName::new(&tenancy, &service.service);
        let found = all.entry(name).or_default();
        found.kind = service.kind;
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
            let name = ServiceName::new(&tenancy, &service.proxy.destination_service_name);
            let of = all.entry(name).or_default();
            of.has_proxy = true;
            let transparent = service.proxy.mode == ProxyMode::Transparent;
            of.transparent = Some(of.transparent.unwrap_or(true) && transparent);
            of.add_checks(instance);
        }
    }
    all
}

impl Aggregate {
    fn add_checks(&mut self, instance: &CheckServiceNode) {
        for check in &instance.checks {
            let id = (check.node.clone(), check.check_id.clone());
            self.checks.insert(id, check.status);
        }
    }

    /// Adds an address at which a gateway exposes the service.
    pub(super) fn add_address(&mut self, address: String) {
        if !self.addresses.contains(&address) {
            self.addresses.push(address);
        }
    }

    /// Whether there are only proxies of the service.
    pub(super) fn has_no_instance(&self) -> bool {
        self.instances == 0
    }

    pub(super) fn is_shown_in_topologies(&self) -> bool {
        matches!(
            self.kind,
            ServiceKind::Typical | ServiceKind::IngressGateway | ServiceKind::ApiGateway
        )
    }

    /// The finished summary.
    pub(super) fn finish(self, name: &ServiceName) -> Summary {
        let count = |status| self.checks.values().filter(|own| **own == status).count();
        Summary {
            checks_passing: count(CheckStatus::Passing),
            checks_warning: count(CheckStatus::Warning),
            checks_critical: count(CheckStatus::Critical),
            kind: self.kind,
            name: name.name.as_ref().to_owned(),
            namespace: name.tenancy.shown_namespace(),
            partition: name.tenancy.shown_partition(),
            datacenter: self.datacenter,
            tags: self.tags,
            nodes: self.nodes,
            external_sources: self.external_sources,
            instance_count: self.instances,
            gateway_config: GatewayConfig {
                associated_service_count: self.behind,
                addresses: self.addresses,
            },
            transparent_proxy: self.transparent.unwrap_or(false),
            connect_native: self.native,
        }
    }
}

impl Summary {
    /// The summary of a service without instances.
    pub(super) fn empty(name: &ServiceName, datacenter: &str) -> Self {
        Aggregate {
            datacenter: datacenter.to_owned(),
            ..Aggregate::default()
        }
        .finish(name)
    }
}
