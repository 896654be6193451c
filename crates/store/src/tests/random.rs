//! Sequences of random commands: the tables agree with a naive model without indexes, changes wake
//! their readers and raise indexes, and other readers are not woken.

use std::collections::{BTreeMap, BTreeSet};

use legate_model::virtual_ip::TAGGED_ADDRESS;
use legate_model::{
    CheckStatus, ConfigKind, HealthCheck, IntentionAction, Node, ServiceAddress, ServiceInstance,
};
use proptest::prelude::*;

use super::{
    attempt, check, defaults, deregister, instance, intention, native, node, proxy, woken,
};
use crate::{Command, Deregistration, ReadTxn, Reads, Registration, State, Store};

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

pub(super) fn any_command() -> impl Strategy<Value = Command> {
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

/// A model of the catalog without indexes.
#[derive(Clone, Default, Debug)]
pub(super) struct Naive {
    nodes: BTreeMap<String, Node>,
    instances: BTreeMap<(String, String), ServiceInstance>,
    checks: BTreeMap<(String, String), HealthCheck>,
}

impl Naive {
    /// `None` if the command must be refused.
    fn register(&self, registration: &Registration) -> Option<Self> {
        let mut next = self.clone();
        let node = &registration.node;
        let name = node.node.clone();
        match next.nodes.get_mut(&name) {
            Some(_) if registration.skip_node_update => {}
            _ if node.address.is_empty() && !registration.skip_node_update => return None,
            existing => {
                let held = existing.map(|node| node.id.clone()).unwrap_or_default();
                let mut node = node.clone();
                if node.id.is_empty() {
                    node.id = held;
                }
                // A renamed node is removed with everything on it. No node has a live agent, so
                // that every name may be taken.
                let foreign = |other: &Node| other.id == node.id && other.node != node.node;
                let renamed = self.nodes.values().find(|other| foreign(other));
                if let Some(old) = renamed.filter(|_| !node.id.is_empty()) {
                    next.nodes.remove(&old.node);
                    next.instances.retain(|(on, _), _| *on != old.node);
                    next.checks.retain(|(on, _), _| *on != old.node);
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

    fn service(&self, state: &ReadTxn<'_>, name: &str) -> Vec<String> {
        self.found(state, |instance| instance.service == name)
    }

    fn connect(&self, state: &ReadTxn<'_>, name: &str) -> Vec<String> {
        self.found(state, |instance| instance.destination() == Some(name))
    }

    /// Virtual IPs are tested with another model.
    fn found(
        &self,
        state: &ReadTxn<'_>,
        matches: impl Fn(&ServiceInstance) -> bool,
    ) -> Vec<String> {
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
                let mut instance = instance.clone();
                if let Some(destination) = instance.destination() {
                    let ip = state.virtual_ip(destination).expect("it has one");
                    let tagged = ServiceAddress {
                        address: ip.address().to_string(),
                        port: instance.port,
                    };
                    let key = TAGGED_ADDRESS.to_owned();
                    instance.tagged_addresses.insert(key, tagged);
                }
                describe(&self.nodes[node], &instance, checks)
            })
            .collect()
    }
}

/// A row without its indexes.
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

pub(super) fn assert_same(state: &State, naive: &Naive) {
    let state = state.read();
    let names: Vec<_> = state.nodes().iter().map(|n| n.node.clone()).collect();
    assert_eq!(names, naive.nodes.keys().cloned().collect::<Vec<_>>());
    let proxies = SERVICES.map(|name| format!("{name}-sidecar-proxy"));
    for name in SERVICES
        .into_iter()
        .chain(proxies.iter().map(String::as_str))
    {
        assert_eq!(described(&state.service(name)), naive.service(&state, name));
        assert_eq!(described(&state.connect(name)), naive.connect(&state, name));
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
                state.node_by_id(&node.id).as_ref().map(|n| n.node.as_str()),
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

type Question = Box<dyn Fn(&ReadTxn<'_>) -> String>;

/// All questions that the commands can affect.
fn questions() -> Vec<(String, Question)> {
    let mut all: Vec<(String, Question)> = Vec::new();
    let mut add = |name: String, question: Question| all.push((name, question));
    add("nodes".into(), Box::new(|t| format!("{:?}", t.nodes())));
    add(
        "services".into(),
        Box::new(|t| format!("{:?}", t.services())),
    );
    add(
        "intentions".into(),
        Box::new(|t| format!("{:?}", t.intentions())),
    );
    for kind in ConfigKind::ALL {
        let ask: Question = Box::new(move |t| format!("{:?}", t.config_entries(kind)));
        add(format!("{kind} entries"), ask);
    }
    for name in ["a", "b", "c", "*"] {
        let of = |what: &str| format!("{what} {name}");
        add(
            of("service"),
            Box::new(move |t| format!("{:?}", t.service(name))),
        );
        add(
            of("connect"),
            Box::new(move |t| format!("{:?}", t.connect(name))),
        );
        add(
            of("shared connect"),
            Box::new(move |t| {
                let shared = t.shared("connect", name, |t| t.connect(name));
                format!("{shared:?}")
            }),
        );
        add(
            of("intentions for"),
            Box::new(move |t| format!("{:?}", t.intentions_for(name))),
        );
        add(
            of("virtual ip of"),
            Box::new(move |t| format!("{:?}", t.virtual_ip(name))),
        );
        let kind = ConfigKind::ServiceDefaults;
        add(
            of("defaults of"),
            Box::new(move |t| format!("{:?}", t.config_entry(kind, name))),
        );
    }
    for node in NODES {
        add(
            format!("node {node}"),
            Box::new(move |t| {
                let (row, checks) = (t.node(node), t.node_checks(node));
                format!("{row:?} {checks:?} {:?}", t.instances_on(node))
            }),
        );
        for id in IDS {
            add(
                format!("instance {id} on {node}"),
                Box::new(move |t| format!("{:?}", t.instance(node, id))),
            );
        }
    }
    all
}

fn ask(state: &State, question: &Question) -> (String, Reads) {
    let txn = state.read();
    let answer = question(&txn);
    (answer, txn.into_reads())
}

impl Naive {
    /// The expected effect of a command: `None` if it is not modelled, `Some(None)` if it must be
    /// refused.
    pub(super) fn expected(&self, command: &Command) -> Option<Option<Self>> {
        match command {
            Command::Register(registration) => Some(self.register(registration)),
            Command::Deregister(what) => {
                let mut next = self.clone();
                next.deregister(what);
                Some(Some(next))
            }
            _ => None,
        }
    }
}

/// Applies one command, and checks what it changes and what it must not change.
fn step(store: &Store, naive: &mut Naive, command: Command) {
    let expected = naive.expected(&command);
    let before = store.state();
    let questions = questions();
    let asked: Vec<_> = questions
        .iter()
        .map(|(name, question)| {
            let (answer, reads) = ask(&before, question);
            (name, question, answer, store.watch(&reads), reads)
        })
        .collect();
    let outcome = attempt(store, command);
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
    for (name, question, answer, mut watch, reads) in asked {
        let (new_answer, new_reads) = ask(&after, question);
        let differs = answer != new_answer;
        let woke = woken(&mut watch);
        assert!(changed || !woke, "{name} woke without a change");
        assert!(woke || !differs, "{name} sleeps on");
        // A list of all services reads all instances, and reads of a service's checks are recorded
        // together, including those of instances outside the mesh.
        let wide = name == "services" || name.contains("connect");
        assert!(differs || !woke || wide, "{name} woke for nothing");
        let (old, new) = (reads.index(), new_reads.index());
        assert!(new >= old, "{name} went back from {old} to {new}");
        if differs {
            assert_eq!(new, after.index(), "{name}");
        }
        let late = woken(&mut store.watch(&reads));
        assert_eq!(late, woke, "{name}: watched after the change");
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
