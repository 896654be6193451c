//! Nodes, instances and checks.

use super::{apply, check, deregister, index_of, instance, native, node, proxy, refuse, register};
use crate::{Command, Registration, Rejected, State, Store};
use legate_model::{CheckServiceNode, CheckStatus, HealthCheck, Node, NodeCoordinate};

fn ids(instances: &[CheckServiceNode]) -> Vec<(&str, &str)> {
    instances
        .iter()
        .map(|i| (i.node.node.as_str(), i.service.id.as_str()))
        .collect()
}

#[test]
fn an_instance_is_found_by_every_index() {
    let store = Store::new();
    let own_id = Node {
        id: "6a2d".to_owned(),
        ..node("n1")
    };
    apply(
        &store,
        register(own_id, Some(instance("web", "web-1")), vec![]),
    );
    apply(
        &store,
        register(node("n2"), Some(proxy("web", "web-1-proxy")), vec![]),
    );
    apply(
        &store,
        register(node("n2"), Some(native("web", "web-2")), vec![]),
    );

    let state = store.state();
    let state = state.read();
    assert_eq!(
        ids(&state.service("web")),
        [("n1", "web-1"), ("n2", "web-2")]
    );
    assert_eq!(
        ids(&state.connect("web")),
        [("n2", "web-1-proxy"), ("n2", "web-2")]
    );
    assert_eq!(state.instances_on("n2").len(), 2);
    assert!(state.instance("n1", "web-1").is_some());
    assert!(state.instance("n2", "web-1").is_none());
    assert!(state.node_by_id("6A2D").is_some());
    assert_eq!(state.nodes().len(), 2);
    let names: Vec<_> = state.services().into_keys().collect();
    assert_eq!(names, ["web", "web-sidecar-proxy"]);
}

#[test]
fn names_are_compared_without_regard_to_case() {
    let store = Store::new();
    apply(
        &store,
        register(node("Node"), Some(instance("Web", "Web-1")), vec![]),
    );
    apply(
        &store,
        register(node("NODE"), Some(instance("web", "web-1")), vec![]),
    );
    let state = store.state();
    let state = state.read();
    assert_eq!(state.nodes().len(), 1);
    assert_eq!(state.service("WEB").len(), 1);
    assert_eq!(state.service("web")[0].service.id, "web-1");
}

#[test]
fn names_in_mesh_include_those_that_only_proxies_name() {
    let store = Store::new();
    for (at, service) in [
        ("n1", instance("web", "web-1")),
        ("n2", instance("Web", "web-2")),
        ("n2", instance("Cache", "cache")),
        ("n3", proxy("WEB", "web-3-proxy")),
        ("n3", proxy("api", "api-proxy")),
        ("n3", native("bank", "bank")),
    ] {
        apply(&store, register(node(at), Some(service), vec![]));
    }
    let state = store.state();
    let expected = [
        "api",
        "api-sidecar-proxy",
        "bank",
        "Cache",
        "web",
        "WEB-sidecar-proxy",
    ];
    assert_eq!(state.read().names_in_mesh(), expected);
}

#[test]
fn an_identical_registration_takes_no_index() {
    let store = Store::new();
    let command = || register(node("n"), Some(instance("web", "w")), vec![check("c", "w")]);
    let first = apply(&store, command());
    assert!(first.changed);
    let again = apply(&store, command());
    assert!(!again.changed);
    assert_eq!(again.index, first.index);
    assert_eq!(store.state().index(), first.index);
}

#[test]
fn indexes_say_when_a_row_was_made_and_changed() {
    let store = Store::new();
    let first = apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    let mut changed = instance("web", "w");
    changed.port = 9090;
    let second = apply(&store, register(node("n"), Some(changed), vec![]));
    let found = store
        .state()
        .read()
        .instance("n", "w")
        .expect("it is there");
    assert_eq!(found.service.create_index, first.index);
    assert_eq!(found.service.modify_index, second.index);
    assert_eq!(found.node.modify_index, first.index);
}

#[test]
fn an_instance_that_changes_its_name_leaves_the_old_one() {
    let store = Store::new();
    apply(
        &store,
        register(node("n"), Some(instance("web", "x")), vec![check("c", "x")]),
    );
    apply(
        &store,
        register(node("n"), Some(instance("api", "x")), vec![]),
    );
    let state = store.state();
    let state = state.read();
    assert!(state.service("web").is_empty());
    let api = state.service("api");
    assert_eq!(api[0].checks[0].service_name, "api");
    apply(&store, register(node("n"), Some(proxy("web", "x")), vec![]));
    apply(&store, register(node("n"), Some(proxy("api", "x")), vec![]));
    let state = store.state();
    let state = state.read();
    assert!(state.connect("web").is_empty());
    assert_eq!(state.connect("api").len(), 1);
}

