//! Which pods are in the mesh, and as what: a gateway never calls one of these in plain text. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use legate_gateway_api::Key;
use legate_model::{ServiceName, Tenancy};
use legate_routes::Endpoint;
use serde_json::Value;

use crate::sync::facts::{Pod, Service, ServicePort};
use crate::sync::registration::Settings;
use crate::sync::wanted::{PORTS, PROXY_PORT, Wanted, target_port, wanted};
use crate::tenancy::Tenants;

/// The pods of the cluster.
#[derive(Debug, Default)]
pub(super) struct Pods {
    settings: Settings,
    /// Every pod, and whether it says that it is in the mesh.
    all: BTreeMap<Key, bool>,
    /// What is known of those in the mesh.
    in_mesh: BTreeMap<Key, Pod>,
    /// The addresses of these.
    addresses: BTreeMap<IpAddr, Key>,
    services: BTreeMap<Key, Service>,
    /// The sidecars of those that can be called.
    sidecars: BTreeMap<Key, Sidecar>,
}

/// How a pod is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call<'a> {
    /// Directly.
    Plain,
    /// Through its sidecar.
    Mesh(&'a Sidecar),
    /// Not at all, because too little is known of it.
    Never,
}

/// The sidecar of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sidecar {
    /// The service that it proves to be.
    pub(super) identity: ServiceName,
    /// The port of the application that it usually leads to.
    application: u16,
    /// The others that it leads to.
    further: BTreeSet<u16>,
    /// The Services that select its pod, without those that are excluded from the mesh: their names, and
    /// the ports to which the service of the mesh with this name leads.
    services: BTreeMap<String, BTreeSet<u16>>,
}

/// The pods of the mesh that a Service selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selected {
    /// The service of the mesh with the Service's name, unless all are others.
    pub(super) service: Option<ServiceName>,
    /// Whether one of them is another service than the Service's name says.
    pub(super) is_other: bool,
    /// The ports of the Service to which the service of the mesh with its name leads, for all of them.
    pub(super) ports: BTreeSet<u16>,
}

impl Sidecar {
    /// Its own port.
    pub(super) const PORT: u16 = PROXY_PORT;

    /// Its endpoint at this address, for a port of the application if it leads there.
    pub(super) fn endpoint(&self, address: IpAddr, port: u16) -> Option<Endpoint> {
        let is_usual = port == self.application;
        (is_usual || self.further.contains(&port)).then(|| Endpoint {
            address,
            port: Self::PORT,
            identity: Some(self.identity.clone()),
            application: (!is_usual).then_some(port),
        })
    }
}

