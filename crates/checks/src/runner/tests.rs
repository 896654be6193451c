use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;

use axum::Router;
use axum::response::Redirect;
use axum::routing::get;
use legate_model::{CheckType, HealthCheck, Node, Tenancy};
use legate_runtime::Scope;
use legate_store::{Command, Registration, Source, Store, StoreConfig, WriteError};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::*;

const NODE: &str = "n1";
/// Timeout of every wait.
const LIMIT: Duration = Duration::from_secs(30);

fn registration(checks: Vec<HealthCheck>) -> Command {
    Command::Register(Box::new(Registration {
        node: Node {
            node: NODE.to_owned(),
            address: "127.0.0.1".to_owned(),
            ..Node::default()
        },
        service: None,
        checks,
        skip_node_update: false,
    }))
}

/// A store with a node, whose transactions are serialised.
async fn store(scope: &Scope, directory: &Path) -> Store {
    let config = StoreConfig::Disk {
        directory: directory.to_owned(),
        key_file: None,
    };
    let store = Store::open(config, &scope.spawner()).await.unwrap();
    store.apply(registration(Vec::new())).await.unwrap();
    store
}

async fn put(store: &Store, check: CheckType) {
    let written = store.write(move |txn| {
        txn.put_agent_check(NODE, check.clone().into_defined(NODE), Source::Api)?;
        Ok::<_, WriteError>(())
    });
    written.await.unwrap();
}

fn http(id: &str, at: SocketAddr) -> CheckType {
    CheckType {
        check_id: id.to_owned(),
        http: format!("http://{at}/{id}"),
        interval: Duration::from_secs(3600),
        timeout: LIMIT,
        ..CheckType::default()
    }
}

/// Waits until a check passes.
async fn passes(store: &Store, id: &str) {
    let passes = async {
        loop {
            let state = store.state();
            let txn = state.read();
            let check = txn.check(NODE, id);
            if check.is_some_and(|check| check.status == CheckStatus::Passing) {
                return;
            }
            let mut watch = store.watch(&txn.into_reads());
            drop(state);
            watch.changed().await;
        }
    };
    timeout(LIMIT, passes).await.expect("the check passes");
}

fn start(scope: &Scope, store: &Store) -> Reports {
    let (runner, reports) = Runner::new(
        NODE,
        store.reader(),
        store.writer(),
        |_, _| false,
        Settings::default(),
    );
    scope.spawn("checks", runner.run(scope.token()));
    reports
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_continue_while_the_store_is_slow() {
    let (scope, directory) = (Scope::new("test"), tempfile::tempdir().unwrap());
    let store = store(&scope, directory.path()).await;
    // The first run ends when both have started. The second is then redirected and sends another
    // request.
    let [begun, ended, again] = [(); 3].map(|()| Arc::new(Semaphore::new(0)));
    let wait = async |on: Arc<Semaphore>| drop(on.acquire().await);
    let (both, one, asked) = (Arc::clone(&begun), Arc::clone(&ended), Arc::clone(&again));
    let web = Router::new()
        .route(
            "/one",
            get(async move || {
                wait(both).await;
                one.add_permits(1);
            }),
        )
        .route(
            "/two",
            get(async move || {
                begun.add_permits(1);
                wait(ended).await;
                Redirect::temporary("/again")
            }),
        )
        .route("/again", get(async move || asked.add_permits(1)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    scope.spawn("web", async move { axum::serve(listener, web).await });
    put(&store, http("one", at)).await;
    put(&store, http("two", at)).await;

    let (release, held) = mpsc::channel::<()>();
    let (entered, waiting) = mpsc::channel();
    let writer = store.writer();
    scope.spawn("slow write", async move {
        let slow = writer.write(move |_| {
            let _ = (entered.send(()), held.recv());
            Ok::<_, Unavailable>(())
        });
        slow.await.map(drop)
    });
    waiting.recv_timeout(LIMIT).unwrap();
    start(&scope, &store);
    let asked = timeout(LIMIT, again.acquire()).await;
    drop(asked.expect("it asks again while a result waits for the store"));
    release.send(()).unwrap();
    passes(&store, "one").await;
    passes(&store, "two").await;
}

#[tokio::test]
async fn check_ids_are_case_insensitive() {
    let (scope, directory) = (Scope::new("test"), tempfile::tempdir().unwrap());
    let store = store(&scope, directory.path()).await;
    let ttl = |id: &str| CheckType {
        check_id: id.to_owned(),
        ttl: Duration::from_secs(3600),
        ..CheckType::default()
    };
    put(&store, ttl("beat")).await;
    put(&store, ttl("Beat")).await;
    put(&store, ttl("pulse")).await;
    // In the catalog alone, the case may differ.
    let check = HealthCheck {
        check_id: "PULSE".to_owned(),
        name: "pulse".to_owned(),
        ..HealthCheck::default()
    };
    store.apply(registration(vec![check])).await.unwrap();
    let reports = start(&scope, &store);
    for id in ["beat", "pulse"] {
        assert_eq!(
            reports.renew(&Tenancy::default(), id).await,
            Ok(true),
            "{id}"
        );
    }
    let ids = store.state().read().agent_checks(NODE);
    assert_eq!(ids[0].check_id, "Beat");
    scope.stop(LIMIT).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reports_are_answered_while_the_store_is_unavailable() {
    let (scope, directory) = (Scope::new("test"), tempfile::tempdir().unwrap());
    let storage = scope.spawner().child_with_own_token("storage");
    let store = store(&storage, directory.path()).await;
    let hour = Duration::from_secs(3600);
    let beat = CheckType {
        check_id: "beat".to_owned(),
        ttl: hour,
        status: CheckStatus::Passing,
        ..CheckType::default()
    };
    put(&store, beat).await;
    storage.stop(LIMIT).await.unwrap();
    let reports = start(&scope, &store);
    assert_eq!(reports.renew(&Tenancy::default(), "beat").await, Ok(true));
    // It expires, and the expiry cannot be written.
    sleep(2 * hour).await;
    let renewed = timeout(LIMIT, reports.renew(&Tenancy::default(), "beat")).await;
    assert_eq!(renewed.expect("the report is taken"), Ok(true));
}

#[tokio::test(start_paused = true)]
async fn aliases_of_each_other_do_not_keep_the_store_busy() {
    let (scope, store) = (Scope::new("test"), Store::new());
    store.apply(registration(Vec::new())).await.unwrap();
    for (id, status) in [("a", CheckStatus::Passing), ("b", CheckStatus::Critical)] {
        let alias = CheckType {
            check_id: id.to_owned(),
            alias_node: NODE.to_owned(),
            status,
            ..CheckType::default()
        };
        put(&store, alias).await;
    }
    start(&scope, &store);
    let end = Instant::now() + Duration::from_secs(10);
    let mut changes = 0;
    while Instant::now() < end {
        let state = store.state();
        let txn = state.read();
        txn.checks_on(NODE);
        let mut watch = store.watch(&txn.into_reads());
        let _ = timeout(Duration::from_secs(1), watch.changed()).await;
        changes += 1;
        assert!(changes <= 30, "the checks change without an end");
    }
}
