//! Generated histories: a model of Envoy's delta client with a session.
//!
//! The model is stricter than Envoy: it rejects a response as a whole, and it drops the endpoints of an
//! updated cluster and the routes of an updated listener without requesting them again.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_resources::ResourceSet;
use proptest::prelude::*;

use super::tests::{ack, nack, request, resource, set};
use super::{Received, Session};
use crate::ResourceType::{self, Cluster, Endpoint, Listener, Route, Secret};

/// The clusters that a listener uses, by name and version, because the model's bodies are empty.
type Uses = BTreeMap<(String, String), Vec<String>>;

/// A snapshot as numbers. Clusters `c0..`, each with endpoints of the same name; listeners `l0..`, each
/// with a route and the clusters that it uses.
#[derive(Clone, Debug)]
struct Mesh {
    /// Cluster and endpoint version of each cluster that exists.
    clusters: BTreeMap<u8, (u8, u8)>,
    /// Version and used clusters of each listener that exists.
    listeners: BTreeMap<u8, (u8, Vec<u8>)>,
    secret: u8,
}

impl Mesh {
    fn resources(&self, uses: &mut Uses) -> ResourceSet {
        let mut all = vec![(Secret, resource("leaf", &format!("s{}", self.secret), &[]))];
        for (id, (version, endpoints)) in &self.clusters {
            let name = format!("c{id}");
            all.push((Cluster, resource(&name, &format!("v{version}"), &[&name])));
            all.push((Endpoint, resource(&name, &format!("e{endpoints}"), &[])));
        }
        for (id, (version, used)) in &self.listeners {
            let name = format!("l{id}");
            let used: Vec<String> = used
                .iter()
                .filter(|id| self.clusters.contains_key(*id))
                .map(|id| format!("c{id}"))
                .collect();
            let version = format!("v{version}-{}", used.join("-"));
            all.push((Listener, resource(&name, &version, &[&name])));
            all.push((Route, resource(&name, &version, &[])));
            uses.insert((name, version), used);
        }
        set(all)
    }
}

fn mesh() -> impl Strategy<Value = Mesh> {
    let clusters = prop::collection::btree_map(0..4u8, (0..3u8, 0..3u8), 0..4);
    let listener = (0..3u8, prop::collection::vec(0..4u8, 0..3));
    let listeners = prop::collection::btree_map(0..3u8, listener, 0..3);
    (clusters, listeners, 0..3u8).prop_map(|(clusters, listeners, secret)| Mesh {
        clusters,
        listeners,
        secret,
    })
}

#[derive(Clone, Debug)]
enum Step {
    Snapshot(Mesh),
    /// The client reads one response, and may reject it.
    Read {
        refuse: bool,
    },
    /// The server reads one request.
    Serve,
    /// The stream breaks and the client reconnects with its resources.
    Reconnect,
    /// The client has dropped a resource that it subscribed to by name, and subscribes again.
    Forget(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => mesh().prop_map(Step::Snapshot),
        6 => prop::bool::weighted(0.15).prop_map(|refuse| Step::Read { refuse }),
        6 => Just(Step::Serve),
        1 => Just(Step::Reconnect),
        1 => any::<u8>().prop_map(Step::Forget),
    ]
}

/// Envoy's state, which survives streams.
#[derive(Default)]
struct Client {
    has: BTreeMap<ResourceType, BTreeMap<String, String>>,
    /// Subscribed names of types without a wildcard subscription.
    names: BTreeMap<ResourceType, BTreeSet<String>>,
}

impl Client {
    fn held(&mut self, kind: ResourceType) -> &mut BTreeMap<String, String> {
        self.has.entry(kind).or_default()
    }

    fn named(&mut self, kind: ResourceType) -> &mut BTreeSet<String> {
        self.names.entry(kind).or_default()
    }

    /// The first requests of a stream, with the client's versions.
    fn first_requests(&mut self) -> Vec<DeltaDiscoveryRequest> {
        self.named(Secret).insert("leaf".to_owned());
        let mut requests = Vec::new();
        for kind in [Cluster, Endpoint, Listener, Route, Secret] {
            let wildcard = matches!(kind, Cluster | Listener);
            let names: Vec<String> = self.named(kind).iter().cloned().collect();
            if !wildcard && names.is_empty() {
                continue;
            }
            requests.push(DeltaDiscoveryRequest {
                resource_names_subscribe: names,
                initial_resource_versions: self.held(kind).clone().into_iter().collect(),
                ..request(kind)
            });
        }
        requests
    }