#[test]
fn checks_of_node_and_instance_decide_together() {
    let store = Store::new();
    let health = |state: &State| state.read().instance("n", "w").map(|i| i.health());
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    assert_eq!(health(&store.state()), Some(CheckStatus::Passing));

    let of_node = vec![check("serf", "")];
    apply(&store, register(node("n"), None, of_node));
    assert_eq!(health(&store.state()), Some(CheckStatus::Critical));
    apply(&store, deregister("n", None, Some("serf")));
    assert_eq!(health(&store.state()), Some(CheckStatus::Passing));

    apply(
        &store,
        register(node("n"), Some(instance("api", "a")), vec![check("c", "a")]),
    );
    assert_eq!(
        health(&store.state()),
        Some(CheckStatus::Passing),
        "another instance's check"
    );
    apply(&store, register(node("n"), None, vec![check("c", "w")]));
    assert_eq!(
        health(&store.state()),
        Some(CheckStatus::Critical),
        "the check has moved"
    );
    let api = store
        .state()
        .read()
        .instance("n", "a")
        .expect("it is there");
    assert!(api.checks.is_empty());
}

#[test]
fn removals_cascade() {
    let store = Store::new();
    let checks = vec![check("c", "w"), check("serf", "")];
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), checks),
    );
    apply(&store, register(node("n"), Some(proxy("web", "p")), vec![]));

    apply(&store, deregister("n", Some("w"), None));
    let state = store.state();
    let state = state.read();
    assert!(state.service("web").is_empty());
    assert!(state.check("n", "c").is_none());
    assert!(state.check("n", "serf").is_some());

    let removed = apply(&store, deregister("n", None, None));
    let state = store.state();
    let state = state.read();
    assert!(state.nodes().is_empty());
    assert!(state.connect("web").is_empty());
    assert!(state.services().is_empty());
    assert!(state.node_checks("n").is_empty());

    let nothing = apply(&store, deregister("n", None, None));
    assert!(!nothing.changed);
    assert_eq!(nothing.index, removed.index);
}

#[test]
fn missing_values_are_named() {
    let store = Store::new();
    let nowhere = Node {
        address: String::new(),
        ..node("ghost")
    };
    let rejected = refuse(
        &store,
        register(nowhere, Some(instance("web", "w")), vec![]),
    );
    assert_eq!(
        rejected,
        Rejected::MissingNode {
            node: "ghost".into()
        }
    );
    let orphan = register(node("n"), None, vec![check("c", "absent")]);
    let rejected = refuse(&store, orphan);
    assert!(rejected.to_string().contains("absent"), "{rejected}");
    assert!(
        store.state().read().nodes().is_empty(),
        "not even the node is registered"
    );
    let nameless = register(node("n"), Some(instance("", "x")), vec![]);
    assert!(matches!(refuse(&store, nameless), Rejected::Missing { .. }));
}

#[test]
fn a_service_may_come_before_its_node() {
    let store = Store::new();
    let unknown = Node {
        address: String::new(),
        ..node("n")
    };
    let early = Registration {
        node: unknown,
        service: Some(instance("web", "w")),
        checks: vec![],
        skip_node_update: true,
    };
    apply(&store, Command::Register(Box::new(early)));
    let with_id = Node {
        id: "1".to_owned(),
        ..node("n")
    };
    apply(&store, register(with_id, None, vec![]));
    let found = store.state().read().instance("n", "w");
    let found = found.expect("it stays when its node comes");
    assert_eq!(found.node.address, "10.0.0.1");
    assert_eq!(found.node.id, "1");
}

#[test]
fn a_node_that_exists_can_be_left_alone() {
    let store = Store::new();
    apply(&store, register(node("n"), None, vec![]));
    let other = Node {
        address: String::new(),
        ..node("n")
    };
    let skipping = Registration {
        node: other,
        service: Some(instance("web", "w")),
        checks: vec![],
        skip_node_update: true,
    };
    apply(&store, Command::Register(Box::new(skipping)));
    let found = store
        .state()
        .read()
        .instance("n", "w")
        .expect("it is registered");
    assert_eq!(found.node.address, "10.0.0.1");
}

#[test]
fn a_node_is_known_by_its_id_and_may_change_its_name() {
    let store = Store::new();
    let with_id = |name: &str, id: &str| Node {
        id: id.to_owned(),
        ..node(name)
    };
    let on_a = Some(instance("web", "w"));
    apply(&store, register(with_id("a", "1"), on_a, vec![]));
    let silent = apply(&store, register(node("a"), None, vec![]));
    assert!(
        !silent.changed,
        "a registration without an id keeps the one there is"
    );
    apply(&store, register(with_id("b", "1"), None, vec![]));
    let state = store.state();
    let txn = state.read();
    assert_eq!(txn.node_by_id("1").expect("it is there").node, "b");
    assert!(txn.node("a").is_none(), "the old name is gone");
    assert!(txn.service("web").is_empty(), "with what was on it");

    // No agent maintains it: a machine that was set up again takes its name.
    apply(&store, register(with_id("b", "2"), None, vec![]));
    assert!(store.state().read().node_by_id("1").is_none());
    // With a live agent, neither a new node nor a renamed one gets the name.
    let alive = |status| HealthCheck {
        check_id: "serfHealth".to_owned(),
        status,
        ..HealthCheck::default()
    };
    let watched = |status| register(with_id("b", "2"), None, vec![alive(status)]);
    apply(&store, watched(CheckStatus::Passing));
    apply(&store, register(with_id("c", "3"), None, vec![]));
    for id in ["3", "4"] {
        let taken = refuse(&store, register(with_id("b", id), None, vec![]));
        let text = taken.to_string();
        assert!(
            text.starts_with("Node name b is reserved by node 2"),
            "{text}"
        );
    }
    apply(&store, watched(CheckStatus::Critical));
    apply(&store, register(with_id("b", "3"), None, vec![]));
    let state = store.state();
    assert_eq!(state.read().node_by_id("3").expect("it is there").node, "b");
    assert!(state.read().node("c").is_none());
}

