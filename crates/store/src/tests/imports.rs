//! What is imported from peers: rows in tenancies of their own, replaced as a whole, and removed in steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::FutureExt;
use legate_model::{
    CheckServiceNode, CheckStatus, HealthCheck, Peering, PeeringState, PeeringStream, Secret,
    Tenancy,
};
use proptest::prelude::*;

use super::{apply, instance, node, proxy, register};
use crate::{SecretRefused, Store, WriteError, WriteTxn};

fn east() -> Tenancy {
    Tenancy::default().of_peer("east")
}

/// An instance on a node, with a check of each.
fn imported(service: &str, id: &str, on: &str, status: CheckStatus) -> CheckServiceNode {
    let check = |check_id: &str, service_id: &str| {
        Arc::new(HealthCheck {
            node: on.to_owned(),
            check_id: check_id.to_owned(),
            name: check_id.to_owned(),
            service_id: service_id.to_owned(),
            status,
            ..HealthCheck::default()
        })
    };
    CheckServiceNode {
        node: node(on).into(),
        service: instance(service, id).into(),
        checks: vec![check(&format!("{id}:check"), id), check("node-check", "")],
    }
}

fn write<T: Send + 'static>(
    store: &Store,
    mut change: impl FnMut(&mut WriteTxn) -> T + Send + 'static,
) -> T {
    let written = store.write(move |txn| Ok::<_, WriteError>(change(txn)));
    written.now_or_never().unwrap().unwrap().1
}

/// A change of what is imported.
fn write_imports<T: Send + 'static>(
    store: &Store,
    mut change: impl FnMut(&mut WriteTxn) -> T + Send + 'static,
) -> T {
    write(store, move |txn| txn.in_tenancy(&east(), &mut change))
}

fn import(store: &Store, service: &str, instances: &[CheckServiceNode]) {
    let (service, instances) = (service.to_owned(), instances.to_vec());
    let imported = write_imports(store, move |txn| txn.put_imported(&service, &instances));
    imported.expect("it is imported");
}

/// Node, id, and the statuses of the checks of an instance.
type Found = (String, String, Vec<(String, CheckStatus)>);

/// All instances of the peer.
fn stored(store: &Store, service: &str) -> Vec<Found> {
    let state = store.state();
    let all = state.read().within(east()).service(service);
    let checks = |one: &CheckServiceNode| {
        let mut checks: Vec<_> = one
            .checks
            .iter()
            .map(|check| (check.check_id.clone(), check.status))
            .collect();
        checks.sort();
        checks
    };
    let mut all: Vec<_> = all
        .iter()
        .map(|one| (one.node.node.clone(), one.service.id.clone(), checks(one)))
        .collect();
    all.sort();
    all
}

#[test]
fn imported_rows_are_seen_with_the_peer_only() {
    let store = Store::new();
    apply(
        &store,
        register(node("n"), Some(instance("web", "web")), vec![]),
    );
    import(
        &store,
        "web",
        &[imported("web", "web", "n", CheckStatus::Passing)],
    );
    let state = store.state();
    let own = state.read();
    assert_eq!(own.service("web").len(), 1);
    assert!(own.service("web")[0].service.peer_name.is_empty());
    let of_peer = state.read().within(east()).service("web");
    assert_eq!(of_peer.len(), 1);
    assert_eq!(of_peer[0].service.peer_name.as_str(), "east");
    assert_eq!(of_peer[0].node.peer_name.as_str(), "east");
    assert_eq!(of_peer[0].checks[0].peer_name.as_str(), "east");
    assert_eq!(of_peer[0].service.tenancy(), east());
    // The same node without its last instance goes, and the one of this cluster remains.
    import(&store, "web", &[]);
    let state = store.state();
    assert!(state.read().within(east()).nodes().is_empty());
    assert_eq!(state.read().nodes().len(), 1);
    assert_eq!(state.read().service("web").len(), 1);
}

#[test]
fn an_imported_service_has_a_virtual_ip_of_its_own() {
    let store = Store::new();
    apply(
        &store,
        register(node("n"), Some(proxy("web", "web-proxy")), vec![]),
    );
    let of_peer = CheckServiceNode {
        node: node("g").into(),
        service: proxy("web", "web-proxy").into(),
        checks: Vec::new(),
    };
    import(&store, "web-sidecar-proxy", &[of_peer]);
    let ip = |tenancy| store.state().read().within(tenancy).virtual_ip("web");
    let (own, imported) = (ip(Tenancy::default()).unwrap(), ip(east()).unwrap());
    assert_ne!(own, imported);
    import(&store, "web-sidecar-proxy", &[]);
    assert_eq!(ip(east()), None);
    assert_eq!(ip(Tenancy::default()), Some(own));
}

#[test]
fn what_is_unchanged_is_not_written() {
    let store = Store::new();
    let web = [imported("web", "w", "n", CheckStatus::Passing)];
    import(&store, "web", &web);
    let before = store.state().index();
    import(&store, "web", &web);
    assert_eq!(store.state().index(), before);
}

