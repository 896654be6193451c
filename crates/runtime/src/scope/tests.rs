//! Scopes with a paused clock: no test waits for real time.

use super::*;
use futures_util::FutureExt;
use std::sync::atomic::{AtomicBool, Ordering};

type Done = Result<(), BoxError>;

const DEADLINE: Duration = Duration::from_secs(5);

/// Sets its flag when the future that contains it is dropped.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn until_cancelled(token: CancellationToken) -> Done {
    token.cancelled().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn stop_cancels_waits_and_joins() {
    let scope = Scope::new("test");
    scope.spawn("polite", until_cancelled(scope.token()));
    let slow = scope.token();
    scope.spawn("slow", async move {
        slow.cancelled().await;
        tokio::time::sleep(DEADLINE / 2).await;
        Done::Ok(())
    });
    let started = tokio::time::Instant::now();
    scope.stop(DEADLINE).await.unwrap();
    assert_eq!(started.elapsed(), DEADLINE / 2);
}

#[tokio::test(start_paused = true)]
async fn a_task_until_stop_is_dropped_without_delay_or_error() {
    let scope = Scope::new("test");
    let gone = Arc::new(AtomicBool::new(false));
    let guard = OnDrop(Arc::clone(&gone));
    scope.spawner().spawn_until_stop("endless", async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    let started = tokio::time::Instant::now();
    scope.stop(DEADLINE).await.unwrap();
    assert!(gone.load(Ordering::SeqCst));
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn stop_drops_and_names_tasks_that_exceed_the_deadline() {
    let scope = Scope::new("test");
    let gone = Arc::new(AtomicBool::new(false));
    let guard = OnDrop(Arc::clone(&gone));
    scope.spawn("stubborn", async move {
        let _guard = guard;
        std::future::pending::<Done>().await
    });
    scope.spawn("polite", until_cancelled(scope.token()));
    let error = scope.stop(DEADLINE).await.unwrap_err();
    assert_eq!(error.dropped, ["stubborn"]);
    assert!(error.failure.is_none());
    assert_eq!(
        error.to_string(),
        "test: dropped after 5s without having ended: stubborn"
    );
    assert!(gone.load(Ordering::SeqCst), "joined, not only cancelled");
}

#[tokio::test]
async fn the_first_failure_reaches_the_owner_and_the_stop() {
    let scope = Scope::new("relay");
    let failed = scope.failed();
    tokio::pin!(failed);
    assert!(failed.as_mut().now_or_never().is_none());
    scope.spawn("stream 7", async { Err::<(), _>("reset by peer") });
    let error = failed.await;
    assert_eq!(error.to_string(), "relay: stream 7 failed: reset by peer");
    assert_eq!((error.scope(), error.task()), ("relay", "stream 7"));
    assert!(matches!(error.cause(), TaskCause::Failed(_)));
    scope.spawn("stream 8", async { Err::<(), _>("too late") });
    let error = scope.stop(DEADLINE).await.unwrap_err();
    assert!(error.dropped.is_empty());
    assert_eq!(error.to_string(), "relay: stream 7 failed: reset by peer");
}

#[tokio::test]
async fn a_panic_is_a_failure_of_the_scope() {
    let scope = Scope::new("test");
    let spawner = scope.spawner();
    spawner.spawn("defective", async {
        if true {
            panic!("invariant {}", 7);
        }
        Done::Ok(())
    });
    let error = scope.failed().await;
    assert_eq!(error.to_string(), "test: defective panicked: invariant 7");
    assert!(matches!(error.cause(), TaskCause::Panicked(_)));
    // The same failure again, since it is stored.
    assert_eq!(scope.failed().await.task(), "defective");
}

#[tokio::test]
async fn dropping_a_scope_drops_tasks_of_its_children_as_well() {
    let scope = Scope::new("parent");
    let spawner = scope.spawner();
    let child = spawner.child("child");
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    scope.spawn("owner of a child", async move {
        let _owned = child;
        let _open = sender;
        std::future::pending::<Done>().await
    });
    drop(scope);
    // The sender is dropped with the task.
    receiver.await.unwrap_err();
    assert!(spawner.token().is_cancelled());
}

#[tokio::test]
async fn a_task_started_after_the_end_does_not_run() {
    let scope = Scope::new("test");
    let spawner = scope.spawner();
    scope.stop(DEADLINE).await.unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    let guard = OnDrop(Arc::clone(&ran));
    spawner.spawn("late", async move {
        let _guard = guard;
        panic!("must not run");
        #[expect(unreachable_code, reason = "gives the future its type")]
        Done::Ok(())
    });
    assert!(ran.load(Ordering::SeqCst), "dropped at once");
    scope.stop(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn a_child_is_cancelled_by_its_parent_and_joined_by_its_owner() {
    let parent = Scope::new("parent");
    let child = parent.spawner().child("child");
    child.spawn("polite", until_cancelled(child.token()));
    parent.stop(DEADLINE).await.unwrap();
    assert!(child.token().is_cancelled());
    child.stop(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn tasks_may_start_tasks_while_the_scope_stops() {
    let scope = Scope::new("test");
    let spawner = scope.spawner();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    scope.spawn("first", async move {
        spawner.token().cancelled().await;
        spawner.spawn("farewell", async move {
            sender.send(()).map_err(|()| "nobody listens")
        });
        Done::Ok(())
    });
    scope.stop(DEADLINE).await.unwrap();
    receiver.await.unwrap();
}

#[tokio::test]
async fn a_failure_reaches_every_scope_above() {
    let root = Scope::new("root");
    let child = root.spawner().child("child");
    let grandchild = child.spawner().child("grandchild");
    let sibling = root.spawner().child("sibling");
    grandchild.spawn("defective", async {
        if true {
            panic!("nobody looks");
        }
        Done::Ok(())
    });
    for scope in [&root, &child, &grandchild] {
        let error = scope.failed().await;
        assert_eq!(
            error.to_string(),
            "grandchild: defective panicked: nobody looks"
        );
    }
    assert!(sibling.failed().now_or_never().is_none());
    // The failure remains available when its scope is gone.
    drop((grandchild, child));
    let error = root.stop(DEADLINE).await.unwrap_err();
    assert_eq!(error.failure.unwrap().scope(), "grandchild");
    sibling.stop(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn a_child_with_its_own_token_survives_the_stop_and_reports_failures() {
    let root = Scope::new("root");
    let child = root.spawner().child_with_own_token("child");
    child.spawn("polite", until_cancelled(child.token()));
    root.stop(DEADLINE).await.unwrap();
    assert!(!child.token().is_cancelled());
    child.spawn("farewell", async { Err::<(), _>("reset by peer") });
    assert_eq!(root.failed().await.task(), "farewell");
    let error = child.stop(DEADLINE).await.unwrap_err();
    assert!(error.dropped.is_empty(), "{error}");
}
