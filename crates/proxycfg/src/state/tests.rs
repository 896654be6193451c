//! The state against generated orders of updates, and the rules that single updates must keep.

use std::time::SystemTime;

use legate_model::{HealthCheck, Node, ProxyDefaults, Secret, ServiceDefaults};
use proptest::prelude::*;
use serde_json::json;

use super::*;

const SERVICES: [&str; 4] = ["web", "shop", "api", "db"];

/// What the catalog and the CA hold. Values are small numbers: another number, another value.
#[derive(Clone, Debug, Default)]
struct World {
    registration: Option<(usize, u8)>,
    proxy_defaults: u8,
    service_defaults: [u8; 4],
    roots: u8,
    leaves: [u8; 4],
    intentions: [u8; 4],
    mesh: u8,
    instances: [u8; 4],
}

/// What is read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Registration,
    ProxyDefaults,
    ServiceDefaults(usize),
    Roots,
    Leaf(usize),
    Intentions(usize),
    Mesh,
    Instances(usize),
}

fn index(service: &str) -> usize {
    SERVICES.iter().position(|known| *known == service).unwrap()
}

fn registered(destination: usize, upstreams: u8) -> Registered {
    let candidates = [
        json!({"DestinationName": "api", "LocalBindPort": 1}),
        json!({"DestinationName": "db", "LocalBindPort": 2}),
        json!({"DestinationName": "api", "LocalBindPort": 3, "Config": {"protocol": "grpc"}}),
        json!({"DestinationName": "web", "LocalBindPort": 4}),
        json!({"DestinationName": "db", "LocalBindPort": 5, "Datacenter": "far"}),
        json!({"DestinationName": "*", "LocalBindPort": 6}),
    ];
    let chosen: Vec<_> = (0..candidates.len())
        .filter(|bit| upstreams & (1 << bit) != 0)
        .map(|bit| candidates[bit].clone())
        .collect();
    let instance = serde_json::from_value(json!({
        "Kind": "connect-proxy", "ID": "proxy", "Service": "proxy", "Port": 20000,
        "Proxy": {"DestinationServiceName": SERVICES[destination], "Upstreams": chosen},
    }));
    Registered {
        instance: Arc::new(instance.unwrap()),
        node_address: "10.0.0.1".into(),
    }
}

fn leaf(service: &str, version: u8) -> Arc<Leaf> {
    Arc::new(Leaf {
        service: service.to_owned(),
        uri: format!("spiffe://m.consul/ns/default/dc/dc1/svc/{service}"),
        cert_pem: format!("certificate {version}"),
        key_pem: Secret::new(format!("key {version}")),
        serial: version.to_string(),
        valid_after: SystemTime::UNIX_EPOCH,
        valid_before: SystemTime::UNIX_EPOCH,
        authority_key_id: String::new(),
        modify_index: 0,
    })
}

fn instances(service: &str, count: u8) -> Arc<[CheckServiceNode]> {
    (0..count)
        .map(|n| CheckServiceNode {
            node: Arc::new(Node {
                node: format!("node-{n}"),
                address: format!("10.0.1.{n}"),
                ..Node::default()
            }),
            service: Arc::new(ServiceInstance {
                id: format!("{service}-{n}"),
                port: 20000,
                ..ServiceInstance::default()
            }),
            checks: Vec::new(),
        })
        .collect()
}

fn protocol(value: u8) -> &'static str {
    ["", "tcp", "http", "grpc"][usize::from(value) % 4]
}

impl World {
    /// The update that a driver would make of a part. Values are made anew each time, as if they
    /// had been read again.
    fn read(&self, part: Part) -> Option<Update> {
        Some(match part {
            Part::Registration => Update::Registration(
                self.registration
                    .map(|(destination, upstreams)| registered(destination, upstreams)),
            ),
            Part::ProxyDefaults => Update::ProxyDefaults((self.proxy_defaults > 0).then(|| {
                Arc::new(ConfigEntry::ProxyDefaults(ProxyDefaults {
                    config: json!({"protocol": protocol(self.proxy_defaults)})
                        .as_object()
                        .cloned()
                        .unwrap(),
                    ..ProxyDefaults::default()
                }))
            })),
            Part::ServiceDefaults(n) => Update::ServiceDefaults {
                service: SERVICES[n].into(),
                entry: (self.service_defaults[n] > 0).then(|| {
                    Arc::new(ConfigEntry::ServiceDefaults(ServiceDefaults {
                        name: SERVICES[n].to_owned(),
                        protocol: protocol(self.service_defaults[n]).to_owned(),
                        ..ServiceDefaults::default()
                    }))
                }),
            },
            Part::Roots => {
                if self.roots == 0 {
                    return None;
                }
                let roots = CaRoots {
                    active_root_id: self.roots.to_string(),
                    ..CaRoots::default()
                };
                Update::Roots(TrustDomain::of_cluster("m"), Arc::new(roots))
            }
            Part::Leaf(n) => {
                if self.leaves[n] == 0 {
                    return None;
                }
                Update::Leaf(leaf(SERVICES[n], self.leaves[n]))
            }
            Part::Intentions(n) => Update::Intentions {
                destination: SERVICES[n].into(),
                list: (0..self.intentions[n])
                    .map(|source| {
                        Arc::new(Intention {
                            source_name: source.to_string(),
                            destination_name: SERVICES[n].to_owned(),
                            ..Intention::default()
                        })
                    })
                    .collect(),
            },
            Part::Mesh => Update::Mesh((self.mesh > 0).then(|| {
                Arc::new(ConfigEntry::Mesh(Mesh {
                    validate_clusters: self.mesh > 1,
                    ..Mesh::default()
                }))
            })),
            Part::Instances(n) => Update::UpstreamTarget {
                service: SERVICES[n].into(),
                instances: instances(SERVICES[n], self.instances[n]),
            },
        })
    }
}

