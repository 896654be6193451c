//! Retries on another instance when one has ended, and requests that are never retried.

use std::net::SocketAddr;

use legate_runtime::BoxError;
use legate_tests::scripted::Requests;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use nix::sys::signal::{Signal, kill};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::{API, WEB};

/// The header by which a proxy reports that its application has not received a request.
const NOT_SENT: &str = "x-legate-not-sent";

const SECOND: ServiceSpec = ServiceSpec {
    service: "api",
    instance: "api-2",
    protocol: "http",
    upstreams: &[],
};

/// `web` calls `api` with the registered instances.
struct Scene {
    mesh: Mesh,
    sidecars: Vec<Sidecar>,
}

impl Scene {
    /// An instance whose application has ended, and one that counts requests.
    async fn one_dead(requests: &Requests) -> Self {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        mesh.register_dead(&API).await;
        mesh.register_scripted(&SECOND, NOT_SENT, requests).await;
        Self::start(mesh, &[API, SECOND]).await
    }

    async fn start(mut mesh: Mesh, instances: &[ServiceSpec]) -> Self {
        mesh.intend("web", "api", "allow").await;
        let mut sidecars = Vec::new();
        for instance in instances {
            sidecars.push(mesh.join(instance).await);
        }
        let web = mesh.add(&WEB).await;
        eventually(
            "web knows all instances",
            || web.endpoints(),
            |endpoints| endpoints.len() == instances.len(),
        )
        .await;
        // Endpoints arrive before the listener.
        let upstream = mesh.upstream("web", 0);
        eventually(
            "the upstream listens",
            || async { TcpStream::connect(upstream).await.is_ok() },
            |listens| *listens,
        )
        .await;
        sidecars.push(web);
        Self { mesh, sidecars }
    }

    fn web(&self) -> &Sidecar {
        self.sidecars.last().expect("the caller is the last")
    }

    fn upstream(&self) -> SocketAddr {
        self.mesh.upstream("web", 0)
    }

    /// A counter of `web` for `api`.
    async fn counter(&self, name: &str) -> u64 {
        let (_, stats) =
            legate_tests::client::get(self.web().admin(), "/stats?filter=^cluster.api")
                .await
                .expect("Envoy's admin API answers");
        let suffix = format!(".{name}: ");
        let value = stats.lines().find_map(|line| line.split_once(&suffix));
        value.map_or(0, |(_, value)| value.parse().expect("a number"))
    }

    async fn stop(mut self) {
        for sidecar in self.sidecars.iter_mut().rev() {
            assert!(sidecar.stop().await.success());
        }
        self.mesh.stop().await;
    }
}