    /// Applies a response. Returns the resulting requests.
    fn accept(&mut self, response: &DeltaDiscoveryResponse) -> Vec<DeltaDiscoveryRequest> {
        let kind = ResourceType::from_url(&response.type_url).unwrap();
        for one in &response.resources {
            // Envoy ignores resources that it has unsubscribed from in the meantime.
            if kind.child().is_some() || self.named(kind).contains(&one.name) {
                self.held(kind)
                    .insert(one.name.clone(), one.version.clone());
            }
        }
        for name in &response.removed_resources {
            self.held(kind).remove(name);
        }
        let mut requests = vec![ack(response)];
        let Some(child) = kind.child() else {
            return requests;
        };
        let mut subscribe = Vec::new();
        for one in &response.resources {
            self.held(child).remove(&one.name);
            if self.named(child).insert(one.name.clone()) {
                subscribe.push(one.name.clone());
            }
        }
        let mut unsubscribe = Vec::new();
        for name in &response.removed_resources {
            self.held(child).remove(name);
            if self.named(child).remove(name) {
                unsubscribe.push(name.clone());
            }
        }
        if !subscribe.is_empty() || !unsubscribe.is_empty() {
            requests.push(DeltaDiscoveryRequest {
                resource_names_subscribe: subscribe,
                resource_names_unsubscribe: unsubscribe,
                ..request(child)
            });
        }
        requests
    }
}

/// Both ends and the messages in flight between them.
struct World {
    session: Session,
    client: Client,
    to_client: VecDeque<DeltaDiscoveryResponse>,
    to_server: VecDeque<DeltaDiscoveryRequest>,
    current: Mesh,
    uses: Uses,
    /// Clusters that were sent to the client, whether accepted or not.
    known: BTreeSet<String>,
    /// The last version of each listener that was sent to the client.
    listeners: BTreeMap<String, String>,
    nonces: HashSet<String>,
    /// Types with a response whose answer the server has not read yet.
    open: BTreeMap<ResourceType, String>,
    refused: bool,
}

impl World {
    fn new(first: Mesh) -> Self {
        let mut world = Self {
            session: Session::new(),
            client: Client::default(),
            to_client: VecDeque::new(),
            to_server: VecDeque::new(),
            current: first,
            uses: Uses::new(),
            known: BTreeSet::new(),
            listeners: BTreeMap::new(),
            nonces: HashSet::new(),
            open: BTreeMap::new(),
            refused: false,
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.session = Session::new();
        self.to_client.clear();
        self.nonces.clear();
        self.open.clear();
        self.to_server = self.client.first_requests().into();
        self.known = self.client.held(Cluster).keys().cloned().collect();
        self.listeners = self.client.held(Listener).clone();
        let resources = self.current.resources(&mut self.uses);
        self.session.on_snapshot(resources);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Snapshot(mesh) => {
                self.current = mesh;
                let resources = self.current.resources(&mut self.uses);
                self.session.on_snapshot(resources);
            }
            Step::Read { refuse } => {
                if let Some(response) = self.to_client.pop_front() {
                    if refuse {
                        self.refused = true;
                        self.to_server.push_back(nack(&response));
                    } else {
                        let requests = self.client.accept(&response);
                        self.to_server.extend(requests);
                    }
                }
            }
            Step::Serve => self.serve(),
            Step::Reconnect => self.connect(),
            Step::Forget(pick) => self.forget(pick),
        }
        self.poll();
    }

    fn serve(&mut self) {
        let Some(request) = self.to_server.pop_front() else {
            return;
        };
        let kind = ResourceType::from_url(&request.type_url).unwrap();
        if self.open.get(&kind) == Some(&request.response_nonce) {
            self.open.remove(&kind);
        }
        let refused = request.error_detail.is_some();
        let received = self.session.on_request(request);
        assert_eq!(matches!(received, Received::Refused(_)), refused);
    }

    fn forget(&mut self, pick: u8) {
        let named = self.client.named(Endpoint);
        let Some(name) = named
            .iter()
            .nth(usize::from(pick) % named.len().max(1))
            .cloned()
        else {
            return;
        };
        self.client.held(Endpoint).remove(&name);
        self.to_server.push_back(DeltaDiscoveryRequest {
            resource_names_subscribe: vec![name],
            ..request(Endpoint)
        });
    }

    fn poll(&mut self) {
        for response in self.session.poll() {
            self.check(&response);
            self.to_client.push_back(response);
        }
        assert_eq!(self.session.poll(), [], "nothing happened in between");
    }

