//! A store on disk: durability across restarts, and keys.

use std::path::Path;
use std::time::Duration;

use legate_model::Secret;
use legate_model::acl::Token;
use legate_runtime::Scope;
use serde_json::json;

use super::access::{ca, method, token};
use super::{node, register, rows};
use crate::codec::FORMAT;
use crate::{Command, OpenError, Store, StoreConfig, WriteError};

/// A store and the scope of its committer.
pub(super) struct Opened {
    pub(super) store: Store,
    pub(super) scope: Scope,
}

impl Opened {
    pub(super) async fn stop(self) {
        drop(self.store);
        self.scope.stop(Duration::from_secs(30)).await.unwrap();
    }
}

pub(super) fn config(directory: &Path, key_file: Option<&Path>) -> StoreConfig {
    StoreConfig::Disk {
        directory: directory.to_owned(),
        key_file: key_file.map(Path::to_owned),
    }
}

pub(super) async fn try_open(config: StoreConfig) -> Result<Opened, OpenError> {
    let scope = Scope::new("test");
    let store = Store::open(config, &scope.spawner()).await?;
    Ok(Opened { store, scope })
}

pub(super) async fn open(directory: &Path) -> Opened {
    try_open(config(directory, None)).await.unwrap()
}

async fn refused(config: StoreConfig) -> OpenError {
    try_open(config).await.err().expect("it is refused")
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("made/for/it");
    let opened = open(&data).await;
    for command in [
        register(node("n1"), None, Vec::new()),
        method("jwt"),
        token("a", "the secret id", "jwt"),
        ca("r1"),
        register(node("n2"), None, Vec::new()),
    ] {
        opened.store.apply(command).await.unwrap();
    }
    let (index, before) = rows(&opened.store);
    assert_eq!(index, 6);
    opened.stop().await;

    let opened = open(&data).await;
    assert_eq!(rows(&opened.store), (index, before));
    let state = opened.store.state();
    assert!(state.read().token_by_secret("the secret id").is_some());
    let applied = opened.store.apply(ca("r2")).await.unwrap();
    assert_eq!(applied.index, 7);
    opened.stop().await;
}

#[tokio::test]
async fn secrets_do_not_stand_in_any_file() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path()).await;
    for command in [token("a", "the secret id", ""), ca("r1")] {
        opened.store.apply(command).await.unwrap();
    }
    opened
        .store
        .apply(register(node("visible"), None, Vec::new()))
        .await
        .unwrap();
    let mut snapshot = Vec::new();
    opened.store.save(&mut snapshot).unwrap();
    opened.stop().await;

    let file = std::fs::read(directory.path().join("store.redb")).unwrap();
    let holds = |bytes: &[u8], text: &str| {
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    let log = std::fs::read(directory.path().join("store.wal")).unwrap();
    for bytes in [&file, &snapshot, &log] {
        assert!(holds(bytes, "visible"));
        assert!(!holds(bytes, "the secret id"));
        assert!(!holds(bytes, "a private key"));
    }
    let private = ["store.redb", "store.wal", "store.key"].map(|name| {
        use std::os::unix::fs::PermissionsExt;
        let about = std::fs::metadata(directory.path().join(name)).unwrap();
        about.permissions().mode() & 0o777
    });
    assert_eq!(private, [0o600; 3]);
}

#[tokio::test]
async fn a_directory_has_one_server() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path()).await;
    let error = refused(config(directory.path(), None)).await;
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    let process = format!("process {}", std::process::id());
    assert!(error.to_string().contains(&process), "{error}");
    // The data itself is locked.
    for name in ["store.lock", "store.key"] {
        std::fs::remove_file(directory.path().join(name)).unwrap();
        let error = refused(config(directory.path(), None)).await;
        assert!(matches!(error, OpenError::InUse { .. }), "{name}: {error}");
    }
    opened.stop().await;
    let file = directory.path().join("store.redb");
    std::fs::remove_file(file).unwrap();
    open(directory.path()).await.stop().await;
}

#[tokio::test]
async fn the_key_must_be_the_one_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let key = directory.path().join("configured.key");
    let with_key = || config(&data, Some(&key));
    assert!(matches!(
        refused(with_key()).await,
        OpenError::KeyFile { .. }
    ));
    std::fs::write(&key, "not a key").unwrap();
    let error = refused(with_key()).await.to_string();
    assert!(
        error.contains("configured.key") && error.contains("32 bytes"),
        "{error}"
    );
    assert!(!data.join("store.redb").exists());

    std::fs::write(&key, format!("{}\n", "0a".repeat(32))).unwrap();
    let opened = try_open(with_key()).await.unwrap();
    opened.store.apply(token("a", "secret", "")).await.unwrap();
    opened.stop().await;
    assert!(
        !data.join("store.key").exists(),
        "none is made when one is configured"
    );

    assert!(matches!(
        refused(config(&data, None)).await,
        OpenError::MissingKey { .. }
    ));
    std::fs::write(&key, "0b".repeat(32)).unwrap();
    let error = refused(with_key()).await;
    assert!(matches!(error, OpenError::WrongKey { .. }), "{error}");
    // The same key in base64.
    std::fs::write(&key, "CgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgo=").unwrap();
    let opened = try_open(with_key()).await.unwrap();
    assert!(opened.store.state().read().token_by_accessor("a").is_some());
    opened.stop().await;
}

#[tokio::test]
async fn a_store_of_a_newer_server_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    open(directory.path()).await.stop().await;
    let path = directory.path().join("store.redb");
    let file = redb::Database::open(&path).unwrap();
    let txn = file.begin_write().unwrap();
    {
        let about = redb::TableDefinition::<&str, &[u8]>::new("about");
        let mut about = txn.open_table(about).unwrap();
        let header = json!({"format": FORMAT + 1, "proof": [], "something new": true});
        let header = header.to_string();
        about.insert("header", header.as_bytes()).unwrap();
    }
    txn.commit().unwrap();
    drop(file);
    let error = refused(config(directory.path(), None)).await;
    assert!(
        matches!(error, OpenError::Newer { found, known: FORMAT } if found == FORMAT + 1),
        "{error}"
    );
}

#[tokio::test]
async fn a_stopped_store_is_read_and_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let Opened { store, scope } = open(directory.path()).await;
    store
        .apply(register(node("n1"), None, Vec::new()))
        .await
        .unwrap();
    scope.stop(Duration::from_secs(30)).await.unwrap();
    let error = store
        .apply(register(node("n2"), None, Vec::new()))
        .await
        .unwrap_err();
    assert!(matches!(error, WriteError::Unavailable(_)), "{error}");
    assert!(store.state().read().node("n1").is_some());
    assert!(store.state().read().node("n2").is_none());
}

#[tokio::test]
async fn writers_that_come_together_are_stored_together() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path()).await;
    let writes = (0..200).map(|n| {
        let token = Token {
            accessor_id: format!("t{n}"),
            secret_id: Secret::new(format!("s{n}")),
            ..Token::default()
        };
        opened.store.apply(Command::UpsertToken(Box::new(token)))
    });
    let applied = futures_util::future::join_all(writes).await;
    let mut indexes: Vec<u64> = applied
        .into_iter()
        .map(|applied| applied.unwrap().index)
        .collect();
    indexes.sort_unstable();
    assert_eq!(indexes, (2..202).collect::<Vec<_>>());
    opened.stop().await;
}
