//! Any sequence of commands: the tables say what a naive model without indexes says, indexes and
//! wake-ups follow what changed, and what did not change sleeps on.

use std::collections::{BTreeMap, BTreeSet};

use legate_model::{CheckStatus, ConfigKind, HealthCheck, IntentionAction, Node, ServiceInstance};
use proptest::prelude::*;

use super::{check, defaults, deregister, instance, intention, native, node, proxy, woken};
use crate::{Command, Deregistration, Registration, State, Store, Topic};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const SERVICES: [&str; 3] = ["a", "b", "c"];
const IDS: [&str; 3] = ["i1", "i2", "i3"];
const CHECKS: [&str; 2] = ["c1", "c2"];

fn any_node() -> impl Strategy<Value = Node> {
    let address = prop::sample::select(vec!["", "10.0.0.1", "10.0.0.2"]);
    let id = prop::sample::select(vec!["", "", "id1", "id2"]);
    (prop::sample::select(NODES.to_vec()), address, id).prop_map(|(name, address, id)| Node {
        address: address.to_owned(),
        id: id.to_owned(),
        ..node(name)
    })
}

fn any_instance() -> impl Strategy<Value = ServiceInstance> {
    let service = prop::sample::select(SERVICES.to_vec());
    let id = prop::sample::select(IDS.to_vec());
    (service, id, 0..3, 1..3u16, any::<bool>()).prop_map(|(service, id, kind, port, tagged)| {
        let made = match kind {
            0 => instance(service, id),
            1 => proxy(service, id),
            _ => native(service, id),
        };
        ServiceInstance {
            port,
            tags: tagged.then(|| "tag".to_owned()).into_iter().collect(),
            ..made
        }
    })
}

fn any_check() -> impl Strategy<Value = HealthCheck> {
    let id = prop::sample::select(CHECKS.to_vec());
    let owner = prop::sample::select(vec!["", "i1", "i2", "i3"]);
    (id, owner, any::<bool>()).prop_map(|(id, owner, passing)| HealthCheck {
        status: if passing {
            CheckStatus::Passing
        } else {
            CheckStatus::Critical
        },
        ..check(id, owner)
    })
}

fn any_registration() -> impl Strategy<Value = Registration> {
    let service = prop::option::weighted(0.7, any_instance());
    let checks = prop::collection::vec(any_check(), 0..2);
    (any_node(), service, checks, any::<bool>()).prop_map(|(node, service, checks, skip)| {
        Registration {
            node,
            service,
            checks,
            skip_node_update: skip,
        }
    })
}

fn any_command() -> impl Strategy<Value = Command> {
    let node = || prop::sample::select(NODES.to_vec());
    let name = || prop::sample::select(vec!["a", "b", "*"]);
    let allow = |yes| {
        if yes {
            IntentionAction::Allow
        } else {
            IntentionAction::Deny
        }
    };
    let removal = (node(), prop::sample::select(IDS.to_vec()));
    let check_removal = (node(), prop::sample::select(CHECKS.to_vec()));
    let protocol = prop::sample::select(vec!["", "http", "grpc"]);
    prop_oneof![
        8 => any_registration().prop_map(|r| Command::Register(Box::new(r))),
        3 => removal.prop_map(|(node, id)| deregister(node, Some(id), None)),
        1 => check_removal.prop_map(|(node, id)| deregister(node, None, Some(id))),
        1 => node().prop_map(|node| deregister(node, None, None)),
        2 => (name(), name(), any::<bool>()).prop_map(move |(s, d, yes)| intention(s, d, allow(yes))),
        1 => (name(), name()).prop_map(|(source, destination)| Command::DeleteIntention {
            source: source.to_owned(),
            destination: destination.to_owned(),
        }),
        1 => (prop::sample::select(SERVICES.to_vec()), protocol, prop::option::of(0..6u64))
            .prop_map(|(name, protocol, cas)| Command::UpsertConfigEntry {
                entry: defaults(name, protocol),
                cas,
            }),
        1 => prop::sample::select(SERVICES.to_vec()).prop_map(|name| Command::DeleteConfigEntry {
            kind: ConfigKind::ServiceDefaults,
            name: name.to_owned(),
            cas: None,
        }),
    ]
}

/// The catalog without indexes: every question walks over everything.
#[derive(Clone, Default, Debug)]
struct Naive {
    nodes: BTreeMap<String, Node>,
    instances: BTreeMap<(String, String), ServiceInstance>,
    checks: BTreeMap<(String, String), HealthCheck>,
}

