//! Everything that gateways depend on in a cluster, as watches report it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DynamicObject, PartialObjectMeta};
use legate_gateway_api::types::{GatewayAddress, ParametersReference};
use legate_gateway_api::{Key, Object, RouteKind, Service, ServicePort, World};
use legate_identity::{check_pair, split_certificates};
use legate_model::{Secret, ServiceName};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::class_config::ClassConfig;
use super::endpoints::Slice;
use super::infrastructure::GatewayMeta;
use super::kinds::{GROUP, Kind};
use super::pods::{Pods, tenancy};
use crate::annotations::MANAGED_BY;
use crate::sync::facts;
use crate::sync::objects::Change;
use crate::sync::registration::Settings;
use crate::tenancy::Tenants;

/// A watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Source {
    Resources(Kind),
    Services,
    Namespaces,
    Secrets,
    ConfigMaps,
    EndpointSlices,
    Deployments,
    /// The metadata of all pods.
    Pods,
    /// The pods of the mesh.
    MeshPods,
}

impl Source {
    /// The watches of Kubernetes' own kinds, which every cluster has.
    pub(super) const OF_KUBERNETES: [Self; 8] = [
        Self::Services,
        Self::Namespaces,
        Self::Secrets,
        Self::ConfigMaps,
        Self::EndpointSlices,
        Self::Deployments,
        Self::Pods,
        Self::MeshPods,
    ];

    /// The name of the kind.
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Resources(kind) => kind.as_str(),
            Self::Services => "Service",
            Self::Namespaces => "Namespace",
            Self::Secrets => "Secret",
            Self::ConfigMaps => "ConfigMap",
            Self::EndpointSlices => "EndpointSlice",
            Self::Deployments => "Deployment",
            Self::Pods | Self::MeshPods => "Pod",
        }
    }
}

/// An object of a watch. Not for output: it may be a Secret.
pub(super) enum Item {
    Resource(Kind, Box<DynamicObject>),
    Service(Box<core::Service>),
    Namespace(Box<core::Namespace>),
    Secret(Box<core::Secret>),
    ConfigMap(Box<core::ConfigMap>),
    EndpointSlice(Box<EndpointSlice>),
    Deployment(Box<Deployment>),
    Pod(Box<PartialObjectMeta<core::Pod>>),
    MeshPod(Box<core::Pod>),
}

/// What is known of an object for writing its status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    /// Of the version that was read last.
    pub(super) resource_version: String,
    pub(super) uid: String,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) status: Value,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: Secret,
}

/// A Deployment or a Service of which a Gateway is the owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnedObject {
    /// The name of the Gateway, which is in the same namespace.
    pub(super) gateway: String,
    pub(super) gateway_uid: String,
    /// Of a Deployment: whether a pod is ready.
    pub(super) ready: bool,
    /// Of a Service: its addresses.
    pub(super) addresses: Vec<GatewayAddress>,
}

/// The objects of a cluster. Complete when each started watch has listed its objects once.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    /// For the resolver, without what it says of the infrastructure.
    pub(super) world: World,
    /// The statuses of resources.
    pub(super) known: BTreeMap<(Kind, Key), Known>,
    /// Certificates that can be served.
    pub(super) pairs: BTreeMap<Key, Arc<Pair>>,
    /// By namespace and name of the Service, then by the slice's name.
    pub(super) slices: BTreeMap<Key, BTreeMap<String, Slice>>,
    /// The Deployments of gateways.
    pub(super) deployments: BTreeMap<Key, OwnedObject>,
    /// The Services of gateways.
    pub(super) services: BTreeMap<Key, OwnedObject>,
    /// Settings of infrastructure.
    pub(super) configs: BTreeMap<ParametersReference, ClassConfig>,
    /// Which pods are in the mesh.
    pub(super) pods: Pods,
    tenants: Tenants,
    lists: BTreeMap<Source, List>,
}

#[derive(Debug, Default)]
struct List {
    /// The objects, and the Service of an EndpointSlice.
    all: BTreeMap<Key, Key>,
    /// Those in the list that is in progress.
    listed: BTreeSet<Key>,
    complete: bool,
}

impl Cluster {
    /// An empty cluster, for a controller with this name.
    pub(super) fn new(controller: &str, settings: Settings) -> Self {
        let world = World {
            controller: controller.to_owned(),
            ..World::default()
        };
        Self {
            world,
            tenants: settings.tenants.clone(),
            pods: Pods::new(settings),
            ..Self::default()
        }
    }