impl Pods {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// How an endpoint is called, which names its pod unless somebody has written it by hand.
    pub(super) fn call(&self, pod: Option<&Key>, address: IpAddr) -> Call<'_> {
        let Some(pod) = pod.or_else(|| self.addresses.get(&address)) else {
            return Call::Plain;
        };
        match (self.all.get(pod), self.sidecars.get(pod)) {
            (Some(false), None) => Call::Plain,
            (Some(true), Some(sidecar)) => Call::Mesh(sidecar),
            _ => Call::Never,
        }
    }

    /// A pod, and whether it says that it is in the mesh.
    pub(super) fn put_any(&mut self, key: Key, is_in_mesh: bool) {
        self.all.insert(key, is_in_mesh);
    }

    pub(super) fn remove_any(&mut self, key: &Key) {
        self.all.remove(key);
    }

    /// A pod of the mesh.
    pub(super) fn put(&mut self, pod: Pod) {
        let key = pod.key.clone();
        self.remove(&key);
        if let Ok(address) = pod.ip.parse() {
            self.addresses.insert(address, key.clone());
        }
        self.in_mesh.insert(key.clone(), pod);
        self.update(&key);
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let pod = self.in_mesh.remove(key);
        self.sidecars.remove(key);
        // Another pod may have its address now.
        if let Some(address) = pod.and_then(|pod| pod.ip.parse().ok())
            && self.addresses.get(&address) == Some(key)
        {
            self.addresses.remove(&address);
        }
    }

    /// A Service, which pods without an annotation are named after.
    pub(super) fn put_service(&mut self, service: Service) {
        let key = service.key.clone();
        if self.services.get(&key) != Some(&service) {
            self.services.insert(key.clone(), service);
            self.update_all(&key.namespace);
        }
    }

    pub(super) fn remove_service(&mut self, key: &Key) {
        if self.services.remove(key).is_some() {
            self.update_all(&key.namespace);
        }
    }

    /// The Services that select pods of the mesh.
    pub(super) fn selected(&self) -> BTreeMap<Key, Selected> {
        let mut all: BTreeMap<Key, Selected> = BTreeMap::new();
        for (pod, sidecar) in &self.sidecars {
            for (service, ports) in &sidecar.services {
                let is_other = *sidecar.identity.name != **service;
                let selected = all.entry(Key::new(&pod.namespace, service));
                let selected = selected.or_insert_with(|| Selected {
                    service: None,
                    is_other,
                    ports: ports.clone(),
                });
                selected.is_other |= is_other;
                if !is_other && selected.service.is_none() {
                    selected.service = Some(sidecar.identity.clone());
                }
                selected.ports.retain(|port| ports.contains(port));
            }
        }
        all
    }

    fn update_all(&mut self, namespace: &str) {
        let pods = self.in_mesh.keys().filter(|key| key.namespace == namespace);
        let pods: BTreeSet<_> = pods.cloned().collect();
        pods.iter().for_each(|key| self.update(key));
    }

    fn update(&mut self, key: &Key) {
        match self.sidecar(key) {
            Some(sidecar) => drop(self.sidecars.insert(key.clone(), sidecar)),
            None => drop(self.sidecars.remove(key)),
        }
    }

    /// The sidecar of a pod as the catalog has it.
    fn sidecar(&self, key: &Key) -> Option<Sidecar> {
        let pod = self.in_mesh.get(key)?;
        let services = self.services.values();
        let services: Vec<_> = services.filter(|service| service.selects(pod)).collect();
        let own = services.iter().copied();
        let Wanted::Instances { registrations, .. } = wanted(pod, own, None, &self.settings) else {
            return None;
        };
        let [application, sidecar] = &registrations[..] else {
            return None;
        };
        let further = sidecar.body["Service"]["Proxy"]["Config"][PORTS].as_array();
        let further = further.into_iter().flatten().filter_map(Value::as_u64);
        let services = services.into_iter().filter(|service| !service.ignored);
        let service = &application.body["Service"];
        let namespace = Some(application.id.namespace.as_str());
        let namespace = namespace.filter(|namespace| !namespace.is_empty());
        let tenancy = tenancy(&self.settings.tenants, namespace);
        let identity = ServiceName::new(&tenancy, service["Service"].as_str()?);
        let application = u16::try_from(service["Port"].as_u64()?).ok()?;
        let services = services.map(|service| {
            let is_it = *identity.name == *service.key.name;
            let leads =
                |port: &&ServicePort| is_it && target_port(pod, &port.target) == Some(application);
            let ports = service.ports.iter().filter(|port| port.tcp && leads(port));
            let ports = ports.map(|port| port.port).collect();
            (service.key.name.clone(), ports)
        });
        Some(Sidecar {
            further: further.filter_map(|port| port.try_into().ok()).collect(),
            services: services.collect(),
            application,
            identity,
        })
    }
}

/// A namespace of the mesh in the partition of this cluster.
pub(super) fn tenancy(tenants: &Tenants, namespace: Option<&str>) -> Tenancy {
    let default = Tenancy::default();
    Tenancy {
        partition: tenants.partition().map_or(default.partition, Into::into),
        namespace: namespace.map_or(default.namespace, Into::into),
        peer: default.peer,
    }
}
