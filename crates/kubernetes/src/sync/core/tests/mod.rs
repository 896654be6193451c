//! Generated sequences of events in a cluster, against a catalog that enforces its own rules:
//! eventually it equals the wanted state, and foreign instances were never touched.

mod cases;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::sync::catalog::{self, CLUSTER, Id, InstanceKey, NodeState};
use crate::sync::registration::VirtualIp;
use crate::sync::wanted::Wanted;

const CLUSTER_UID: &str = "cluster-1";
const PODS: usize = 5;
const NODES: [&str; 2] = ["n1", "n2"];

/// Fake servers that store what was written.
#[derive(Clone, Debug, Default)]
struct Servers {
    /// Nodes with their meta.
    nodes: BTreeMap<String, Value>,
    services: BTreeMap<InstanceKey, Value>,
    checks: BTreeMap<InstanceKey, Value>,
    has_namespaces: bool,
    namespaces: BTreeSet<String>,
    tokens: BTreeSet<(Key, String)>,
}

/// The id of an instance or a check in this field.
fn of(value: &Value, field: &str) -> Id {
    let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
    Id {
        namespace: text("Namespace"),
        id: text(field),
    }
}

fn id(id: &str) -> Id {
    of(&json!({"ID": id}), "ID")
}

impl Servers {
    /// Executes a call as the driver and the servers do.
    fn call(&mut self, call: &Call) -> Outcome {
        match call {
            Call::Register(wanted) => self.register(&wanted.body),
            Call::Checks { body, .. } => self.register(body),
            Call::VirtualIp(_) => Outcome::Done,
            Call::Namespace(name) => {
                self.namespaces.insert(name.clone());
                Outcome::Done
            }
            Call::Deregister { node, id } => {
                self.services.remove(&(node.clone(), id.clone()));
                self.checks
                    .retain(|(n, _), check| n != node || of(check, "ServiceID") != *id);
                Outcome::Done
            }
            Call::RemoveTokens { pod, uid, .. } => {
                self.tokens.remove(&(pod.clone(), uid.clone()));
                Outcome::Done
            }
        }
    }

    fn register(&mut self, body: &Value) -> Outcome {
        let node = body["Node"].as_str().unwrap().to_owned();
        if !self.nodes.contains_key(&node) && body.get("Address").is_none() {
            return Outcome::Refused("no such node".to_owned());
        }
        let meta = body["NodeMeta"].clone();
        self.nodes.entry(node.clone()).or_insert(meta);
        if let Some(service) = body.get("Service") {
            if service["Service"] == "refused" {
                return Outcome::Refused("a name that is refused".to_owned());
            }
            let id = of(service, "ID");
            if id.in_namespace().is_some() && !self.namespaces.contains(&id.namespace) {
                return Outcome::Refused("no such namespace".to_owned());
            }
            self.services.insert((node.clone(), id), service.clone());
        }
        let many = body["Checks"].as_array().cloned().unwrap_or_default();
        for check in many.into_iter().chain(body.get("Check").cloned()) {
            let id = of(&check, "ServiceID");
            if !self.services.contains_key(&(node.clone(), id)) {
                return Outcome::Refused("no such service".to_owned());
            }
            let id = of(&check, "CheckID");
            self.checks.insert((node.clone(), id), check);
        }
        Outcome::Done
    }

    fn read(&self, name: &str) -> Option<NodeState> {
        let meta = self.nodes.get(name)?;
        let services = self.services.iter().filter(|((node, _), _)| node == name);
        let services: Vec<Value> = services.map(|(_, service)| service.clone()).collect();
        let checks = self.checks.iter().filter(|((node, _), _)| node == name);
        let checks: Vec<Value> = checks.map(|(_, check)| check.clone()).collect();
        let node = json!({"Node": {"Node": name, "Meta": meta}, "Services": services});
        let checks = Value::from(checks);
        catalog::read(CLUSTER_UID, &node, &checks, self.has_namespaces)
    }

