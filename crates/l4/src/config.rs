//! The resources that a server has sent, and what can be served of them.
//!
//! [`Config::apply`] makes a new configuration of an old one and a response, or refuses the response as a whole.
//! [`Config::model`] is what follows from it: listeners without all of their secrets are left out, or stay as they were
//! before. It talks to nobody; its caller acknowledges responses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;

use crate::chains::Chains;
use crate::decode::{self, Refused};
use crate::model::{
    Cluster, CommonTls, Endpoints, Hosts, Listener, Name, Secret, Source, UpstreamTls,
};

/// The types of resources, in the order in which they depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Secrets.
    Secret,
    /// Clusters.
    Cluster,
    /// Endpoints of clusters.
    Endpoints,
    /// Listeners.
    Listener,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Secret, Kind::Cluster, Kind::Endpoints, Kind::Listener];

    /// What Envoy calls a rejected response of this type.
    fn failure(self) -> &'static str {
        match self {
            Kind::Secret => "Error adding/updating secret(s)",
            Kind::Cluster => "Error adding/updating cluster(s)",
            Kind::Endpoints => "Error adding/updating endpoints of cluster(s)",
            Kind::Listener => "Error adding/updating listener(s)",
        }
    }
}

/// A resource of a response.
#[derive(Debug, Clone)]
pub struct Resource {
    /// Its name.
    pub name: Name,
    /// Its version.
    pub version: String,
    /// An encoded `google.protobuf.Any`.
    pub body: Bytes,
}

/// Why a response is not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Every refused resource with its reason, in the form of Envoy's own message.
    pub message: String,
    /// What only Envoy can serve, with the name of the first such resource; `None` if Envoy would reject it as well.
    pub needs_envoy: Option<String>,
}

/// A resource that is held.
#[derive(Debug, Clone)]
struct Held<T> {
    version: String,
    body: Bytes,
    value: Arc<T>,
}

/// The resources that were accepted.
#[derive(Debug, Clone, Default)]
pub struct Config {
    clusters: BTreeMap<Name, Held<Cluster>>,
    endpoints: BTreeMap<Name, Held<Endpoints>>,
    listeners: BTreeMap<Name, Held<Listener>>,
    secrets: BTreeMap<Name, Held<Secret>>,
    answered: BTreeSet<Kind>,
}

impl Config {
    /// The configuration after a response.
    ///
    /// # Errors
    /// When a resource is not understood; nothing of the response is applied then.
    pub fn apply(
        &self,
        kind: Kind,
        resources: &[Resource],
        removed: &[String],
    ) -> Result<Config, Rejection> {
        let mut next = self.clone();
        next.answered.insert(kind);
        for name in removed {
            next.remove(kind, name);
        }
        let mut refused = Vec::new();
        for resource in resources {
            if let Err(reason) = next.add(kind, resource) {
                refused.push((resource.name.clone(), reason));
            }
        }
        if refused.is_empty() {
            next.forget_unused();
            return Ok(next);
        }
        Err(rejection(kind, &refused))
    }

    fn remove(&mut self, kind: Kind, name: &str) {
        match kind {
            Kind::Cluster => drop(self.clusters.remove(name)),
            Kind::Endpoints => drop(self.endpoints.remove(name)),
            Kind::Listener => drop(self.listeners.remove(name)),
            Kind::Secret => drop(self.secrets.remove(name)),
        }
    }

    fn add(&mut self, kind: Kind, resource: &Resource) -> Result<(), Refused> {
        let (_, body) = decode::any(&resource.body)?;
        let name = resource.name.clone();
        match kind {
            Kind::Cluster => hold(&mut self.clusters, name, resource, decode::cluster(body)?),
            Kind::Endpoints => {
                let (_, endpoints) = decode::endpoints(body)?;
                hold(&mut self.endpoints, name, resource, endpoints);
            }
            Kind::Listener => {
                let listener = decode::listener(body)?;
                Chains::new(&listener).map_err(Refused::Invalid)?;
                hold(&mut self.listeners, name, resource, listener);
            }
            Kind::Secret => {
                let (_, secret) = decode::secret(body)?;
                hold(&mut self.secrets, name, resource, secret);
            }
        }
        Ok(())
    }

    /// Drops endpoints and secrets that nothing refers to any more: their subscription ends.
    fn forget_unused(&mut self) {
        let (endpoints, secrets) = (self.endpoint_names(), self.secret_names());
        self.endpoints.retain(|name, _| endpoints.contains(name));
        self.secrets.retain(|name, _| secrets.contains(name));
    }

