//! Failures of etcd: outages, hangs, and lost members, responses and history.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use legate_runtime::Scope;
use legate_testkit::network::Cuttable;
use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::cluster::{Cluster, PATIENCE, Server};
use super::sharing::{agree, count, counted};
use crate::WriteError;
use crate::backend::etcd::Etcd;
use crate::backend::{Backend, Batch, Change, Commit};
use crate::tests::rows;

/// The maximum duration of a write while etcd hangs.
const BOUND: Duration = Duration::from_secs(9);

/// Retries a write until it succeeds.
async fn eventually(server: &Server, name: &'static str) {
    let end = Instant::now() + PATIENCE;
    while let Err(error) = count(server, name).await {
        assert!(Instant::now() < end, "{error}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn while_etcd_hangs_reads_go_on_and_writes_are_refused_in_time() {
    let cluster = Cluster::start(3).await;
    let servers = cluster.servers::<3>().await;
    count(&servers[0], "n").await.unwrap();
    agree(&servers).await;
    let before = rows(&servers[0].store);
    for n in 0..3 {
        cluster.signal(n, Signal::SIGSTOP);
    }
    let started = Instant::now();
    let refused = join_all(servers.iter().map(|server| count(server, "m"))).await;
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    for refused in refused {
        let Err(WriteError::Unavailable(error)) = refused else {
            panic!("{refused:?}");
        };
        assert!(
            error.to_string().contains("etcd cannot store it"),
            "{error}"
        );
    }
    // Later writes fail at once, in any number.
    let started = Instant::now();
    for refused in join_all((0..2000).map(|_| count(&servers[1], "m"))).await {
        assert!(refused.is_err());
    }
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(rows(&servers[0].store), before);

    for n in 0..3 {
        cluster.signal(n, Signal::SIGCONT);
    }
    for server in &servers {
        eventually(server, "n").await;
    }
    agree(&servers).await;
    assert_eq!(counted(&servers[0], "n"), 4);
    // Each of the first writes was made at most once.
    assert!(counted(&servers[0], "m") <= 3);
}

#[tokio::test]
async fn a_lost_member_costs_no_write() {
    let mut cluster = Cluster::start(3).await;
    let servers = cluster.servers::<3>().await;
    for n in 0..3 {
        cluster.kill(n);
        for counted in join_all(servers.iter().map(|server| count(server, "n"))).await {
            counted.unwrap();
        }
        agree(&servers).await;
        cluster.start_member(n);
        let again = cluster.server(n);
        again.await.stop().await;
    }
    // A member that hangs is left as well.
    cluster.signal(1, Signal::SIGSTOP);
    for counted in join_all(servers.iter().map(|server| count(server, "n"))).await {
        counted.unwrap();
    }
    cluster.signal(1, Signal::SIGCONT);
    agree(&servers).await;
    assert_eq!(counted(&servers[0], "n"), 12);
}

#[tokio::test]
async fn compacted_history_is_read_again() {
    let cluster = Cluster::start(1).await;
    let gate = Cuttable::start(cluster.members[0].client).await;
    let mut config = cluster.config();
    config.endpoints = vec![format!("http://{}", gate.address())];
    let cut_off = Server::open(config).await.unwrap();
    let server = cluster.server(0).await;
    count(&cut_off, "n").await.unwrap();
    for round in 0..3 {
        gate.cut().await;
        for _ in 0..5 {
            server.reaches(cut_off.store.state().index()).await;
            count(&server, "n").await.unwrap();
        }
        // Without compaction, the watch resumes where it ended.
        if round > 0 {
            cluster.compact(0);
        }
        gate.restore().await;
        cut_off.reaches(server.store.state().index()).await;
        assert_eq!(rows(&cut_off.store), rows(&server.store));
        eventually(&cut_off, "n").await;
    }
    assert_eq!(counted(&cut_off, "n"), 19);
}

#[tokio::test]
async fn a_commit_with_a_lost_response_is_made_once() {
    let cluster = Cluster::start(3).await;
    cluster.server(1).await.stop().await;
    let scope = Scope::new("one way");
    let answers = watch::Sender::new(true);
    let address = one_way(cluster.members[0].client, &answers, &scope).await;
    let mut config = cluster.config();
    config.endpoints[0] = format!("http://{address}");
    let spawner = scope.spawner();
    let (mut cut_off, loaded) = Etcd::open(&config, &spawner).await.unwrap();
    let config = cluster.config();
    let (mut other, _) = Etcd::open(&config, &spawner).await.unwrap();
    let mut index = loaded.unwrap().index;
    let batch = |base: u64| {
        let value = base.to_string().into_bytes();
        Arc::new(Batch {
            base,
            index: base + 1,
            rows: [(Arc::from(&b"key"[..]), Some(value))].into(),
            commit: Commit {
                id: Uuid::new_v4(),
                turns: Vec::new(),
            },
        })
    };
    for _ in 0..3 {
        answers.send_replace(false);
        let (lost, next) = (batch(index), batch(index + 1));
        let also = async {
            // Committed after the lost commit, before that is retried.
            assert_eq!(other.changed().await, Change::Batch(Arc::clone(&lost)));
            other.commit(Arc::clone(&next)).await
        };
        let (stored, also) = futures_util::join!(cut_off.commit(Arc::clone(&lost)), also);
        assert_eq!((stored, also), (Ok(()), Ok(())));
        answers.send_replace(true);
        assert_eq!(cut_off.changed().await, Change::Batch(next));
        index += 2;
    }
    cut_off.close().await;
    other.close().await;
    scope.stop(PATIENCE).await.unwrap();
}

/// Forwards requests, and responses only while `answers` is set.
async fn one_way(to: SocketAddr, answers: &watch::Sender<bool>, scope: &Scope) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (spawner, answers) = (scope.spawner(), answers.subscribe());
    let token = scope.token();
    let forward = move |client: TcpStream| {
        let (mut answers, token) = (answers.clone(), token.clone());
        async move {
            let (mut requests, mut client) = client.into_split();
            let (mut member, mut to) = TcpStream::connect(to).await?.into_split();
            let forth = tokio::io::copy(&mut requests, &mut to);
            let back = async {
                let mut buffer = [0; 4096];
                loop {
                    let read = member.read(&mut buffer).await?;
                    if read == 0 {
                        return Ok::<_, io::Error>(());
                    }
                    let through = answers.wait_for(|through| *through).await;
                    through.map_err(io::Error::other)?;
                    client.write_all(&buffer[..read]).await?;
                }
            };
            // Errors of the connection are irrelevant here.
            tokio::select! {
                () = token.cancelled() => {}
                _ = forth => {}
                _ = back => {}
            }
            Ok::<_, io::Error>(())
        }
    };
    let token = scope.token();
    scope.spawn("listen", async move {
        let listen = async {
            loop {
                let (client, _) = listener.accept().await?;
                spawner.spawn("forward", forward(client));
            }
        };
        let ended: Option<io::Result<()>> = token.run_until_cancelled(listen).await;
        ended.unwrap_or(Ok(()))
    });
    address
}

#[tokio::test]
async fn connection_losses_lose_no_write() {
    let cluster = Cluster::start(3).await;
    let gate = Cuttable::start(cluster.members[0].client).await;
    let mut config = cluster.config();
    config.endpoints[0] = format!("http://{}", gate.address());
    let server = Server::open(config).await.unwrap();
    let writing = async {
        for _ in 0..200 {
            count(&server, "n").await.unwrap();
        }
    };
    let cutting = async {
        for _ in 0..20 {
            gate.cut().await;
            gate.restore().await;
            sleep(Duration::from_millis(7)).await;
        }
    };
    futures_util::join!(writing, cutting);
    assert_eq!(counted(&server, "n"), 200);
}

#[tokio::test]
async fn without_etcd_a_server_does_not_start() {
    let mut cluster = Cluster::start(1).await;
    cluster.kill(0);
    let started = Instant::now();
    let refused = Server::open(cluster.config()).await.err().unwrap();
    assert!(started.elapsed() < BOUND);
    let address = cluster.members[0].client.to_string();
    assert!(refused.to_string().contains(&address), "{refused}");
    assert!(refused.to_string().contains("refused"), "{refused}");
}

#[tokio::test]
async fn a_removed_store_is_not_overwritten() {
    let cluster = Cluster::start(1).await;
    let server = cluster.server(0).await;
    count(&server, "n").await.unwrap();
    cluster.post(0, "kv/deleterange", r#"{"key":"AA==","range_end":"AA=="}"#);
    let end = Instant::now() + PATIENCE;
    loop {
        let refused = count(&server, "n").await.unwrap_err().to_string();
        if refused.contains("was removed") {
            break;
        }
        assert!(Instant::now() < end, "{refused}");
    }
    assert_eq!(counted(&server, "n"), 1);
}

/// The number of open watches, from the member's metrics.
fn watches(cluster: &Cluster) -> String {
    let mut stream = std::net::TcpStream::connect(cluster.members[0].client).unwrap();
    let request = "GET /metrics HTTP/1.0\r\n\r\n";
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut page = String::new();
    std::io::Read::read_to_string(&mut stream, &mut page).unwrap();
    let mut lines = page.lines();
    let line = lines.find_map(|line| line.strip_prefix("etcd_debugging_mvcc_watcher_total "));
    line.expect("etcd counts them").to_owned()
}

#[tokio::test]
async fn connections_end_with_the_store() {
    let cluster = Cluster::start(1).await;
    let scope = Scope::new("test");
    let opened = Etcd::open(&cluster.config(), &scope.spawner()).await;
    let (etcd, _) = opened.unwrap();
    let end = Instant::now() + PATIENCE;
    while watches(&cluster) != "1" {
        assert!(Instant::now() < end, "no watch is open");
        sleep(Duration::from_millis(20)).await;
    }
    etcd.end().await.expect("nothing goes on");
    scope.stop(PATIENCE).await.unwrap();
}
