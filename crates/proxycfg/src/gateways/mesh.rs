//! The services that are reached in the mesh, with the instances of each of their subsets.

use std::sync::Arc;
use std::time::Duration;

use legate_model::{ConfigEntry, ConfigKind, LoadBalancer, ServiceName};
use legate_store::ReadTxn;

use crate::chain::{self, Instances};
use crate::same;

/// The services of a partition that are reached in the mesh, by namespace and name.
#[derive(Clone, Debug, Default)]
pub struct MeshServices(pub Vec<Arc<MeshService>>);

impl PartialEq for MeshServices {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && std::iter::zip(&self.0, &other.0).all(|(a, b)| same::shared(a, b))
    }
}

/// A service with its instances, as gateways reach them.
#[derive(Clone, Debug)]
pub struct MeshService {
    /// The service.
    pub service: ServiceName,
    /// The connect timeout of its resolver, zero if it has none.
    pub connect_timeout: Duration,
    /// The load balancing of its resolver.
    pub load_balancer: Option<LoadBalancer>,
    /// The instances for connections to no subset: those of the default subset, or all.
    pub instances: Arc<Instances>,
    /// The instances of each subset.
    pub subsets: Vec<(String, Arc<Instances>)>,
}

impl MeshService {
    pub(crate) fn size(&self) -> usize {
        let subsets = self.subsets.iter().map(|(_, instances)| instances);
        let all = [&self.instances].into_iter().chain(subsets);
        all.map(|instances| 1 + instances.len()).sum()
    }
}

impl PartialEq for MeshService {
    fn eq(&self, other: &Self) -> bool {
        let pairs = || std::iter::zip(&self.subsets, &other.subsets);
        self.service == other.service
            && self.connect_timeout == other.connect_timeout
            && self.load_balancer == other.load_balancer
            && same::shared(&self.instances, &other.instances)
            && self.subsets.len() == other.subsets.len()
            && pairs().all(|(a, b)| a.0 == b.0 && same::shared(&a.1, &b.1))
    }
}

/// The names of the services of the current partition, including those that only their proxies name.
pub(crate) fn mesh_names(txn: &ReadTxn<'_>) -> Arc<Vec<ServiceName>> {
    txn.shared("names of services and destinations", "", |txn| {
        let mut all = Vec::new();
        for tenancy in txn.tenancies_here() {
            txn.in_tenancy(&tenancy, |txn| {
                let names = txn.shared("names in a namespace", "", ReadTxn::names_in_mesh);
                all.extend(names.iter().map(|name| ServiceName::new(&tenancy, name)));
            });
        }
        all
    })
}

/// A service, `None` without instances in the mesh.
pub(crate) fn mesh_service(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
) -> Arc<Option<Arc<MeshService>>> {
    txn.in_tenancy(&service.tenancy, |txn| of_tenancy(txn, &service.name))
}

fn of_tenancy(txn: &ReadTxn<'_>, name: &str) -> Arc<Option<Arc<MeshService>>> {
    txn.shared("service in the mesh", name, |txn| {
        let all = chain::instances(txn, name);
        if all.is_empty() {
            return None;
        }
        let entry = txn.config_entry(ConfigKind::ServiceResolver, name);
        let mut service = MeshService {
            service: ServiceName::new(txn.tenancy(), name),
            connect_timeout: Duration::ZERO,
            load_balancer: None,
            instances: all,
            subsets: Vec::new(),
        };
        if let Some(ConfigEntry::ServiceResolver(resolver)) = entry.as_deref() {
            service.connect_timeout = resolver.connect_timeout;
            service.load_balancer.clone_from(&resolver.load_balancer);
            for (subset, definition) in &resolver.subsets {
                let instances = chain::of_subset(txn, name, subset, definition);
                if *subset == resolver.default_subset {
                    service.instances = Arc::clone(&instances);
                }
                service.subsets.push((subset.clone(), instances));
            }
        }
        Some(Arc::new(service))
    })
}
