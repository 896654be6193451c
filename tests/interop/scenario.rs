//! Scenarios for every pair of programs, independent of the pair.

use hickory_proto::op::ResponseCode;
use legate_tests::interop::Pair;
use legate_tests::load::Load;
use legate_tests::{Mesh, MeshOptions, client, dns, eventually};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::{API, DB, SECOND, SHOP, WEB};

/// The port of an application's DNS.
const DNS: u16 = 8653;

/// Requests reach the destination through mutual TLS with the caller's identity; without TLS they
/// are refused.
pub(crate) async fn http_traffic(pair: &Pair) {
    let mut mesh = pair.mesh(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = pair.add(&mut mesh, &API).await;
    let mut web = pair.add(&mut mesh, &WEB).await;
    mesh.settle("web", 200).await;

    let answer = client::get(mesh.upstream("web", 0), "/").await;
    let (_, body) = answer.expect("an answer");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    let caller = body["caller"].as_str().expect("the caller is known");
    assert!(
        caller.starts_with("spiffe://") && caller.ends_with(".consul/ns/default/dc/dc1/svc/web"),
        "{caller}"
    );
    let handshakes = format!("listener.{}_20000.ssl.handshake", api.address);
    assert!(api.stat(&handshakes).await > 0, "no TLS handshake counted");
    assert!(
        client::get(mesh.public("api"), "/").await.is_err(),
        "the public listener answers plain HTTP"
    );

    assert!(web.stop().await.success(), "{}", web.log());
    assert!(api.stop().await.success(), "{}", api.log());
    mesh.stop().await;
}

/// TCP passes if an intention allows it. An open connection outlives the stop request.
pub(crate) async fn tcp_traffic_and_end(pair: &Pair) {
    let mut mesh = pair.mesh(MeshOptions::default()).await;
    mesh.intend("shop", "db", "allow").await;
    let mut db = pair.add(&mut mesh, &DB).await;
    mesh.register(&SHOP).await;
    let flags = pair.flags(&mut mesh, SHOP.instance);
    let flags = flags
        .with("shutdown-drain-listeners", "true")
        .with("shutdown-grace-period-seconds", "3");
    let mut shop = pair.start(&mesh, SHOP.instance, &flags).await;
    let mut stream = open(&mesh).await;

    shop.signal(nix::sys::signal::Signal::SIGTERM);
    eventually(
        "the sidecar begins to stop",
        || async { shop.log() },
        |log| log.contains("initiating shutdown"),
    )
    .await;
    assert_eq!(echo(&mut stream, "still here").await, "db: still here\n");
    drop(stream);
    let status = shop.exit().await;
    assert_eq!(status.code(), Some(0), "{}", shop.log());

    assert!(db.stop().await.success(), "{}", db.log());
    mesh.stop().await;
}

/// A connection from shop to db, as soon as the mesh permits it.
async fn open(mesh: &Mesh) -> BufReader<TcpStream> {
    let upstream = mesh.upstream("shop", 0);
    let attempt = || async move {
        let mut stream = BufReader::new(TcpStream::connect(upstream).await.ok()?);
        let reply = echo(&mut stream, "hello").await;
        (reply == "db: hello\n").then_some(stream)
    };
    let stream = eventually("a line comes back", attempt, Option::is_some).await;
    stream.expect("just looked")
}

/// Sends one line and returns the reply; empty if the connection has ended.
async fn echo(stream: &mut BufReader<TcpStream>, line: &str) -> String {
    let mut reply = String::new();
    if stream
        .write_all(format!("{line}\n").as_bytes())
        .await
        .is_ok()
    {
        let _ = stream.read_line(&mut reply).await;
    }
    reply
}

/// Changed intentions apply to running Envoys.
pub(crate) async fn intentions(pair: &Pair) {
    let mut mesh = pair.mesh(MeshOptions::default()).await;
    let mut api = pair.add(&mut mesh, &API).await;
    let mut web = pair.add(&mut mesh, &WEB).await;
    mesh.settle("web", 403).await;
    for (action, status) in [("allow", 200), ("deny", 403), ("allow", 200)] {
        mesh.intend("web", "api", action).await;
        mesh.settle("web", status).await;
    }
    assert!(web.stop().await.success() && api.stop().await.success());
    mesh.stop().await;
}

/// A new instance receives requests, a removed one receives none, and no request fails.
pub(crate) async fn instances(pair: &Pair) {
    let mut mesh = pair.mesh(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = pair.add(&mut mesh, &API).await;
    let mut web = pair.add(&mut mesh, &WEB).await;
    mesh.settle("web", 200).await;
    let load = Load::start(mesh.upstream("web", 0));

    mesh.register_critical(&SECOND).await;
    let flags = pair.flags(&mut mesh, SECOND.instance);
    let mut second = pair.start(&mesh, SECOND.instance, &flags).await;
    mesh.check(SECOND.instance, "passing").await;
    eventually(
        "both instances answer",
        || async { load.seen() },
        |seen| seen.answers.len() == 2,
    )
    .await;
    mesh.deregister(API.instance).await;
    eventually(
        "the Envoy of web forgets the first",
        || web.endpoints(),
        |endpoints| endpoints.len() == 1,
    )
    .await;
    assert!(api.stop().await.success());
    let before = load.seen().of(SECOND.instance);
    eventually(
        "requests go on",
        || async { load.seen() },
        |seen| seen.of(SECOND.instance) > before + 20,
    )
    .await;

    let seen = load.finish().await;
    let none: Vec<String> = Vec::new();
    assert_eq!(seen.failures, none, "answers: {:?}", seen.answers);
    assert!(web.stop().await.success() && second.stop().await.success());
    mesh.stop().await;
}

/// Traffic continues without a server, and changes arrive when it is back.
pub(crate) async fn outage(pair: &Pair) {
    let durable = MeshOptions {
        durable: true,
        ..MeshOptions::default()
    };
    let mut mesh = pair.mesh(durable).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = pair.add(&mut mesh, &API).await;
    let mut web = pair.add(&mut mesh, &WEB).await;
    mesh.settle("web", 200).await;
    let load = Load::start(mesh.upstream("web", 0));
    let streams = web.stat("cluster.consul-dataplane.upstream_rq_total").await;

    mesh.stop_server().await;
    let before = load.seen().of(API.instance);
    eventually(
        "requests go on",
        || async { load.seen() },
        |seen| seen.of(API.instance) > before + 100,
    )
    .await;
    let connected = web.stat("control_plane.connected_state").await;
    let during = load.finish().await;
    let none: Vec<String> = Vec::new();
    assert_eq!(during.failures, none, "answers: {:?}", during.answers);

    mesh.start_server().await;
    for (action, status) in [("deny", 403), ("allow", 200)] {
        mesh.intend("web", "api", action).await;
        mesh.settle("web", status).await;
    }
    // Only promised by our dataplane.
    if pair.consul_dataplane.is_none() {
        let now = web.stat("cluster.consul-dataplane.upstream_rq_total").await;
        assert_eq!((connected, now), (1, streams), "Envoy lost its stream");
    }
    assert!(web.stop().await.success() && api.stop().await.success());
    mesh.stop().await;
}

/// The sidecar resolves names of the mesh, over UDP and TCP.
pub(crate) async fn names(pair: &Pair) {
    let mut mesh = pair.mesh(MeshOptions::default()).await;
    mesh.register(&API).await;
    let flags = pair.flags(&mut mesh, API.instance);
    let own = flags.address;
    let flags = flags
        .with("consul-dns-bind-addr", own.to_string())
        .with("consul-dns-bind-port", DNS.to_string());
    let mut api = pair.start(&mesh, API.instance, &flags).await;
    answers((own, DNS).into(), own).await;
    assert!(api.stop().await.success(), "{}", api.log());
    mesh.stop().await;
}

/// Asserts that the name of the service api resolves to `instance`, and an unknown name to nothing.
pub(crate) async fn answers(server: std::net::SocketAddr, instance: std::net::IpAddr) {
    let found = dns::DnsAnswer {
        code: ResponseCode::NoError,
        addresses: vec![instance],
    };
    for (name, expected) in [
        ("api.service.consul.", Some(&found)),
        ("nobody.service.consul.", None),
    ] {
        let udp = dns::over_udp(server, name).await.expect("an answer");
        let tcp = dns::over_tcp(server, name).await.expect("an answer");
        match expected {
            Some(expected) => assert_eq!((&udp, &tcp), (expected, expected)),
            None => assert_eq!(
                (udp.code, tcp.code),
                (ResponseCode::NXDomain, ResponseCode::NXDomain)
            ),
        }
    }
}