/// Sends a request with a body in parts, and returns the whole response.
async fn ask(
    server: SocketAddr,
    start: &str,
    headers: &str,
    body: &[&[u8]],
) -> Result<String, BoxError> {
    let length: usize = body.iter().map(|part| part.len()).sum();
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let head = format!(
        "{start} HTTP/1.1\r\nhost: api\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
    );
    // The head and the first part are sent together: if Envoy responds before the body has arrived,
    // it closes the connection, and a later body would reset it together with the response.
    let (first, others) = body
        .split_first()
        .map_or((&[][..], body), |(first, all)| (*first, all));
    stream.write_all(&[head.as_bytes(), first].concat()).await?;
    for part in others {
        stream.write_all(part).await?;
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_not_received_by_an_application_are_retried() {
    let requests = Requests::default();
    let scene = Scene::one_dead(&requests).await;
    for n in 0..10 {
        let path = format!("/get-{n}");
        let answer = ask(scene.upstream(), &format!("GET {path}"), "", &[]).await;
        let answer = answer.expect("an answer");
        assert!(answer.ends_with("api-2"), "{answer}");
        assert_eq!(requests.to(&path), 1);
        let path = format!("/post-{n}");
        let body: &[&[u8]] = &[b"one part", &[b'x'; 60_000]];
        let answer = ask(scene.upstream(), &format!("POST {path}"), "", body).await;
        let answer = answer.expect("an answer");
        assert!(answer.ends_with("api-2"), "{answer}");
        assert_eq!(requests.to(&path), 1);
    }
    assert!(scene.counter("upstream_rq_retry_success").await > 0);
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_requests_are_retried() {
    let requests = Requests::default();
    let scene = Scene::one_dead(&requests).await;
    let mut all = JoinSet::new();
    for _ in 0..60 {
        let upstream = scene.upstream();
        all.spawn(async move { ask(upstream, "GET /slow", "", &[]).await });
    }
    let answers = all.join_all().await;
    let answers = answers.into_iter().map(|answer| answer.expect("an answer"));
    let failed: Vec<_> = answers.filter(|it| !it.ends_with("api-2")).collect();
    assert_eq!(failed.len(), 0, "{:?}", failed.first());
    assert_eq!(requests.to("/slow"), 60);
    assert!(scene.counter("upstream_rq_retry").await > 3);
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_received_by_an_application_are_never_retried() {
    let requests = Requests::default();
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    for instance in [&API, &SECOND] {
        mesh.register_scripted(instance, NOT_SENT, &requests).await;
    }
    let scene = Scene::start(mesh, &[API, SECOND]).await;
    // Envoy respects these headers from callers that it considers internal.
    let demands = "x-forwarded-for: 10.0.0.1\r\nx-envoy-retry-on: 5xx,reset,gateway-error\r\n\
        x-envoy-max-retries: 5\r\nx-envoy-retriable-status-codes: 503\r\n";
    for headers in ["", demands] {
        for path in ["/closes", "/resets", "/half", "/fails", "/claims"] {
            let before = requests.to(path);
            let start = format!("POST {path}");
            let answer = ask(scene.upstream(), &start, headers, &[b"body"]).await;
            let answer = answer.expect("an answer");
            assert_eq!(status(&answer), "503", "{path}: {answer}");
            assert!(!answer.contains(NOT_SENT), "{path}: {answer}");
            assert_eq!(requests.to(path) - before, 1, "{path} {headers}");
        }
    }
    assert_eq!(scene.counter("upstream_rq_retry").await, 0);
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_forwarded_by_a_dying_proxy_are_not_retried() {
    let both = [Requests::default(), Requests::default()];
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    for (instance, requests) in [API, SECOND].iter().zip(&both) {
        mesh.register_scripted(instance, NOT_SENT, requests).await;
    }
    let scene = Scene::start(mesh, &[API, SECOND]).await;
    let seen = || both.each_ref().map(|requests| requests.to("/waits"));
    let proxy_dies = async {
        let at = eventually("it arrives", || async { seen() }, |seen| *seen != [0, 0]).await;
        let has_it = at.iter().position(|count| *count > 0);
        let proxy = &scene.sidecars[has_it.expect("one has it")];
        kill(proxy.envoy(), Signal::SIGKILL).expect("Envoy runs");
    };
    let (answer, ()) = tokio::join!(ask(scene.upstream(), "GET /waits", "", &[]), proxy_dies);
    let answer = answer.expect("an answer");
    assert_eq!(status(&answer), "503", "{answer}");
    assert_eq!(seen().iter().sum::<usize>(), 1);
    assert_eq!(scene.counter("upstream_rq_retry").await, 0);
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_do_not_see_the_proxies_internal_header() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register_dead(&API).await;
    let scene = Scene::start(mesh, &[API]).await;
    let answer = ask(scene.upstream(), "GET /", "", &[]).await;
    let answer = answer.expect("an answer");
    assert_eq!(status(&answer), "503", "{answer}");
    assert_eq!(scene.counter("upstream_rq_retry").await, 2, "{answer}");
    assert!(!answer.contains(NOT_SENT), "{answer}");
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_reach_an_instance_with_a_running_proxy() {
    let spec = |instance| ServiceSpec {
        service: "db",
        instance,
        protocol: "tcp",
        upstreams: &[],
    };
    let shop = ServiceSpec {
        service: "shop",
        instance: "shop",
        protocol: "tcp",
        upstreams: &["db"],
    };
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("shop", "db", "allow").await;
    // The proxy of the first instance has ended.
    mesh.register(&spec("db-1")).await;
    let mut db = mesh.add(&spec("db-2")).await;
    let mut shop = mesh.add(&shop).await;
    eventually("shop knows both", || shop.endpoints(), |all| all.len() == 2).await;
    for _ in 0..20 {
        let mut stream = TcpStream::connect(mesh.upstream("shop", 0))
            .await
            .expect("the proxy listens");
        stream.write_all(b"hello\n").await.expect("it takes a line");
        let mut reply = String::new();
        let _ = BufReader::new(stream).read_line(&mut reply).await;
        assert_eq!(reply, "db-2: hello\n");
    }
    for sidecar in [&mut shop, &mut db] {
        assert!(sidecar.stop().await.success());
    }
    mesh.stop().await;
}
