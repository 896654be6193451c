//! Watches, shared results and blocking queries. Time is paused.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use legate_model::IntentionAction;
use tokio::time::Instant;

use super::{
    apply, check, deregister, index_of, instance, intention, node, proxy, register, watch, woken,
};
use crate::{Answer, BlockingQuery, Command, Follower, Kept, ReadTxn, State, Store, Watch};

/// Watches the instances of a service.
fn service(store: &Store, name: &str) -> Watch {
    watch(store, |txn| txn.service(name))
}

/// Watches the intentions for a service.
fn intentions(store: &Store, name: &str) -> Watch {
    watch(store, |txn| txn.intentions_for(name))
}

fn index_of_web(store: &Store) -> u64 {
    index_of(store, |txn| txn.service("web"))
}

#[test]
fn only_watches_of_changed_keys_wake() {
    let store = Store::new();
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    let mut web = service(&store, "web");
    let mut api = service(&store, "api");
    let mut mesh = watch(&store, |txn| txn.connect("web"));
    let mut names = watch(&store, |txn| txn.services());

    apply(&store, register(node("n"), None, vec![check("c", "w")]));
    assert_eq!((woken(&mut web), woken(&mut api)), (true, false));
    assert_eq!((woken(&mut mesh), woken(&mut names)), (false, false));

    apply(&store, register(node("n"), Some(proxy("web", "p")), vec![]));
    assert_eq!(
        (woken(&mut web), woken(&mut mesh), woken(&mut names)),
        (false, true, true)
    );

    let mut mesh = watch(&store, |txn| txn.connect("web"));
    let mut moved = node("n");
    moved.address = "10.0.0.2".to_owned();
    apply(&store, register(moved, None, vec![]));
    assert_eq!(
        (woken(&mut web), woken(&mut api), woken(&mut mesh)),
        (true, false, true)
    );
    assert!(!woken(&mut web), "one change wakes once");
}

#[test]
fn an_intention_for_everybody_wakes_everybody() {
    let store = Store::new();
    let mut web = intentions(&store, "web");
    let mut api = intentions(&store, "api");
    apply(&store, intention("*", "api", IntentionAction::Deny));
    assert_eq!((woken(&mut web), woken(&mut api)), (false, true));
    let applied = apply(&store, intention("*", "*", IntentionAction::Deny));
    assert_eq!((woken(&mut web), woken(&mut api)), (true, true));
    assert_eq!(
        index_of(&store, |txn| txn.intentions_for("web")),
        applied.index
    );
}

#[test]
fn a_change_between_read_and_watch_is_not_missed() {
    let store = Store::new();
    let state = store.state();
    let txn = state.read();
    assert!(txn.service("web").is_empty());
    let reads = txn.into_reads();
    apply(
        &store,
        register(node("n"), Some(instance("api", "a")), vec![]),
    );
    assert!(!woken(&mut store.watch(&reads)), "something else changed");
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    apply(
        &store,
        register(node("n"), Some(instance("api", "b")), vec![]),
    );
    assert!(woken(&mut store.watch(&reads)));
}

#[test]
fn reads_older_than_the_history_wake() {
    let store = Store::new();
    let state = store.state();
    let txn = state.read();
    txn.service("web");
    let reads = txn.into_reads();
    for i in 0..200 {
        let many = (0..400).map(|j| register(node(&format!("n{i}-{j}")), None, vec![]));
        apply(&store, Command::All(many.collect()));
    }
    assert!(woken(&mut store.watch(&reads)));
    assert!(!woken(&mut service(&store, "web")));
}

#[test]
fn a_kept_value_is_read_again_after_a_change_alone() {
    let store = Store::new();
    let (follower, reads) = (Follower::default(), Cell::new(0));
    let mut kept = Kept::default();
    let mut read = |state: &State| {
        kept.get(&state.read(), Some(&follower), |txn| {
            reads.set(reads.get() + 1);
            txn.service("web").len()
        })
    };
    let woken = || follower.changed().now_or_never().is_some();
    assert_eq!((read(&store.state()), read(&store.state())), (0, 0));
    assert_eq!((reads.get(), woken()), (1, false));

    apply(
        &store,
        register(node("n"), Some(instance("api", "a")), vec![]),
    );
    assert_eq!((read(&store.state()), reads.get(), woken()), (0, 1, false));

    let before = store.state();
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    assert!(woken());
    // A reader of an old state is woken at once.
    assert_eq!((read(&before), reads.get(), woken()), (0, 2, true));
    assert_eq!((read(&store.state()), reads.get(), woken()), (1, 3, false));

    apply(&store, deregister("n", Some("w"), None));
    follower.forget();
    assert!(!woken());
    assert_eq!((read(&store.state()), reads.get()), (0, 4));
}

