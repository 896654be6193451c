//! What is known of one proxy: updates in, effects out. No IO, no clock, no tasks.
//!
//! The order of updates does not matter: once all have arrived, the snapshot is the same. An
//! update for something that is not watched any more changes nothing, so that a late answer cannot
//! bring back what was dropped.
//!
//! A snapshot is complete when the registration with its central configuration, the roots, the
//! leaf, the intentions and the mesh entry were seen ("seen" may mean that there is none). Upstreams
//! are not waited for: one that is not known yet is left out, one whose instances have not arrived
//! says so.
//!
//! A registration that disappears is waited for: nothing more is published, what was published
//! stays, and when the proxy is registered again only what differs is published.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use legate_ca::Leaf;
use legate_intentions::Action;
use legate_model::{
    CaRoots, CheckServiceNode, ConfigEntry, Intention, Mesh, Protocol, ServiceInstance,
    ServiceKind, TrustDomain, Upstream, UpstreamType, WILDCARD,
};

use crate::error::WatchError;
use crate::merge::{self, Central};
use crate::same;
use crate::snapshot::{ProxyId, Snapshot, UpstreamSnapshot};

/// Something was read. Named after the correlation ids of Consul's proxycfg where it has one.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    /// The proxy's registration, or that there is none now.
    Registration(Option<Registered>),
    /// The `proxy-defaults` entry, or that there is none.
    ProxyDefaults(Option<Arc<ConfigEntry>>),
    /// The `service-defaults` entry of a destination, or that there is none.
    ServiceDefaults {
        service: Arc<str>,
        entry: Option<Arc<ConfigEntry>>,
    },
    /// The trusted roots.
    Roots(TrustDomain, Arc<CaRoots>),
    /// A certificate; it names its service.
    Leaf(Arc<Leaf>),
    /// The intentions for a destination, in order of precedence.
    Intentions {
        destination: Arc<str>,
        list: Arc<[Arc<Intention>]>,
    },
    /// The `mesh` entry, or that there is none.
    Mesh(Option<Arc<ConfigEntry>>),
    /// The instances of an upstream that can be reached in the mesh.
    UpstreamTarget {
        service: Arc<str>,
        instances: Arc<[CheckServiceNode]>,
    },
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registration(_) => f.write_str("registration"),
            Self::ProxyDefaults(_) => f.write_str("proxy-defaults"),
            Self::ServiceDefaults { service, .. } => write!(f, "service-defaults:{service}"),
            Self::Roots(..) => f.write_str("roots"),
            Self::Leaf(_) => f.write_str("leaf"),
            Self::Intentions { .. } => f.write_str("intentions"),
            Self::Mesh(_) => f.write_str("mesh"),
            Self::UpstreamTarget { service, .. } => write!(f, "upstream-target:{service}"),
        }
    }
}

/// A registration with what is needed of its node.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) instance: Arc<ServiceInstance>,
    pub(crate) node_address: Arc<str>,
}

/// Watches that depend on what was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Derived {
    /// Leaf, intentions and `service-defaults` of the service the proxy stands for.
    Destination(Arc<str>),
    /// `service-defaults` and instances of a service that an upstream leads to.
    Upstream(Arc<str>),
}

/// What follows from an update. Stops come before starts.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) stop: Vec<Derived>,
    pub(crate) start: Vec<Derived>,
    /// The registration cannot be served: this ends the source.
    pub(crate) end: Option<WatchError>,
}

/// Everything known of one proxy.
#[derive(Debug)]
pub(crate) struct State {
    proxy: ProxyId,
    datacenter: Arc<str>,
    default_intention: Action,
    /// Whether the catalog has the registration now; the last one is kept either way.
    registered: bool,
    registration: Option<Registered>,
    proxy_defaults: Option<Option<Arc<ConfigEntry>>>,
    roots: Option<(TrustDomain, Arc<CaRoots>)>,
    mesh: Option<Option<(Arc<ConfigEntry>, Arc<Mesh>)>>,
    destination: Option<Destination>,
    targets: BTreeMap<Arc<str>, Target>,
    merged: Option<Merged>,
    dirty: bool,
}

