//! Two clusters with a link that keeps the order, loses nothing, and may end at any time. Whatever happens, in the end
//! each has what the other one exports, and at every step everything is bounded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use legate_api::internal::peering::PeeringTrustBundle;
use legate_api::internal::peerstream::replication_message::Response;
use legate_model::PeerTrustBundle;
use proptest::prelude::*;
use prost::Message;
use prost_types::Any;

use super::*;
use crate::export::{mesh_id, plain};
use crate::import::{self, Import, kept};
use crate::{
    Exports, IMPORTS, Payload, PendingImport, RESPONSES_IN_FLIGHT, ResourceType, ServiceList,
};

/// What a cluster exports, in short.
#[derive(Debug, Clone, Default)]
struct Wanted {
    /// The number of instances of the listed services, and the gateways of their mesh form.
    services: BTreeMap<u8, (usize, Option<usize>)>,
    /// Mesh forms of services that are not listed.
    mesh_only: BTreeSet<u8>,
    /// More services, each with this instance.
    many: Option<(usize, usize)>,
    roots: bool,
    addresses: u8,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let service = (0_usize..3, prop::option::of(0_usize..3));
    let many = prop_oneof![
        6 => Just(None),
        1 => (100_usize..300, 0_usize..3).prop_map(Some),
    ];
    (
        prop::collection::btree_map(0_u8..4, service, 0..4),
        prop::collection::btree_set(4_u8..6, 0..2),
        many,
        any::<bool>(),
        0_u8..3,
    )
        .prop_map(|(services, mesh_only, many, roots, addresses)| Wanted {
            services,
            mesh_only,
            many,
            roots,
            addresses,
        })
}

fn instances(name: &str, count: usize) -> Vec<CheckServiceNode> {
    (0..count)
        .map(|number| instance(name, number, CheckStatus::Passing))
        .collect()
}

fn exports(wanted: &Wanted, root: &str) -> Exports {
    let mut exports = Exports::default();
    let mut names = Vec::new();
    let mut add = |id: String, payload: Payload| exports.services.insert(id.into(), payload);
    for (number, (count, gateways)) in &wanted.services {
        let name = format!("service-{number}");
        let service = plain(&name, &instances(&name, *count)).unwrap();
        add(name.clone(), Payload::service(&service));
        if let Some(gateways) = gateways {
            let gateways: Vec<_> = (0..*gateways).map(gateway).collect();
            let service = mesh_of(&name, &gateways, "http");
            add(mesh_id(&name), Payload::service(&service));
        }
        names.push(name);
    }
    for number in &wanted.mesh_only {
        let name = format!("service-{number}");
        let service = mesh_of(&name, &[gateway(1)], "http");
        add(mesh_id(&name), Payload::service(&service));
    }
    if let Some((count, number)) = wanted.many {
        for i in 0..count {
            let name = format!("many-{i:03}");
            let one = [instance(&name, number, CheckStatus::Passing)];
            add(name.clone(), Payload::service(&plain(&name, &one).unwrap()));
            names.push(name);
        }
    }
    exports.list = Some(ServiceList::new(names));
    exports.trust_bundle = wanted.roots.then(|| {
        Payload::trust_bundle(&PeeringTrustBundle {
            trust_domain: "exporter.consul".to_owned(),
            root_pems: vec![root.to_owned()],
            ..PeeringTrustBundle::default()
        })
    });
    exports.server_addresses = (wanted.addresses > 0)
        .then(|| Payload::server_addresses(vec![format!("10.0.0.{}:8503", wanted.addresses)]));
    exports
}

/// What a cluster has stored of the other one.
#[derive(Debug, Clone, Default, PartialEq)]
struct Stored {
    services: BTreeMap<String, Vec<CheckServiceNode>>,
    roots: Option<PeerTrustBundle>,
    addresses: Option<Vec<String>>,
}

impl Stored {
    fn apply(&mut self, import: Import) {
        match import {
            Import::Service(service) if service.instances.is_empty() => {
                self.services.remove(&service.name);
            }
            Import::Service(service) => {
                self.services.insert(service.name, service.instances);
            }
            Import::ServiceList(list) => {
                let kept = kept(&list);
                self.services.retain(|name, _| kept.contains(name));
            }
            Import::TrustBundle(bundle) => self.roots = Some(bundle),
            Import::ServerAddresses(addresses) => self.addresses = Some(addresses),
        }
    }

