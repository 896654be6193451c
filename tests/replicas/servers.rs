//! Servers that start concurrently, and servers that are killed.

use legate_tests::load::Load;
use legate_tests::{Mesh, eventually};
use serde_json::Value;

use crate::{SERVERS, all_agree, intentions_by_each_server, server_of, stop, streams, three};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_servers_proxies_move_on_without_a_failed_request() {
    let (mut mesh, sidecars) = crate::web_and_api().await;
    let before = streams(&sidecars).await;
    for killed in 0..SERVERS {
        let load = Load::start(mesh.upstream("web", 0));
        let gone = mesh.replicas().address(killed).to_string();
        mesh.replicas().kill(killed).await;
        for sidecar in &sidecars {
            let moved = |server: &Option<String>| server.as_ref().is_some_and(|now| *now != gone);
            eventually("a proxy moves on", || server_of(sidecar), moved).await;
        }
        let seen = load.finish().await;
        assert_eq!(seen.failures, Vec::<String>::new(), "{:?}", seen.answers);
        // Changes now reach them through the other servers.
        intentions_by_each_server(&mut mesh).await;
        mesh.replicas().start(killed).await;
    }
    assert_eq!(streams(&sidecars).await, before, "an Envoy lost its stream");
    all_agree(&mut mesh).await;
    stop(mesh, sidecars).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_at_once_on_an_empty_etcd_make_one_mesh() {
    const ROUNDS: usize = 8;
    let options = legate_tests::MeshOptions {
        acl: true,
        ..three()
    };
    // Its servers start concurrently.
    let mut mesh = Mesh::start(options).await;
    let mut meshes = Vec::new();
    for _ in 0..ROUNDS {
        all_agree(&mut mesh).await;
        let replicas = mesh.replicas();
        let roots = replicas.ask(0, "/v1/connect/ca/roots").await;
        let roots: Value = serde_json::from_str(&roots).expect("JSON");
        meshes.push(roots["TrustDomain"].clone());
        for n in 0..SERVERS {
            let token = replicas.ask(n, "/v1/acl/token/self").await;
            assert!(token.contains("global-management"), "{token}");
        }
        replicas.kill_all().await;
        let all = r#"{"key":"AA==","range_end":"AA=="}"#;
        let removed = replicas.etcd.post(0, "kv/deleterange", all);
        assert!(removed.contains("deleted"), "{removed}");
        replicas.start_all().await;
    }
    meshes.dedup();
    assert_eq!(meshes.len(), ROUNDS, "each round made a mesh of its own");
    mesh.stop().await;
}