/// The service that the proxy stands for.
#[derive(Debug)]
struct Destination {
    name: Arc<str>,
    defaults: Option<Option<Arc<ConfigEntry>>>,
    leaf: Option<Arc<Leaf>>,
    intentions: Option<Arc<[Arc<Intention>]>>,
}

/// A service that an upstream leads to.
#[derive(Debug, Default)]
struct Target {
    defaults: Option<Option<Arc<ConfigEntry>>>,
    instances: Option<Arc<[CheckServiceNode]>>,
}

/// The registration with its central configuration.
#[derive(Debug)]
struct Merged {
    instance: Arc<ServiceInstance>,
    node_address: Arc<str>,
    upstreams: Vec<Arc<Upstream>>,
}

impl State {
    /// A proxy of which nothing is known yet.
    pub(crate) fn new(proxy: ProxyId, datacenter: Arc<str>, default_intention: Action) -> Self {
        Self {
            proxy,
            datacenter,
            default_intention,
            registered: false,
            registration: None,
            proxy_defaults: None,
            roots: None,
            mesh: None,
            destination: None,
            targets: BTreeMap::new(),
            merged: None,
            dirty: false,
        }
    }

    /// Takes in what was read.
    pub(crate) fn apply(&mut self, update: Update) -> Effects {
        let mut effects = Effects::default();
        match update {
            Update::Registration(registration) => self.register(registration, &mut effects),
            Update::ProxyDefaults(entry) => {
                if !replace(&mut self.proxy_defaults, entry, same::entry) {
                    return effects;
                }
                // Upstreams take their protocol from here when they have none of their own.
                self.dirty = true;
                self.merge();
            }
            Update::ServiceDefaults { service, entry } => self.service_defaults(&service, entry),
            Update::Roots(trust_domain, roots) => {
                self.dirty |= replace(&mut self.roots, (trust_domain, roots), |a, b| a == b);
            }
            Update::Leaf(leaf) => {
                if let Some(destination) = &mut self.destination
                    && *destination.name == *leaf.service
                {
                    self.dirty |= replace(&mut destination.leaf, leaf, same::leaf);
                }
            }
            Update::Intentions { destination, list } => {
                if let Some(known) = &mut self.destination
                    && known.name == destination
                {
                    self.dirty |= replace(&mut known.intentions, list, |a, b| {
                        Arc::ptr_eq(a, b) || a == b
                    });
                }
            }
            Update::Mesh(entry) => self.mesh(entry),
            Update::UpstreamTarget { service, instances } => {
                if let Some(target) = self.targets.get_mut(&service) {
                    self.dirty |= replace(&mut target.instances, instances, |a, b| {
                        same::instances(a, b)
                    });
                }
            }
        }
        effects
    }

    /// Whether there is a complete snapshot that differs from the one taken last.
    pub(crate) fn has_news(&self) -> bool {
        self.dirty && self.registered && self.complete().is_some()
    }

    /// The snapshot as of now, when it is complete. It counts as published from here on.
    pub(crate) fn take_snapshot(&mut self) -> Option<Snapshot> {
        if !self.registered {
            return None;
        }
        let (merged, destination, leaf) = self.complete()?;
        let (trust_domain, roots) = self.roots.as_ref()?;
        let mesh = self.mesh.as_ref()?.as_ref();
        let snapshot = Snapshot {
            proxy: self.proxy.clone(),
            datacenter: Arc::clone(&self.datacenter),
            trust_domain: trust_domain.clone(),
            instance: Arc::clone(&merged.instance),
            node_address: Arc::clone(&merged.node_address),
            protocol: merge::own_protocol(&merged.instance),
            roots: Arc::clone(roots),
            leaf: Arc::clone(leaf),
            intentions: destination.intentions.clone()?,
            default_intention: self.default_intention,
            mesh: mesh.map(|(_, mesh)| Arc::clone(mesh)),
            upstreams: self.upstreams(merged),
        };
        self.dirty = false;
        Some(snapshot)
    }

