//! Several servers with a healthy etcd.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use legate_model::{NewSession, Secret, Session, Tenancy};
use legate_testkit::certs::TestCa;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

use super::cluster::{Cluster, ClusterTls, PATIENCE, Server};
use crate::backend::etcd::Etcd;
use crate::backend::{Backend, Change, Loaded};
use crate::tests::access::token;
use crate::tests::{deregister, instance, node, register, rows, upgrade};
use crate::{OpenError, SessionKey, Unavailable, WriteError, WriteTxn};

/// Increments a number in the metadata of a node.
pub(super) async fn count(server: &Server, name: &'static str) -> Result<(), WriteError> {
    let counted = server.store.write(move |txn| {
        let mut row = txn
            .read()
            .node(name)
            .map_or_else(|| node(name), |row| legate_model::Node::clone(&row));
        let count = counted_in(&row) + 1;
        row.meta.insert("count".to_owned(), count.to_string());
        Ok::<_, WriteError>(txn.apply(register(row, None, Vec::new()))?)
    });
    counted.await.map(drop)
}

fn counted_in(node: &legate_model::Node) -> u64 {
    let count = node.meta.get("count");
    count.map_or(0, |count| count.parse().unwrap())
}

pub(super) fn counted(server: &Server, name: &str) -> u64 {
    let state = server.store.state();
    state.read().node(name).map_or(0, |node| counted_in(&node))
}

/// All servers reach the same index with the same rows.
pub(super) async fn agree(servers: &[Server]) {
    let index = servers.iter().map(|s| s.store.state().index()).max();
    for server in servers {
        server.reaches(index.unwrap()).await;
        assert_eq!(rows(&server.store), rows(&servers[0].store));
    }
}

#[tokio::test]
async fn three_servers_write_and_pass_through_the_same_states() {
    let cluster = Cluster::start(3).await;
    let servers = cluster.servers::<3>().await;
    let mut seen = BTreeMap::new();
    for n in 0..60 {
        let name = format!("n{}", n % 7);
        let command = match n % 5 {
            4 => deregister(&name, None, None),
            _ => register(
                node(&name),
                Some(instance("web", &format!("i{n}"))),
                Vec::new(),
            ),
        };
        let written = servers[n % 3].store.apply(command).await.unwrap();
        for server in &servers {
            let (index, rows) = rows(&server.store);
            assert_eq!(seen.entry(index).or_insert_with(|| rows.clone()), &rows);
        }
        assert!(seen.contains_key(&written.index));
    }
    let secret = token("accessor", "a secret token", "");
    servers[0].store.apply(secret).await.unwrap();
    agree(&servers).await;
    // A server that starts later reads the same.
    let late = cluster.server(1).await;
    assert_eq!(rows(&late.store), rows(&servers[0].store));
    let scope = legate_runtime::Scope::new("what is stored");
    let opened = Etcd::open(&cluster.config(), &scope.spawner()).await;
    let stored = opened.unwrap().1.unwrap().rows;
    assert!(!stored.is_empty());
    for (_, value) in stored {
        let text = String::from_utf8_lossy(&value);
        assert!(!text.contains("a secret token"), "{text}");
    }
}

#[tokio::test]
async fn servers_that_write_the_same_row_at_once_lose_nothing() {
    let cluster = Cluster::start(3).await;
    let servers = cluster.servers::<3>().await;
    let all = servers.iter().map(|server| async move {
        // Some concurrently, to be committed together, and some sequentially.
        for _ in 0..10 {
            for counted in join_all((0..3).map(|_| count(server, "n"))).await {
                counted.unwrap();
            }
        }
    });
    join_all(all).await;
    agree(&servers).await;
    assert_eq!(counted(&servers[0], "n"), 90);
    assert_eq!(servers[0].store.state().index(), 91, "one index each");
}

#[tokio::test]
async fn many_rows_are_read_as_they_were_written() {
    let cluster = Cluster::start(1).await;
    let scope = legate_runtime::Scope::new("test");
    let open = || async {
        let opened = Etcd::open(&cluster.config(), &scope.spawner()).await;
        opened.unwrap()
    };
    // Names of several lengths, dense in some places and far apart in others.
    let key = |n: usize| match n % 3 {
        0 => format!("\u{1}default/node-{n}"),
        1 => format!(
            "\u{2}default/node-{}/{}/web-{n}",
            n / 900,
            "x".repeat(n / 5000)
        ),
        _ => format!("\u{3}{:x}", Sha256::digest(n.to_be_bytes())),
    };
    let rows = (0..20_000).map(|n| (key(n).into_bytes().into(), n.to_string().into_bytes()));
    let rows: BTreeMap<_, _> = rows.collect();
    let written = Loaded {
        header: b"header".to_vec(),
        index: 1,
        rows: rows.into_iter().collect(),
    };
    let (mut etcd, nothing) = open().await;
    assert_eq!(nothing, None);
    etcd.replace(0, Arc::new(written.clone())).await.unwrap();
    let (_, read) = open().await;
    assert!(read == Some(written), "other rows are read");
    drop(etcd);
    scope.stop(PATIENCE).await.unwrap();
}

