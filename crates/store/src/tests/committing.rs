//! The committer with a shared backend that conflicts and fails.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use legate_identity::SealingKey;
use legate_runtime::Scope;
use tokio::sync::watch;

use super::durable::Opened;
use super::{instance, node, register, rows, upgrade};
use crate::backend::{Backend, Batch, Change, KeyBytes, Loaded, NotCommitted};
use crate::origin::Origin;
use crate::{OpenError, Rejected, Store, Unavailable, WriteError, WriteTxn};

/// The state that the servers share.
#[derive(Clone)]
struct Place(Arc<Shared>);

struct Shared {
    held: Mutex<Held>,
    index: watch::Sender<u64>,
}

#[derive(Default)]
struct Held {
    commits: Vec<Change>,
    fail: bool,
}

/// A server's access to it.
struct Access {
    place: Place,
    /// The number of commits that this server has.
    known: usize,
}

impl Place {
    fn new() -> Self {
        Self(Arc::new(Shared {
            held: Mutex::default(),
            index: watch::Sender::new(0),
        }))
    }

    fn fail(&self, fail: bool) {
        self.0.held.lock().unwrap().fail = fail;
    }

    async fn open(&self, key: &SealingKey) -> Opened {
        self.try_open(key).await.unwrap()
    }

    async fn try_open(&self, key: &SealingKey) -> Result<Opened, OpenError> {
        let (access, loaded) = self.access();
        let origin = Origin {
            store: "the shared place".to_owned(),
            key: key.clone(),
            key_file: "store.key".into(),
        };
        let scope = Scope::new("test");
        let store = Store::start(access, loaded, origin, None, &scope.spawner()).await?;
        Ok(Opened { store, scope })
    }

    fn access(&self) -> (Access, Option<Loaded>) {
        let (loaded, known) = self.load();
        let place = self.clone();
        (Access { place, known }, loaded)
    }

    fn load(&self) -> (Option<Loaded>, usize) {
        let held = self.0.held.lock().unwrap();
        let mut loaded: Option<Loaded> = None;
        for change in &held.commits {
            match (change, &mut loaded) {
                (Change::Everything(all), loaded) => *loaded = Some(Loaded::clone(all)),
                (Change::Batch(batch), Some(loaded)) => {
                    let mut rows: BTreeMap<KeyBytes, Vec<u8>> = loaded.rows.drain(..).collect();
                    for (key, value) in &batch.rows {
                        match value {
                            Some(value) => rows.insert(key.clone(), value.clone()),
                            None => rows.remove(key),
                        };
                    }
                    loaded.rows = rows.into_iter().collect();
                    loaded.index = batch.index;
                }
                (Change::Batch(_), None) => unreachable!("it begins with everything"),
            }
        }
        (loaded, held.commits.len())
    }
}

impl Access {
    async fn store(&mut self, base: u64, change: Change) -> Result<(), NotCommitted> {
        // Other tasks run in between.
        tokio::task::yield_now().await;
        let mut held = self.place.0.held.lock().unwrap();
        if held.fail {
            let unavailable = Unavailable::new("the place is gone");
            return Err(NotCommitted::Unavailable(unavailable));
        }
        if base != held.commits.last().map_or(0, Change::index) {
            return Err(NotCommitted::Lost);
        }
        self.place.0.index.send_replace(change.index());
        held.commits.push(change);
        self.known = held.commits.len();
        Ok(())
    }
}

impl Backend for Access {
    fn rows_at_once(&self) -> usize {
        3
    }

    async fn commit(&mut self, batch: Arc<Batch>) -> Result<(), NotCommitted> {
        assert!(batch.rows.len() <= 3 || batch.index == batch.base + 1);
        self.store(batch.base, Change::Batch(batch)).await
    }

    async fn replace(&mut self, base: u64, contents: Arc<Loaded>) -> Result<(), NotCommitted> {
        self.store(base, Change::Everything(contents)).await
    }

    async fn changed(&mut self) -> Change {
        let mut index = self.place.0.index.subscribe();
        loop {
            let next = self
                .place
                .0
                .held
                .lock()
                .unwrap()
                .commits
                .get(self.known)
                .cloned();
            if let Some(change) = next {
                self.known += 1;
                return change;
            }
            index.changed().await.unwrap();
        }
    }

    async fn close(self) {}
}

