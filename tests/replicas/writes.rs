//! Writers at all servers, while the server that commits is killed, paused or cut off from etcd, and
//! while others restart. `cargo xtask bench --only etcd` does the same more often, and measures it.

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;
use crate::cluster::{SERVERS, Servers};
use crate::load::{Load, missing};

const MEMBERS: usize = 3;
/// A lost leader is replaced within five seconds; more on a busy machine.
const REPLACED: Duration = Duration::from_secs(10);
/// A write that cannot be made is refused within seven seconds (docs/state.md).
const REFUSED: Duration = Duration::from_secs(9);

async fn three() -> Servers {
    let mut servers = Servers::new(MEMBERS).await;
    for n in 0..SERVERS {
        servers.start(n).await;
    }
    servers
}

/// Two writers at each of these servers.
fn writers(servers: &Servers, at: &[usize]) -> Vec<SocketAddr> {
    let at = at.iter().flat_map(|n| [servers.http(*n); 2]);
    at.collect()
}

/// Stops the writers: every server has every acknowledged write, and none was applied twice.
async fn finish(load: Load, servers: &Servers) -> usize {
    let (seen, _) = load.finish().await;
    assert_eq!(seen.doubled, Vec::<String>::new());
    for n in 0..SERVERS {
        let end = Instant::now() + REPLACED;
        loop {
            let missing = missing(servers.http(n), &seen.keys).await;
            if missing.is_empty() {
                break;
            }
            assert!(Instant::now() < end, "server {n} lacks {missing:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
    assert!(!seen.keys.is_empty());
    seen.failed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_and_no_write_is_lost() {
    let mut servers = three().await;
    let load = Load::start(&writers(&servers, &[0, 1, 2]), None);
    for _ in 0..4 {
        let leader = servers.led().await;
        sleep(Duration::from_millis(200)).await;
        let killed = Instant::now();
        servers.kill(leader).await;
        let after = killed + Duration::from_millis(50);
        assert!(
            load.resumed(after, REPLACED).await,
            "no write was acknowledged"
        );
        servers.start(leader).await;
    }
    finish(load, &servers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_restart_while_others_write() {
    let mut servers = three().await;
    for restarted in 0..SERVERS {
        let others: Vec<_> = (0..SERVERS).filter(|n| *n != restarted).collect();
        let load = Load::start(&writers(&servers, &others), None);
        for _ in 0..3 {
            servers.kill(restarted).await;
            servers.start(restarted).await;
        }
        finish(load, &servers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_etcd_is_replaced_and_still_serves_reads() {
    let servers = three().await;
    for _ in 0..2 {
        let leader = servers.led().await;
        let others: Vec<_> = (0..SERVERS).filter(|n| *n != leader).collect();
        let load = Load::start(&writers(&servers, &others), None);
        sleep(Duration::from_millis(200)).await;
        let cut = Instant::now();
        servers.partition(leader).await;
        let after = cut + Duration::from_millis(50);
        assert!(
            load.resumed(after, REPLACED).await,
            "no write was acknowledged"
        );

        let mut client = Client::connect(servers.http(leader))
            .await
            .expect("it serves");
        let started = format!("/v1/kv/started/{leader}?raw");
        client.get(&started).await.expect("it serves reads");
        let refused = timeout(REFUSED, client.put("/v1/kv/refused", &"x".into())).await;
        let refused = refused
            .expect("it is refused in time")
            .expect_err("it is refused");
        assert!(refused.to_string().contains("etcd"), "{refused}");
        client.get(&started).await.expect("it serves reads");

        servers.heal(leader).await;
        finish(load, &servers).await;
        // It accepts writes again.
        let end = Instant::now() + REPLACED;
        while let Err(error) = client.put("/v1/kv/accepted", &"x".into()).await {
            assert!(Instant::now() < end, "{error}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_leader_is_replaced_and_commits_nothing_afterwards() {
    let servers = three().await;
    let load = Load::start(&writers(&servers, &[0, 1, 2]), None);
    for _ in 0..3 {
        let leader = servers.led().await;
        sleep(Duration::from_millis(200)).await;
        let paused = Instant::now();
        servers.signal(leader, Signal::SIGSTOP);
        let after = paused + Duration::from_millis(50);
        assert!(
            load.resumed(after, REPLACED).await,
            "no write was acknowledged"
        );
        servers.signal(leader, Signal::SIGCONT);
        sleep(Duration::from_secs(1)).await;
    }
    finish(load, &servers).await;
}
