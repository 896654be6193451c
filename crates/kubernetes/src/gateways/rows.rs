//! What the servers get of a gateway, and the requests that bring them from one state to another.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use legate_gateway_api::{Key, Served};
use legate_routes::{Endpoint, Listener, ServicePort};
use serde_json::{Value, json};
use std::sync::Arc;

use super::cluster::{Cluster, Pair};
use super::endpoints::endpoints;
use super::kinds::Kind;

/// Secrets are named after the objects that they come from.
const SECRET_PREFIX: &str = "kubernetes/";
/// A request with more endpoints than this is divided. The servers accept bodies of 1 MiB.
const ENDPOINTS_AT_ONCE: usize = 8_000;

/// What the servers have, or should have, of a gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rows {
    /// Whether this is all unknown: a write has failed.
    unknown: bool,
    listeners: Vec<Arc<Listener>>,
    datagrams: Value,
    generations: BTreeMap<String, i64>,
    owner: String,
    endpoints: BTreeMap<ServicePort, BTreeSet<Endpoint>>,
    pairs: BTreeMap<String, Arc<Pair>>,
}

/// A request for a gateway.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    /// The last part of the path; `None` for the gateway itself.
    pub(super) part: Option<&'static str>,
    pub(super) body: Value,
}

impl Rows {
    /// Rows of which nothing is known but that there are some.
    pub(super) fn unknown() -> Self {
        Self {
            unknown: true,
            ..Self::default()
        }
    }

    /// What a gateway serves. A gateway that serves nothing has rows, too, so that its proxies close
    /// their ports.
    pub(super) fn of(
        cluster: &Cluster,
        (owner, key): (&str, &Key),
        served: Option<&Served>,
    ) -> Self {
        let owner = owner.to_owned();
        let generations = generations(cluster, key);
        let Some(served) = served else {
            return Self {
                generations,
                owner,
                datagrams: json!([]),
                ..Self::default()
            };
        };
        let listeners = served.listeners.iter();
        let of_listeners = listeners.clone().flat_map(Listener::backends);
        let of_datagrams = served.datagrams.iter().flat_map(|one| &one.backends);
        let of_datagrams = of_datagrams.filter_map(|one| match &one.target {
            legate_routes::Target::Backend(backend) => Some(backend),
            _ => None,
        });
        let ports = of_listeners.chain(of_datagrams);
        let ports: BTreeSet<_> = ports.map(|backend| backend.service_port()).collect();
        let endpoints = ports.into_iter().map(|port| {
            let endpoints = endpoints(
                &port,
                &cluster.world.services,
                &cluster.slices,
                &cluster.pods,
            );
            (port, endpoints)
        });
        let secrets: BTreeSet<_> = listeners.clone().flat_map(Listener::secrets).collect();
        let pairs = secrets.into_iter().filter_map(|name| {
            let (namespace, secret) = name.strip_prefix(SECRET_PREFIX)?.split_once('/')?;
            let pair = cluster.pairs.get(&Key::new(namespace, secret))?;
            Some((name.to_owned(), Arc::clone(pair)))
        });
        Self {
            listeners: listeners.cloned().map(Arc::new).collect(),
            datagrams: serde_json::to_value(&served.datagrams).unwrap_or_default(),
            generations,
            owner,
            endpoints: endpoints.collect(),
            pairs: pairs.collect(),
            unknown: false,
        }
    }

    /// The requests after which the servers have these rows instead of what they are known to have.
    pub(super) fn requests(&self, known: Option<&Self>) -> Vec<Request> {
        let known = known.filter(|known| !known.unknown);
        let endpoints = self.endpoints.iter().filter(|(port, endpoints)| {
            known.and_then(|known| known.endpoints.get(port)) != Some(endpoints)
        });
        let pairs = self
            .pairs
            .iter()
            .filter(|(name, pair)| known.and_then(|known| known.pairs.get(*name)) != Some(pair));
        let pairs: Vec<_> = pairs.map(|(name, pair)| secret(name, pair)).collect();
        let mut chunks = chunks(endpoints);
        let is_same = known.is_some_and(|known| {
            known.listeners == self.listeners
                && known.datagrams == self.datagrams
                && known.generations == self.generations
        });
        let mut requests = Vec::new();
        if !is_same {
            let first = match chunks.is_empty() {
                true => Vec::new(),
                false => chunks.remove(0),
            };
            let mut body = json!({
                "Listeners": self.listeners,
                "Generations": self.generations,
                "Owner": self.owner,
                "Endpoints": first,
                "Secrets": pairs,
            });
            if self.datagrams != json!([]) {
                body["Datagrams"] = self.datagrams.clone();
            }
            requests.push(Request { part: None, body });
        } else if !pairs.is_empty() {
            requests.push(Request {
                part: Some("secrets"),
                body: json!({"Secrets": pairs}),
            });
        }
        requests.extend(chunks.into_iter().map(|chunk| Request {
            part: Some("endpoints"),
            body: json!({"Endpoints": chunk}),
        }));
        requests
    }
}

/// The generations of the gateway and of the ListenerSets that name it, by their uids: an object that
/// is created again is another one.
fn generations(cluster: &Cluster, key: &Key) -> BTreeMap<String, i64> {
    let gateways = cluster.world.gateways.iter();
    let own = gateways.filter(|one| one.meta.key() == *key);
    let own = own.map(|one| (Kind::Gateway, &one.meta));
    let sets = cluster.world.listener_sets.iter().filter(|set| {
        let parent = &set.spec.parent_ref;
        let namespace = parent.namespace.as_ref().unwrap_or(&set.meta.namespace);
        (namespace, &parent.name) == (&key.namespace, &key.name)
    });
    let sets = sets.map(|set| (Kind::ListenerSet, &set.meta));
    let all = own.chain(sets).filter_map(|(kind, meta)| {
        let uid = cluster.uid(kind, &meta.key())?;
        Some((uid.to_owned(), meta.generation))
    });
    all.collect()
}

/// Endpoints, divided into lists that fit into a request.
fn chunks<'a>(
    endpoints: impl Iterator<Item = (&'a ServicePort, &'a BTreeSet<Endpoint>)>,
) -> Vec<Vec<Value>> {
    let mut chunks = Vec::new();
    let (mut chunk, mut count) = (Vec::new(), 0);
    for (port, endpoints) in endpoints {
        if count + endpoints.len() > ENDPOINTS_AT_ONCE && !chunk.is_empty() {
            chunks.push(std::mem::take(&mut chunk));
            count = 0;
        }
        count += endpoints.len() + 1;
        chunk.push(json!({"Of": port, "Endpoints": endpoints}));
    }
    if !chunk.is_empty() {
        chunks.push(chunk);
    }
    chunks
}

fn secret(name: &str, pair: &Pair) -> Value {
    json!({
        "Name": name,
        "Certificate": pair.certificate,
        "PrivateKey": pair.key.expose(),
    })
}