    fn complete(&self) -> Option<(&Merged, &Destination, &Arc<Leaf>)> {
        let merged = self.merged.as_ref()?;
        let destination = self.destination.as_ref()?;
        let leaf = destination.leaf.as_ref()?;
        let seen = self.roots.is_some() && self.mesh.is_some() && destination.intentions.is_some();
        seen.then_some((merged, destination, leaf))
    }

    fn upstreams(&self, merged: &Merged) -> Vec<UpstreamSnapshot> {
        let fallback =
            merge::default_protocol(self.proxy_defaults.as_ref().and_then(Option::as_deref));
        let resolve = |upstream: &Arc<Upstream>| {
            let (defaults, instances) = if self.is_local(upstream) {
                let target = self.targets.get(upstream.destination_name.as_str())?;
                (target.defaults.as_ref()?.as_ref(), target.instances.clone())
            } else {
                // The catalog holds one datacenter: there is nothing to wait for.
                (None, Some(Arc::default()))
            };
            let usual = defaults
                .and_then(|entry| merge::entry_protocol(entry))
                .unwrap_or(fallback);
            Some(merge::resolve_upstream(upstream, usual, instances))
        };
        merged.upstreams.iter().filter_map(resolve).collect()
    }

    fn register(&mut self, registration: Option<Registered>, effects: &mut Effects) {
        let Some(registration) = registration else {
            self.registered = false;
            return;
        };
        if let Err(refused) = check(&self.proxy, &registration.instance) {
            self.registered = false;
            effects.end = Some(refused);
            return;
        }
        self.registered = true;
        let unchanged = self.registration.as_ref().is_some_and(|old| {
            old.node_address == registration.node_address
                && same::registration(&old.instance, &registration.instance)
        });
        if unchanged {
            return;
        }
        let name = &registration.instance.proxy.destination_service_name;
        if self
            .destination
            .as_ref()
            .is_none_or(|old| *old.name != **name)
        {
            let name: Arc<str> = name.as_str().into();
            effects.start.push(Derived::Destination(Arc::clone(&name)));
            let old = self.destination.replace(Destination {
                name,
                defaults: None,
                leaf: None,
                intentions: None,
            });
            effects
                .stop
                .extend(old.map(|old| Derived::Destination(old.name)));
            // Another service's configuration must not be shown in the meantime.
            self.merged = None;
        }
        self.registration = Some(registration);
        self.reconcile_targets(effects);
        self.merge();
    }

    /// Watches exactly the services that the registered upstreams lead to.
    fn reconcile_targets(&mut self, effects: &mut Effects) {
        let Some(registration) = &self.registration else {
            return;
        };
        let upstreams = &registration.instance.proxy.upstreams;
        let wanted: BTreeSet<&str> = upstreams
            .iter()
            .filter(|upstream| is_explicit(upstream) && self.is_local(upstream))
            .map(|upstream| upstream.destination_name.as_str())
            .collect();
        let gone: Vec<Arc<str>> = self
            .targets
            .keys()
            .filter(|name| !wanted.contains(&***name))
            .cloned()
            .collect();
        let new: Vec<Arc<str>> = wanted
            .into_iter()
            .filter(|name| !self.targets.contains_key(*name))
            .map(Arc::from)
            .collect();
        for name in gone {
            self.targets.remove(&name);
            effects.stop.push(Derived::Upstream(name));
        }
        for name in new {
            self.targets.insert(Arc::clone(&name), Target::default());
            effects.start.push(Derived::Upstream(name));
        }
    }

