//! Work that is blocked until the test releases it, so that every order is deterministic.

use std::sync::mpsc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::*;
use crate::scope::Scope;

const DEADLINE: Duration = Duration::from_secs(10);

fn pool(scope: &Scope, threads: usize) -> Pool {
    Pool::with(scope.spawner(), NonZeroUsize::new(threads).unwrap())
}

/// Work that signals its start and waits for its release.
struct Held {
    begun: oneshot::Receiver<()>,
    release: mpsc::Sender<()>,
}

fn held() -> (Held, impl FnOnce() + Send + 'static) {
    let (begin, begun) = oneshot::channel();
    let (release, released) = mpsc::channel();
    let work = move || {
        let _ = begin.send(());
        let _ = released.recv();
    };
    (Held { begun, release }, work)
}

#[tokio::test]
async fn concurrency_is_limited_to_the_number_of_threads() {
    let scope = Scope::new("test");
    let pool = pool(&scope, 2);
    let (one, two, three) = (Share::default(), Share::default(), Share::default());
    let ((first, a), (second, b)) = (held(), held());
    let mut a = Box::pin(pool.run("a", &one, a));
    let mut b = Box::pin(pool.run("b", &two, b));
    let mut c = Box::pin(pool.run("c", &three, || 3));
    // Each is polled once, in this order.
    assert!(a.as_mut().now_or_never().is_none());
    assert!(b.as_mut().now_or_never().is_none());
    first.begun.await.unwrap();
    second.begun.await.unwrap();
    assert!(c.as_mut().now_or_never().is_none());
    assert_eq!(pool.slots.available_permits(), 0);

    first.release.send(()).unwrap();
    assert_eq!(c.await, Some(3));
    second.release.send(()).unwrap();
    assert_eq!((a.await, b.await), (Some(()), Some(())));
    assert_eq!(pool.slots.available_permits(), 2);
    scope.stop(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn a_share_has_one_place_in_the_queue() {
    let scope = Scope::new("test");
    let pool = pool(&scope, 1);
    let (greedy, other) = (Share::default(), Share::default());
    let (order, ran) = mpsc::channel();
    let say = |what: &'static str| {
        let order = order.clone();
        move || order.send(what).unwrap()
    };
    let (first, work) = held();
    let mut first_run = Box::pin(pool.run("held", &greedy, work));
    assert!(first_run.as_mut().now_or_never().is_none());
    first.begun.await.unwrap();
    let again = pool.run("again", &greedy, say("greedy"));
    let once_more = pool.run("once more", &greedy, say("greedy"));
    let late = pool.run("late", &other, say("other"));
    let release = async { first.release.send(()).unwrap() };
    // Polled in this order: the other share is last in the order, but not the last to run.
    tokio::join!(biased; first_run, again, once_more, late, release);
    assert_eq!(
        ran.try_iter().collect::<Vec<_>>(),
        ["other", "greedy", "greedy"]
    );
    scope.stop(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn abandoned_work_is_not_started() {
    let scope = Scope::new("test");
    let pool = pool(&scope, 1);
    let (first, work) = held();
    let share = Share::default();
    let mut running = Box::pin(pool.run("held", &share, work));
    assert!(running.as_mut().now_or_never().is_none());
    first.begun.await.unwrap();
    let other = Share::default();
    let mut waiting = Box::pin(pool.run("waiting", &other, || panic!("nobody waits")));
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(waiting);
    first.release.send(()).unwrap();
    running.await.unwrap();
    assert_eq!(pool.run("next", &other, || 7).await, Some(7));
    scope.stop(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn a_panic_reaches_the_caller_and_frees_the_thread() {
    let scope = Scope::new("test");
    let pool = pool(&scope, 1);
    let share = Share::default();
    let run = pool.run("broken", &share, || panic!("a defect"));
    let caught = std::panic::AssertUnwindSafe(run).catch_unwind().await;
    let panic = caught.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a defect"));
    assert_eq!(pool.run("next", &share, || 7).await, Some(7));
    // This is not a failure of the scope.
    scope.stop(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn a_stopping_scope_waits_for_running_work_and_starts_no_more() {
    let scope = Scope::new("test");
    let pool = pool(&scope, 1);
    let (first, work) = held();
    let share = Share::default();
    let mut running = Box::pin(pool.run("held", &share, work));
    assert!(running.as_mut().now_or_never().is_none());
    first.begun.await.unwrap();
    // The result is no longer awaited, but the scope still waits for the work.
    drop(running);
    let mut stopping = Box::pin(scope.stop(DEADLINE));
    assert!(stopping.as_mut().now_or_never().is_none());
    first.release.send(()).unwrap();
    stopping.await.unwrap();
    assert_eq!(pool.run("late", &share, || 7).await, None);
}