    /// All of the exports. What is not exported any more, but has no message for its removal, stays.
    fn of(exports: &Exports, before: &Self, dials: bool) -> Self {
        let read = |kind: ResourceType, id: &str, payload: &Payload| {
            import::read(kind, id, &payload.any, &rules()).unwrap()
        };
        let mut all = Self {
            services: BTreeMap::new(),
            ..before.clone()
        };
        for (id, payload) in &exports.services {
            all.apply(read(ResourceType::Service, id, payload));
        }
        if let Some(payload) = &exports.trust_bundle {
            all.apply(read(ResourceType::TrustBundle, "", payload));
        }
        if let Some(payload) = exports.server_addresses.as_ref().filter(|_| dials) {
            all.apply(read(ResourceType::ServerAddresses, "", payload));
        }
        all
    }

    fn counts(&self) -> BTreeMap<String, usize> {
        let services = self.services.iter();
        services
            .map(|(name, all)| (name.clone(), all.len()))
            .collect()
    }
}

struct Cluster {
    dials: bool,
    session: Session,
    exports: Arc<Exports>,
    stored: Stored,
    /// Imports of the current stream that are not stored yet.
    pending: VecDeque<PendingImport>,
    /// Messages on their way to this cluster.
    inbox: VecDeque<ReplicationMessage>,
    /// Responses that were sent on the current stream without an answer yet.
    unanswered: BTreeSet<String>,
    /// Services that were sent on the current stream.
    sent: BTreeSet<String>,
    received: usize,
    answered: usize,
}

impl Cluster {
    fn new(dials: bool) -> Self {
        let mut cluster = Self {
            dials,
            session: acceptor(),
            exports: Arc::default(),
            stored: Stored::default(),
            pending: VecDeque::new(),
            inbox: VecDeque::new(),
            unanswered: BTreeSet::new(),
            sent: BTreeSet::new(),
            received: 0,
            answered: 0,
        };
        cluster.connect();
        cluster
    }

    /// A new stream. Only what is stored is left of the last one.
    fn connect(&mut self) {
        let counts = self.stored.counts();
        self.session = match self.dials {
            true => Session::dialer(opening_message(), rules(), counts),
            false => Session::acceptor(rules(), counts),
        };
        self.session.set_exports(Arc::clone(&self.exports));
        self.pending.clear();
        self.inbox.clear();
        self.unanswered.clear();
        self.sent.clear();
        (self.received, self.answered) = (0, 0);
    }

    fn take_events(&mut self) {
        for event in events(&mut self.session) {
            match event {
                Event::Import(pending) => self.pending.push_back(pending),
                Event::Received(Err(error)) => {
                    assert!(error.ends_with(": no space"), "{error}");
                }
                Event::End(end) => panic!("the stream has ended: {end:?}"),
                _ => {}
            }
        }
        assert!(self.pending.len() <= IMPORTS);
    }

    fn next_message(&mut self) -> Option<ReplicationMessage> {
        let sent = self.session.next_message()?;
        match sent.payload.as_ref().unwrap() {
            Content::Response(response) => {
                assert!(
                    self.unanswered.insert(response.nonce.clone()),
                    "a new nonce"
                );
                self.note_sent(response);
            }
            Content::Request(request) if !request.response_nonce.is_empty() => self.answered += 1,
            _ => {}
        }
        assert!(self.unanswered.len() <= RESPONSES_IN_FLIGHT);
        self.take_events();
        Some(sent)
    }

    /// The list comes after each service that it names.
    fn note_sent(&mut self, response: &Response) {
        if response.resource_url == ResourceType::Service.url() {
            self.sent.insert(response.resource_id.clone());
        }
        if response.resource_url == ResourceType::ServiceList.url() {
            let any = Any::decode(response.resource.clone().unwrap()).unwrap();
            let list = Message::decode(any.value.as_slice()).unwrap();
            let kept = kept(&import::service_list(list).unwrap());
            self.sent.retain(|id| kept.contains(id));
            let missing = self.exports.services.keys();
            let missing = missing.filter(|id| kept.contains(&***id) && !self.sent.contains(&***id));
            assert_eq!(missing.collect::<Vec<_>>(), Vec::<&Arc<str>>::new());
        }
    }

