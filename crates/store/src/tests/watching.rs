//! Topics, watches and blocking queries. Time is paused: waiting costs none.

use std::time::Duration;

use legate_model::IntentionAction;
use tokio::time::Instant;

use super::{apply, check, deregister, instance, intention, node, proxy, register, woken};
use crate::{Answer, BlockingQuery, Store, Topic};

fn service(name: &str) -> Topic {
    Topic::Service(name.into())
}

fn of(name: &str) -> Topic {
    Topic::IntentionsFor(name.into())
}

#[test]
fn only_those_who_watch_what_changed_wake() {
    let store = Store::new();
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    let mut web = store.watch([service("web")]);
    let mut api = store.watch([service("api")]);
    let mut mesh = store.watch([Topic::Connect("web".into())]);
    let mut names = store.watch([Topic::Services]);

    apply(&store, register(node("n"), None, vec![check("c", "w")]));
    assert_eq!((woken(&mut web), woken(&mut api)), (true, false));
    assert_eq!((woken(&mut mesh), woken(&mut names)), (false, false));

    apply(&store, register(node("n"), Some(proxy("web", "p")), vec![]));
    assert_eq!(
        (woken(&mut web), woken(&mut mesh), woken(&mut names)),
        (false, true, true)
    );

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
    let mut web = store.watch([of("web")]);
    let mut api = store.watch([of("api")]);
    apply(&store, intention("*", "api", IntentionAction::Deny));
    assert_eq!((woken(&mut web), woken(&mut api)), (false, true));
    let applied = apply(&store, intention("*", "*", IntentionAction::Deny));
    assert_eq!((woken(&mut web), woken(&mut api)), (true, true));
    assert_eq!(store.state().topic_index(&of("web")), applied.index);
}

#[test]
fn a_dropped_watch_leaves_nothing_behind() {
    let store = Store::new();
    let one = store.watch([service("web"), service("WEB"), of("web")]);
    let two = store.watch([service("web")]);
    assert_eq!(store.watchers(&service("web")), 2);
    assert_eq!(store.watchers(&of("*")), 1);
    drop(one);
    assert_eq!(store.watchers(&service("web")), 1);
    drop(two);
    assert_eq!(store.watchers(&service("web")), 0);
    assert_eq!(store.watchers(&of("*")), 0);
}

#[test]
fn indexes_move_forward_when_rows_vanish_and_do_not_pile_up() {
    let store = Store::new();
    let mut last = store.state().topic_index(&service("web"));
    assert_eq!(last, 1);
    for _ in 0..20 {
        for command in [
            register(node("n"), Some(instance("web", "w")), vec![]),
            deregister("n", Some("w"), None),
        ] {
            let applied = apply(&store, command);
            let index = store.state().topic_index(&service("web"));
            assert_eq!(index, applied.index);
            assert!(index > last);
            last = index;
        }
    }
    let few = store.state().topic_count();
    for i in 0..100 {
        let name = format!("s{i}");
        apply(
            &store,
            register(node("n"), Some(instance(&name, &name)), vec![]),
        );
        apply(&store, deregister("n", Some(&name), None));
    }
    assert_eq!(store.state().topic_count(), few);
}

/// Reads the ports of a service in a blocking query.
async fn ports(store: &Store, min_index: u64) -> Answer<Vec<u16>> {
    let query = BlockingQuery {
        min_index,
        wait: Duration::from_secs(60),
    };
    let read = |state: &crate::State| {
        let found = state.service("web");
        found.iter().map(|i| i.service.port).collect()
    };
    store.blocking(vec![service("web")], query, read).await
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
async fn what_is_newer_comes_at_once_and_the_rest_is_waited_for() {
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
async fn what_is_not_there_is_waited_for() {
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
    let answer = store.blocking(vec![Topic::Nodes], query, |_| ()).await;
    assert_eq!(answer.index, 1);
}