/// Renews a session, and returns whether it exists.
async fn renew(server: &Server, id: &str) -> bool {
    let session = SessionKey {
        tenancy: Tenancy::default(),
        id: id.to_owned(),
    };
    server.store.writer().renew(session).await.unwrap()
}

#[tokio::test]
async fn renewals_at_any_server_are_kept_by_the_leader_and_not_stored() {
    let cluster = Cluster::start(1).await;
    let mut servers: Vec<_> = cluster.servers::<3>().await.into();
    let register = register(node("n"), None, Vec::new());
    servers[0].store.apply(register).await.unwrap();
    let session = Session {
        id: "s".to_owned(),
        node: "n".to_owned(),
        ttl: "10s".to_owned(),
        ..Session::default()
    };
    let create = move |txn: &mut WriteTxn| {
        let session = session.clone();
        let created = txn.create_session(NewSession {
            session,
            default_check: false,
        });
        created.expect("a session");
        Ok::<_, Unavailable>(())
    };
    let (created, ()) = servers[0].store.write(create).await.unwrap();
    while servers.len() > 1 {
        let mut kept = Vec::new();
        for server in &servers {
            server.reaches(created.index).await;
            // At once: the one that leads knows of sessions before others do.
            assert!(renew(server, "s").await);
            assert!(!renew(server, "nobody").await);
            let seen = server.store.state().read().expiring_sessions(0);
            let by_leader = servers
                .iter()
                .filter(|one| one.store.renewals().take(&seen[0]).is_some())
                .map(|one| one.store.leadership().is_held());
            kept.extend(by_leader);
        }
        assert_eq!(kept, vec![true; servers.len()], "once, by the leader");
        let leads = |server: &Server| server.store.leadership().is_held();
        let leader = servers.iter().position(leads).expect("a leader");
        // Renewals wait for the next leader.
        servers.remove(leader).stop().await;
    }
    assert!(renew(&servers[0], "s").await);
    assert_eq!(servers[0].store.state().index(), created.index);
}

#[tokio::test]
async fn large_transactions_are_whole_or_refused_by_name() {
    let cluster = Cluster::start(1).await;
    let servers = cluster.servers::<2>().await;
    // Concurrent small writes that together exceed the limit of a transaction.
    let rows_of = |n: usize| {
        let instance = instance("web", &format!("i{n}"));
        servers[0]
            .store
            .apply(register(node("n"), Some(instance), Vec::new()))
    };
    for written in join_all((0..1000).map(rows_of)).await {
        written.unwrap();
    }
    // A single write that exceeds the limit of operations.
    let gone = servers[1].store.apply(deregister("n", None, None));
    servers[1].reaches(servers[0].store.state().index()).await;
    let gone = gone.await.unwrap();
    servers[0].reaches(gone.index).await;
    assert_eq!(rows(&servers[0].store), (gone.index, Vec::new()));

    // Together they exceed the limit of a request, but each fits.
    let big = |name: String, size: usize| {
        let mut row = node(&name);
        row.meta.insert("big".to_owned(), "x".repeat(size));
        servers[0].store.apply(register(row, None, Vec::new()))
    };
    let written = (0..12).map(|n| big(format!("n{n}"), 400 * 1024));
    for written in join_all(written).await {
        written.unwrap();
    }
    agree(&servers).await;
    let before = rows(&servers[1].store);
    let refused = big("too big".to_owned(), 2 * 1024 * 1024)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("--max-request-bytes"),
        "{refused}"
    );
    assert_eq!(rows(&servers[1].store), before);
    big("fits".to_owned(), 1).await.unwrap();
}

