//! The Services of a Kubernetes cluster as the sidecars of its pods reach them: what is on each of their ports, and
//! the endpoints of all backends.
//!
//! The same for all pods of a namespace, which share one `Arc`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use legate_model::{DEFAULT_TENANCY, ServiceInstance, Tenancy};
use legate_routes::{Backend, Endpoint, Frontend, Listener};
use legate_store::ReadTxn;

use crate::kinds::BackendSnapshot;
use crate::value::queried;

/// The keys of a registration's metadata with the uid of its pod's cluster and with the pod's namespace. The operator
/// of the cluster writes them.
const CLUSTER: &str = "k8s-cluster-uid";
const NAMESPACE: &str = "k8s-namespace";

/// One `Arc` for all proxies, because snapshots of one store are compared by address.
static NONE: LazyLock<Arc<Frontends>> = LazyLock::new(Arc::default);

/// The Services of a cluster for callers of one namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frontends {
    /// The Services, ordered by name.
    pub services: Vec<ServiceFrontend>,
    /// What they lead to, each once.
    pub backends: Vec<BackendSnapshot>,
}

/// A Service of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceFrontend {
    /// `<name>.<namespace>`.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// What is on its ports.
    pub listeners: Vec<Arc<Listener>>,
}

queried! {
    Frontends, |all| all.services.iter().map(|one| one.listeners.len()).sum::<usize>() + all.backends.len();
}

/// No Services.
pub(crate) fn none() -> Arc<Frontends> {
    Arc::clone(&NONE)
}

/// The Services that a pod of a cluster reaches; none for other proxies.
pub(crate) fn frontends(txn: &ReadTxn<'_>, instance: &ServiceInstance) -> Arc<Frontends> {
    let meta = |key: &str| instance.meta.get(key).filter(|value| !value.is_empty());
    let (Some(cluster), Some(namespace)) = (meta(CLUSTER), meta(NAMESPACE)) else {
        return none();
    };
    // The operator of a cluster writes them for its whole partition.
    let tenancy = Tenancy {
        namespace: DEFAULT_TENANCY.into(),
        ..txn.tenancy().clone()
    };
    txn.in_tenancy(&tenancy, |txn| {
        let argument = format!("{cluster}/{namespace}");
        txn.shared("frontends", &argument, |txn| read(txn, cluster, namespace))
    })
}

fn read(txn: &ReadTxn<'_>, cluster: &str, namespace: &str) -> Frontends {
    let mut chosen: BTreeMap<String, (String, Arc<Frontend>)> = BTreeMap::new();
    for (row, frontend) in txn.frontends(cluster) {
        let name = format!("{}.{}", frontend.name, frontend.namespace);
        match frontend.callers.as_deref() {
            None => drop(chosen.entry(name).or_insert((row, frontend))),
            Some(callers) if callers == namespace => drop(chosen.insert(name, (row, frontend))),
            Some(_) => {}
        }
    }
    let mut backends: BTreeMap<Arc<Backend>, Arc<Vec<Endpoint>>> = BTreeMap::new();
    let services = chosen.into_iter().map(|(name, (row, frontend))| {
        let listeners = txn.gateway_listeners(&row);
        let used: BTreeSet<_> = listeners.iter().flat_map(|one| one.backends()).collect();
        for backend in used {
            if !backends.contains_key(backend) {
                let endpoints = txn.gateway_endpoints(&row, &backend.service_port());
                backends.insert(Arc::clone(backend), endpoints.unwrap_or_default());
            }
        }
        ServiceFrontend {
            name,
            addresses: frontend.addresses.clone(),
            listeners,
        }
    });
    let services = services.collect();
    let backends = backends.into_iter();
    let backends = backends.map(|(backend, endpoints)| BackendSnapshot { backend, endpoints });
    Frontends {
        services,
        backends: backends.collect(),
    }
}
