//! Saving and restoring a store in use.

use legate_model::{ConfigEntry, KvValue, ProxyDefaults, ServiceInstance};
use serde_json::json;

use super::access::{ca, token};
use super::durable::{Opened, config, open, try_open};
use super::{node, register, rows, watch, woken};
use crate::{Command, KvWrite, SnapshotError, Store, Unavailable};

/// A store with some rows, at index 5.
async fn filled(directory: &std::path::Path) -> Opened {
    let opened = open(directory).await;
    let nodes = ["n1", "n2"].map(|name| register(node(name), None, Vec::new()));
    for command in nodes
        .into_iter()
        .chain([token("a", "secret", ""), ca("r1")])
    {
        opened.store.apply(command).await.unwrap();
    }
    opened
}

/// The agent allows values of 64 MiB (`limits.kv_max_value_size`).
#[tokio::test]
async fn a_snapshot_with_the_largest_value_can_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path()).await;
    let largest = KvWrite {
        key: "large".to_owned(),
        flags: 0,
        value: KvValue::from(vec![7; 64 << 20].as_slice()),
    };
    let write = opened
        .store
        .write(move |txn| Ok::<_, Unavailable>(txn.kv_set(largest.clone())));
    write.await.unwrap();
    let mut saved = Vec::new();
    opened.store.save(&mut saved).unwrap();
    assert_eq!(
        opened
            .store
            .read_snapshot(std::io::Cursor::new(&*saved))
            .unwrap()
            .rows(),
        1
    );
    opened.stop().await;
}

#[tokio::test]
async fn a_snapshot_is_made_part_by_part_of_one_state() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path()).await;
    let set = |number: u64| {
        let value = KvWrite {
            key: format!("{number:03}"),
            flags: number,
            value: KvValue::from(vec![7; 100_000].as_slice()),
        };
        opened
            .store
            .write(move |txn| Ok::<_, Unavailable>(txn.kv_set(value.clone())))
    };
    for number in 0..40 {
        set(number).await.unwrap();
    }
    let (_, before) = rows(&opened.store);
    let mut saving = opened.store.snapshot().unwrap();
    let (mut saved, mut parts) = (Vec::new(), 0);
    while let Some(part) = saving.next_part().unwrap() {
        assert!(part.len() < 512 * 1024, "{}", part.len());
        saved.extend(part);
        parts += 1;
        // Changes of rows that are saved already, and of later ones.
        set(parts).await.unwrap();
        set(1000 - parts).await.unwrap();
    }
    assert!(parts > 10, "{parts}");
    let snapshot = opened.store.read_snapshot(std::io::Cursor::new(&*saved));
    opened.store.restore(snapshot.unwrap()).await.unwrap();
    assert_eq!(rows(&opened.store).1, before);
    opened.stop().await;
}

#[tokio::test]
async fn a_snapshot_replaces_everything_at_a_higher_index() {
    let directory = tempfile::tempdir().unwrap();
    let opened = filled(directory.path()).await;
    let store = &opened.store;
    let mut saved = Vec::new();
    assert_eq!(store.save(&mut saved).unwrap(), 5);
    let (_, before) = rows(store);

    for name in ["n3", "n4"] {
        store
            .apply(register(node(name), None, Vec::new()))
            .await
            .unwrap();
    }
    let mut nodes = watch(store, |txn| txn.nodes());
    let mut gone = watch(store, |txn| txn.node("n3"));
    let shared = |txn: &crate::ReadTxn<'_>| txn.shared("nodes", "", |txn| txn.nodes());
    assert_eq!(shared(&store.state().read()).len(), 4);
    let snapshot = store.read_snapshot(std::io::Cursor::new(&*saved)).unwrap();
    let applied = store.restore(snapshot).await.unwrap();
    assert_eq!(applied.index, 8);
    assert!(woken(&mut nodes) && woken(&mut gone));
    assert_eq!(rows(store), (8, before.clone()));
    assert_eq!(shared(&store.state().read()).len(), 2);
    // Newer than index 7, which a client may have seen.
    let state = store.state();
    let txn = state.read();
    assert!(txn.node("n3").is_none() && txn.into_reads().index() == 8);

    let applied = store
        .apply(register(node("n5"), None, Vec::new()))
        .await
        .unwrap();
    assert_eq!(applied.index, 9);
    let after = rows(store);
    opened.stop().await;
    let opened = open(directory.path()).await;
    assert_eq!(rows(&opened.store), after);
    opened.stop().await;
}

