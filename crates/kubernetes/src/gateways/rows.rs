//! What the servers get of a gateway, and the requests that bring them from one state to another.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use legate_gateway_api::{Key, Served, ServedFrontend};
use legate_routes::{Datagrams, Endpoint, Frontend, Listener, ServicePort};
use serde_json::{Value, json};

use super::cluster::{Cluster, Pair};
use super::endpoints::endpoints;
use super::infrastructure::GatewayMeta;
use super::kinds::Kind;

/// Secrets are named after the objects that they come from.
const SECRET_PREFIX: &str = "kubernetes/";
/// The size of a body that is divided if it can be, in bytes. The servers accept 1 MiB.
const BODY: usize = 768 * 1024;

/// What the servers have, or should have, of a gateway or of a frontend.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rows {
    /// Whether this is all unknown: a write has failed.
    unknown: bool,
    listeners: Vec<Arc<Listener>>,
    datagrams: Vec<Arc<Datagrams>>,
    generations: BTreeMap<String, i64>,
    owner: String,
    /// Whose listeners they are, if not a gateway's.
    frontend: Option<Box<Frontend>>,
    endpoints: BTreeMap<ServicePort, BTreeSet<Endpoint>>,
    pairs: BTreeMap<String, Arc<Pair>>,
}

/// The name of a frontend's rows. Gateways have no underscores in theirs, and Services no dots.
pub(super) fn frontend_name(frontend: &Frontend) -> String {
    let Frontend {
        namespace, name, ..
    } = frontend;
    match &frontend.callers {
        None => format!("_{name}.{namespace}"),
        Some(callers) => format!("_{name}.{namespace}.{callers}"),
    }
}

/// Whether rows of this name are those of a frontend.
pub(super) fn is_frontend(name: &str) -> bool {
    name.starts_with('_')
}

/// A request for a gateway or a frontend.
#[derive(Clone, PartialEq)]
pub(super) struct Request {
    /// The last part of the path; `None` for the gateway itself.
    pub(super) part: Option<&'static str>,
    /// Contains keys of certificates.
    pub(super) body: Value,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = &mut f.debug_struct("Request");
        request.field("part", &self.part).finish_non_exhaustive()
    }
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
        (owner, gateway): (&str, &GatewayMeta),
        served: Option<&Served>,
    ) -> Self {
        let served = served.map(|served| (&served.listeners[..], &served.datagrams[..]));
        Self {
            generations: generations(cluster, gateway),
            ..Self::with(cluster, owner, served.unwrap_or_default())
        }
    }

    /// How callers in the mesh reach a Service.
    pub(super) fn of_frontend(cluster: &Cluster, owner: &str, served: &ServedFrontend) -> Self {
        Self {
            frontend: Some(Box::new(served.frontend.clone())),
            ..Self::with(cluster, owner, (&served.listeners, &[]))
        }
    }

    fn with(
        cluster: &Cluster,
        owner: &str,
        (listeners, datagrams): (&[Listener], &[Datagrams]),
    ) -> Self {
        let pairs = pairs(cluster, listeners);
        let (listeners, datagrams) = (listeners.iter(), datagrams.iter());
        let ports = listeners.clone().flat_map(Listener::backends);
        let ports = ports.chain(datagrams.clone().flat_map(Datagrams::backends));
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
        Self {
            listeners: listeners.cloned().map(Arc::new).collect(),
            datagrams: datagrams.cloned().map(Arc::new).collect(),
            owner: owner.to_owned(),
            endpoints: endpoints.collect(),
            pairs,
            ..Self::default()
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
        let pairs = pairs.map(|(name, pair)| secret(name, pair));
        let endpoints =
            endpoints.map(|(port, endpoints)| json!({"Of": port, "Endpoints": endpoints}));
        let is_same = known.is_some_and(|known| {
            known.listeners == self.listeners
                && known.datagrams == self.datagrams
                && known.generations == self.generations
                && known.frontend == self.frontend
        });
        let mut requests = Vec::new();
        let mut left = 0;
        if !is_same {
            let mut body = json!({
                "Listeners": self.listeners,
                "Datagrams": self.datagrams,
                "Generations": self.generations,
                "Owner": self.owner,
            });
            if let Some(frontend) = &self.frontend {
                body["Frontend"] = json!(frontend);
            }
            left = BODY.saturating_sub(size(&body));
            requests.push(Request { part: None, body });
        }
        // What fits comes in the same transaction as the listeners that need it.
        for (part, field, all) in [
            ("secrets", "Secrets", pairs.collect::<Vec<_>>()),
            ("endpoints", "Endpoints", endpoints.collect()),
        ] {
            let mut chunks = chunks(all, left);
            if let Some(first) = requests.first_mut().filter(|one| one.part.is_none()) {
                let fits = chunks.remove(0);
                left -= fits.iter().map(size).sum::<usize>().min(left);
                first.body[field] = json!(fits);
            }
            let chunks = chunks.into_iter().filter(|chunk| !chunk.is_empty());
            requests.extend(chunks.map(|chunk| Request {
                part: Some(part),
                body: json!({field: chunk}),
            }));
        }
        requests
    }
}