#[test]
fn a_coordinate_is_removed_with_its_node() {
    let store = Store::new();
    let put = |node: &str| {
        let coordinate = NodeCoordinate {
            node: node.to_owned(),
            ..NodeCoordinate::default()
        };
        let mut txn = crate::WriteTxn::on(&store.state());
        txn.put_coordinate(coordinate);
        txn.into_parts().0
    };
    assert!(put("A").read().coordinates().is_empty(), "no such node");
    apply(&store, register(node("a"), None, vec![]));
    let state = put("A");
    assert_eq!(state.read().coordinate("a").expect("it is there").node, "a");
    let mut txn = crate::WriteTxn::on(&state);
    txn.deregister(&crate::Deregistration {
        node: "a".to_owned(),
        service_id: None,
        check_id: None,
    });
    let (state, _) = txn.into_parts();
    assert!(state.read().coordinates().is_empty());
}

#[test]
fn several_commands_are_one_change_or_none() {
    let store = Store::new();
    let good = || register(node("n"), Some(instance("web", "w")), vec![]);
    let bad = register(node("n"), None, vec![check("c", "absent")]);
    refuse(&store, Command::All(vec![good(), bad]));
    assert!(store.state().read().nodes().is_empty());
    let before = store.state().index();
    let both = Command::All(vec![good(), register(node("m"), None, vec![])]);
    assert_eq!(apply(&store, both).index, before + 1);
}

#[test]
fn a_check_that_moves_to_an_instance_outside_the_mesh_moves_the_index() {
    let store = Store::new();
    let moving = |id: &str| vec![check("moving", id)];
    let in_mesh = Some(native("web", "in"));
    apply(&store, register(node("n"), in_mesh, moving("in")));
    let before = index_of(&store, |txn| txn.connect("web"));
    let outside = Some(instance("web", "out"));
    let applied = apply(&store, register(node("n"), outside, moving("out")));
    let checks = store.state().read().connect("web")[0].checks.len();
    assert_eq!(checks, 0);
    let after = index_of(&store, |txn| txn.connect("web"));
    assert!(before < after && after == applied.index, "{before} {after}");
}

#[test]
fn a_check_definition_is_removed_with_its_check() {
    let store = Store::new();
    let defined = |id: &str, service_id: &str| {
        let definition = legate_model::CheckType {
            check_id: id.to_owned(),
            service_id: service_id.to_owned(),
            ttl: std::time::Duration::from_secs(10),
            ..legate_model::CheckType::default()
        };
        definition.into_defined("n1")
    };
    let put = |id: &str, service_id: &str| {
        let one = defined(id, service_id);
        let write = move |txn: &mut crate::WriteTxn| -> Result<(), crate::WriteError> {
            Ok(txn.put_agent_check("n1", one.clone(), crate::Source::Api)?)
        };
        futures_util::FutureExt::now_or_never(store.write(write)).unwrap()
    };
    let ids = || {
        let state = store.state();
        let checks = state.read().agent_checks("N1");
        checks
            .into_iter()
            .map(|check| check.check_id)
            .collect::<Vec<_>>()
    };
    apply(
        &store,
        register(node("n1"), Some(instance("web", "web-1")), vec![]),
    );
    put("of-node", "").unwrap();
    put("of-web", "web-1").unwrap();
    assert!(put("of-nobody", "web-2").is_err());
    assert_eq!(ids(), ["of-node", "of-web"]);
    // The same write again is a no-op.
    let (applied, ()) = put("of-web", "web-1").unwrap();
    assert!(!applied.changed);
    let state = store.state();
    assert_eq!(
        state.read().check("n1", "of-web").unwrap().service_name,
        "web"
    );

    apply(&store, deregister("n1", Some("web-1"), None));
    assert_eq!(ids(), ["of-node"]);
    apply(&store, deregister("n1", None, Some("of-node")));
    assert_eq!(ids(), Vec::<String>::new());
    put("again", "").unwrap();
    apply(&store, deregister("n1", None, None));
    assert_eq!(ids(), Vec::<String>::new());
}
