//! An etcd that loses a member or is unreachable.

use std::time::Duration;

use hickory_proto::op::ResponseCode;
use http::Method;
use legate_tests::load::Load;
use legate_tests::{Mesh, ServiceSpec, dns, eventually};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::time::Instant;

use crate::{SERVERS, all_agree, intentions_by_each_server, server_of, stop, streams};

/// The duration of etcd's outage: longer than the deadline of a write and the lease of a server.
const AWAY: Duration = Duration::from_secs(60);
/// Writes are refused within seven seconds (docs/state.md).
const REFUSED: Duration = Duration::from_secs(9);
const INTENTION: &str = "/v1/connect/intentions/exact?source=batch&destination=api";

/// Registered before etcd's outage, and started during it.
const LATE: ServiceSpec = ServiceSpec {
    service: "late",
    instance: "late",
    protocol: "http",
    upstreams: &["api"],
};

/// Every server answers reads over HTTP and DNS.
async fn reads_go_on(mesh: &mut Mesh) {
    let replicas = mesh.replicas();
    for n in 0..SERVERS {
        let api = replicas.ask(n, "/v1/health/service/api").await;
        assert!(api.contains("\"api\""), "{api}");
        let name = "api.service.consul.";
        let answer = dns::over_udp(replicas.dns(n), name).await.expect("DNS");
        assert_eq!(answer.code, ResponseCode::NoError, "{answer:?}");
        assert_eq!(answer.addresses.len(), 1, "{answer:?}");
    }
}

/// Every server refuses writes in time.
async fn writes_are_refused(mesh: &mut Mesh) {
    let replicas = mesh.replicas();
    for n in 0..SERVERS {
        let asked = Instant::now();
        let body = Some(json!({"Action": "allow"}));
        let (status, text) = replicas.call(n, Method::PUT, INTENTION, body).await;
        assert_eq!(status.as_u16(), 503, "{text}");
        assert!(text.contains("etcd"), "{text}");
        assert!(asked.elapsed() < REFUSED, "{:?}", asked.elapsed());
    }
}

/// Every server accepts writes, at the latest after it has detected that etcd is back.
async fn writes_work(mesh: &mut Mesh) {
    let replicas = &*mesh.replicas();
    for n in 0..SERVERS {
        let write = || async move {
            let body = Some(json!({"Action": "allow"}));
            replicas.call(n, Method::PUT, INTENTION, body).await
        };
        let accepted = |(status, _): &(http::StatusCode, String)| status.is_success();
        eventually("a write is taken", write, accepted).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn during_an_outage_of_etcd_everything_but_writes_continues() {
    let (mut mesh, sidecars) = crate::web_and_api().await;
    mesh.intend("late", "api", "allow").await;
    mesh.register(&LATE).await;
    all_agree(&mut mesh).await;
    let before = streams(&sidecars).await;
    let load = Load::start(mesh.upstream("web", 0));

    let replicas = mesh.replicas();
    for member in 0..replicas.etcd.members.len() {
        replicas.etcd.signal(member, Signal::SIGSTOP);
    }
    let away = Instant::now();
    reads_go_on(&mut mesh).await;
    writes_are_refused(&mut mesh).await;
    // A new sidecar gets its configuration and certificate.
    let flags = mesh.flags(LATE.instance);
    let mut late = mesh.sidecar(LATE.instance, &flags);
    late.ready().await;
    mesh.settle("late", 200).await;
    while away.elapsed() < AWAY {
        reads_go_on(&mut mesh).await;
        writes_are_refused(&mut mesh).await;
    }
    for sidecar in &sidecars {
        assert!(server_of(sidecar).await.is_some(), "{}", sidecar.log());
    }
    let seen = load.finish().await;
    assert_eq!(seen.failures, Vec::<String>::new(), "{:?}", seen.answers);

    let replicas = mesh.replicas();
    for member in 0..replicas.etcd.members.len() {
        replicas.etcd.signal(member, Signal::SIGCONT);
    }
    writes_work(&mut mesh).await;
    intentions_by_each_server(&mut mesh).await;
    mesh.intend("late", "api", "deny").await;
    mesh.settle("late", 403).await;
    all_agree(&mut mesh).await;
    assert_eq!(streams(&sidecars).await, before, "an Envoy lost its stream");
    stop(mesh, sidecars.into_iter().chain([late])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_member_causes_no_disruption() {
    let (mut mesh, sidecars) = crate::web_and_api().await;
    let before = streams(&sidecars).await;
    let mut servers = Vec::new();
    for sidecar in &sidecars {
        servers.push(server_of(sidecar).await);
    }
    // The leader is among the members.
    for member in 0..mesh.replicas().etcd.members.len() {
        let load = Load::start(mesh.upstream("web", 0));
        mesh.replicas().etcd.kill(member);
        for _ in 0..3 {
            for n in 0..SERVERS {
                mesh.use_server(n);
                mesh.intend("batch", "api", "deny").await;
                mesh.intend("batch", "api", "allow").await;
            }
        }
        reads_go_on(&mut mesh).await;
        let seen = load.finish().await;
        assert_eq!(seen.failures, Vec::<String>::new(), "{:?}", seen.answers);
        intentions_by_each_server(&mut mesh).await;
        mesh.replicas().etcd.start_member(member);
        caught_up(&mut mesh, member).await;
    }
    assert_eq!(streams(&sidecars).await, before, "an Envoy lost its stream");
    for (sidecar, server) in sidecars.iter().zip(servers) {
        assert_eq!(server_of(sidecar).await, server, "{}", sidecar.log());
    }
    all_agree(&mut mesh).await;
    stop(mesh, sidecars).await;
}

/// Waits until a restarted member serves, because only then another may be lost.
async fn caught_up(mesh: &mut Mesh, member: usize) {
    let client = mesh.replicas().etcd.members[member].client;
    let health = || async move {
        let answer = legate_tests::client::get(client, "/health").await;
        answer.map_err(|error| error.to_string())
    };
    let healthy = |answer: &Result<(http::StatusCode, String), String>| matches!(answer, Ok((status, _)) if status.is_success());
    let _healthy = eventually("a member is healthy again", health, healthy).await;
}
