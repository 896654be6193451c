//! What the catalog should say of a pod: a pure function of the pod, the Services that select it and
//! its node. Ids, meta and checks are those of consul-k8s, so that its tools and the UI know them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use legate_model::{ConnectProxy, Expose, ProxyMode};
use serde_json::{Map, Value, json};

use super::catalog::{
    CLUSTER, Id, Instance, MANAGED_BY, MANAGED_BY_VALUE, NAMESPACE, POD_NAME, POD_UID, SERVICE,
    SYNTHETIC, digest,
};
use super::facts::{Node, Pod, Service, Target};
use super::gateway;
use crate::annotations::{self, Annotations, Port};
use crate::tenancy::Tenants;

/// The port at which a sidecar takes connections of the mesh.
const PROXY_PORT: u16 = 20000;

/// What registrations are made with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Uid of the cluster's `kube-system` namespace.
    pub cluster: String,
    /// Meta of every node, `connectInject.consulNode.meta` of the chart.
    pub node_meta: BTreeMap<String, String>,
    /// Which namespaces of the mesh pods are in.
    pub tenants: Tenants,
}

/// What the catalog should say of one pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// These instances, in the order in which they are written.
    Instances {
        /// The instances.
        registrations: Vec<Registration>,
        /// The address at which the service is called through the mesh.
        virtual_ip: Option<VirtualIp>,
        /// What somebody should look at although it works.
        remark: Option<Reason>,
    },
    /// No instance: it is not in the mesh, or not any more.
    Nothing,
    /// It has no address yet.
    Later {
        /// The namespace of the mesh that it will be in; empty where namespaces are not used.
        namespace: String,
    },
    /// It cannot be said before somebody changes something.
    Wrong(Reason),
}

/// Something for people, on the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// One word, as Kubernetes' events have it.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
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
    /// What the catalog holds once it is written.
    pub instance: Instance,
}

/// A Service's address as a virtual IP of the service in the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualIp {
    /// Namespace of the service; empty where namespaces are not used.
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

/// The catalog's view of `pod`; `services` are those of its namespace.
#[must_use]
pub fn wanted<'a>(
    pod: &Pod,
    services: impl IntoIterator<Item = &'a Service>,
    node: Option<&Node>,
    settings: &Settings,
) -> Wanted {
    if pod.finished {
        return Wanted::Nothing;
    }
    let kind = pod.annotation("gateway-kind");
    let injected = pod.annotation("connect-inject-status") == Some(annotations::INJECTED);
    // An API gateway is registered by the controller that made it.
    if kind == Some("api-gateway") || (kind.is_none() && !injected) {
        return Wanted::Nothing;
    }
    if pod.node.is_empty() || pod.host_ip.is_empty() || pod.ip.is_empty() {
        let meshed = kind.is_none();
        let namespace = meshed.then(|| settings.tenants.namespace(&pod.key.namespace));
        return Wanted::Later {
            namespace: namespace.flatten().unwrap_or_default(),
        };
    }
    let (service, remark) = match service_of(pod, services) {
        Found::One(service, remark) => (Some(service), remark),
        Found::None => (None, None),
        Found::Ignored => return Wanted::Nothing,
        Found::Wrong(reason) => return Wanted::Wrong(reason),
    };
    let context = Context {
        pod,
        service,
        node,
        settings,
    };
    let made = match kind {
        Some(kind) => gateway::registration(&context, kind).map(|gateway| (vec![gateway], None)),
        None => meshed(&context),
    };
    match made {
        Ok((registrations, virtual_ip)) => Wanted::Instances {
            registrations,
            virtual_ip,
            remark,
        },
        Err(message) => Wanted::Wrong(Reason {
            reason: "NotRegistered",
            message,
        }),
    }
}

/// Which Service a pod is registered with.
enum Found<'a> {
    One(&'a Service, Option<Reason>),
    None,
    /// All that select it are not for the mesh.
    Ignored,
    Wrong(Reason),
}

fn service_of<'a>(pod: &Pod, services: impl IntoIterator<Item = &'a Service>) -> Found<'a> {
    let selecting = services.into_iter().filter(|service| service.selects(pod));
    let (ignored, mut found): (Vec<_>, Vec<_>) = selecting.partition(|service| service.ignored);
    found.sort_by(|a, b| a.key.cmp(&b.key));
    if let Some(name) = pod.annotation("kubernetes-service") {
        return match found.iter().find(|service| service.key.name == name) {
            Some(service) => Found::One(service, None),
            None => Found::Wrong(Reason {
                reason: "NoSuchService",
                message: format!(
                    "No Service {name:?} of this namespace selects the pod, which its annotation \
                     kubernetes-service names: correct the annotation or the Service's selector"
                ),
            }),
        };
    }
    let preferred = pod.annotation("connect-service");
    let preferred = found
        .iter()
        .find(|service| Some(service.key.name.as_str()) == preferred);
    match (preferred, found.as_slice()) {
        (Some(service), _) => Found::One(service, None),
        (None, []) if ignored.is_empty() => Found::None,
        (None, []) => Found::Ignored,
        (None, [service]) => Found::One(service, None),
        (None, [first, ..]) => {
            let names: Vec<&str> = found.iter().map(|s| s.key.name.as_str()).collect();
            let remark = Reason {
                reason: "SeveralServices",
                message: format!(
                    "The Services {} select the pod; it is registered with {}. Name one in the \
                     annotation kubernetes-service, or label the others service-ignore=true",
                    names.join(", "),
                    first.key.name
                ),
            };
            Found::One(first, Some(remark))
        }
    }
}

/// What an instance is made from.
pub(super) struct Context<'a> {
    pub(super) pod: &'a Pod,
    pub(super) service: Option<&'a Service>,
    pub(super) node: Option<&'a Node>,
    pub(super) settings: &'a Settings,
}