#[tokio::test]
async fn a_restore_of_many_rows_is_one_step_for_all() {
    let cluster = Cluster::start(3).await;
    let servers = cluster.servers::<3>().await;
    let many = (0..3000).map(|n| {
        let command = register(node(&format!("n{n}")), None, Vec::new());
        servers[0].store.apply(command)
    });
    for written in join_all(many).await {
        written.unwrap();
    }
    let mut saved = Vec::new();
    servers[0].store.save(&mut saved).unwrap();
    agree(&servers).await;
    let gone = (0..3000).map(|n| {
        let command = deregister(&format!("n{n}"), None, None);
        servers[1].store.apply(command)
    });
    for written in join_all(gone).await {
        written.unwrap();
    }
    agree(&servers).await;
    assert_eq!(servers[2].store.state().rows(), 0);

    let snapshot = servers[2]
        .store
        .read_snapshot(std::io::Cursor::new(&*saved))
        .unwrap();
    let mut states = std::collections::BTreeSet::new();
    let watching = async {
        loop {
            states.insert(servers[1].store.state().rows());
            if states.contains(&3000) {
                break;
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    let (restored, ()) = futures_util::join!(servers[2].store.restore(snapshot), watching);
    restored.unwrap();
    agree(&servers).await;
    assert_eq!(Vec::from_iter(states), [0, 3000]);
    // The old generation is removed, and writes still work.
    let keys = r#"{"key":"AA==","range_end":"AA==","count_only":true}"#;
    let answer = cluster.post(0, "kv/range", keys);
    // The rows, the header, the head and the leader's key.
    assert!(answer.contains(r#""count":"3003""#), "{answer}");
    count(&servers[0], "n").await.unwrap();
    agree(&servers).await;
    let late = cluster.server(0).await;
    assert_eq!(rows(&late.store), rows(&servers[0].store));
}

#[tokio::test]
async fn another_server_takes_over_the_leadership() {
    let cluster = Cluster::start(3).await;
    let mut servers = Vec::from(cluster.servers::<3>().await);
    for left in (1..=3).rev() {
        let end = Instant::now() + PATIENCE;
        let leader = loop {
            let leading = |server: &Server| server.store.leadership().is_held();
            assert!(servers.iter().filter(|s| leading(s)).count() <= 1);
            if let Some(leader) = servers.iter().position(leading) {
                break leader;
            }
            assert!(Instant::now() < end, "nobody leads");
            sleep(Duration::from_millis(5)).await;
        };
        let leader = servers.remove(leader);
        let store = leader.store.clone();
        match left {
            // As a killed process: the lease expires.
            3 => drop(leader),
            _ => leader.stop().await,
        }
        if left != 3 {
            assert!(!store.leadership().is_held());
        }
    }
}

#[tokio::test]
async fn two_servers_that_start_at_once_make_one_store() {
    let cluster = Cluster::start(1).await;
    let opened = join_all((0..4).map(|_| cluster.server(0))).await;
    for server in &opened {
        count(server, "n").await.unwrap();
    }
    agree(&opened).await;
    assert_eq!(counted(&opened[0], "n"), 4);
}

#[tokio::test]
async fn prefixes_are_stores_of_their_own() {
    let cluster = Cluster::start(1).await;
    let server = cluster.server(0).await;
    count(&server, "n").await.unwrap();
    let mut config = cluster.config();
    config.prefix = "legate/other".to_owned();
    let other = Server::open(config).await.unwrap();
    assert_eq!(counted(&other, "n"), 0);
    count(&other, "n").await.unwrap();
    assert_eq!(counted(&other, "n"), 1);
    count(&server, "n").await.unwrap();
    assert_eq!(counted(&server, "n"), 2);
}

#[tokio::test]
async fn certificates_are_verified_both_ways() {
    let ca = TestCa::new();
    let tls = ClusterTls {
        files: ca.server(&["127.0.0.1"]),
        ca: ca.ca_file(),
    };
    let cluster = Cluster::start_with(1, Some(tls)).await;
    let shown = ca.client("legate");
    let mut config = cluster.config();
    config.ca_file = Some(ca.ca_file());
    config.client_cert = Some((shown.cert.clone(), shown.key.clone()));
    let server = Server::open(config.clone()).await.unwrap();
    count(&server, "n").await.unwrap();

    let without = crate::EtcdConfig {
        client_cert: None,
        ..config.clone()
    };
    let refused = Server::open(without).await.err().unwrap();
    assert!(matches!(refused, OpenError::Etcd { .. }), "{refused}");
    let foreign = TestCa::new();
    let untrusting = crate::EtcdConfig {
        ca_file: Some(foreign.ca_file()),
        ..config
    };
    let refused = Server::open(untrusting).await.err().unwrap();
    assert!(
        refused.to_string().contains("invalid peer certificate"),
        "{refused}"
    );
}

#[tokio::test]
async fn users_are_authenticated_again_when_their_tokens_end() {
    let mut cluster = Cluster::start(1).await;
    let config = cluster.config();
    let as_user = |name: &str, password: &str| {
        let mut config = config.clone();
        config.user = Some((name.to_owned(), Secret::new(password)));
        Server::open(config)
    };
    for (path, body) in [
        ("user/add", r#"{"name":"root","password":"r"}"#),
        ("role/add", r#"{"name":"root"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("user/add", r#"{"name":"legate","password":"secret"}"#),
        ("role/add", r#"{"name":"legate"}"#),
        // READWRITE from "legate/" to "legate0".
        (
            "role/grant",
            r#"{"name":"legate","perm":{"permType":2,"key":"bGVnYXRlLw==","range_end":"bGVnYXRlMA=="}}"#,
        ),
        ("user/grant", r#"{"user":"legate","role":"legate"}"#),
        ("user/add", r#"{"name":"other","password":"secret"}"#),
        ("enable", "{}"),
    ] {
        cluster.post(0, &format!("auth/{path}"), body);
    }
    let server = as_user("legate", "secret").await.unwrap();
    let second = as_user("legate", "secret").await.unwrap();
    count(&server, "n").await.unwrap();
    second.reaches(2).await;
    // A changed password invalidates the user's tokens.
    cluster.log_in("root", "r");
    let changed = r#"{"name":"legate","password":"secret"}"#;
    cluster.post(0, "auth/user/changepw", changed);
    for server in [&server, &second, &server] {
        count(server, "n").await.unwrap();
    }
    for (name, password) in [("legate", "wrong"), ("other", "secret")] {
        let refused = as_user(name, password).await.err().unwrap().to_string();
        assert!(
            !refused.contains("secret") && !refused.contains("wrong"),
            "{refused}"
        );
        assert!(refused.contains("etcdserver: "), "{refused}");
    }
    let refused = Server::open(config.clone()).await.err().unwrap();
    assert!(refused.to_string().contains("user"), "{refused}");
}

#[tokio::test]
async fn servers_that_start_together_rewrite_an_older_format_once() {
    let cluster = Cluster::start(1).await;
    let server = cluster.server(0).await;
    for command in upgrade::commands() {
        server.store.apply(command).await.unwrap();
    }
    server.stop().await;
    let scope = legate_runtime::Scope::new("older");
    let (mut older, loaded) = Etcd::open(&cluster.config(), &scope.spawner())
        .await
        .unwrap();
    let loaded = loaded.unwrap();
    let (index, old) = (loaded.index, upgrade::aged(loaded));
    older.replace(index, old.into()).await.unwrap();

    let servers: [Server; 3] = join_all((0..3).map(|_| cluster.server(0)))
        .await
        .try_into()
        .map_err(|_| "three were opened")
        .unwrap();
    agree(&servers).await;
    upgrade::assert_has_virtual_ips(&servers[0].store);
    assert_eq!(servers[0].store.state().index(), index + 2);
    let Change::Everything(theirs) = older.changed().await else {
        panic!("everything was replaced");
    };
    assert_eq!(upgrade::format(&theirs.header), crate::codec::FORMAT);
    older.close().await;
    for server in servers {
        count(&server, "n").await.unwrap();
        server.stop().await;
    }
}

#[tokio::test]
async fn a_newer_format_and_another_key_are_refused() {
    let cluster = Cluster::start(1).await;
    let server = cluster.server(0).await;
    count(&server, "n").await.unwrap();
    let other_key = tempfile::NamedTempFile::new().unwrap();
    let key = legate_identity::SealingKey::generate().unwrap();
    std::fs::write(other_key.path(), key.to_text()).unwrap();
    let mut config = cluster.config();
    config.key_file = other_key.path().to_owned();
    let refused = Server::open(config).await.err().unwrap();
    assert!(matches!(refused, OpenError::WrongKey { .. }), "{refused}");

    // A newer server rewrites the store.
    let scope = legate_runtime::Scope::new("newer");
    let (mut newer, loaded) = Etcd::open(&cluster.config(), &scope.spawner())
        .await
        .unwrap();
    let loaded = loaded.unwrap();
    let known = crate::codec::FORMAT;
    let header = upgrade::with_format(&loaded.header, known + 1);
    let contents = Loaded {
        header,
        index: loaded.index + 1,
        rows: loaded.rows,
    };
    newer.replace(loaded.index, contents.into()).await.unwrap();
    let refused = Server::open(cluster.config()).await.err().unwrap();
    assert!(
        matches!(refused, OpenError::Newer { found, .. } if found == known + 1),
        "{refused}"
    );
    // A running older server ends, and refuses writes on a format that it does not support.
    let failed = tokio::time::timeout(PATIENCE, server.scope.failed()).await;
    assert!(failed.unwrap().to_string().contains("newer Legate"));
    let refused = count(&server, "n").await;
    assert!(matches!(
        refused,
        Err(WriteError::Unavailable(Unavailable { .. }))
    ));
    newer.close().await;
}