    /// Executes one job as the driver does. The servers become unreachable after `calls` calls;
    /// with `lost` the next call is executed and its response lost.
    fn job(&mut self, job: Job, calls: usize, lost: bool) -> Ended {
        let away = || "away".to_owned();
        match job {
            _ if calls == 0 && !lost => match job {
                Job::ListNodes => Ended::Nodes(Err(away())),
                Job::ReadNode(name) => Ended::Node(name, Err(away())),
                Job::RemoveNode(name) => Ended::Removed(name, false),
                Job::Pod(key, calls) => {
                    let first = calls.into_iter().take(1);
                    Ended::Pod(
                        key,
                        first.map(|c| (c, Outcome::Unreachable(away()))).collect(),
                    )
                }
                Job::SweepTokens(_) => Ended::Swept,
            },
            Job::ListNodes => Ended::Nodes(Ok(self.nodes.keys().cloned().collect())),
            Job::ReadNode(name) => {
                let state = self.read(&name);
                Ended::Node(name, Ok(state))
            }
            Job::RemoveNode(name) => {
                let unused = |state: NodeState| state.removable && state.instances.is_empty();
                let gone = self.read(&name).is_some_and(unused);
                if gone {
                    self.nodes.remove(&name);
                }
                Ended::Removed(name, gone)
            }
            Job::Pod(key, list) => {
                let (mut results, mut refused) = (Vec::new(), false);
                for (i, call) in list.into_iter().enumerate() {
                    if refused && call.adds() {
                        continue;
                    }
                    if i >= calls {
                        if lost {
                            self.call(&call);
                        }
                        results.push((call, Outcome::Unreachable(away())));
                        break;
                    }
                    let outcome = self.call(&call);
                    refused |= matches!(outcome, Outcome::Refused(_));
                    results.push((call, outcome));
                }
                Ended::Pod(key, results)
            }
            Job::SweepTokens(live) => {
                self.tokens.retain(|(key, uid)| live.get(key) == Some(uid));
                Ended::Swept
            }
        }
    }
}

