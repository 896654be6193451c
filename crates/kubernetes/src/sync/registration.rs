//! Builds the registration of one instance: with its node, marks and check. Pure. `wanted` decides which
//! instances a pod has.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::catalog::{
    CLUSTER, Id, Instance, MANAGED_BY, MANAGED_BY_VALUE, NAMESPACE, POD_NAME, POD_UID, SERVICE,
    SYNTHETIC, digest,
};
use super::facts::{Node, Pod, Service};
use crate::annotations::{self, Annotations};
use crate::tenancy::Tenants;

/// Settings of registrations.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Uid of the cluster's `kube-system` namespace.
    pub cluster: String,
    /// Meta of every node, `connectInject.consulNode.meta` of the chart.
    pub node_meta: BTreeMap<String, String>,
    /// How pods map to namespaces of the mesh.
    pub tenants: Tenants,
    /// The mark of this installation. Pods with another one are not registered.
    pub installation: String,
    /// Whether the cluster's Gateway API is served. Sidecars then lead to every port of their pod that a
    /// Service has.
    pub gateway_api: bool,
}

/// One instance with its node and its check.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// Name of the catalog's node.
    pub node: String,
    /// The instance.
    pub id: Id,
    /// The body of `PUT /v1/catalog/register`.
    pub body: Value,
    /// The catalog's state once it is written.
    pub instance: Instance,
}

/// The virtual IP of a service in the mesh, which is the address of its Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualIp {
    /// Namespace of the service; empty if namespaces are not used.
    pub namespace: String,
    /// Name of the service.
    pub service: String,
    /// The Service's `clusterIP`.
    pub address: String,
}

impl VirtualIp {
    /// Namespace and name of the service.
    #[must_use]
    pub fn place(&self) -> (String, String) {
        (self.namespace.clone(), self.service.clone())
    }
}

/// Name of the catalog's node for a node of the cluster.
#[must_use]
pub fn node_name(node: &str) -> String {
    format!("{node}-virtual")
}

/// The input for an instance.
pub(super) struct Context<'a> {
    pub(super) pod: &'a Pod,
    pub(super) service: Option<&'a Service>,
    pub(super) node: Option<&'a Node>,
    pub(super) settings: &'a Settings,
}

impl Context<'_> {
    /// The pod's namespace in the mesh, if namespaces are used.
    pub(super) fn namespace(&self) -> Option<String> {
        self.settings.tenants.namespace(&self.pod.key.namespace)
    }

    /// Metadata with the marks that identify our instances; the user's metadata cannot override them.
    pub(super) fn meta(&self, name: &str, parsed: &Annotations) -> Map<String, Value> {
        let pod_name = &self.pod.key.name;
        let own = parsed.meta.iter();
        let own = own.map(|(key, value)| {
            let value = value.replace(annotations::POD_NAME, pod_name);
            (key.clone(), value.into())
        });
        own.chain(self.marks(name)).collect()
    }

    pub(super) fn marks(&self, name: &str) -> Map<String, Value> {
        let key = &self.pod.key;
        let service = self.service.map_or(name, |service| &service.key.name);
        let marks = [
            (POD_NAME, key.name.as_str()),
            (POD_UID, &self.pod.uid),
            (SERVICE, service),
            (NAMESPACE, &key.namespace),
            (MANAGED_BY, MANAGED_BY_VALUE),
            (SYNTHETIC, "true"),
            (CLUSTER, &self.settings.cluster),
        ];
        let marks = marks.into_iter();
        marks
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect()
    }

    pub(super) fn virtual_ip(&self, name: &str) -> Option<VirtualIp> {
        // A headless Service has `None`.
        let address = self.service?.cluster_ip.as_str();
        address.parse::<IpAddr>().ok()?;
        Some(VirtualIp {
            namespace: self.namespace().unwrap_or_default(),
            service: name.to_owned(),
            address: address.to_owned(),
        })
    }

    pub(super) fn locality(&self) -> Option<Value> {
        let node = self.node.filter(|node| !node.region.is_empty())?;
        Some(match node.zone.as_str() {
            "" => json!({"Region": node.region}),
            zone => json!({"Region": node.region, "Zone": zone}),
        })
    }

    /// The registration of an instance, with its node and check.
    pub(super) fn registration(&self, mut service: Value, namespace: Option<&str>) -> Registration {
        let pod = self.pod;
        let text = |field: &str| service[field].as_str().unwrap_or_default().to_owned();
        let (id, name) = (text("ID"), text("Service"));
        let id = Id {
            namespace: namespace.unwrap_or_default().to_owned(),
            id,
        };
        let status = status(pod);
        let mut node_meta: Map<String, Value> = Map::new();
        for (key, value) in &self.settings.node_meta {
            node_meta.insert(key.clone(), value.as_str().into());
        }
        node_meta.insert(SYNTHETIC.to_owned(), "true".into());
        node_meta.insert(CLUSTER.to_owned(), self.settings.cluster.as_str().into());
        let node = node_name(&pod.node);
        let instance = Instance {
            owner: Some(pod.key.clone()),
            uid: pod.uid.clone(),
            service: name,
            digest: Some(digest(&service)),
            status: Some(status.to_owned()),
        };
        if let Some(namespace) = namespace {
            service["Namespace"] = namespace.into();
        }
        let body = json!({
            "Node": node,
            "Address": pod.host_ip,
            "NodeMeta": node_meta,
            "SkipNodeUpdate": true,
            "Check": check(pod, &id),
            "Service": service,
        });
        Registration {
            node,
            id,
            body,
            instance,
        }
    }
}

/// Status of a pod's checks.
#[must_use]
pub fn status(pod: &Pod) -> &'static str {
    if pod.serves() { "passing" } else { "critical" }
}

/// The check of an instance. Id, name, type and texts are those of consul-k8s.
#[must_use]
pub fn check(pod: &Pod, instance: &Id) -> Value {
    let output = match pod.serves() {
        true => "Kubernetes health checks passing".to_owned(),
        false => format!("Pod \"{}\" is not ready", pod.key),
    };
    let mut check = json!({
        "CheckID": format!("{}/{}", pod.key.namespace, instance.id),
        "Name": "Kubernetes Readiness Check",
        "Type": "kubernetes-readiness",
        "ServiceID": instance.id,
        "Status": status(pod),
        "Output": output,
    });
    if let Some(namespace) = instance.in_namespace() {
        check["Namespace"] = namespace.into();
    }
    check
}

/// The port of the proxy's metrics, which the injector writes if metrics are enabled.
pub(super) fn scrape_port(parsed: &Annotations) -> Option<u16> {
    let metrics = &parsed.metrics;
    metrics
        .scrape_port
        .filter(|_| metrics.enabled != Some(false))
}
