use std::sync::Arc;

use legate_model::{NewSession, Node, Session, Tenancy};
use legate_store::{Command, Registration, SessionKey};

use super::*;

const TTL: Duration = Duration::from_secs(10);

/// A store with one node.
async fn store() -> Store {
    let store = Store::new();
    let node = Node {
        node: "n".to_owned(),
        address: "10.0.0.1".to_owned(),
        ..Node::default()
    };
    let registration = Registration {
        node,
        service: None,
        checks: Vec::new(),
        skip_node_update: false,
    };
    let register = Command::Register(Box::new(registration));
    store.apply(register).await.unwrap();
    store
}

fn brief(id: String) -> Session {
    Session {
        id,
        node: "n".to_owned(),
        ttl: "10s".to_owned(),
        lock_delay: Duration::from_secs(15),
        ..Session::default()
    }
}

async fn write(store: &Store, change: impl Fn(&mut WriteTxn) + Send + 'static) {
    let write = move |txn: &mut WriteTxn| -> Result<(), Unavailable> {
        change(txn);
        Ok(())
    };
    store.write(write).await.unwrap();
}

async fn create(store: &Store, id: impl ToString) {
    let session = brief(id.to_string());
    write(store, move |txn| {
        let new = NewSession {
            session: session.clone(),
            default_check: false,
        };
        txn.create_session(new).unwrap();
    })
    .await;
}

fn session(store: &Store, id: &str) -> Option<Arc<Session>> {
    store.state().read().session(id)
}

async fn renew(store: &Store, id: impl ToString) -> bool {
    let session = SessionKey {
        tenancy: Tenancy::default(),
        id: id.to_string(),
    };
    store.writer().renew(session).await.unwrap()
}

/// The number of rows that are overdue at a time.
fn overdue(deadlines: &mut Deadlines, store: &Store, at: Instant) -> usize {
    let state = store.state();
    let overdue = deadlines.overdue(at, store.renewals(), &state.read());
    overdue.len()
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_it_was_not_renewed_for_twice_its_ttl() {
    let store = store().await;
    let mut deadlines = Deadlines::default();
    create(&store, "s").await;
    let start = Instant::now();
    deadlines.observe(&store.state().read(), start);
    assert_eq!(deadlines.next(), Some(start + 2 * TTL));

    tokio::time::advance(Duration::from_secs(12)).await;
    let index = store.state().index();
    assert!(renew(&store, "s").await);
    assert_eq!(store.state().index(), index, "nothing is stored");
    assert_eq!(overdue(&mut deadlines, &store, start + 2 * TTL), 0);
    let next = start + Duration::from_secs(12) + 2 * TTL;
    assert_eq!(deadlines.next(), Some(next));
    assert_eq!(overdue(&mut deadlines, &store, next), 1);
    assert_eq!(deadlines.next(), None);
}

#[tokio::test(start_paused = true)]
async fn an_end_voids_the_deadline_and_the_renewal() {
    let store = store().await;
    let mut deadlines = Deadlines::default();
    create(&store, "ended").await;
    let start = Instant::now();
    deadlines.observe(&store.state().read(), start);
    assert!(renew(&store, "ended").await);
    write(&store, |txn| txn.end_session("ended")).await;
    assert!(!renew(&store, "ended").await);
    assert_eq!(overdue(&mut deadlines, &store, start + 2 * TTL), 0);
    assert_eq!((deadlines.next(), store.renewals().len()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn many_are_ended_in_several_steps_and_those_that_ended_are_swept() {
    let store = store().await;
    let mut deadlines = Deadlines::default();
    for number in 0..SWEEP_FROM {
        create(&store, number).await;
        assert!(renew(&store, number).await);
    }
    let start = Instant::now();
    deadlines.observe(&store.state().read(), start);
    write(&store, |txn| {
        for number in 300..SWEEP_FROM {
            txn.end_session(&number.to_string());
        }
    })
    .await;
    deadlines.sweep(&store.state(), store.renewals());
    assert_eq!((deadlines.queue.len(), store.renewals().len()), (300, 300));
    store.renewals().clear();
    let at = start + 2 * TTL;
    let ends = [(); 3].map(|()| overdue(&mut deadlines, &store, at));
    assert_eq!(ends, [AT_ONCE, 100, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_sessions_and_their_lock_delays() {
    let store = store().await;
    let stop = CancellationToken::new();
    let ending = tokio::join!(end_overdue(store.clone(), stop.clone()), async {
        for id in ["kept", "lost"] {
            create(&store, id).await;
        }
        write(&store, |txn| {
            let entry = legate_store::KvWrite {
                key: "k".to_owned(),
                ..legate_store::KvWrite::default()
            };
            assert!(txn.kv_lock(entry, "lost").unwrap().is_some());
        })
        .await;
        let index = store.state().index();
        for _ in 0..3 {
            sleep(Duration::from_secs(6)).await;
            assert!(renew(&store, "kept").await);
        }
        assert_eq!(store.state().index(), index, "renewals are not stored");
        sleep(Duration::from_secs(4)).await;
        assert!(session(&store, "lost").is_none());
        assert!(store.state().read().is_lock_delayed("k"));
        sleep(Duration::from_secs(15)).await;
        assert!(!store.state().read().is_lock_delayed("k"));
        assert!(session(&store, "kept").is_some(), "it was renewed 19 s ago");
        sleep(Duration::from_secs(3)).await;
        assert!(session(&store, "kept").is_none());
        stop.cancel();
    });
    ending.0.unwrap();
}