#[test]
fn a_kept_value_that_is_dropped_leaves_nothing_behind() {
    let store = Store::new();
    let watchers = || store.state().queries.registry.watchers();
    let follower = Follower::default();
    let mut kept = Kept::default();
    kept.get(&store.state().read(), Some(&follower), |txn| {
        txn.service("web").len()
    });
    assert_ne!(watchers(), 0);
    drop(kept);
    assert_eq!(watchers(), 0);
}

#[test]
fn a_dropped_watch_leaves_nothing_behind() {
    let store = Store::new();
    let watchers = || store.state().queries.registry.watchers();
    let one = service(&store, "web");
    let of_one = watchers();
    assert!(of_one > 0);
    let two = intentions(&store, "web");
    assert!(watchers() > of_one);
    drop(two);
    assert_eq!(watchers(), of_one);
    drop(one);
    assert_eq!(watchers(), 0);
}

#[test]
fn indexes_move_forward_when_rows_vanish_and_do_not_pile_up() {
    let store = Store::new();
    let mut last = index_of_web(&store);
    assert_eq!(last, 1);
    for _ in 0..20 {
        for command in [
            register(node("n"), Some(instance("web", "w")), vec![]),
            deregister("n", Some("w"), None),
        ] {
            let applied = apply(&store, command);
            let index = index_of_web(&store);
            assert_eq!(index, applied.index);
            assert!(index > last);
            last = index;
        }
    }
    for i in 0..20_000 {
        let name = format!("s{i}");
        let there = register(node("n"), Some(instance(&name, &name)), vec![]);
        apply(
            &store,
            Command::All(vec![there, deregister("n", Some(&name), None)]),
        );
    }
    assert!(store.state().tombstones() <= 16 * 1024);
    assert!(index_of_web(&store) >= last, "what is forgotten counts too");
}

#[test]
fn a_shared_result_is_computed_once_and_again_after_a_change() {
    let store = Store::new();
    let computed = Cell::new(0);
    let ports = || {
        let state = store.state();
        let txn = state.read();
        let value = txn.shared("ports", "web", |txn| {
            computed.set(computed.get() + 1);
            let found = txn.service("web");
            found.iter().map(|i| i.service.port).collect::<Vec<_>>()
        });
        (value, txn.into_reads())
    };
    let (empty, reads) = ports();
    assert!(Arc::ptr_eq(&empty, &ports().0));
    assert_eq!(computed.get(), 1);
    let mut watch = store.watch(&reads);

    // A change of another service does not affect the result; a change of a check recomputes an
    // equal one.
    let web = || register(node("n"), Some(instance("web", "w")), vec![]);
    apply(
        &store,
        register(node("n"), Some(instance("api", "a")), vec![]),
    );
    assert!(!woken(&mut watch));
    let applied = apply(&store, web());
    assert!(woken(&mut watch));
    let (one, reads) = ports();
    assert_eq!((&*one, computed.get()), (&vec![8080], 2));
    assert_eq!(reads.index(), applied.index);
    apply(&store, register(node("n"), None, vec![check("c", "w")]));
    let (same, _) = ports();
    assert!(Arc::ptr_eq(&one, &same));
    assert_eq!(computed.get(), 3);

    drop((empty, one, same, reads, watch));
    ports();
    assert_eq!(computed.get(), 4, "nobody held it");
}