    /// A watch starts; nothing is complete before it has listed its objects.
    pub(super) fn start(&mut self, source: Source) {
        self.lists.entry(source).or_default();
    }

    /// A watch has ended because its kind no longer exists.
    pub(super) fn end(&mut self, source: Source) {
        let list = self.lists.remove(&source).unwrap_or_default();
        for (key, of) in list.all {
            self.remove(source, &key, &of);
        }
    }

    /// Whether every watch has listed its objects.
    pub(super) fn is_complete(&self) -> bool {
        self.lists.values().all(|list| list.complete)
    }

    /// Applies an event of a watch. Returns whether what the resolver reads may have changed: the status of an
    /// object is not part of it.
    pub(super) fn apply(&mut self, source: Source, change: Change<Item>) -> bool {
        match change {
            Change::Begin => {
                self.lists.entry(source).or_default().listed.clear();
            }
            Change::Listed(item) => {
                let (key, _) = self.put(source, item);
                self.lists.entry(source).or_default().listed.insert(key);
            }
            Change::Complete => {
                let list = self.lists.entry(source).or_default();
                list.complete = true;
                let listed = std::mem::take(&mut list.listed);
                let gone = list.all.iter().filter(|(key, _)| !listed.contains(key));
                let gone: Vec<_> = gone.map(|(key, of)| (key.clone(), of.clone())).collect();
                for (key, of) in gone {
                    self.gone(source, &key, &of);
                }
            }
            Change::Applied(item) => return self.put(source, item).1,
            Change::Gone(item) => {
                let (key, of) = item.keys();
                self.gone(source, &key, &of);
            }
        }
        true
    }

    /// Says of each Service whether it needs a frontend: if pods behind it are in the mesh, and the
    /// service of the mesh with its name is another one, or leads all its ports to one of them; and to
    /// which of its ports that service leads.
    pub(super) fn mark_frontends(&mut self) {
        let selected = self.pods.selected();
        for (key, service) in &mut self.world.services {
            let ports = service.ports.iter().filter(|port| !port.udp).count();
            let selected = selected.get(key);
            service.of_mesh = selected.and_then(|all| all.service.clone());
            service.needs_frontend = selected.is_some_and(|all| all.is_other || ports > 1);
            for port in service.ports.iter_mut().filter(|port| !port.udp) {
                port.is_of_mesh = selected.is_some_and(|all| all.ports.contains(&port.port));
            }
        }
    }

    /// The Gateways of all classes.
    pub(super) fn gateways(&self) -> BTreeMap<Key, GatewayMeta> {
        let gateways = self.world.gateways.iter().filter_map(|gateway| {
            let key = gateway.meta.key();
            let known = self.known.get(&(Kind::Gateway, key.clone()))?;
            let meta = GatewayMeta {
                key: key.clone(),
                uid: known.uid.clone(),
                class: gateway.spec.gateway_class_name.clone(),
                annotations: known.annotations.clone(),
            };
            Some((key, meta))
        });
        gateways.collect()
    }

    /// The uid of an object.
    pub(super) fn uid(&self, kind: Kind, key: &Key) -> Option<&str> {
        let known = self.known.get(&(kind, key.clone()))?;
        Some(&known.uid)
    }

    /// An object with a status that was written, based on a version. The watch may already have reported
    /// a newer one.
    pub(super) fn wrote(&mut self, kind: Kind, key: &Key, written: (&str, &DynamicObject)) {
        let (before, object) = written;
        if let Some(known) = self.known.get_mut(&(kind, key.clone()))
            && known.resource_version == before
        {
            *known = known_of(object);
        }
    }

    fn gone(&mut self, source: Source, key: &Key, of: &Key) {
        if let Some(list) = self.lists.get_mut(&source) {
            list.all.remove(key);
        }
        self.remove(source, key, of);
    }