impl Naive {
    /// `None` when the command must be refused.
    fn register(&self, registration: &Registration) -> Option<Self> {
        let mut next = self.clone();
        let node = &registration.node;
        let name = node.node.clone();
        match next.nodes.get_mut(&name) {
            Some(_) if registration.skip_node_update => {}
            _ if node.address.is_empty() => return None,
            existing => {
                let held = existing.map(|node| node.id.clone()).unwrap_or_default();
                let mut node = node.clone();
                if node.id.is_empty() {
                    node.id = held.clone();
                }
                let foreign = |other: &Node| other.id == node.id && other.node != node.node;
                let taken = !node.id.is_empty() && self.nodes.values().any(foreign);
                if taken || (!held.is_empty() && held != node.id) {
                    return None;
                }
                next.nodes.insert(name.clone(), node);
            }
        }
        if let Some(service) = &registration.service {
            let key = (name.clone(), service.id.clone());
            next.instances.insert(key, service.clone());
            for ((on, _), check) in &mut next.checks {
                if *on == name && check.service_id == service.id {
                    check.service_name = service.service.clone();
                    check.service_tags = service.tags.clone();
                }
            }
        }
        for check in &registration.checks {
            let mut check = check.clone();
            check.node = name.clone();
            if !check.service_id.is_empty() {
                let owner = next
                    .instances
                    .get(&(name.clone(), check.service_id.clone()))?;
                check.service_name = owner.service.clone();
                check.service_tags = owner.tags.clone();
            }
            next.checks
                .insert((name.clone(), check.check_id.clone()), check);
        }
        Some(next)
    }

    fn deregister(&mut self, what: &Deregistration) {
        let node = &what.node;
        if let Some(id) = &what.service_id {
            self.instances.remove(&(node.clone(), id.clone()));
            self.checks
                .retain(|(on, _), check| on != node || check.service_id != *id);
        } else if let Some(id) = &what.check_id {
            self.checks.remove(&(node.clone(), id.clone()));
        } else {
            self.nodes.remove(node);
            self.instances.retain(|(on, _), _| on != node);
            self.checks.retain(|(on, _), _| on != node);
        }
    }

    fn service(&self, name: &str) -> Vec<String> {
        self.found(|instance| instance.service == name)
    }

    fn connect(&self, name: &str) -> Vec<String> {
        self.found(|instance| instance.destination() == Some(name))
    }

    fn found(&self, matches: impl Fn(&ServiceInstance) -> bool) -> Vec<String> {
        let matching = self
            .instances
            .iter()
            .filter(|(_, instance)| matches(instance));
        matching
            .map(|((node, id), instance)| {
                let of = |owner: &str| -> Vec<HealthCheck> {
                    let all = self.checks.iter();
                    all.filter(|((on, _), check)| on == node && check.service_id == owner)
                        .map(|(_, check)| check.clone())
                        .collect()
                };
                let checks = [of(""), of(id)].concat();
                describe(&self.nodes[node], instance, checks)
            })
            .collect()
    }
}

/// What a row says, apart from when it was written.
fn describe(node: &Node, instance: &ServiceInstance, checks: Vec<HealthCheck>) -> String {
    let mut node = node.clone();
    let mut instance = instance.clone();
    let mut checks = checks;
    (node.create_index, node.modify_index) = (0, 0);
    (instance.create_index, instance.modify_index) = (0, 0);
    for check in &mut checks {
        (check.create_index, check.modify_index) = (0, 0);
    }
    format!("{node:?} {instance:?} {checks:?}")
}

fn described(found: &[legate_model::CheckServiceNode]) -> Vec<String> {
    let rows = found.iter();
    rows.map(|i| {
        let checks = i.checks.iter().map(|check| (**check).clone()).collect();
        describe(&i.node, &i.service, checks)
    })
    .collect()
}

fn assert_same(state: &State, naive: &Naive) {
    let names: Vec<_> = state.nodes().iter().map(|n| n.node.clone()).collect();
    assert_eq!(names, naive.nodes.keys().cloned().collect::<Vec<_>>());
    let proxies = SERVICES.map(|name| format!("{name}-sidecar-proxy"));
    for name in SERVICES
        .into_iter()
        .chain(proxies.iter().map(String::as_str))
    {
        assert_eq!(described(&state.service(name)), naive.service(name));
        assert_eq!(described(&state.connect(name)), naive.connect(name));
    }
    let listed: BTreeSet<_> = naive
        .instances
        .values()
        .map(|i| i.service.clone())
        .collect();
    assert_eq!(
        state.services().into_keys().collect::<BTreeSet<_>>(),
        listed
    );
    for (name, node) in &naive.nodes {
        if !node.id.is_empty() {
            assert_eq!(
                state.node_by_id(&node.id).map(|n| n.node.as_str()),
                Some(name.as_str())
            );
        }
        let on_it = naive.instances.keys().filter(|(on, _)| on == name).count();
        assert_eq!(state.instances_on(name).len(), on_it);
    }
    for ((node, id), check) in &naive.checks {
        assert_eq!(state.check(node, id).map(|c| c.status), Some(check.status));
    }
}

