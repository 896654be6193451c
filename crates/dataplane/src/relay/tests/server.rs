//! A model of Consul's xDS server: sends the differences to what a stream has acknowledged, nothing
//! further of a type with an unanswered response, and listeners after clusters and endpoints.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET};

/// Resources by type and name; a body is derived from type, name and version.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Snapshot {
    pub(super) types: BTreeMap<&'static str, BTreeMap<String, u64>>,
    /// Versions that Envoy rejects.
    pub(super) invalid: BTreeSet<u64>,
    last: u64,
}

pub(super) fn route_of(listener: &str) -> String {
    format!("route-of-{listener}")
}

impl Snapshot {
    pub(super) fn get(&self, url: &str) -> BTreeMap<String, u64> {
        self.types.get(url).cloned().unwrap_or_default()
    }

    /// A new version of a resource.
    pub(super) fn bump(&mut self, url: &'static str, name: &str) -> u64 {
        self.last += 1;
        self.types
            .entry(url)
            .or_default()
            .insert(name.to_owned(), self.last);
        self.last
    }

    fn remove(&mut self, url: &'static str, name: &str) {
        self.types.entry(url).or_default().remove(name);
    }

    pub(super) fn add_cluster(&mut self, name: &str) {
        self.bump(CLUSTER, name);
        if !self.get(ENDPOINT).contains_key(name) {
            self.bump(ENDPOINT, name);
        }
    }

    pub(super) fn remove_cluster(&mut self, name: &str) {
        self.remove(CLUSTER, name);
        self.remove(ENDPOINT, name);
    }

    pub(super) fn add_listener(&mut self, name: &str) {
        self.bump(LISTENER, name);
        if !self.get(ROUTE).contains_key(&route_of(name)) {
            self.bump(ROUTE, &route_of(name));
        }
    }

    pub(super) fn remove_listener(&mut self, name: &str) {
        self.remove(LISTENER, name);
        self.remove(ROUTE, &route_of(name));
    }

    pub(super) fn bump_secret(&mut self, name: &str) {
        self.bump(SECRET, name);
    }

    /// Makes Envoy reject the current version of a resource.
    pub(super) fn invalid(&mut self, url: &'static str, name: &str) {
        if self.get(url).contains_key(name) {
            let version = self.bump(url, name);
            self.invalid.insert(version);
        }
    }

    /// Replaces everything that Envoy rejects.
    pub(super) fn heal(&mut self) {
        let invalid: Vec<(&'static str, String)> = self
            .types
            .iter()
            .flat_map(|(url, names)| {
                names
                    .iter()
                    .map(move |(name, version)| (*url, name, version))
            })
            .filter(|(_, _, version)| self.invalid.contains(version))
            .map(|(url, name, _)| (url, name.clone()))
            .collect();
        for (url, name) in invalid {
            self.bump(url, &name);
        }
    }
}

pub(super) fn version(number: u64) -> String {
    format!("v{number}")
}

fn resource(url: &str, name: &str, number: u64) -> Resource {
    Resource {
        version: version(number),
        resource: Bytes::from(format!("{url} {name} {number}")),
        name: name.to_owned(),
        aliases: Vec::new(),
    }
}

/// Names with the sent version; `None` for a removal.
type Items = Vec<(String, Option<String>)>;

#[derive(Debug, Default)]
struct Tracked {
    wildcard: bool,
    names: BTreeSet<String>,
    acked: BTreeMap<String, String>,
    pending: Option<(String, Items)>,
    responded: bool,
}

/// A server's end of a stream to the relay.
#[derive(Debug)]
pub(super) struct Stream {
    id: u64,
    types: BTreeMap<String, Tracked>,
    next_nonce: u64,
    /// The node in the first request.
    node: Bytes,
    /// Consul resends endpoints and routes after the resources that refer to them; other servers do
    /// not.
    resends_children: bool,
    /// Whether to send only one resource per response.
    pub(super) splits: bool,
}

const UPSERTS: [&str; 5] = [SECRET, CLUSTER, ENDPOINT, LISTENER, ROUTE];
const REMOVALS: [&str; 3] = [CLUSTER, ENDPOINT, SECRET];

impl Stream {
    pub(super) fn new(id: u64, resends_children: bool) -> Stream {
        Stream {
            id,
            types: BTreeMap::new(),
            next_nonce: 0,
            node: Bytes::new(),
            resends_children,
            splits: false,
        }
    }

    pub(super) fn node(&self) -> &[u8] {
        &self.node
    }

    /// The names that the stream is subscribed to; `None` if this type was not requested.
    pub(super) fn names(&self, url: &str) -> Option<Vec<&str>> {
        let tracked = self.types.get(url)?;
        Some(tracked.names.iter().map(String::as_str).collect())
    }