    /// Returns the object's name, and whether what the resolver reads of it may have changed.
    fn put(&mut self, source: Source, item: Item) -> (Key, bool) {
        let (key, of) = item.keys();
        let mut is_changed = true;
        let list = self.lists.entry(source).or_default();
        let before = list.all.insert(key.clone(), of.clone());
        if let Some(before) = before.filter(|before| *before != of) {
            self.remove(source, &key, &before);
        }
        match item {
            Item::Resource(kind, object) => {
                let known = known_of(&object);
                let before = self.known.insert((kind, key.clone()), known.clone());
                let is_same = before.is_some_and(|before| {
                    (before.uid, before.annotations) == (known.uid, known.annotations)
                });
                is_changed = self.put_resource(kind, &key, &document(&object)) || !is_same;
            }
            Item::Service(service) => {
                match owned(&service.metadata) {
                    Some(owned) => {
                        let addresses = addresses(&service);
                        let owned = OwnedObject { addresses, ..owned };
                        self.services.insert(key.clone(), owned);
                    }
                    None => drop(self.services.remove(&key)),
                }
                self.world
                    .services
                    .insert(key.clone(), service_of(&service));
                self.pods.put_service(facts::Service::of(*service));
            }
            Item::Namespace(namespace) => {
                let labels = namespace.metadata.labels.unwrap_or_default();
                self.world.namespaces.insert(key.name.clone(), labels);
            }
            Item::Secret(secret) => {
                let pair = pair(&secret);
                let verdict = pair.as_ref().map(|_| ()).map_err(Clone::clone);
                self.world.certificates.insert(key.clone(), verdict);
                match pair {
                    Ok(pair) => drop(self.pairs.insert(key.clone(), Arc::new(pair))),
                    Err(_) => drop(self.pairs.remove(&key)),
                }
            }
            Item::ConfigMap(map) => {
                let found = authorities(&map);
                self.world.authorities.insert(key.clone(), found);
            }
            Item::EndpointSlice(slice) => {
                let slices = self.slices.entry(of).or_default();
                slices.insert(key.name.clone(), Slice::of(&slice));
            }
            Item::Pod(pod) => {
                let labels = pod.metadata.labels.as_ref();
                let is_in_mesh = labels.is_some_and(|labels| labels.contains_key(MANAGED_BY));
                self.pods.put_any(key.clone(), is_in_mesh);
            }
            Item::MeshPod(pod) => self.pods.put(facts::Pod::of(*pod)),
            Item::Deployment(deployment) => {
                if let Some(owned) = owned(&deployment.metadata) {
                    let status = deployment.status.as_ref();
                    let ready = status.and_then(|status| status.ready_replicas);
                    let ready = ready.is_some_and(|ready| ready > 0);
                    let owned = OwnedObject { ready, ..owned };
                    self.deployments.insert(key.clone(), owned);
                }
            }
        }
        (key, is_changed)
    }

    /// Returns whether it is another one than before.
    fn put_resource(&mut self, kind: Kind, key: &Key, document: &Value) -> bool {
        let world = &mut self.world;
        match kind {
            Kind::GatewayClass => put(&mut world.classes, document),
            Kind::Gateway => put(&mut world.gateways, document),
            Kind::ListenerSet => put(&mut world.listener_sets, document),
            Kind::Route(RouteKind::Http) => put(&mut world.http_routes, document),
            Kind::Route(RouteKind::Grpc) => put(&mut world.grpc_routes, document),
            Kind::Route(RouteKind::Tls) => put(&mut world.tls_routes, document),
            Kind::Route(RouteKind::Tcp) => put(&mut world.tcp_routes, document),
            Kind::Route(RouteKind::Udp) => put(&mut world.udp_routes, document),
            Kind::ReferenceGrant => put(&mut world.grants, document),
            Kind::BackendTlsPolicy => put(&mut world.policies, document),
            Kind::GatewayClassConfig => {
                self.put_config(key, document);
                true
            }
            Kind::MeshService => {
                match mesh_service(&self.tenants, key, &document["spec"]) {
                    Some(service) => drop(world.mesh_services.insert(key.clone(), service)),
                    None => drop(world.mesh_services.remove(key)),
                }
                true
            }
        }
    }

    /// Settings that are not understood as a whole are not there: their gateways are not accepted.
    fn put_config(&mut self, key: &Key, document: &Value) {
        let reference = ClassConfig::reference(&key.name);
        match ClassConfig::decode(&document["spec"]) {
            Ok(config) => {
                self.world.parameters.insert(reference.clone());
                self.configs.insert(reference, config);
            }
            Err(error) => {
                tracing::warn!(name = key.name, %error, "the GatewayClassConfig is not understood");
                self.world.parameters.remove(&reference);
                self.configs.remove(&reference);
            }
        }
    }