/// A state with what a driver would keep beside it.
struct Harness {
    state: State,
    world: World,
    watched: Vec<Derived>,
    /// Parts that changed or began to be watched, and were not read since.
    unread: Vec<Part>,
    /// Parts that were read for the present watches.
    seen: Vec<Part>,
}

impl Harness {
    fn new(world: World) -> Self {
        let proxy = ProxyId {
            node: "node".into(),
            service_id: "proxy".into(),
        };
        Self {
            state: State::new(proxy, "dc1".into(), Action::Deny),
            world,
            watched: Vec::new(),
            unread: vec![
                Part::Registration,
                Part::ProxyDefaults,
                Part::Mesh,
                Part::Roots,
            ],
            seen: Vec::new(),
        }
    }

    fn parts(derived: &Derived) -> Vec<Part> {
        match derived {
            Derived::Destination(service) => {
                let n = index(service);
                vec![Part::ServiceDefaults(n), Part::Intentions(n), Part::Leaf(n)]
            }
            Derived::Upstream(service) => {
                let n = index(service);
                vec![Part::ServiceDefaults(n), Part::Instances(n)]
            }
        }
    }

    fn is_watched(&self, part: Part) -> bool {
        let lasting = [
            Part::Registration,
            Part::ProxyDefaults,
            Part::Mesh,
            Part::Roots,
        ];
        lasting.contains(&part)
            || self
                .watched
                .iter()
                .any(|derived| Self::parts(derived).contains(&part))
    }

    fn changed(&mut self, part: Part) {
        if self.is_watched(part) && !self.unread.contains(&part) {
            self.unread.push(part);
        }
    }

    fn deliver(&mut self, choice: usize) {
        if self.unread.is_empty() {
            return;
        }
        let part = self.unread.remove(choice % self.unread.len());
        let Some(update) = self.world.read(part) else {
            return;
        };
        self.seen.push(part);
        let effects = self.state.apply(update);
        assert_eq!(effects.end, None);
        for derived in effects.stop {
            let before = self.watched.len();
            self.watched.retain(|watched| *watched != derived);
            assert_eq!(
                self.watched.len() + 1,
                before,
                "stopped what was not started"
            );
            for part in Self::parts(&derived) {
                if !self.is_watched(part) {
                    self.unread.retain(|unread| *unread != part);
                    self.seen.retain(|seen| *seen != part);
                }
            }
        }
        for derived in effects.start {
            assert!(!self.watched.contains(&derived), "started twice");
            let parts = Self::parts(&derived);
            self.watched.push(derived);
            for part in parts {
                self.changed(part);
            }
        }
    }

    fn settle(&mut self) {
        while !self.unread.is_empty() {
            self.deliver(0);
        }
    }

    /// What must have been seen for a snapshot to be shown.
    fn may_publish(&self) -> bool {
        [
            Part::Registration,
            Part::ProxyDefaults,
            Part::Mesh,
            Part::Roots,
        ]
        .iter()
        .all(|part| self.seen.contains(part))
            && self.watched.iter().any(|derived| {
                matches!(derived, Derived::Destination(_))
                    && Self::parts(derived)
                        .iter()
                        .all(|part| self.seen.contains(part))
            })
    }