    /// Invariants of every response at the moment it is sent.
    fn check(&mut self, response: &DeltaDiscoveryResponse) {
        let kind = ResourceType::from_url(&response.type_url).unwrap();
        assert!(self.nonces.insert(response.nonce.clone()), "a nonce twice");
        let open = self.open.insert(kind, response.nonce.clone());
        assert_eq!(open, None, "a {kind} response while another is unanswered");
        if kind == Endpoint {
            self.check_endpoints(response);
        } else if !matches!(kind, Cluster | Listener) {
            assert!(
                response.removed_resources.is_empty(),
                "a removal for a named {kind}"
            );
        }
        if matches!(kind, Listener | Route) {
            assert!(
                !self.open.contains_key(&Cluster),
                "a {kind} before its clusters"
            );
            assert!(
                !self.open.contains_key(&Endpoint),
                "a {kind} before its endpoints"
            );
        }
        match kind {
            Cluster => self.check_clusters(response),
            Listener => {
                for one in &response.resources {
                    let used = &self.uses[&(one.name.clone(), one.version.clone())];
                    for cluster in used {
                        assert!(self.known.contains(cluster), "{} uses {cluster}", one.name);
                    }
                    self.listeners.insert(one.name.clone(), one.version.clone());
                }
                for name in &response.removed_resources {
                    self.listeners.remove(name);
                }
            }
            _ => {}
        }
    }

    /// Only endpoints that are not in the snapshot are removed. That does not affect a cluster in use:
    /// Envoy keeps the endpoints that it has, and stops waiting for missing ones.
    fn check_endpoints(&mut self, response: &DeltaDiscoveryResponse) {
        let resources = self.current.resources(&mut self.uses);
        let endpoints = resources.get(Endpoint.url());
        for name in &response.removed_resources {
            assert!(!endpoints.contains_key(name), "{name} removed");
        }
    }

    fn check_clusters(&mut self, response: &DeltaDiscoveryResponse) {
        self.known
            .extend(response.resources.iter().map(|one| one.name.clone()));
        for name in &response.removed_resources {
            self.known.remove(name);
            for listener in &self.listeners {
                let key = (listener.0.clone(), listener.1.clone());
                assert!(
                    !self.uses[&key].contains(name),
                    "{name} removed under {listener:?}"
                );
            }
        }
    }

    /// Delivers and accepts everything, with a bounded number of messages.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            if self.to_client.is_empty() && self.to_server.is_empty() {
                return;
            }
            self.step(Step::Read { refuse: false });
            self.step(Step::Serve);
        }
        panic!("client and server do not come to an end");
    }

    /// Checks that the client has the snapshot's resources: all of those with a wildcard, and of the
    /// others those that it named and that exist.
    fn check_converged(&mut self) {
        let resources = self.current.resources(&mut self.uses);
        for kind in ResourceType::ALL {
            let expected: BTreeMap<String, String> = resources
                .get(kind.url())
                .values()
                .map(|one| (one.name.to_string(), one.version.to_string()))
                .collect();
            let mut has = self.client.held(kind).clone();
            if !matches!(kind, Cluster | Listener) {
                has.retain(|name, _| expected.contains_key(name));
            }
            assert_eq!(has, expected, "{kind}");
        }
    }
}

/// The same mesh with versions that no generated mesh has.
fn renewed(mesh: &Mesh) -> Mesh {
    let mut mesh = mesh.clone();
    mesh.secret += 100;
    for (version, endpoints) in mesh.clusters.values_mut() {
        *version += 100;
        *endpoints += 100;
    }
    for (version, _) in mesh.listeners.values_mut() {
        *version += 100;
    }
    mesh
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_client_ends_up_with_the_snapshot(
        first in mesh(),
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut world = World::new(first);
        for step in steps {
            world.step(step);
        }
        world.settle();
        if world.refused {
            // Rejected resources are not repeated; the next version replaces them.
            let next = renewed(&world.current);
            world.step(Step::Snapshot(next));
            world.settle();
        }
        world.check_converged();
    }

    #[test]
    fn a_reconnect_transfers_nothing_that_the_client_has(mesh in mesh()) {
        let mut world = World::new(mesh);
        world.settle();
        world.check_converged();
        world.connect();
        world.poll();
        while !(world.to_client.is_empty() && world.to_server.is_empty()) {
            for response in &world.to_client {
                prop_assert!(response.resources.is_empty(), "{response:?}");
            }
            world.step(Step::Read { refuse: false });
            world.step(Step::Serve);
        }
        world.check_converged();
    }
}
