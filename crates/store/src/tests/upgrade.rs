//! Stores and snapshots of older formats: all services get a virtual IP, once, and tokens are
//! linked to policies by id.

use std::path::Path;
use std::sync::Arc;

use legate_model::Secret;
use legate_model::acl::{GLOBAL_MANAGEMENT_ID, Policy, PolicyLink, Role, Token};
use legate_model::virtual_ip::TAGGED_ADDRESS;
use serde_json::{Value, json};

use super::durable::{Opened, open};
use super::{deregister, instance, node, proxy, register, rows};
use crate::backend::disk::{Directory, Disk};
use crate::backend::{Backend, Loaded};
use crate::codec::{FORMAT, Header, StoredRow};
use crate::key::{Key, Table};
use crate::{Command, Store};

/// Contents as written by a server with format 1.
pub(super) fn aged(contents: Loaded) -> Loaded {
    Loaded {
        header: with_format(&contents.header, 1),
        index: contents.index + 1,
        rows: contents.rows.into_iter().filter_map(aged_row).collect(),
    }
}

pub(super) fn with_format(header: &[u8], format: u32) -> Vec<u8> {
    let mut header: Header = serde_json::from_slice(header).unwrap();
    header.format = format;
    serde_json::to_vec(&header).unwrap()
}

fn aged_row((key, value): StoredRow) -> Option<StoredRow> {
    let table = Key::from_bytes(Arc::clone(&key)).table();
    if table >= Table::VirtualIps as u8 {
        return None;
    }
    if table != Table::Instances as u8 {
        return Some((key, value));
    }
    let mut row: Value = serde_json::from_slice(&value).unwrap();
    let tagged = row["instance"].as_object_mut().unwrap();
    tagged.remove("TaggedAddresses");
    Some((key, serde_json::to_vec(&row).unwrap()))
}

pub(super) fn format(header: &[u8]) -> u32 {
    serde_json::from_slice::<Header>(header).unwrap().format
}

pub(super) fn commands() -> Vec<Command> {
    let on_node = |instance| register(node("n"), Some(instance), Vec::new());
    vec![
        on_node(instance("web", "w")),
        on_node(proxy("web", "p")),
        Command::UpsertConfigEntry {
            entry: super::defaults("api", "http"),
            cas: None,
        },
    ]
}

pub(super) fn assert_has_virtual_ips(store: &Store) {
    let state = store.state();
    let state = state.read();
    let ip = |name| state.virtual_ip(name).map(|ip| ip.address().to_string());
    assert_eq!(ip("web").as_deref(), Some("240.0.0.1"));
    assert_eq!(ip("api").as_deref(), Some("240.0.0.2"));
    let sidecar = state.instance("n", "p").unwrap();
    let tagged = sidecar
        .service
        .tagged_addresses
        .get(TAGGED_ADDRESS)
        .unwrap();
    assert_eq!((&*tagged.address, tagged.port), ("240.0.0.1", 8080));
}

async fn filled(directory: &Path) -> Opened {
    let opened = open(directory).await;
    for command in commands() {
        opened.store.apply(command).await.unwrap();
    }
    opened
}

#[tokio::test]
async fn a_store_of_an_older_format_is_rewritten_once() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path()).await.stop().await;
    let locked = || Directory::lock(directory.path()).unwrap();
    let (mut disk, loaded) = Disk::open(locked()).unwrap();
    let loaded = loaded.unwrap();
    let (index, old) = (loaded.index, aged(loaded));
    disk.replace(index, Arc::new(old)).await.unwrap();
    disk.close().await;

    let opened = open(directory.path()).await;
    assert_has_virtual_ips(&opened.store);
    assert_eq!(opened.store.state().index(), index + 2);
    let gone = deregister("n", None, None);
    opened.store.apply(gone).await.unwrap();
    let before = rows(&opened.store);
    opened.stop().await;
    let (disk, loaded) = Disk::open(locked()).unwrap();
    assert_eq!(format(&loaded.unwrap().header), FORMAT);
    disk.close().await;
    let opened = open(directory.path()).await;
    assert_eq!(rows(&opened.store), before);
    opened.stop().await;
}