    fn snapshot(&mut self) -> Option<String> {
        self.state
            .take_snapshot()
            .map(|snapshot| format!("{snapshot:#?}"))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Register(Option<(usize, u8)>),
    ProxyDefaults(u8),
    ServiceDefaults(usize, u8),
    Roots(u8),
    Leaf(usize, u8),
    Intentions(usize, u8),
    Mesh(u8),
    Instances(usize, u8),
    Deliver(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => proptest::option::weighted(0.8, (0..2usize, 0..64u8)).prop_map(Step::Register),
        1 => (0..4u8).prop_map(Step::ProxyDefaults),
        2 => (0..4usize, 0..4u8).prop_map(|(n, v)| Step::ServiceDefaults(n, v)),
        1 => (1..3u8).prop_map(Step::Roots),
        2 => (0..4usize, 1..4u8).prop_map(|(n, v)| Step::Leaf(n, v)),
        1 => (0..4usize, 0..3u8).prop_map(|(n, v)| Step::Intentions(n, v)),
        1 => (0..3u8).prop_map(Step::Mesh),
        2 => (0..4usize, 0..3u8).prop_map(|(n, v)| Step::Instances(n, v)),
        12 => (0..16usize).prop_map(Step::Deliver),
    ]
}

impl Harness {
    fn step(&mut self, step: Step) {
        let part = match step {
            Step::Register(registration) => {
                self.world.registration = registration;
                Part::Registration
            }
            Step::ProxyDefaults(value) => {
                self.world.proxy_defaults = value;
                Part::ProxyDefaults
            }
            Step::ServiceDefaults(n, value) => {
                self.world.service_defaults[n] = value;
                Part::ServiceDefaults(n)
            }
            Step::Roots(value) => {
                self.world.roots = value;
                Part::Roots
            }
            Step::Leaf(n, value) => {
                self.world.leaves[n] = value;
                Part::Leaf(n)
            }
            Step::Intentions(n, value) => {
                self.world.intentions[n] = value;
                Part::Intentions(n)
            }
            Step::Mesh(value) => {
                self.world.mesh = value;
                Part::Mesh
            }
            Step::Instances(n, value) => {
                self.world.instances[n] = value;
                Part::Instances(n)
            }
            Step::Deliver(choice) => return self.deliver(choice),
        };
        self.changed(part);
    }
}

proptest! {
    #[test]
    fn the_snapshot_depends_on_the_final_inputs_only(steps in proptest::collection::vec(step(), 0..80)) {
        let mut harness = Harness::new(World::default());
        for step in steps {
            harness.step(step);
            if harness.snapshot().is_some() {
                prop_assert!(harness.may_publish(), "published before everything was seen");
            }
        }
        harness.settle();
        let mut fresh = Harness::new(harness.world.clone());
        fresh.settle();
        prop_assert_eq!(harness.snapshot(), fresh.snapshot());
    }

    #[test]
    fn reading_the_same_again_is_no_news(steps in proptest::collection::vec(step(), 0..60)) {
        let mut harness = Harness::new(World::default());
        for step in steps {
            harness.step(step);
        }
        harness.settle();
        harness.snapshot();
        prop_assert!(!harness.state.has_news() || harness.state.take_snapshot().is_none());
        let again: Vec<Part> = [Part::Registration, Part::ProxyDefaults, Part::Mesh, Part::Roots]
            .into_iter()
            .chain(harness.watched.iter().flat_map(Harness::parts))
            .collect();
        for part in again {
            harness.changed(part);
            harness.settle();
            prop_assert!(!harness.state.has_news(), "{part:?} was news although it is the same");
        }
    }

    #[test]
    fn updates_for_what_is_not_watched_change_nothing(n in 0..4usize, value in 1..4u8) {
        let world = complete();
        let mut harness = Harness::new(world);
        harness.settle();
        harness.snapshot();
        for part in [Part::ServiceDefaults(n), Part::Leaf(n), Part::Intentions(n), Part::Instances(n)] {
            if !harness.is_watched(part) {
                let world = World {
                    service_defaults: [value; 4], leaves: [value + 1; 4], intentions: [value; 4],
                    instances: [value; 4], ..World::default()
                };
                let effects = harness.state.apply(world.read(part).unwrap());
                prop_assert!(effects.start.is_empty() && effects.stop.is_empty());
                prop_assert!(!harness.state.has_news());
            }
        }
    }
}

/// `web` with upstream `api`, everything there.
fn complete() -> World {
    World {
        registration: Some((0, 0b1)),
        roots: 1,
        leaves: [1; 4],
        instances: [1; 4],
        ..World::default()
    }
}

#[test]
fn everything_required_must_have_been_seen() {
    let required = [
        Part::Registration,
        Part::ProxyDefaults,
        Part::Mesh,
        Part::Roots,
        Part::ServiceDefaults(0),
        Part::Intentions(0),
        Part::Leaf(0),
    ];
    for missing in required {
        let mut harness = Harness::new(complete());
        while let Some(position) = harness.unread.iter().position(|part| *part != missing) {
            harness.deliver(position);
        }
        assert!(!harness.state.has_news(), "{missing:?} was not waited for");
        assert_eq!(harness.snapshot(), None);
        harness.settle();
        assert!(harness.state.has_news());
    }
}

#[test]
fn upstreams_are_not_waited_for() {
    let mut harness = Harness::new(complete());
    let late = [Part::ServiceDefaults(2), Part::Instances(2)];
    while let Some(position) = harness.unread.iter().position(|part| !late.contains(part)) {
        harness.deliver(position);
    }
    assert_eq!(harness.state.take_snapshot().unwrap().upstreams.len(), 0);

    let position = harness
        .unread
        .iter()
        .position(|part| *part == late[0])
        .unwrap();
    harness.deliver(position);
    assert!(harness.state.has_news());
    let snapshot = harness.state.take_snapshot().unwrap();
    assert!(snapshot.upstreams[0].instances.is_none());

    harness.settle();
    let snapshot = harness.state.take_snapshot().unwrap();
    assert_eq!(snapshot.upstreams[0].instances.as_ref().unwrap().len(), 1);
}

#[test]
fn an_upstream_elsewhere_has_no_instances_and_is_not_watched() {
    let mut harness = Harness::new(World {
        registration: Some((0, 0b1_0000)),
        ..complete()
    });
    harness.settle();
    let snapshot = harness.state.take_snapshot().unwrap();
    assert_eq!(snapshot.upstreams[0].upstream.datacenter, "far");
    assert_eq!(snapshot.upstreams[0].instances.as_ref().unwrap().len(), 0);
    assert_eq!(harness.watched, [Derived::Destination("web".into())]);
}

#[test]
fn a_registration_that_is_gone_is_waited_for() {
    let mut harness = Harness::new(complete());
    harness.settle();
    assert!(harness.snapshot().is_some());

    harness.step(Step::Register(None));
    harness.step(Step::Leaf(0, 3));
    harness.settle();
    assert!(!harness.state.has_news());
    assert_eq!(harness.snapshot(), None);

    harness.step(Step::Register(Some((0, 0b1))));
    harness.settle();
    assert!(harness.state.has_news());
    assert_eq!(harness.state.take_snapshot().unwrap().leaf.serial, "3");
}

#[test]
fn only_what_callers_see_of_an_instance_is_news() {
    let mut harness = Harness::new(complete());
    harness.settle();
    harness.snapshot();
    let before = instances("api", 1);
    let change = |edit: &dyn Fn(&mut CheckServiceNode)| -> Arc<[CheckServiceNode]> {
        let mut list = before.to_vec();
        edit(&mut list[0]);
        list.into()
    };
    let check = |status| {
        Arc::new(HealthCheck {
            check_id: "c".to_owned(),
            status,
            output: format!("{status} again"),
            ..HealthCheck::default()
        })
    };
    let mut news = |instances| {
        harness.state.apply(Update::UpstreamTarget {
            service: "api".into(),
            instances,
        });
        let news = harness.state.has_news();
        harness.state.take_snapshot();
        news
    };
    assert!(!news(change(&|instance| {
        Arc::make_mut(&mut instance.service)
            .tags
            .push("new".to_owned());
        Arc::make_mut(&mut instance.service).modify_index = 99;
        Arc::make_mut(&mut instance.node).modify_index = 99;
    })));
    assert!(news(change(&|instance| {
        instance.checks = vec![check(legate_model::CheckStatus::Warning)];
    })));
    assert!(!news(change(&|instance| {
        let mut again = HealthCheck::clone(&check(legate_model::CheckStatus::Warning));
        again.output = "other words".to_owned();
        instance.checks = vec![Arc::new(again)];
    })));
    assert!(news(change(&|instance| {
        instance.checks = vec![check(legate_model::CheckStatus::Critical)];
    })));
    assert!(news(change(&|instance| {
        Arc::make_mut(&mut instance.service).port = 1;
    })));
    assert!(news(change(&|instance| {
        Arc::make_mut(&mut instance.service).weights.passing = 5;
    })));
    assert!(news(Arc::default()));
}

#[test]
fn what_cannot_be_served_ends_it() {
    let refuse = |edit: &dyn Fn(&mut ServiceInstance)| {
        let mut harness = Harness::new(complete());
        harness.settle();
        let mut registered = registered(0, 1);
        edit(Arc::make_mut(&mut registered.instance));
        harness
            .state
            .apply(Update::Registration(Some(registered)))
            .end
            .unwrap()
    };
    let plain = refuse(&|instance| instance.kind = ServiceKind::Typical);
    assert!(matches!(plain, WatchError::NotAProxy { .. }));
    let lost = refuse(&|instance| instance.proxy.destination_service_name.clear());
    assert!(matches!(lost, WatchError::NoDestination(_)));
}