/// Every topic that the commands can touch.
fn topics() -> Vec<Topic> {
    let mut topics = vec![
        Topic::Nodes,
        Topic::Services,
        Topic::CaRoots,
        Topic::Intentions,
        Topic::Tokens,
        Topic::ConfigEntries(ConfigKind::ServiceDefaults),
        Topic::ConfigEntries(ConfigKind::ServiceIntentions),
        Topic::ConfigEntries(ConfigKind::Mesh),
        Topic::IntentionsFor("*".into()),
    ];
    for name in SERVICES {
        topics.push(Topic::Service(name.into()));
        topics.push(Topic::Connect(name.into()));
        topics.push(Topic::IntentionsFor(name.into()));
        let kind = ConfigKind::ServiceDefaults;
        let name = name.into();
        topics.push(Topic::ConfigEntry { kind, name });
    }
    for node in NODES {
        topics.push(Topic::Node(node.into()));
        let instance = |id: &str| Topic::Instance {
            node: node.into(),
            id: id.into(),
        };
        topics.extend(IDS.map(instance));
    }
    topics
}

/// Everything that belongs to a topic.
fn content(state: &State, topic: &Topic) -> String {
    match topic {
        Topic::Nodes => format!("{:?}", state.nodes()),
        Topic::Services => format!("{:?}", state.services()),
        Topic::Node(name) => {
            let instances = state.instances_on(name);
            let full = instances.iter().map(|i| state.instance(name, &i.id));
            let (node, checks) = (state.node(name), state.node_checks(name));
            format!("{node:?} {checks:?} {:?}", full.collect::<Vec<_>>())
        }
        Topic::Service(name) => format!("{:?}", state.service(name)),
        Topic::Connect(name) => format!("{:?}", state.connect(name)),
        Topic::Instance { node, id } => format!("{:?}", state.instance(node, id)),
        Topic::Intentions => format!("{:?}", state.intentions()),
        Topic::IntentionsFor(name) => format!("{:?}", state.intentions_for(name)),
        Topic::ConfigEntries(kind) => format!("{:?}", state.config_entries(*kind)),
        Topic::ConfigEntry { kind, name } => format!("{:?}", state.config_entry(*kind, name)),
        Topic::CaRoots | Topic::Tokens | Topic::AuthMethods | Topic::BindingRules => String::new(),
    }
}

fn has_rows_of_its_own(state: &State, topic: &Topic) -> bool {
    match topic {
        Topic::IntentionsFor(name) => {
            let kind = ConfigKind::ServiceIntentions;
            state.config_entry(kind, name).is_some()
        }
        topic => !["[]", "None", "None [] []"].contains(&content(state, topic).as_str()),
    }
}

/// One command: what it must do, and what it must leave alone.
fn step(store: &Store, naive: &mut Naive, command: Command) {
    let expected = match &command {
        Command::Register(registration) => Some(naive.register(registration)),
        Command::Deregister(what) => {
            let mut next = naive.clone();
            next.deregister(what);
            Some(Some(next))
        }
        _ => None,
    };
    let before = store.state();
    let mut watches: Vec<_> = topics()
        .into_iter()
        .map(|topic| (store.watch([topic.clone()]), topic))
        .collect();
    let outcome = store.apply(command);
    let after = store.state();
    if let Some(expected) = expected {
        assert_eq!(outcome.is_ok(), expected.is_some(), "{outcome:?}");
        if let Some(next) = expected {
            *naive = next;
        }
    }
    assert_same(&after, naive);

    let changed = outcome.as_ref().is_ok_and(|applied| applied.changed);
    assert_eq!(after.index(), before.index() + u64::from(changed));
    for (watch, topic) in &mut watches {
        let differs = content(&before, topic) != content(&after, topic);
        let woke = woken(watch);
        assert!(changed || !differs, "a change without an index: {topic:?}");
        if *topic == Topic::Services {
            assert!(woke || !differs, "the list of services sleeps on");
        } else {
            assert_eq!(woke, differs, "{topic:?}");
        }
        let (old, new) = (before.topic_index(topic), after.topic_index(topic));
        assert!(new >= old, "{topic:?} went back from {old} to {new}");
        if woke {
            assert_eq!(new, after.index(), "{topic:?}");
        } else if old != new {
            // Without rows, a topic shares the index of the last one that lost its own.
            assert!(!has_rows_of_its_own(&after, topic), "{topic:?}");
        }
    }
}

proptest! {
    #[test]
    fn tables_indexes_and_wake_ups_follow_the_commands(
        commands in prop::collection::vec(any_command(), 1..40),
    ) {
        let store = Store::new();
        let mut naive = Naive::default();
        for command in commands {
            step(&store, &mut naive, command);
        }
    }
}
