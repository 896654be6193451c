//! `/v1/exported-services`: the resolved contents of `exported-services` entries, with wildcards expanded.

use std::collections::{BTreeMap, BTreeSet};

use axum::response::Response;
use legate_model::{
    ConfigEntry, ConfigKind, SamenessGroupMember, ServiceConsumer, ServiceName, TenancyName,
    WILDCARD, filters,
};
use legate_store::ReadTxn;
use serde::Serialize;

use super::call::Call;
use super::catalog::applications;
use crate::api_error::ApiError;
use crate::own_node::OWN_SERVICE;

/// A service and its consumers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Exported {
    service: String,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    namespace: TenancyName,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    partition: TenancyName,
    consumers: Consumers,
}

/// The consumers of a service.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Consumers {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    peers: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    partitions: BTreeSet<String>,
}

impl Consumers {
    fn is_empty(&self) -> bool {
        self.peers.is_empty() && self.partitions.is_empty()
    }

    fn add(&mut self, state: &ReadTxn<'_>, consumer: &ServiceConsumer) {
        if !consumer.peer.is_empty() {
            self.peers.insert(consumer.peer.clone());
        }
        let own = &state.tenancy().partition;
        self.add_partition(own, &consumer.partition);
        for member in members(state, &consumer.sameness_group) {
            match member.peer.is_empty() {
                true => self.add_partition(own, &member.partition),
                false => drop(self.peers.insert(member.peer)),
            }
        }
    }

    /// The own partition is not a consumer.
    fn add_partition(&mut self, own: &str, partition: &str) {
        if !partition.is_empty() && !partition.eq_ignore_ascii_case(own) {
            self.partitions.insert(partition.to_owned());
        }
    }
}

fn members(state: &ReadTxn<'_>, group: &str) -> Vec<SamenessGroupMember> {
    if group.is_empty() {
        return Vec::new();
    }
    let entry = state.config_entry(ConfigKind::SamenessGroup, group);
    match entry.as_deref() {
        Some(ConfigEntry::SamenessGroup(group)) => group.members.clone(),
        _ => Vec::new(),
    }
}

/// `GET /v1/exported-services`
pub(super) async fn list(mut call: Call) -> Result<Response, ApiError> {
    call.leave_namespace();
    ApiError::require(call.authorizer()?.mesh_read(), "mesh:read", "")?;
    let filter = call.filter(&filters::EXPORTED)?;
    let mut answer = call.read(exported).await?;
    answer.value.retain(|service| filter.matches(service));
    call.answer(answer.index, &answer.value, false)
}

fn exported(state: &ReadTxn<'_>) -> Vec<Exported> {
    let own = state.tenancy();
    let entry = state.config_entry(ConfigKind::ExportedServices, &own.partition);
    let Some(ConfigEntry::ExportedServices(entry)) = entry.as_deref() else {
        return Vec::new();
    };
    let mut services: BTreeMap<ServiceName, Consumers> = BTreeMap::new();
    for service in &entry.services {
        let namespaces = match service.namespace.is_every() {
            true => state.tenancies_here(),
            false => vec![own.resolve(&TenancyName::default(), &service.namespace)],
        };
        let names = namespaces.iter().flat_map(|tenancy| {
            let names = match service.name.as_str() {
                WILDCARD => state.in_tenancy(tenancy, applications),
                name => BTreeSet::from([name.to_owned()]),
            };
            names
                .into_iter()
                .map(|name| ServiceName::new(tenancy, &name))
        });
        for name in names.filter(|name| *name.name != *OWN_SERVICE) {
            let consumers = services.entry(name).or_default();
            for consumer in &service.consumers {
                consumers.add(state, consumer);
            }
        }
    }
    let used = services.into_iter().filter(|(_, to)| !to.is_empty());
    used.map(|(ServiceName { tenancy, name }, consumers)| Exported {
        service: name.as_ref().to_owned(),
        namespace: tenancy.shown_namespace(),
        partition: tenancy.shown_partition(),
        consumers,
    })
    .collect()
}
