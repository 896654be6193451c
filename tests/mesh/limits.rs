//! Limits for requests from a service to an upstream, and ejection of failing instances.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::any;
use http::StatusCode;
use legate_runtime::Scope;
use legate_tests::scripted::Requests;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::{API, WEB};

const SECOND: ServiceSpec = ServiceSpec {
    instance: "api-2",
    ..API
};

/// Sets the overrides of `web` for `api`.
async fn override_upstream(mesh: &Mesh, settings: Value) {
    let mut settings = settings;
    settings["Name"] = json!("api");
    mesh.entry(json!({
        "Kind": "service-defaults", "Name": "web", "Protocol": "http",
        "UpstreamConfig": {"Overrides": [settings]},
    }))
    .await;
}

/// A statistic of `web` for `api`.
async fn stat(web: &Sidecar, name: &str) -> u64 {
    let (_, stats) = client::get(web.admin(), "/stats?filter=^cluster.api")
        .await
        .expect("Envoy's admin API answers");
    let suffix = format!(".{name}: ");
    let value = stats.lines().find_map(|line| line.split_once(&suffix));
    value.map_or(0, |(_, value)| value.parse().expect("a number"))
}

async fn stop(mesh: Mesh, sidecars: impl IntoIterator<Item = Sidecar>) {
    for mut sidecar in sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}

/// A request that stays unanswered while its connection is open.
async fn waiting(upstream: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(upstream)
        .await
        .expect("the upstream listens");
    stream
        .write_all(b"GET /waits HTTP/1.1\r\nhost: api\r\n\r\n")
        .await
        .expect("the connection is open");
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_over_the_limit_are_refused() {
    let requests = Requests::default();
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    mesh.register_scripted(&API, "x-unused", &requests).await;
    let api = mesh.join(&API).await;
    let web = mesh.add(&WEB).await;
    mesh.settle("web", 200).await;
    let limits = json!({"Limits": {"MaxConcurrentRequests": 2}});
    override_upstream(&mesh, limits).await;
    let remaining = || async {
        let (_, clusters) = client::get(web.admin(), "/clusters")
            .await
            .expect("the admin API");
        let limit = clusters.lines().find_map(|line| {
            let (name, value) = line.split_once("::default_priority::max_requests::")?;
            name.starts_with("api.").then(|| value.to_owned())
        });
        limit.unwrap_or_default()
    };
    eventually("the limit is there", remaining, |limit| limit == "2").await;

    let upstream = mesh.upstream("web", 0);
    let held = [waiting(upstream).await, waiting(upstream).await];
    let waits = || std::future::ready(requests.to("/waits"));
    eventually("both are with the application", waits, |count| *count == 2).await;
    let (status, body) = client::get(upstream, "/third").await.expect("an answer");
    assert_eq!(
        (status, requests.to("/third")),
        (StatusCode::SERVICE_UNAVAILABLE, 0)
    );
    assert!(body.contains("overflow"), "{body}");
    drop(held);
    mesh.settle("web", 200).await;
    stop(mesh, [web, api]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_over_the_limit_are_refused() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let db = ServiceSpec {
        protocol: "tcp",
        ..API
    };
    mesh.intend("web", "api", "allow").await;
    override_upstream(&mesh, json!({"Limits": {"MaxConnections": 1}})).await;
    let api = mesh.add(&db).await;
    mesh.register(&WEB).await;
    override_upstream(&mesh, json!({"Limits": {"MaxConnections": 1}})).await;
    let web = mesh.join(&WEB).await;
    let upstream = mesh.upstream("web", 0);
    let first = eventually("a connection is taken", || open(upstream), Option::is_some).await;
    assert!(open(upstream).await.is_none(), "there is one already");
    assert!(stat(&web, "upstream_cx_overflow").await > 0);
    drop(first);
    eventually("there is room again", || open(upstream), Option::is_some).await;
    stop(mesh, [web, api]).await;
}

/// A connection on which a line was echoed; `None` if it was closed.
async fn open(upstream: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(upstream).await.ok()?;
    stream.write_all(b"hello\n").await.ok()?;
    let mut reply = [0; 11];
    stream.read_exact(&mut reply).await.ok()?;
    (reply == *b"api: hello\n").then_some(stream)
}

/// Responds with its name, or with 500 while the switch is on.
async fn answer(State(fails): State<Arc<AtomicBool>>) -> (StatusCode, &'static str) {
    match fails.load(Ordering::SeqCst) {
        true => (StatusCode::INTERNAL_SERVER_ERROR, "api fails"),
        false => (StatusCode::OK, "api is well"),
    }
}

async fn serve(address: SocketAddr, fails: &Arc<AtomicBool>, scope: &Scope) {
    let listener = TcpListener::bind(address).await.expect("a free address");
    let router = Router::new()
        .fallback(any(answer))
        .with_state(Arc::clone(fails));
    let stop = scope.token().cancelled_owned();
    scope.spawn("an application that fails", async move {
        axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_instance_is_ejected_for_a_while() {
    let scope = Scope::new("applications");
    let fails = Arc::new(AtomicBool::new(true));
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    serve(mesh.application(API.instance), &fails, &scope).await;
    mesh.register_dead(&API).await;
    let api = mesh.join(&API).await;
    let second = mesh.add(&SECOND).await;
    mesh.register(&WEB).await;
    override_upstream(
        &mesh,
        json!({"PassiveHealthCheck": {
            "Interval": "100ms", "MaxFailures": 3, "EnforcingConsecutive5xx": 100,
            "MaxEjectionPercent": 100, "BaseEjectionTime": "3s",
        }}),
    )
    .await;
    let web = mesh.join(&WEB).await;
    let upstream = mesh.upstream("web", 0);
    let ask = || async {
        let answer = client::get(upstream, "/").await;
        answer.map_err(|error| error.to_string())
    };
    let ejected = || async {
        let _ = ask().await;
        stat(&web, "outlier_detection.ejections_active").await
    };
    eventually("it is left out", ejected, |count| *count == 1).await;
    for _ in 0..10 {
        let (status, body) = ask().await.expect("an answer");
        assert!(
            status.is_success() && body.contains("api-2"),
            "{status} {body}"
        );
    }
    fails.store(false, Ordering::SeqCst);
    let well = |answer: &Result<client::Answer, String>| {
        answer.as_ref().is_ok_and(|(_, body)| body == "api is well")
    };
    eventually("it is back", ask, well).await.expect("accepted");
    assert_eq!(stat(&web, "outlier_detection.ejections_active").await, 0);
    stop(mesh, [web, second, api]).await;
    scope
        .stop(Duration::from_secs(10))
        .await
        .expect("the application stops");
}