#[test]
fn a_shared_result_with_other_inputs_follows_these() {
    let store = Store::new();
    let watchers = || store.state().queries.registry.watchers();
    let read = |name: &'static str| {
        let state = store.state();
        let txn = state.read();
        let value = txn.shared(name, "", |txn| match txn.service("switch").is_empty() {
            true => txn.service("web").len(),
            false => txn.service("api").len() + txn.services().len(),
        });
        (value, store.watch(&txn.into_reads()))
    };
    let put = |name: &str| {
        let instance = instance(name, name);
        apply(&store, register(node("n"), Some(instance), vec![]))
    };
    let remove = |name: &str| apply(&store, deregister("n", Some(name), None));

    let (held, mut watch) = read("again");
    put("switch");
    assert!(woken(&mut watch));
    drop(watch);
    let (_, mut watch) = read("again");
    put("web");
    put("api");
    assert!(woken(&mut watch), "services are an input now");
    drop(watch);
    let (_, mut watch) = read("again");
    remove("switch");
    assert!(woken(&mut watch));
    drop(watch);
    drop(read("again"));
    let of_one = watchers();
    let first = read("computed for the first time");
    drop(first.1);
    assert_eq!(watchers(), 2 * of_one, "both have the same inputs");
    let (_, mut watch) = read("again");
    remove("api");
    assert!(!woken(&mut watch), "it is no input any more");
    remove("web");
    assert!(woken(&mut watch));
    assert_eq!((*held, *read("again").0), (0, 0));
}

#[test]
fn a_reader_that_is_behind_sees_its_own_state() {
    let store = Store::new();
    let old = store.state();
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    let count = |txn: &ReadTxn<'_>| txn.shared("count", "web", |txn| txn.service("web").len());
    let new = store.state();
    let newer = count(&new.read());
    assert_eq!((*newer, *count(&old.read())), (1, 0));
    assert!(Arc::ptr_eq(&newer, &count(&new.read())));
}

#[test]
fn a_shared_result_of_shared_results_wakes_its_readers() {
    let store = Store::new();
    let read = |txn: &ReadTxn<'_>| {
        txn.shared("outer", "", |txn| {
            *txn.shared("inner", "web", |txn| txn.service("web").len()) + 1
        })
    };
    let held = read(&store.state().read());
    let mut watch = watch(&store, read);
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    assert!(woken(&mut watch));
    assert_eq!((*held, *read(&store.state().read())), (1, 2));
}

/// Computes enough results for a sweep of the unused ones.
fn sweep(store: &Store) {
    for i in 0..1000 {
        let name = i.to_string();
        let state = store.state();
        state
            .read()
            .shared("n", &name, |txn| txn.service(&name).len());
    }
}

#[test]
fn a_change_comes_through_a_result_that_only_other_results_need() {
    let store = Store::new();
    let computed = Cell::new(0);
    let read = |txn: &ReadTxn<'_>| {
        txn.shared("outer", "", |txn| {
            let inner = txn.shared("inner", "web", |txn| {
                computed.set(computed.get() + 1);
                txn.service("web").len()
            });
            // The inner result is not retained.
            *inner + txn.service("api").len()
        })
    };
    let held = read(&store.state().read());
    sweep(&store);
    let mut watch = watch(&store, read);
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    assert!(woken(&mut watch));
    assert_eq!((*held, *read(&store.state().read())), (0, 1));
    // Changes of other inputs do not recompute the inner result.
    let held = read(&store.state().read());
    let before = computed.get();
    apply(
        &store,
        register(node("n"), Some(instance("api", "a")), vec![]),
    );
    assert_eq!((*held, *read(&store.state().read())), (1, 2));
    assert_eq!(computed.get(), before);
}

#[test]
fn a_watch_wakes_through_an_unheld_result() {
    let store = Store::new();
    let count = |txn: &ReadTxn<'_>| *txn.shared("count", "web", |txn| txn.service("web").len());
    let mut watch = watch(&store, count);
    sweep(&store);
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    assert!(woken(&mut watch));
}

#[test]
fn a_reader_that_is_behind_watches_what_it_read_itself() {
    let store = Store::new();
    let count = |txn: &ReadTxn<'_>| txn.shared("count", "web", |txn| txn.service("web").len());
    let old = store.state();
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    // The shared result is first computed after the change.
    let held = count(&store.state().read());
    let txn = old.read();
    assert_eq!((*held, *count(&txn)), (1, 0));
    assert!(woken(&mut store.watch(&txn.into_reads())));
}

#[test]
fn unheld_shared_results_are_swept() {
    let store = Store::new();
    sweep(&store);
    assert!(store.state().queries.kept() < 200);
}

