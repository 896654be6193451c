//! The parts of pods, Services and nodes that the catalog depends on. Objects are reduced to these on
//! arrival, so that thousands of pods need little memory.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::PartialObjectMeta;

use crate::annotations::PREFIX;

pub use legate_gateway_api::Key;

/// The key of an object. A pod of a StatefulSet keeps it when it is recreated.
fn key(metadata: &ObjectMeta) -> Key {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    Key {
        namespace: text(&metadata.namespace),
        name: text(&metadata.name),
    }
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// Its namespace and name.
    pub key: Key,
    /// Unique for every pod, also among those of the same name.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations under [`PREFIX`].
    pub annotations: BTreeMap<String, String>,
    /// The node that it runs on; empty until it is scheduled.
    pub node: String,
    /// The node's address; empty until it is scheduled.
    pub host_ip: String,
    /// Its own address; empty until it is assigned.
    pub ip: String,
    /// Whether it also has an address of the other IP version.
    pub both_versions: bool,
    /// Whether it is ready.
    pub ready: bool,
    /// Whether its deletion has begun.
    pub terminating: bool,
    /// Whether its containers have ended for good.
    pub finished: bool,
    /// Its containers' named ports.
    pub ports: BTreeMap<String, u16>,
}

impl Pod {
    /// Extracts the relevant parts of a pod.
    #[must_use]
    pub fn of(pod: core::Pod) -> Pod {
        let key = key(&pod.metadata);
        let (spec, status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        let mut annotations = pod.metadata.annotations.unwrap_or_default();
        annotations.retain(|key, _| key.starts_with(PREFIX));
        // The CA's PEM, which only the sidecar uses.
        annotations.remove(crate::annotations::CA_CERTS);
        let ready = status.conditions.iter().flatten();
        let ready = ready
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let phase = status.phase.unwrap_or_default();
        let init = spec.init_containers.iter().flatten();
        let ports = spec.containers.iter().chain(init);
        let ports = ports.flat_map(|container| container.ports.iter().flatten());
        let ports = ports.filter_map(|port| {
            let number = u16::try_from(port.container_port).ok()?;
            Some((port.name.clone()?, number))
        });
        let ip = status.pod_ip.unwrap_or_default();
        let mut all = status.pod_ips.iter().flatten();
        let both_versions = all.any(|other| other.ip.contains(':') != ip.contains(':'));
        Pod {
            key,
            uid: pod.metadata.uid.unwrap_or_default(),
            labels: pod.metadata.labels.unwrap_or_default(),
            annotations,
            node: spec.node_name.unwrap_or_default(),
            host_ip: status.host_ip.unwrap_or_default(),
            ip,
            both_versions,
            ready,
            terminating: pod.metadata.deletion_timestamp.is_some(),
            finished: phase == "Succeeded" || phase == "Failed",
            ports: ports.collect(),
        }
    }

    /// Whether callers may be routed to it. A terminating pod gets no new requests.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.ready && !self.terminating
    }

    /// A trimmed annotation under [`PREFIX`]; `None` if it is absent or empty.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&str> {
        let value = self.annotations.get(&format!("{PREFIX}{name}"))?.trim();
        (!value.is_empty()).then_some(value)
    }
}

/// A Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Service {
    /// Its namespace and name.
    pub key: Key,
    /// The labels of its pods; empty if it selects none.
    pub selector: BTreeMap<String, String>,
    /// Whether `service-ignore` excludes it from the mesh.
    pub ignored: bool,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub kind: String,
    /// Its virtual address; empty or `None` if it has none.
    pub cluster_ip: String,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// The address of its load balancer, once assigned.
    pub balancer: Option<String>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServicePort {
    /// The Service's port.
    pub port: u16,
    /// The pods' port.
    pub target: Target,
    /// Whether it is for TCP.
    pub tcp: bool,
}

/// A port of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// Its number.
    Number(u16),
    /// The name of a container's port.
    Name(String),
}

impl Service {
    /// Extracts the relevant parts of a Service.
    #[must_use]
    pub fn of(service: core::Service) -> Service {
        let labels = service.metadata.labels.as_ref();
        let ignored = labels.and_then(|labels| labels.get(&format!("{PREFIX}service-ignore")));
        let ignored = ignored.is_some_and(|value| value == "true");
        let key = key(&service.metadata);
        let spec = service.spec.unwrap_or_default();
        let ports = spec.ports.iter().flatten().filter_map(|port| {
            let number = u16::try_from(port.port).ok()?;
            let target = match &port.target_port {
                None => Target::Number(number),
                Some(IntOrString::Int(0)) => Target::Number(number),
                Some(IntOrString::Int(target)) => Target::Number(u16::try_from(*target).ok()?),
                Some(IntOrString::String(name)) => Target::Name(name.clone()),
            };
            Some(ServicePort {
                port: number,
                target,
                tcp: port.protocol.as_deref().is_none_or(|name| name == "TCP"),
            })
        });
        let balancer = service.status.and_then(|status| status.load_balancer);
        let balancer = balancer.and_then(|balancer| balancer.ingress?.into_iter().next());
        Service {
            key,
            selector: spec.selector.unwrap_or_default(),
            ignored,
            kind: spec.type_.unwrap_or_else(|| "ClusterIP".to_owned()),
            cluster_ip: spec.cluster_ip.unwrap_or_default(),
            ports: ports.collect(),
            balancer: balancer.and_then(|first| first.ip.or(first.hostname)),
        }
    }

    /// Whether it selects the pod.
    #[must_use]
    pub fn selects(&self, pod: &Pod) -> bool {
        let has = |(key, value): (&String, &String)| pod.labels.get(key) == Some(value);
        self.key.namespace == pod.key.namespace
            && !self.selector.is_empty()
            && self.selector.iter().all(has)
    }
}

/// A node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `topology.kubernetes.io/region`, or empty.
    pub region: String,
    /// `topology.kubernetes.io/zone`, or empty.
    pub zone: String,
}

impl Node {
    /// Extracts the relevant parts of a node.
    #[must_use]
    pub fn of(node: PartialObjectMeta<core::Node>) -> Node {
        let labels = node.metadata.labels.unwrap_or_default();
        let label = |name: &str| {
            let value = labels.get(&format!("topology.kubernetes.io/{name}"));
            value.cloned().unwrap_or_default()
        };
        Node {
            name: node.metadata.name.unwrap_or_default(),
            region: label("region"),
            zone: label("zone"),
        }
    }
}