    fn service_defaults(&mut self, service: &Arc<str>, entry: Option<Arc<ConfigEntry>>) {
        if let Some(target) = self.targets.get_mut(service) {
            let protocol = |entry: &Option<Arc<ConfigEntry>>| -> Option<Protocol> {
                entry
                    .as_ref()
                    .and_then(|entry| merge::entry_protocol(entry))
            };
            let old = target.defaults.as_ref().map(protocol);
            self.dirty |= old != Some(protocol(&entry));
            target.defaults = Some(entry.clone());
        }
        let Some(destination) = &mut self.destination else {
            return;
        };
        if destination.name == *service && replace(&mut destination.defaults, entry, same::entry) {
            self.merge();
        }
    }

    fn mesh(&mut self, entry: Option<Arc<ConfigEntry>>) {
        let known = match (&self.mesh, &entry) {
            (Some(Some((old, _))), Some(new)) => Arc::ptr_eq(old, new) || old == new,
            (Some(None), None) => true,
            _ => false,
        };
        if known {
            return;
        }
        let mesh = entry.and_then(|entry| match &*entry {
            ConfigEntry::Mesh(mesh) => {
                let mesh = Arc::new(mesh.clone());
                Some((entry, mesh))
            }
            _ => None,
        });
        self.mesh = Some(mesh);
        self.dirty = true;
    }

    /// Puts the registration and its central configuration together, once both were seen.
    fn merge(&mut self) {
        let (Some(registration), Some(proxy_defaults), Some(destination)) =
            (&self.registration, &self.proxy_defaults, &self.destination)
        else {
            return;
        };
        let Some(service_defaults) = &destination.defaults else {
            return;
        };
        let central = Central {
            proxy_defaults: proxy_defaults.as_deref(),
            service_defaults: service_defaults.as_deref(),
        };
        let instance = merge::merge(&registration.instance, &central);
        if let Some(old) = &self.merged
            && old.node_address == registration.node_address
            && same::registration(&old.instance, &instance)
        {
            return;
        }
        let explicit = instance
            .proxy
            .upstreams
            .iter()
            .filter(|upstream| is_explicit(upstream));
        self.merged = Some(Merged {
            upstreams: explicit.cloned().map(Arc::new).collect(),
            instance: Arc::new(instance),
            node_address: Arc::clone(&registration.node_address),
        });
        self.dirty = true;
    }

    fn is_local(&self, upstream: &Upstream) -> bool {
        let datacenter = upstream.datacenter.as_str();
        let here = datacenter.is_empty() || datacenter.eq_ignore_ascii_case(&self.datacenter);
        here && upstream.destination_peer.is_empty()
    }
}

/// Whether the upstream is a service that the application dials, and not a default for others or a
/// prepared query.
fn is_explicit(upstream: &Upstream) -> bool {
    upstream.destination_type == UpstreamType::Service
        && upstream.destination_name != WILDCARD
        && (upstream.local_bind_port != 0 || upstream.has_local_socket())
}

/// Whether a registration is that of a sidecar that can be served.
pub(crate) fn check(proxy: &ProxyId, instance: &ServiceInstance) -> Result<(), WatchError> {
    if instance.kind != ServiceKind::ConnectProxy {
        return Err(WatchError::NotAProxy {
            proxy: proxy.clone(),
            kind: instance.kind.as_str().to_owned(),
        });
    }
    if instance.proxy.destination_service_name.is_empty() {
        return Err(WatchError::NoDestination(proxy.clone()));
    }
    Ok(())
}

/// Puts a value in its place unless it says the same as the one there. Tells whether it did.
fn replace<T>(place: &mut Option<T>, value: T, same: impl FnOnce(&T, &T) -> bool) -> bool {
    if place.as_ref().is_some_and(|old| same(old, &value)) {
        return false;
    }
    *place = Some(value);
    true
}

#[cfg(test)]
mod tests;