/// Reads the ports of a service in a blocking query.
async fn ports(store: &Store, min_index: u64) -> Answer<Vec<u16>> {
    let query = BlockingQuery {
        min_index,
        wait: Duration::from_secs(60),
    };
    let read = |txn: &ReadTxn<'_>| {
        let found = txn.service("web");
        found.iter().map(|i| i.service.port).collect()
    };
    store.reader().blocking(query, read).await
}

#[tokio::test(start_paused = true)]
async fn without_an_index_the_answer_comes_at_once() {
    let store = Store::new();
    let start = Instant::now();
    let answer = ports(&store, 0).await;
    assert_eq!(
        answer,
        Answer {
            index: 1,
            value: vec![]
        }
    );
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn newer_results_return_at_once_and_others_wait() {
    let store = Store::new();
    let applied = apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    assert_eq!(ports(&store, 1).await.index, applied.index);

    let mut waiting = std::pin::pin!(ports(&store, applied.index));
    let soon = Duration::from_secs(5);
    assert!(tokio::time::timeout(soon, &mut waiting).await.is_err());
    apply(
        &store,
        register(node("n"), Some(instance("api", "a")), vec![]),
    );
    assert!(
        tokio::time::timeout(soon, &mut waiting).await.is_err(),
        "another service"
    );
    let changed = apply(&store, deregister("n", Some("w"), None));
    let answer = waiting.await;
    assert_eq!(
        answer,
        Answer {
            index: changed.index,
            value: vec![]
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_answers_with_the_same_index() {
    let store = Store::new();
    let applied = apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    let start = Instant::now();
    let answer = ports(&store, applied.index).await;
    assert_eq!(start.elapsed(), Duration::from_secs(60));
    assert_eq!(
        answer,
        Answer {
            index: applied.index,
            value: vec![8080]
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_change_that_leaves_the_result_as_it_was_does_not_end_the_wait() {
    let store = Store::new();
    let applied = apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    let mut waiting = std::pin::pin!(ports(&store, applied.index));
    let soon = Duration::from_secs(5);
    assert!(tokio::time::timeout(soon, &mut waiting).await.is_err());
    let touched = apply(&store, register(node("n"), None, vec![check("c", "w")]));
    assert!(
        tokio::time::timeout(soon, &mut waiting).await.is_err(),
        "the port is the same"
    );
    let mut other = instance("web", "w");
    other.port = 1;
    let changed = apply(&store, register(node("n"), Some(other), vec![]));
    assert!(changed.index > touched.index);
    assert_eq!(
        waiting.await,
        Answer {
            index: changed.index,
            value: vec![1]
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_query_waits_for_missing_rows() {
    let store = Store::new();
    let mut waiting = std::pin::pin!(ports(&store, 1));
    let soon = Duration::from_secs(5);
    assert!(tokio::time::timeout(soon, &mut waiting).await.is_err());
    let applied = apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    assert_eq!(waiting.await.index, applied.index);
}

#[tokio::test(start_paused = true)]
async fn an_index_from_another_life_is_answered_at_once() {
    let store = Store::new();
    let start = Instant::now();
    assert_eq!(ports(&store, 1_000).await.index, 1);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_endless_wait_does_not_overflow() {
    let store = Store::new();
    let query = BlockingQuery {
        min_index: 1,
        wait: Duration::MAX,
    };
    let answer = store
        .reader()
        .blocking(query, |txn| txn.nodes().len())
        .await;
    assert_eq!(answer.index, 1);
}

#[test]
fn results_of_ended_readers_are_not_remembered_without_limit() {
    let store = Store::new();
    let before = store.state();
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    // Each result is of an older state, so the change of its input is remembered for its readers.
    for number in 0..40_000 {
        let txn = before.read();
        txn.shared("instances", &number.to_string(), |txn| {
            txn.service("web").len()
        });
    }
    let remembered = before.queries.registry.remembered();
    assert!(remembered <= 16 * 1024, "{remembered}");
    // A watch of something read before that wakes at once.
    let txn = before.read();
    txn.service("web");
    let mut watch = store.watch(&txn.into_reads());
    assert!(woken(&mut watch));
}