    fn remove(&mut self, source: Source, key: &Key, of: &Key) {
        let world = &mut self.world;
        match source {
            Source::Resources(kind) => {
                self.known.remove(&(kind, key.clone()));
                match kind {
                    Kind::GatewayClass => remove(&mut world.classes, key),
                    Kind::Gateway => remove(&mut world.gateways, key),
                    Kind::ListenerSet => remove(&mut world.listener_sets, key),
                    Kind::Route(RouteKind::Http) => remove(&mut world.http_routes, key),
                    Kind::Route(RouteKind::Grpc) => remove(&mut world.grpc_routes, key),
                    Kind::Route(RouteKind::Tls) => remove(&mut world.tls_routes, key),
                    Kind::Route(RouteKind::Tcp) => remove(&mut world.tcp_routes, key),
                    Kind::Route(RouteKind::Udp) => remove(&mut world.udp_routes, key),
                    Kind::ReferenceGrant => remove(&mut world.grants, key),
                    Kind::BackendTlsPolicy => remove(&mut world.policies, key),
                    Kind::GatewayClassConfig => {
                        let reference = ClassConfig::reference(&key.name);
                        world.parameters.remove(&reference);
                        self.configs.remove(&reference);
                    }
                    Kind::MeshService => drop(world.mesh_services.remove(key)),
                }
            }
            Source::Services => {
                world.services.remove(key);
                self.services.remove(key);
                self.pods.remove_service(key);
            }
            Source::Namespaces => drop(world.namespaces.remove(&key.name)),
            Source::Secrets => {
                world.certificates.remove(key);
                self.pairs.remove(key);
            }
            Source::ConfigMaps => drop(world.authorities.remove(key)),
            Source::EndpointSlices => {
                if let Some(slices) = self.slices.get_mut(of) {
                    slices.remove(&key.name);
                    if slices.is_empty() {
                        self.slices.remove(of);
                    }
                }
            }
            Source::Deployments => drop(self.deployments.remove(key)),
            Source::Pods => self.pods.remove_any(key),
            Source::MeshPods => self.pods.remove(key),
        }
    }
}

impl Item {
    /// The object's namespace and name.
    pub(super) fn key(&self) -> Key {
        self.keys().0
    }

    /// The object's key, and that of the Service of an EndpointSlice.
    fn keys(&self) -> (Key, Key) {
        let metadata = match self {
            Self::Resource(_, object) => &object.metadata,
            Self::Service(object) => &object.metadata,
            Self::Namespace(object) => &object.metadata,
            Self::Secret(object) => &object.metadata,
            Self::ConfigMap(object) => &object.metadata,
            Self::EndpointSlice(object) => &object.metadata,
            Self::Deployment(object) => &object.metadata,
            Self::Pod(object) => &object.metadata,
            Self::MeshPod(object) => &object.metadata,
        };
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let label = metadata.labels.as_ref();
        let service = label.and_then(|labels| labels.get("kubernetes.io/service-name"));
        let of = service.map_or("", String::as_str);
        (Key::new(namespace, name), Key::new(namespace, of))
    }
}

/// Returns whether the object is another one than before.
fn put<T>(list: &mut Vec<Object<T>>, document: &Value) -> bool
where
    T: DeserializeOwned + Serialize + Default + PartialEq,
{
    let object = Object::decode(document);
    let same = |one: &&mut Object<T>| {
        (&one.meta.name, &one.meta.namespace) == (&object.meta.name, &object.meta.namespace)
    };
    match list.iter_mut().find(same) {
        Some(known) if *known == object => false,
        Some(known) => {
            *known = object;
            true
        }
        None => {
            list.push(object);
            true
        }
    }
}

fn remove<T>(list: &mut Vec<Object<T>>, key: &Key) {
    let same =
        |one: &Object<T>| (&one.meta.name, &one.meta.namespace) == (&key.name, &key.namespace);
    if let Some(at) = list.iter().position(same) {
        list.swap_remove(at);
    }
}

/// The service that a MeshService stands for. Those of peers are not reached.
fn mesh_service(tenants: &Tenants, key: &Key, spec: &Value) -> Option<ServiceName> {
    let is_of_peer = spec["peer"].as_str().is_some_and(|peer| !peer.is_empty());
    let name = spec["name"].as_str().filter(|_| !is_of_peer)?;
    let tenancy = tenancy(tenants, tenants.namespace(&key.namespace).as_deref());
    Some(ServiceName::new(&tenancy, name))
}