/// The certificates that listeners present to clients and backends, by the names of their secrets.
pub(super) fn pairs(cluster: &Cluster, listeners: &[Listener]) -> BTreeMap<String, Arc<Pair>> {
    let secrets: BTreeSet<_> = listeners.iter().flat_map(Listener::secrets).collect();
    let pairs = secrets.into_iter().filter_map(|name| {
        let (namespace, secret) = name.strip_prefix(SECRET_PREFIX)?.split_once('/')?;
        let pair = cluster.pairs.get(&Key::new(namespace, secret))?;
        Some((name.to_owned(), Arc::clone(pair)))
    });
    pairs.collect()
}

/// Divides values for several requests. The first list, which may be empty, is smaller than `left`.
fn chunks(all: Vec<Value>, mut left: usize) -> Vec<Vec<Value>> {
    let mut chunks = vec![Vec::new()];
    for value in all {
        let size = size(&value);
        if size > left {
            chunks.push(Vec::new());
            left = BODY;
        }
        left = left.saturating_sub(size);
        if let Some(last) = chunks.last_mut() {
            last.push(value);
        }
    }
    chunks
}

/// The size of a value in a body, with a comma.
fn size(value: &Value) -> usize {
    value.to_string().len() + 1
}

/// The generations of the gateway and of the ListenerSets that name it, by their uids: an object that
/// is created again is another one.
pub(super) fn generations(cluster: &Cluster, gateway: &GatewayMeta) -> BTreeMap<String, i64> {
    let (world, of) = (&cluster.world, &gateway.key);
    let mut gateways = world.gateways.iter();
    let own = gateways.find(|one| one.meta.key() == *of);
    let own = own.map(|one| (gateway.uid.clone(), one.meta.generation));
    let sets = world.listener_sets.iter().filter(|set| {
        let parent = &set.spec.parent_ref;
        let namespace = parent.namespace.as_ref().unwrap_or(&set.meta.namespace);
        (namespace, &parent.name) == (&of.namespace, &of.name)
    });
    let sets = sets.filter_map(|set| {
        let uid = cluster.uid(Kind::ListenerSet, &set.meta.key())?;
        Some((uid.to_owned(), set.meta.generation))
    });
    own.into_iter().chain(sets).collect()
}

fn secret(name: &str, pair: &Pair) -> Value {
    json!({
        "Name": name,
        "Certificate": pair.certificate,
        "PrivateKey": pair.key.expose(),
    })
}

#[cfg(test)]
mod tests {
    use legate_model::Secret;

    use super::*;

    fn pairs(count: usize, size: usize) -> BTreeMap<String, Arc<Pair>> {
        let pair = |number: usize| {
            let pair = Pair {
                certificate: "c".repeat(size),
                key: Secret::new("the key"),
            };
            (format!("kubernetes/shop/{number:04}"), Arc::new(pair))
        };
        (0..count).map(pair).collect()
    }

    #[test]
    fn requests_have_sizes_that_servers_accept() {
        let few = Rows {
            pairs: pairs(10, 4096),
            ..Rows::default()
        };
        let requests = few.requests(None);
        let [one] = &requests[..] else {
            panic!("{requests:?}");
        };
        assert_eq!(one.body["Secrets"].as_array().map(Vec::len), Some(10));
        assert_eq!(few.requests(Some(&few)), []);

        let many = Rows {
            pairs: pairs(1000, 4096),
            ..Rows::default()
        };
        let requests = many.requests(None);
        let secrets = requests.iter().map(|one| one.body["Secrets"].as_array());
        assert_eq!(secrets.flatten().map(Vec::len).sum::<usize>(), 1000);
        for request in &requests {
            assert!(size(&request.body) < 1024 * 1024, "{request:?}");
        }
        assert_eq!(requests[0].part, None);
        let rest: BTreeSet<_> = requests[1..].iter().map(|one| one.part).collect();
        assert_eq!(rest, [Some("secrets")].into());
        let renewed = many.requests(Some(&Rows {
            pairs: pairs(999, 4096),
            ..Rows::default()
        }));
        let [one] = &renewed[..] else {
            panic!("{renewed:?}");
        };
        assert_eq!(one.part, Some("secrets"));
    }

    #[test]
    fn keys_are_in_no_output() {
        let rows = Rows {
            pairs: pairs(1, 10),
            ..Rows::default()
        };
        let text = format!("{rows:?} {:?}", rows.requests(None));
        assert!(!text.contains("the key"), "{text}");
    }
}