/// The service and its sidecar.
fn meshed(context: &Context<'_>) -> Result<(Vec<Registration>, Option<VirtualIp>), String> {
    let pod = context.pod;
    let parsed = Annotations::parse(&pod.annotations).map_err(|error| error.to_string())?;
    let found = context.service.map(|service| service.key.name.clone());
    let name = parsed.service.clone().or(found).ok_or_else(|| {
        "The pod has no service name: no Service selects it, and it has no annotation \
         connect-service"
            .to_owned()
    })?;
    let port = port_of(pod, &parsed)?;
    let (tags, meta) = (tags(pod, &parsed), context.meta(&name, &parsed));
    let virtual_ip = match parsed.written.transparent_proxy {
        true => context.virtual_ip(&name),
        false => None,
    };
    let tagged = virtual_ip.as_ref().map(|virtual_ip| {
        let service_port = context.service.and_then(|s| service_port(pod, s, port));
        json!({"virtual": {"Address": virtual_ip.address, "Port": service_port.unwrap_or(0)}})
    });
    let id = format!("{}-{name}", pod.key.name);
    let mut service = json!({
        "ID": id, "Service": name, "Address": pod.ip, "Port": port,
        "Tags": tags, "Meta": meta,
    });
    let mut proxy = json!({
        "Kind": "connect-proxy",
        "ID": format!("{id}-sidecar-proxy"), "Service": format!("{name}-sidecar-proxy"),
        "Address": pod.ip, "Port": PROXY_PORT,
        "Tags": tags, "Meta": meta,
        "Proxy": proxy_block(pod, &parsed, &name, port)?,
    });
    let namespace = context.namespace();
    for instance in [&mut service, &mut proxy] {
        if let Some(tagged) = &tagged {
            instance["TaggedAddresses"] = tagged.clone();
        }
        if let Some(locality) = context.locality() {
            instance["Locality"] = locality;
        }
    }
    let registrations =
        [service, proxy].map(|instance| context.registration(instance, namespace.as_deref()));
    Ok((registrations.into(), virtual_ip))
}

fn port_of(pod: &Pod, parsed: &Annotations) -> Result<u16, String> {
    match parsed.port() {
        None => Ok(0),
        Some(Port::Number(number)) => Ok(*number),
        Some(Port::Name(name)) => pod.ports.get(name).copied().ok_or_else(|| {
            format!(
                "annotation connect-service-port names the port {name:?}, which no container has"
            )
        }),
    }
}

/// Tags may have the pod's name in them.
fn tags(pod: &Pod, parsed: &Annotations) -> Vec<String> {
    let tags = parsed.tags.iter();
    tags.map(|tag| tag.replace(annotations::POD_NAME, &pod.key.name))
        .collect()
}

fn proxy_block(pod: &Pod, parsed: &Annotations, name: &str, port: u16) -> Result<Value, String> {
    let upstreams = parsed.upstreams.iter().map(|upstream| {
        let registered = upstream.registered(|name| pod.ports.get(name).copied());
        registered.map(Arc::new).ok_or_else(|| {
            format!(
                "annotation connect-service-upstreams names the port {} for {}, which no container \
                 has",
                upstream.port, upstream.name
            )
        })
    });
    let mut config = parsed.proxy_config.clone();
    if let Some(port) = scrape_port(parsed) {
        let address = format!("0.0.0.0:{port}");
        config.insert("envoy_prometheus_bind_addr".to_owned(), address.into());
    }
    let block = ConnectProxy {
        destination_service_name: name.to_owned(),
        destination_service_id: format!("{}-{name}", pod.key.name),
        local_service_address: match port {
            0 => String::new(),
            _ => "127.0.0.1".to_owned(),
        },
        local_service_port: port,
        upstreams: upstreams.collect::<Result<_, _>>()?,
        mode: match parsed.written.transparent_proxy {
            true => ProxyMode::Transparent,
            false => ProxyMode::default(),
        },
        expose: Expose {
            paths: parsed.written.expose_paths.clone(),
            ..Expose::default()
        },
        config,
        ..ConnectProxy::default()
    };
    let mut block = serde_json::to_value(&block)
        .map_err(|error| format!("the proxy cannot be written: {error}"))?;
    let written = block.get_mut("Upstreams").and_then(Value::as_array_mut);
    for (written, upstream) in written.into_iter().flatten().zip(&parsed.upstreams) {
        upstream.name_tenant(written);
    }
    Ok(block)
}

/// Where Prometheus finds the proxy's metrics: the injector writes the port where they are offered.
pub(super) fn scrape_port(parsed: &Annotations) -> Option<u16> {
    let metrics = &parsed.metrics;
    metrics
        .scrape_port
        .filter(|_| metrics.enabled != Some(false))
}

/// The Service's port whose pods' port is `port`.
fn service_port(pod: &Pod, service: &Service, port: u16) -> Option<u16> {
    let leads = |target: &Target| match target {
        Target::Number(number) => *number == port,
        Target::Name(name) => pod.ports.get(name) == Some(&port),
    };
    let found = service.ports.iter().find(|own| leads(&own.target));
    found.map(|own| own.port)
}

impl Context<'_> {
    /// The pod's namespace in the mesh, where namespaces are used.
    pub(super) fn namespace(&self) -> Option<String> {
        self.settings.tenants.namespace(&self.pod.key.namespace)
    }

    /// The marks by which instances are found again; those of the user may add to them only.
    fn meta(&self, name: &str, parsed: &Annotations) -> Map<String, Value> {
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

    fn virtual_ip(&self, name: &str) -> Option<VirtualIp> {
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

    /// An instance with the node that it is on and its check.
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

/// The check of an instance. Id, name, type and texts are consul-k8s'.
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