/// The parts of a resource that the resolver reads.
fn document(object: &DynamicObject) -> Value {
    json!({"metadata": object.metadata, "spec": object.data["spec"]})
}

fn known_of(object: &DynamicObject) -> Known {
    Known {
        resource_version: object.metadata.resource_version.clone().unwrap_or_default(),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        annotations: object.metadata.annotations.clone().unwrap_or_default(),
        status: object.data["status"].clone(),
    }
}

/// An object that belongs to a Gateway.
fn owned(metadata: &ObjectMeta) -> Option<OwnedObject> {
    let owners = metadata.owner_references.iter().flatten();
    let mut gateways = owners.filter(|one| {
        one.kind == Kind::Gateway.as_str()
            && one.api_version.split('/').next() == Some(GROUP)
            && one.controller == Some(true)
    });
    let owner = gateways.next()?;
    Some(OwnedObject {
        gateway: owner.name.clone(),
        gateway_uid: owner.uid.clone(),
        ..OwnedObject::default()
    })
}

fn service_of(service: &core::Service) -> Service {
    let spec = service.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_ref()).into_iter();
    let ports = ports.flatten().filter_map(|port| {
        Some(ServicePort {
            port: u16::try_from(port.port).ok()?,
            name: port.name.clone().unwrap_or_default(),
            udp: port.protocol.as_deref() == Some("UDP"),
            app_protocol: port.app_protocol.clone(),
            is_of_mesh: false,
        })
    });
    let external_name = spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName");
    let addresses = spec.and_then(|spec| spec.cluster_ips.as_ref()).into_iter();
    // A headless Service has `None`.
    let addresses = addresses.flatten().filter_map(|ip| ip.parse().ok());
    Service {
        external_name,
        addresses: addresses.filter(|_| !external_name).collect(),
        needs_frontend: false,
        of_mesh: None,
        ports: ports.collect(),
    }
}

/// The addresses at which clients reach a Service.
fn addresses(service: &core::Service) -> Vec<GatewayAddress> {
    let spec = service.spec.as_ref();
    let kind = spec.and_then(|spec| spec.type_.as_deref());
    let mut addresses = Vec::new();
    let mut add = |kind: &str, value: &str| {
        addresses.push(GatewayAddress {
            r#type: Some(kind.to_owned()),
            value: value.to_owned(),
        });
    };
    if kind == Some("LoadBalancer") {
        let status = service.status.as_ref();
        let balancer = status.and_then(|status| status.load_balancer.as_ref());
        let points = balancer.and_then(|balancer| balancer.ingress.as_ref());
        for point in points.into_iter().flatten() {
            if let Some(ip) = &point.ip {
                add("IPAddress", ip);
            }
            if let Some(name) = &point.hostname {
                add("Hostname", name);
            }
        }
    } else {
        let ips = spec.and_then(|spec| spec.cluster_ips.as_ref());
        for ip in ips.into_iter().flatten().filter(|ip| *ip != "None") {
            add("IPAddress", ip);
        }
    }
    addresses
}

/// The certificate and key of a Secret, or why it has none.
fn pair(secret: &core::Secret) -> Result<Pair, String> {
    let field = |name: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(name));
        let bytes = bytes.ok_or_else(|| format!("it has no {name}"))?;
        String::from_utf8(bytes.0.clone()).map_err(|_| format!("{name} is not a text in PEM"))
    };
    let (certificate, key) = (field("tls.crt")?, field("tls.key")?);
    check_pair(&certificate, &key).map_err(|error| error.to_string())?;
    let key = Secret::new(key);
    Ok(Pair { certificate, key })
}

/// The certificates of authorities in a ConfigMap, or why it has none.
fn authorities(map: &core::ConfigMap) -> Result<String, String> {
    let field = map.data.as_ref().and_then(|data| data.get("ca.crt"));
    let pem = field.ok_or("it has no ca.crt")?;
    let certificates = split_certificates(pem).map_err(|error| format!("ca.crt: {error}"))?;
    match certificates.is_empty() {
        true => Err("ca.crt has no certificate".to_owned()),
        false => Ok(pem.clone()),
    }
}
