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
    /// The name of the service of the mesh that has some of its ports.
    pub mesh_service: String,
    /// These ports: callers with a chain for that service at one of the addresses reach them by it.
    pub mesh_ports: Vec<u16>,
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
    let mut backends: BTreeMap<Arc<Backend>, Option<Arc<Vec<Endpoint>>>> = BTreeMap::new();
    let services = chosen.into_iter().map(|(name, (row, frontend))| {
        let listeners = txn.gateway_listeners(&row);
        let used: BTreeSet<_> = listeners.iter().flat_map(|one| one.backends()).collect();
        for backend in used {
            // Several Services may lead to it, and the endpoints of one are perhaps not written yet.
            let known = backends.entry(Arc::clone(backend)).or_default();
            if known.is_none() {
                *known = txn.gateway_endpoints(&row, &backend.service_port());
            }
        }
        ServiceFrontend {
            name,
            addresses: frontend.addresses.clone(),
            mesh_service: frontend.name.clone(),
            mesh_ports: frontend.mesh_ports.clone(),
            listeners,
        }
    });
    let services = services.collect();
    let backends = backends.into_iter();
    let backends = backends.map(|(backend, endpoints)| BackendSnapshot {
        backend,
        endpoints: endpoints.unwrap_or_default(),
    });
    Frontends {
        services,
        backends: backends.collect(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use legate_store::{GatewayContent, Store, Unavailable};
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug)]
    struct Refused;

    impl From<Unavailable> for Refused {
        fn from(_: Unavailable) -> Self {
            Self
        }
    }

    /// Writes a frontend of a Service that leads to the Service `web`.
    fn put(store: &Store, owner: &str, (service, callers): (&str, Option<&str>), ready: &[&str]) {
        let of = json!({"Namespace": "shop", "Name": "web", "Port": 80});
        let mut backend = of.clone();
        backend["Protocol"] = json!("Tcp");
        let listener = json!({
            "Port": 80, "HostPorts": "Any", "Chains": [{"Tls": "None", "Content": 0}],
            "Contents": [{"Tcp": [{"Weight": 1, "Target": {"Backend": backend}}]}],
        });
        let frontend = json!({
            "Namespace": "shop", "Name": service, "Addresses": ["10.96.0.1"], "Callers": callers,
        });
        let endpoints: Vec<Value> = ready
            .iter()
            .map(|address| json!({"Address": address, "Port": 80}))
            .collect();
        let of = serde_json::from_value(of).unwrap();
        let endpoints = serde_json::from_value(json!(endpoints)).unwrap();
        let content = GatewayContent {
            listeners: vec![serde_json::from_value(listener).unwrap()],
            endpoints: (!ready.is_empty())
                .then_some((of, endpoints))
                .into_iter()
                .collect(),
            owner: owner.to_owned(),
            frontend: Some(serde_json::from_value(frontend).unwrap()),
            ..GatewayContent::default()
        };
        let name = format!("_{service}.shop.{}", callers.unwrap_or_default());
        let written = store.write(move |txn| {
            txn.put_gateway(&name, &content).expect("it is valid");
            Ok::<(), Refused>(())
        });
        written.now_or_never().unwrap().unwrap();
    }

    /// The Services with the addresses of `web` for a pod of this cluster and namespace.
    fn of(store: &Store, cluster: &str, namespace: &str) -> (Vec<String>, Vec<String>) {
        let meta = json!({"k8s-cluster-uid": cluster, "k8s-namespace": namespace});
        let instance =
            json!({"Kind": "connect-proxy", "Service": "web-sidecar-proxy", "Meta": meta});
        let instance: ServiceInstance = serde_json::from_value(instance).unwrap();
        let all = frontends(&store.state().read(), &instance);
        let names = all.services.iter().map(|one| one.name.clone());
        let endpoints = all.backends.iter().flat_map(|one| one.endpoints.iter());
        let addresses = endpoints.map(|one| one.address.to_string());
        (names.collect(), addresses.collect())
    }

    #[test]
    fn pods_have_the_frontends_of_their_cluster_and_namespace() {
        let store = Store::new();
        put(&store, "one", ("a", None), &[]);
        put(&store, "one", ("b", None), &["10.0.0.1"]);
        put(&store, "one", ("b", Some("shop")), &["10.0.0.2"]);
        put(&store, "one", ("c", Some("shop")), &[]);
        put(&store, "two", ("d", None), &[]);
        let names = |all: &[&str]| {
            all.iter()
                .map(|one| format!("{one}.shop"))
                .collect::<Vec<_>>()
        };
        let (services, endpoints) = of(&store, "one", "shop");
        assert_eq!(services, names(&["a", "b", "c"]));
        assert_eq!(endpoints, ["10.0.0.2"], "those of `a` are not written yet");
        let (services, endpoints) = of(&store, "one", "other");
        assert_eq!(services, names(&["a", "b"]));
        assert_eq!(endpoints, ["10.0.0.1"]);
        assert_eq!(of(&store, "two", "shop").0, names(&["d"]));
        assert_eq!(of(&store, "", "shop").0, names(&[]), "it is no pod");
    }
}