#[tokio::test]
async fn tokens_of_an_older_format_are_linked_by_id() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path()).await;
    for (accessor, id, name) in [
        ("by-name", "", "global-management"),
        ("by-both", GLOBAL_MANAGEMENT_ID, "global-management"),
        ("by-name-and-nonsense", "x", "global-management"),
        ("by-id", GLOBAL_MANAGEMENT_ID, ""),
    ] {
        let (id, name) = (id.to_owned(), name.to_owned());
        let token = Token {
            accessor_id: accessor.to_owned(),
            secret_id: Secret::new(accessor),
            policies: vec![PolicyLink { id, name }],
            ..Token::default()
        };
        // As written before links were resolved.
        let put = move |txn: &mut crate::WriteTxn| {
            txn.put(token.clone());
            Ok::<_, crate::WriteError>(())
        };
        opened.store.write(put).await.unwrap();
    }
    opened.stop().await;
    let locked = || Directory::lock(directory.path()).unwrap();
    let (mut disk, loaded) = Disk::open(locked()).unwrap();
    let loaded = loaded.unwrap();
    let header = with_format(&loaded.header, 2);
    let (index, old) = (loaded.index, Loaded { header, ..loaded });
    disk.replace(index, Arc::new(old)).await.unwrap();
    disk.close().await;

    let opened = open(directory.path()).await;
    let tokens = opened.store.state().read().tokens();
    assert_eq!(tokens.len(), 4);
    for token in tokens {
        let link = &token.policies[..];
        assert!(matches!(link, [link] if link.id == GLOBAL_MANAGEMENT_ID && link.name.is_empty()));
    }
    // Data of the current format survives a restart.
    let policy = Policy {
        id: "p".to_owned(),
        name: "p".to_owned(),
        ..Policy::default()
    };
    let role = Role {
        id: "r".to_owned(),
        name: "r".to_owned(),
        ..Role::default()
    };
    for command in [
        Command::UpsertPolicy(Box::new(policy)),
        Command::UpsertRole(Box::new(role)),
    ] {
        opened.store.apply(command).await.unwrap();
    }
    let before = rows(&opened.store);
    opened.stop().await;
    let opened = open(directory.path()).await;
    assert_eq!(rows(&opened.store), before);
    assert!(opened.store.state().read().role_by_name("r").is_some());
    opened.stop().await;
}

#[tokio::test]
async fn a_snapshot_of_an_older_format_is_restored_with_virtual_ips() {
    let directory = tempfile::tempdir().unwrap();
    let opened = filled(directory.path()).await;
    let mut saved = Vec::new();
    opened.store.save(&mut saved).unwrap();
    let saved = aged_snapshot(&saved);
    opened
        .store
        .apply(deregister("n", None, None))
        .await
        .unwrap();
    let snapshot = opened
        .store
        .read_snapshot(std::io::Cursor::new(&*saved))
        .unwrap();
    opened.store.restore(snapshot).await.unwrap();
    assert_has_virtual_ips(&opened.store);
    let before = rows(&opened.store);
    opened.stop().await;
    let opened = open(directory.path()).await;
    assert_eq!(rows(&opened.store), before);
    opened.stop().await;
}

/// The same snapshot in format 1.
fn aged_snapshot(saved: &[u8]) -> Vec<u8> {
    let (magic, mut rest) = saved[..saved.len() - 32].split_at(16);
    let mut part = || {
        let (length, behind) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap();
        let (part, behind) = behind.split_at(length);
        rest = behind;
        Some(part.to_vec())
    };
    let mut about: Value = serde_json::from_slice(&part().unwrap()).unwrap();
    let mut kept = Vec::new();
    while let Some(key) = part() {
        kept.extend(aged_row((key.into(), part().unwrap())));
    }
    about["format"] = json!(1);
    about["rows"] = json!(kept.len());
    let mut aged = magic.to_vec();
    let mut write = |part: &[u8]| {
        aged.extend(u32::try_from(part.len()).unwrap().to_be_bytes());
        aged.extend(part);
    };
    write(&serde_json::to_vec(&about).unwrap());
    for (key, value) in &kept {
        write(key);
        write(value);
    }
    let digest = <sha2::Sha256 as sha2::Digest>::digest(&aged);
    aged.extend(digest);
    aged
}