#[test]
fn services_that_are_not_listed_go() {
    let store = Store::new();
    for name in ["a", "b", "c"] {
        import(
            &store,
            name,
            &[imported(name, name, "n", CheckStatus::Passing)],
        );
    }
    let step = || {
        write_imports(&store, |txn| {
            txn.keep_imported(&BTreeSet::from(["b".to_owned(), "x".to_owned()]), 2)
        })
    };
    assert_eq!([step(), step(), step()], [false, true, true]);
    let left = store.state().read().within(east()).imported_instances();
    assert_eq!(left, BTreeMap::from([("b".to_owned(), 1)]));
}

#[test]
fn everything_of_a_peer_goes_in_steps() {
    let store = Store::new();
    for number in 0..10 {
        let name = format!("s{number}");
        import(
            &store,
            &name,
            &[imported(&name, &name, &name, CheckStatus::Passing)],
        );
    }
    let step = || write_imports(&store, |txn| txn.remove_imported(4));
    let mut steps = 0;
    while !step() {
        steps += 1;
        assert!(steps < 10, "it does not end");
    }
    let state = store.state();
    let txn = state.read().within(east());
    assert!(txn.nodes().is_empty() && txn.instances().is_empty() && txn.checks().is_empty());
}

fn peering() -> Peering {
    Peering {
        id: "1".to_owned(),
        name: "east".to_owned(),
        establishment_secret: Secret::new("first"),
        ..Peering::default()
    }
}

#[test]
fn secrets_are_exchanged_once_and_promoted_with_their_use() {
    let store = Store::new();
    write(&store, |txn| txn.put_peering(peering()));
    let exchange = |given: &'static str| {
        write(&store, move |txn| {
            txn.exchange_peering_secret("1", &given.into(), "second".into())
        })
    };
    assert_eq!(exchange("wrong"), Err(SecretRefused::Wrong));
    assert_eq!(exchange("first"), Ok(()));
    assert_eq!(exchange("first"), Err(SecretRefused::Wrong));
    assert_eq!(exchange(""), Err(SecretRefused::Wrong));
    for (given, expected) in [("first", Err(SecretRefused::Wrong)), ("second", Ok(()))] {
        let promoted = write(&store, move |txn| {
            txn.promote_peering_secret("1", &given.into())
        });
        assert_eq!(promoted, expected);
    }
    let peering = store.state().read().peering_by_id("1").unwrap();
    assert_eq!(peering.active_secret.expose(), "second");
    assert!(peering.pending_secret.is_empty() && peering.establishment_secret.is_empty());
}

#[test]
fn a_deleted_peering_keeps_no_secret_and_cannot_be_changed() {
    let store = Store::new();
    write(&store, |txn| {
        txn.put_peering(peering());
        txn.mark_peering_deleted("east", SystemTime::UNIX_EPOCH);
        txn.terminate_peering("1");
    });
    let peering = store.state().read().peering("east").unwrap();
    assert_eq!(peering.state, PeeringState::Deleting);
    assert!(peering.establishment_secret.is_empty());
}

#[test]
fn only_the_last_stream_counts() {
    let store = Store::new();
    fn stream(id: &str) -> PeeringStream {
        PeeringStream {
            peer: "east".to_owned(),
            id: id.to_owned(),
            is_connected: true,
            ..PeeringStream::default()
        }
    }
    let written = write(&store, |txn| {
        txn.open_peering_stream(stream("a"));
        txn.open_peering_stream(stream("b"));
        ["a", "b"].map(|id| txn.put_peering_stream(stream(id)))
    });
    assert_eq!(written, [false, true]);
}

proptest! {
    /// Whatever was imported before, a service has exactly the instances and checks that were imported last.
    #[test]
    fn a_service_is_what_was_imported_last(
        versions in prop::collection::vec(
            (0..2usize, prop::collection::btree_map((0..3u8, 0..3u8), any::<bool>(), 0..5)), 1..8,
        ),
    ) {
        let store = Store::new();
        let names = ["web", "api"];
        let mut last = BTreeMap::new();
        for (service, instances) in versions {
            let name = names[service];
            let status = |passes| if passes { CheckStatus::Passing } else { CheckStatus::Critical };
            // The node's own check is the same in all messages about it.
            let list: Vec<_> = instances.iter().map(|((on, id), passes)| {
                let mut one = imported(name, &format!("{name}-{id}"), &format!("n{on}"), status(*passes));
                one.checks.truncate(1);
                one
            }).collect();
            import(&store, name, &list);
            last.insert(name, list);
        }
        for (name, list) in &last {
            let mut expected: Vec<_> = list.iter().map(|one| {
                let checks = one.checks.iter().map(|check| (check.check_id.clone(), check.status));
                (one.node.node.clone(), one.service.id.clone(), checks.collect::<Vec<_>>())
            }).collect();
            expected.sort();
            prop_assert_eq!(stored(&store, name), expected);
        }
        let state = store.state();
        let used: BTreeSet<_> = last.values().flatten().map(|one| one.node.node.clone()).collect();
        let nodes: BTreeSet<_> =
            state.read().within(east()).nodes().iter().map(|node| node.node.clone()).collect();
        prop_assert_eq!(used, nodes);
    }
}