/// Creates a pod by number. Even numbers belong to a StatefulSet, whose pod names repeat.
fn pod(number: usize, uid: u32, node: usize, ready: bool, service: &str) -> Pod {
    let annotations = [
        ("connect-inject-status", "injected"),
        ("connect-service", service),
        ("connect-service-port", "8080"),
    ];
    let annotations = annotations.map(|(key, value)| {
        let key = format!("{}{key}", crate::annotations::PREFIX);
        (key, value.to_owned())
    });
    Pod {
        key: Key::new("ns", &format!("p-{number}")),
        uid: format!("u{uid}"),
        labels: BTreeMap::from([("app".to_owned(), service.to_owned())]),
        annotations: annotations.into(),
        node: NODES[node].to_owned(),
        host_ip: format!("192.0.2.{node}"),
        ip: format!("10.0.{number}.{}", uid % 200),
        ready,
        ..Pod::default()
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// The pod is created or changed, with the same or a new uid.
    Apply {
        number: usize,
        new: bool,
        node: usize,
        ready: bool,
        refused: bool,
    },
    Terminate(usize),
    Finish(usize),
    Remove(usize),
    /// The watch restarts with a new list.
    Relist,
    /// Jobs start and end. `calls` limits the calls of each, and one response may be lost.
    Work {
        calls: usize,
        lost: bool,
    },
    /// Jobs start, and one of those in flight ends.
    One {
        which: usize,
    },
    /// The process restarts.
    Crash,
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let pod = || 0..PODS;
    prop_oneof![
        6 => (pod(), any::<bool>(), 0..NODES.len(), any::<bool>(), prop::bool::weighted(0.1)).prop_map(
            |(number, new, node, ready, refused)| Event::Apply { number, new, node, ready, refused }),
        1 => pod().prop_map(Event::Terminate),
        1 => pod().prop_map(Event::Finish),
        2 => pod().prop_map(Event::Remove),
        1 => Just(Event::Relist),
        3 => (0_usize..4, any::<bool>()).prop_map(|(calls, lost)| Event::Work { calls, lost }),
        5 => (0_usize..8).prop_map(|which| Event::One { which }),
        1 => Just(Event::Crash),
        2 => (1_u64..5_000).prop_map(Event::Pass),
    ]
}

struct World {
    settings: Settings,
    now: Instant,
    core: Core,
    servers: Servers,
    pods: BTreeMap<Key, Pod>,
    uids: u32,
    under_way: Vec<Job>,
    foreign: Vec<InstanceKey>,
}

fn settings() -> Settings {
    Settings {
        cluster: CLUSTER_UID.to_owned(),
        ..Settings::default()
    }
}

impl World {
    fn new() -> World {
        World::with(settings())
    }

    fn with(settings: Settings) -> World {
        let mut servers = Servers {
            has_namespaces: settings.tenants.has_namespaces(),
            ..Servers::default()
        };
        let mut foreign = Vec::new();
        // Instances of an agent, of another cluster, and of another integration in this cluster.
        let others = [
            ("vm-1", "web", json!({})),
            (
                "n1-virtual",
                "p-0-other",
                json!({"managed-by": catalog::MANAGED_BY_VALUE,
                "pod-name": "p-0", "k8s-namespace": "ns", CLUSTER: "cluster-2"}),
            ),
            (
                "n2-virtual",
                "gone-x",
                json!({"managed-by": catalog::MANAGED_BY_VALUE,
                "pod-name": "gone", "k8s-namespace": "ns"}),
            ),
        ];
        for (node, name, meta) in others {
            let node_meta = json!({catalog::SYNTHETIC: "true"});
            let service = json!({"ID": name, "Service": "x", "Meta": meta});
            servers.nodes.insert(node.to_owned(), node_meta);
            let place = (node.to_owned(), id(name));
            servers.services.insert(place.clone(), service);
            foreign.push(place);
        }
        let now = Instant::now();
        let mut world = World {
            now,
            core: Core::new(settings.clone(), true, now),
            settings,
            servers,
            pods: BTreeMap::new(),
            uids: 0,
            under_way: Vec::new(),
            foreign,
        };
        world.start();
        world
    }

    fn start(&mut self) {
        self.core = Core::new(self.settings.clone(), true, self.now);
        self.under_way.clear();
        for node in NODES {
            let name = node.to_owned();
            let node = Node {
                name,
                ..Node::default()
            };
            self.core.node(Change::Listed(node), self.now);
        }
        self.core.node(Change::Complete, self.now);
        self.core.service(Change::Complete, self.now);
        self.relist();
    }

    fn relist(&mut self) {
        self.core.pod(Change::Begin, self.now);
        for pod in self.pods.values() {
            self.core.pod(Change::Listed(pod.clone()), self.now);
        }
        self.core.pod(Change::Complete, self.now);
    }

    fn step(&mut self, event: &Event) {
        match *event {
            Event::Apply {
                number,
                new,
                node,
                ready,
                refused,
            } => {
                let key = Key::new("ns", &format!("p-{number}"));
                let service = if refused {
                    "refused"
                } else {
                    ["web", "api"][number % 2]
                };
                let made = match self.pods.get(&key).filter(|_| !new) {
                    // A pod keeps its node and the service of its name.
                    Some(old) => Pod {
                        ready,
                        ..old.clone()
                    },
                    None => {
                        self.uids += 1;
                        let made = pod(number, self.uids, node, ready, service);
                        self.servers.tokens.insert((key.clone(), made.uid.clone()));
                        made
                    }
                };
                self.apply(made);
            }
            Event::Terminate(number) => self.change(number, |pod| pod.terminating = true),
            Event::Finish(number) => self.change(number, |pod| pod.finished = true),
            Event::Remove(number) => {
                let key = Key::new("ns", &format!("p-{number}"));
                if let Some(pod) = self.pods.remove(&key) {
                    self.core.pod(Change::Gone(pod), self.now);
                }
            }
            Event::Relist => self.relist(),
            Event::Work { calls, lost } => {
                self.begin();
                for job in std::mem::take(&mut self.under_way) {
                    self.end(job, calls, lost);
                }
            }
            Event::One { which } => {
                self.begin();
                if !self.under_way.is_empty() {
                    let job = self.under_way.remove(which % self.under_way.len());
                    self.end(job, usize::MAX, false);
                }
            }
            Event::Crash => self.start(),
            Event::Pass(time) => self.now += Duration::from_millis(time),
        }
    }

    fn change(&mut self, number: usize, change: impl Fn(&mut Pod)) {
        let key = Key::new("ns", &format!("p-{number}"));
        if let Some(mut pod) = self.pods.get(&key).cloned() {
            change(&mut pod);
            self.apply(pod);
        }
    }

    fn apply(&mut self, pod: Pod) {
        self.pods.insert(pod.key.clone(), pod.clone());
        self.core.pod(Change::Applied(pod), self.now);
    }

    fn begin(&mut self) {
        let jobs = self.core.poll(self.now);
        self.under_way.extend(jobs);
        let pods = self.under_way.iter().filter_map(|job| match job {
            Job::Pod(key, _) => Some(key),
            _ => None,
        });
        let pods: Vec<&Key> = pods.collect();
        let once: BTreeSet<&Key> = pods.iter().copied().collect();
        assert_eq!(pods.len(), once.len(), "one job a pod");
        assert!(self.under_way.len() <= JOBS);
    }

    fn end(&mut self, job: Job, calls: usize, lost: bool) {
        let ended = self.servers.job(job, calls, lost);
        self.core.ended(ended, self.now, 0.5);
    }

    /// Runs until all work is done.
    fn settle(&mut self) {
        for _ in 0..2_000 {
            self.begin();
            if self.under_way.is_empty() {
                if self.core.settled() {
                    return;
                }
                let wake = self.core.wake();
                assert!(wake > self.now, "woken for nothing: {:?}", self.core);
                if wake > self.now + FULL_EVERY / 2 {
                    return;
                }
                self.now = wake;
            }
            for job in std::mem::take(&mut self.under_way) {
                self.end(job, usize::MAX, false);
            }
            let refused = self
                .pods
                .values()
                .any(|pod| pod.annotation("connect-service") == Some("refused"));
            if refused
                && self.core.queue.is_empty()
                && self.core.jobs == 0
                && self.core.reading.nodes.is_empty()
                && !self
                    .core
                    .removable
                    .iter()
                    .any(|node| self.core.is_unused(node))
                && !self.core.sweep
            {
                return;
            }
        }
        panic!("it never settles: {:?}", self.core);
    }

    /// Asserts that the catalog has exactly the wanted instances.
    fn check(&self) {
        let mut wanted = BTreeMap::new();
        for pod in self.pods.values() {
            if pod.annotation("connect-service") == Some("refused") {
                continue;
            }
            let made = crate::sync::wanted::wanted(pod, [], Some(&Node::default()), &self.settings);
            if let Wanted::Instances { registrations, .. } = made {
                for registration in registrations {
                    let place = (registration.node.clone(), registration.id.clone());
                    wanted.insert(place, registration.body);
                }
            }
        }
        assert_eq!(self.core.sizes().instances, wanted.len());
        let mut found = self.servers.services.clone();
        for place in &self.foreign {
            assert!(found.remove(place).is_some(), "foreign and gone: {place:?}");
        }
        let places: Vec<_> = found.keys().collect();
        assert_eq!(places, wanted.keys().collect::<Vec<_>>());
        for (place, body) in &wanted {
            assert_eq!(&found[place], &body["Service"]);
            let check = of(&body["Check"], "CheckID");
            let check = &self.servers.checks[&(place.0.clone(), check)];
            assert_eq!(check, &body["Check"]);
        }
        let live = self.pods.values();
        let live: BTreeSet<_> = live.map(|pod| (pod.key.clone(), pod.uid.clone())).collect();
        assert!(
            self.servers.tokens.is_subset(&live),
            "{:?}",
            self.servers.tokens
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn the_catalog_eventually_equals_the_wanted_state(events in proptest::collection::vec(event(), 1..60)) {
        let mut world = World::new();
        for event in &events {
            world.step(event);
            for place in &world.foreign {
                assert!(world.servers.services.contains_key(place), "foreign and gone: {place:?}");
            }
        }
        world.settle();
        // Tokens whose removal was lost are removed by the next full difference.
        world.now += FULL_EVERY;
        world.settle();
        world.check();
        // Without changes nothing is written.
        world.now += FULL_EVERY;
        let before = world.servers.services.clone();
        for _ in 0..50 {
            world.begin();
            for job in std::mem::take(&mut world.under_way) {
                if let Job::Pod(_, calls) = &job {
                    let refused = calls.iter().all(|call| matches!(call,
                        Call::Register(wanted) if wanted.id.id.contains("refused")));
                    prop_assert!(refused, "{calls:?}");
                }
                world.end(job, usize::MAX, false);
            }
        }
        prop_assert_eq!(before, world.servers.services);
    }
}