    /// Processes a request; panics if the relay violates the protocol.
    pub(super) fn request(
        &mut self,
        snapshot: &Snapshot,
        request: DeltaDiscoveryRequest,
    ) -> Vec<DeltaDiscoveryResponse> {
        if !request.node.is_empty() {
            self.node = request.node;
        }
        assert!(!self.node.is_empty(), "the first request has no node");
        let first = !self.types.contains_key(&request.type_url);
        let tracked = self.types.entry(request.type_url.clone()).or_default();
        if first {
            assert!(
                request.response_nonce.is_empty(),
                "an answer before a response"
            );
            tracked.wildcard = request.resource_names_subscribe.is_empty();
            tracked.acked = request.initial_resource_versions.into_iter().collect();
        } else {
            assert!(request.initial_resource_versions.is_empty());
        }
        let mut nacked = false;
        if !request.response_nonce.is_empty() {
            let (nonce, items) = tracked.pending.take().expect("an answer to nothing");
            assert_eq!(
                nonce, request.response_nonce,
                "an answer that belongs elsewhere"
            );
            nacked = request.error_detail.is_some();
            for (name, version) in items.into_iter().filter(|_| !nacked) {
                match version {
                    Some(version) => drop(tracked.acked.insert(name, version)),
                    None => drop(tracked.acked.remove(&name)),
                }
            }
        }
        for name in request.resource_names_subscribe {
            let again = !tracked.names.insert(name.clone()) || !first;
            // For a wildcard subscription a name adds nothing.
            if again && !tracked.wildcard {
                tracked.acked.remove(&name);
            }
        }
        for name in request.resource_names_unsubscribe {
            tracked.names.remove(&name);
        }
        if nacked {
            Vec::new()
        } else {
            self.push(snapshot)
        }
    }

    /// One pass over all types, after a request or a new snapshot.
    pub(super) fn push(&mut self, snapshot: &Snapshot) -> Vec<DeltaDiscoveryResponse> {
        let mut responses = Vec::new();
        for url in UPSERTS {
            let refers = url == LISTENER || url == ROUTE;
            if refers && (self.is_pending(CLUSTER) || self.is_pending(ENDPOINT)) {
                return responses;
            }
            responses.extend(self.push_type(snapshot, url, true, refers));
        }
        for url in REMOVALS {
            responses.extend(self.push_type(snapshot, url, false, true));
        }
        responses
    }

    fn is_pending(&self, url: &str) -> bool {
        self.types
            .get(url)
            .is_some_and(|tracked| tracked.pending.is_some())
    }

    fn push_type(
        &mut self,
        snapshot: &Snapshot,
        url: &'static str,
        upserts: bool,
        removals: bool,
    ) -> Option<DeltaDiscoveryResponse> {
        let current = snapshot.get(url);
        let tracked = self
            .types
            .get_mut(url)
            .filter(|tracked| tracked.pending.is_none())?;
        let wanted = |name: &String| tracked.wildcard || tracked.names.contains(name);
        let news = current.iter().filter(|(name, number)| {
            upserts && wanted(name) && tracked.acked.get(*name) != Some(&version(**number))
        });
        let mut resources: Vec<Resource> = news.map(|(name, n)| resource(url, name, *n)).collect();
        if self.splits {
            resources.truncate(1);
        }
        let removed: Vec<String> = tracked
            .acked
            .keys()
            .filter(|name| removals && tracked.wildcard && !current.contains_key(*name))
            .cloned()
            .collect();
        let first = tracked.wildcard && !tracked.responded && upserts;
        if resources.is_empty() && removed.is_empty() && !first {
            return None;
        }
        tracked.responded = true;
        self.next_nonce += 1;
        let nonce = format!("stream {} nonce {}", self.id, self.next_nonce);
        let items = resources
            .iter()
            .map(|r| (r.name.clone(), Some(r.version.clone())));
        let items = items
            .chain(removed.iter().map(|name| (name.clone(), None)))
            .collect();
        tracked.pending = Some((nonce.clone(), items));
        if self.resends_children {
            self.resend_children(url, &resources);
        }
        Some(DeltaDiscoveryResponse {
            system_version_info: String::new(),
            resources,
            type_url: url.to_owned(),
            nonce,
            removed_resources: removed,
        })
    }

    fn resend_children(&mut self, url: &str, parents: &[Resource]) {
        let child = match url {
            CLUSTER => ENDPOINT,
            LISTENER => ROUTE,
            _ => return,
        };
        let Some(tracked) = self.types.get_mut(child) else {
            return;
        };
        for parent in parents {
            let name = if child == ROUTE {
                route_of(&parent.name)
            } else {
                parent.name.clone()
            };
            tracked.acked.remove(&name);
            if let Some((_, items)) = &mut tracked.pending {
                items.retain(|(other, _)| *other != name);
            }
        }
    }
}