    fn receive(&mut self, now: Duration) -> bool {
        if !self.session.wants_messages() {
            return false;
        }
        let Some(message) = self.inbox.pop_front() else {
            return false;
        };
        match message.payload.as_ref().unwrap() {
            Content::Response(_) => self.received += 1,
            Content::Request(request) => {
                self.unanswered.remove(&request.response_nonce);
            }
            _ => {}
        }
        self.session.receive(message, now);
        self.take_events();
        assert!(
            self.answered <= self.received,
            "one answer for each response"
        );
        true
    }

    fn store(&mut self, works: bool) -> bool {
        let Some(pending) = self.pending.pop_front() else {
            return false;
        };
        let result = match works {
            true => {
                self.stored.apply(pending.import);
                Ok(())
            }
            false => Err("no space".to_owned()),
        };
        self.session.imported(pending.id, result);
        self.take_events();
        true
    }
}

#[derive(Debug, Clone)]
enum Step {
    Export(usize, Wanted),
    Send(usize, usize),
    Receive(usize, usize),
    Store(usize, Vec<bool>),
    Wait(u64),
    Cut,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let amount = || prop_oneof![2 => 1_usize..5, 1 => Just(400_usize)];
    let works = prop::collection::vec(prop::bool::weighted(0.85), 1..8);
    let step = prop_oneof![
        3 => (0_usize..2, wanted()).prop_map(|(at, wanted)| Step::Export(at, wanted)),
        6 => (0_usize..2, amount()).prop_map(|(at, count)| Step::Send(at, count)),
        6 => (0_usize..2, amount()).prop_map(|(at, count)| Step::Receive(at, count)),
        6 => (0_usize..2, works).prop_map(|(at, works)| Step::Store(at, works)),
        1 => (1_u64..40).prop_map(Step::Wait),
        1 => Just(Step::Cut),
    ];
    prop::collection::vec(step, 1..60)
}

struct World {
    clusters: [Cluster; 2],
    now: Duration,
    root: String,
}

impl World {
    fn send(&mut self, from: usize) -> bool {
        let message = self.clusters[from].next_message();
        let sent = message.is_some();
        self.clusters[1 - from].inbox.extend(message);
        sent
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Export(at, wanted) => {
                let cluster = &mut self.clusters[at];
                cluster.exports = Arc::new(exports(&wanted, &self.root));
                cluster.session.set_exports(Arc::clone(&cluster.exports));
            }
            Step::Send(from, count) => {
                for _ in 0..count {
                    self.send(from);
                }
            }
            Step::Receive(at, count) => {
                for _ in 0..count {
                    self.clusters[at].receive(self.now);
                }
            }
            Step::Store(at, works) => {
                for works in works {
                    self.clusters[at].store(works);
                }
            }
            Step::Wait(seconds) => {
                // Heartbeats are exchanged meanwhile.
                self.settle();
                self.wait(seconds);
            }
            Step::Cut => {
                for cluster in &mut self.clusters {
                    cluster.session.lost(None);
                    cluster.connect();
                }
                self.now = Duration::ZERO;
            }
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        for cluster in &mut self.clusters {
            cluster.session.tick(self.now);
            cluster.take_events();
        }
    }

    /// Everything goes on until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut moved = false;
            for at in 0..2 {
                moved |= self.send(at);
                moved |= self.clusters[at].receive(self.now);
                moved |= self.clusters[at].store(true);
            }
            if !moved {
                return;
            }
        }
        panic!("the clusters never come to rest");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn each_cluster_gets_what_the_other_exports(steps in steps()) {
        let mut world = World {
            clusters: [Cluster::new(true), Cluster::new(false)],
            now: Duration::ZERO,
            root: root(),
        };
        for at in 0..2 {
            world.play(Step::Export(at, Wanted::default()));
        }
        for step in steps {
            world.play(step);
        }
        world.settle();
        for _ in 0..5 {
            world.wait(15);
            world.settle();
        }
        for at in 0..2 {
            let (cluster, other) = (&world.clusters[at], &world.clusters[1 - at]);
            let expected = Stored::of(&other.exports, &cluster.stored, cluster.dials);
            prop_assert_eq!(&cluster.stored, &expected);
            prop_assert_eq!(cluster.answered, cluster.received);
            prop_assert!(cluster.unanswered.is_empty());
        }
    }
}