/// Increments the port of an instance.
async fn count(store: &Store) {
    let add = |txn: &mut WriteTxn| -> Result<(), WriteError> {
        let found = txn.read().instance("n", "counter");
        let port = found.map_or(0, |found| found.service.port);
        let mut counter = instance("counter", "counter");
        counter.port = port + 1;
        Ok(txn.apply(register(node("n"), Some(counter), Vec::new()))?)
    };
    store.write(add).await.unwrap();
}

#[tokio::test]
async fn two_servers_that_write_the_same_row_lose_nothing() {
    let place = Place::new();
    let key = SealingKey::generate().unwrap();
    let servers = [place.open(&key).await, place.open(&key).await];
    let writes = (0..100).map(|n| count(&servers[n % 2].store));
    futures_util::future::join_all(writes).await;
    let late = place.open(&key).await;
    let newest = rows(&late.store);
    for server in servers.into_iter().chain([late]) {
        // The commits of the other server arrive without a write.
        while server.store.state().index() < newest.0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(rows(&server.store), newest);
        let counter = server.store.state().read().instance("n", "counter");
        assert_eq!(counter.unwrap().service.port, 100);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_restore_reaches_all_servers() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::new();
    let text = "00".repeat(32);
    let key = SealingKey::from_text(&text).unwrap();
    let servers = [place.open(&key).await, place.open(&key).await];
    count(&servers[0].store).await;
    let mut saved = Vec::new();
    servers[0].store.save(&mut saved).unwrap();
    count(&servers[1].store).await;
    let snapshot = servers[0]
        .store
        .read_snapshot(std::io::Cursor::new(&*saved))
        .unwrap();
    let applied = servers[0].store.restore(snapshot).await.unwrap();
    for server in &servers {
        while server.store.state().index() < applied.index {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let counter = server.store.state().read().instance("n", "counter");
        assert_eq!(counter.unwrap().service.port, 1);
    }
    for server in servers {
        server.stop().await;
    }
    drop(directory);
}

#[tokio::test]
async fn unstored_changes_are_never_visible() {
    let place = Place::new();
    let key = SealingKey::generate().unwrap();
    let opened = place.open(&key).await;
    let store = &opened.store;
    let before = rows(store);
    place.fail(true);
    let mut named = node("n1");
    named.id = "an id".to_owned();
    let first = store.apply(register(named.clone(), None, Vec::new()));
    let same = store.apply(register(named.clone(), None, Vec::new()));
    let taken = node("n2");
    let taken = store.apply(register(
        legate_model::Node {
            id: "an id".to_owned(),
            ..taken
        },
        None,
        Vec::new(),
    ));
    // The second is a no-op and the third is refused, both because of the first.
    let (first, same, taken) = tokio::join!(first, same, taken);
    for result in [first, same, taken] {
        assert!(
            matches!(result, Err(WriteError::Unavailable(_))),
            "{result:?}"
        );
    }
    assert_eq!(rows(store), before);
    // Errors that do not need the backend are still returned.
    let refused = store.apply(register(legate_model::Node::default(), None, Vec::new()));
    let refused = refused.await.unwrap_err();
    assert!(
        matches!(refused, WriteError::Rejected(Rejected::Missing { .. })),
        "{refused:?}"
    );
    place.fail(false);
    let applied = store
        .apply(register(named, None, Vec::new()))
        .await
        .unwrap();
    assert_eq!(applied.index, before.0 + 1);
    opened.stop().await;
}

#[tokio::test]
async fn an_older_store_is_rewritten_by_one_of_those_that_start() {
    let (place, key) = (Place::new(), SealingKey::generate().unwrap());
    let first = place.open(&key).await;
    for command in upgrade::commands() {
        first.store.apply(command).await.unwrap();
    }
    first.stop().await;
    let (mut access, loaded) = place.access();
    let old = Arc::new(upgrade::aged(loaded.unwrap()));
    access
        .replace(old.index - 1, Arc::clone(&old))
        .await
        .unwrap();

    place.fail(true);
    let refused = place.try_open(&key).await.err().unwrap();
    assert!(
        matches!(refused, OpenError::NotUpgraded { .. }),
        "{refused}"
    );
    assert_eq!(place.load().0.as_ref(), Some(&*old));
    place.fail(false);
    // The second one loses the race, and continues with the contents that the first one wrote.
    let (one, other) = tokio::join!(place.open(&key), place.open(&key));
    upgrade::assert_has_virtual_ips(&one.store);
    assert_eq!(rows(&one.store), rows(&other.store));
    assert_eq!(one.store.state().index(), old.index + 1);
    one.stop().await;
    other.stop().await;
}