#[tokio::test]
async fn another_machine_needs_the_key_file() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (directory.path().join("one"), directory.path().join("other"));
    let opened = filled(&one).await;
    let mut saved = Vec::new();
    opened.store.save(&mut saved).unwrap();
    let (_, before) = rows(&opened.store);
    opened.stop().await;

    let opened = open(&other).await;
    let error = opened
        .store
        .read_snapshot(std::io::Cursor::new(&*saved))
        .unwrap_err();
    assert!(matches!(error, SnapshotError::WrongKey), "{error}");
    opened.stop().await;

    std::fs::remove_dir_all(&other).unwrap();
    let with_key = config(&other, Some(&one.join("store.key")));
    let opened = try_open(with_key).await.unwrap();
    let snapshot = opened
        .store
        .read_snapshot(std::io::Cursor::new(&*saved))
        .unwrap();
    assert_eq!(opened.store.restore(snapshot).await.unwrap().index, 6);
    assert_eq!(rows(&opened.store), (6, before));
    opened.stop().await;
}

/// A server of an older version accepted such settings.
#[tokio::test]
async fn a_snapshot_with_settings_that_no_dataplane_can_decode_is_refused() {
    let deep = (0..40).fold(json!(1), |inner, _| json!({ "a": inner }));
    let deep = json!({ "deep": deep }).as_object().unwrap().clone();
    let entry = ConfigEntry::ProxyDefaults(ProxyDefaults {
        name: ProxyDefaults::NAME.to_owned(),
        config: deep.clone(),
        ..ProxyDefaults::default()
    });
    let entry = Box::new(entry);
    let mut proxy = ServiceInstance {
        id: "web-proxy".to_owned(),
        service: "web-proxy".to_owned(),
        ..ServiceInstance::default()
    };
    proxy.proxy.config = deep;
    for (command, expected) in [
        (
            Command::UpsertConfigEntry { entry, cas: None },
            "proxy-defaults: Config.deep: ",
        ),
        (
            register(node("n1"), Some(proxy), Vec::new()),
            "\"n1\": Proxy.Config.deep: ",
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let opened = open(directory.path()).await;
        opened.store.apply(command).await.unwrap();
        let mut saved = Vec::new();
        opened.store.save(&mut saved).unwrap();
        let read = opened.store.read_snapshot(std::io::Cursor::new(&*saved));
        let error = read.unwrap_err();
        assert!(matches!(error, SnapshotError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        opened.stop().await;
    }
}

#[tokio::test]
async fn a_damaged_snapshot_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let opened = filled(directory.path()).await;
    let mut saved = Vec::new();
    opened.store.save(&mut saved).unwrap();
    for at in 0..saved.len() {
        let mut damaged = saved.clone();
        damaged[at] ^= 1;
        assert!(
            opened
                .store
                .read_snapshot(std::io::Cursor::new(&*damaged))
                .is_err(),
            "byte {at}"
        );
        assert!(
            opened
                .store
                .read_snapshot(std::io::Cursor::new(&saved[..at]))
                .is_err(),
            "{at} bytes"
        );
    }
    opened.stop().await;
}

#[tokio::test]
async fn a_snapshot_of_memory_is_restored_to_every_store() {
    let directory = tempfile::tempdir().unwrap();
    let opened = filled(directory.path()).await;
    let memory = Store::new();
    let mut sealed = Vec::new();
    opened.store.save(&mut sealed).unwrap();
    let error = memory
        .read_snapshot(std::io::Cursor::new(&*sealed))
        .unwrap_err();
    assert!(matches!(error, SnapshotError::InMemory), "{error}");

    for command in [
        register(node("m1"), None, Vec::new()),
        token("b", "hidden", ""),
    ] {
        memory.apply(command).await.unwrap();
    }
    let mut saved = Vec::new();
    memory.save(&mut saved).unwrap();
    assert!(!saved.windows(6).any(|part| part == b"hidden"), "sealed");
    let (_, before) = rows(&memory);
    let again = Store::new();
    for store in [&again, &opened.store] {
        let snapshot = store.read_snapshot(std::io::Cursor::new(&*saved)).unwrap();
        store.restore(snapshot).await.unwrap();
        assert_eq!(rows(store).1, before);
    }
    for at in 0..saved.len() {
        let mut damaged = saved.clone();
        damaged[at] ^= 1;
        assert!(
            again
                .read_snapshot(std::io::Cursor::new(&*damaged))
                .is_err(),
            "byte {at}"
        );
    }
    // The rows are now sealed with the key of the directory.
    opened.stop().await;
    let opened = open(directory.path()).await;
    assert_eq!(rows(&opened.store).1, before);
    opened.stop().await;
}