    /// The names of the endpoints that clusters refer to.
    pub fn endpoint_names(&self) -> BTreeSet<Name> {
        let clusters = self.clusters.values();
        let names = clusters.filter_map(|cluster| match &cluster.value.hosts {
            Hosts::Discovered(name) => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }

    /// The names of the secrets that clusters and listeners refer to.
    pub fn secret_names(&self) -> BTreeSet<Name> {
        let clusters = self.clusters.values();
        let upstream = clusters.flat_map(|cluster| secrets_of_cluster(&cluster.value));
        let listeners = self.listeners.values();
        let downstream = listeners.flat_map(|listener| secrets_of_listener(&listener.value));
        upstream.chain(downstream).collect()
    }

    /// The listeners, also those that cannot be served yet.
    pub fn listeners(&self) -> impl Iterator<Item = &Arc<Listener>> {
        self.listeners.values().map(|held| &held.value)
    }

    /// Whether clusters and listeners have arrived once, so that it is known what the proxy has to serve.
    pub fn is_complete(&self) -> bool {
        let both = [Kind::Cluster, Kind::Listener];
        both.iter().all(|kind| self.answered.contains(kind))
    }

    /// What can be served. A listener that lacks a secret stays as it is in `current`, if it is there.
    pub fn model(&self, current: &Model) -> Model {
        let listeners = self.listeners.iter().filter_map(|(name, held)| {
            let secrets = self.resolve(&secrets_of_listener(&held.value));
            let listener = secrets.map(|secrets| ListenerModel {
                spec: Arc::clone(&held.value),
                secrets,
            });
            let listener = listener.or_else(|| current.listeners.get(name).cloned())?;
            Some((name.clone(), listener))
        });
        let clusters = self.clusters.iter().map(|(name, held)| {
            let endpoints = match &held.value.hosts {
                Hosts::Discovered(endpoints) => self.endpoints.get(endpoints),
                _ => None,
            };
            let cluster = ClusterModel {
                spec: Arc::clone(&held.value),
                endpoints: endpoints.map(|endpoints| Arc::clone(&endpoints.value)),
                secrets: self.resolve(&secrets_of_cluster(&held.value)),
            };
            (name.clone(), cluster)
        });
        Model {
            listeners: listeners.collect(),
            clusters: clusters.collect(),
        }
    }

    /// The secrets with these names; `None` if one is missing.
    fn resolve(&self, names: &[Name]) -> Option<Secrets> {
        let secrets = names.iter().map(|name| {
            let secret = self.secrets.get(name)?;
            Some((name.clone(), Arc::clone(&secret.value)))
        });
        secrets.collect()
    }

    /// Every resource of a type as JSON, with its name and version, for `/config_dump`. Keys are left out.
    pub fn dump(&self, kind: Kind) -> Vec<(Name, String, serde_json::Value)> {
        match kind {
            Kind::Cluster => dump(&self.clusters),
            Kind::Endpoints => dump(&self.endpoints),
            Kind::Listener => dump(&self.listeners),
            Kind::Secret => dump(&self.secrets),
        }
    }
}

fn dump<T>(held: &BTreeMap<Name, Held<T>>) -> Vec<(Name, String, serde_json::Value)> {
    let all = held.iter().filter_map(|(name, held)| {
        let (url, body) = decode::any(&held.body).ok()?;
        Some((
            name.clone(),
            held.version.clone(),
            decode::to_json(url, body),
        ))
    });
    all.collect()
}

/// Holds a value. One that is equal to the former stays the same, so that comparisons are cheap.
fn hold<T: PartialEq>(
    all: &mut BTreeMap<Name, Held<T>>,
    name: Name,
    resource: &Resource,
    value: T,
) {
    let former = all.get(&name).filter(|former| *former.value == value);
    let value = former.map_or_else(|| Arc::new(value), |former| Arc::clone(&former.value));
    let held = Held {
        version: resource.version.clone(),
        body: resource.body.clone(),
        value,
    };
    all.insert(name, held);
}

fn rejection(kind: Kind, refused: &[(Name, Refused)]) -> Rejection {
    let mut message = kind.failure().to_owned();
    for (name, reason) in refused {
        // Writing to a string cannot fail.
        let _ = write!(message, " {name}: {reason}");
    }
    // A response that is invalid for Envoy, too, is no reason to start one.
    let invalid = refused
        .iter()
        .any(|(_, reason)| matches!(reason, Refused::Invalid(_)));
    let needs_envoy = refused.iter().find_map(|(name, reason)| match reason {
        Refused::NeedsEnvoy { what } if !invalid => Some(format!("{name}: {what}")),
        _ => None,
    });
    Rejection {
        message,
        needs_envoy,
    }
}

fn secrets_of_tls(tls: &CommonTls) -> impl Iterator<Item = Name> {
    let certificate = match &tls.certificate {
        Some(Source::Named(name)) => Some(name.clone()),
        _ => None,
    };
    let validation = match &tls.validation {
        Some(Source::Named(name)) => Some(name.clone()),
        _ => None,
    };
    certificate.into_iter().chain(validation)
}

fn secrets_of_cluster(cluster: &Cluster) -> Vec<Name> {
    let tls = cluster.tls.as_deref();
    let names = tls.map(|UpstreamTls { common, .. }| secrets_of_tls(common));
    names.into_iter().flatten().collect()
}

fn secrets_of_listener(listener: &Listener) -> Vec<Name> {
    let chains = listener.chains.iter().chain(&listener.default_chain);
    let tls = chains.filter_map(|chain| chain.tls.as_ref());
    tls.flat_map(|tls| secrets_of_tls(&tls.common)).collect()
}

/// Secrets by name.
pub type Secrets = BTreeMap<Name, Arc<Secret>>;

/// What is served.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Model {
    /// The listeners by name. Each has all of its secrets.
    pub listeners: BTreeMap<Name, ListenerModel>,
    /// The clusters by name.
    pub clusters: BTreeMap<Name, ClusterModel>,
}

/// A listener with its secrets.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerModel {
    /// The listener.
    pub spec: Arc<Listener>,
    /// The secrets that it refers to by name.
    pub secrets: Secrets,
}

/// A cluster with its endpoints and secrets.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterModel {
    /// The cluster.
    pub spec: Arc<Cluster>,
    /// Its endpoints, if they are discovered and have arrived.
    pub endpoints: Option<Arc<Endpoints>>,
    /// The secrets that it refers to by name; `None` while one is missing: it has no usable host then.
    pub secrets: Option<Secrets>,
}
