//! The mode `auto`: the built-in proxy serves as long as it can, Envoy otherwise, and no connection is lost when one
//! takes over from the other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use legate_runtime::Scope;
use legate_tests::client::{self, line};
use legate_tests::wait::eventually_within;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::builtin::stop;

const DB: ServiceSpec = ServiceSpec::tcp("db", &[]);
const SHOP: ServiceSpec = ServiceSpec::tcp("shop", &["db", "web"]);
const FRONT: ServiceSpec = ServiceSpec::tcp("front", &["shop"]);

/// A change waits five seconds, three times on the way back.
const CHANGE: Duration = Duration::from_secs(90);

/// Callers at a time of each address, and the pause of each between two connections.
const CALLERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(4);

/// Connections that are open all the time, of each address.
const OPEN: usize = 10;

/// New connections all the time.
#[derive(Clone, Default)]
struct Load {
    answered: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

impl Load {
    fn start(&self, address: SocketAddr, expected: &'static str, scope: &Scope) {
        for _ in 0..CALLERS {
            let load = self.clone();
            scope.spawner().spawn_until_stop("caller", async move {
                loop {
                    let counter = match line(address, "hello").await == expected {
                        true => &load.answered,
                        false => &load.failed,
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                    sleep(PAUSE).await;
                }
            });
        }
    }

    fn assert_unbroken(&self, at_least: u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(count(&self.failed), 0, "of {}", count(&self.answered));
        assert!(
            count(&self.answered) >= at_least,
            "{}",
            count(&self.answered)
        );
    }
}

/// Connections that stay open.
struct Open(Vec<BufReader<TcpStream>>);

impl Open {
    async fn new(address: SocketAddr) -> Open {
        let mut open = Vec::new();
        for _ in 0..OPEN {
            let stream = TcpStream::connect(address).await;
            open.push(BufReader::new(stream.expect("a connection")));
        }
        Open(open)
    }

    async fn exchange(&mut self, expected: &str) {
        for stream in &mut self.0 {
            let sent = stream.write_all(b"hello\n").await;
            sent.expect("the connection is open");
            let mut reply = String::new();
            let received = stream.read_line(&mut reply).await;
            received.expect("the connection is open");
            assert_eq!(reply, expected);
        }
    }
}

/// Waits for a field of the status that says which proxy serves and why.
async fn choice(sidecar: &Sidecar, what: &str, accept: impl Fn(&Value) -> bool) {
    let status = async || sidecar.status().await["choice"].clone();
    eventually_within(CHANGE, what, status, accept).await;
}

async fn serves(sidecar: &Sidecar, expected: &str) {
    choice(sidecar, "the other proxy serves", |choice| {
        choice["serves"] == expected && choice["changing"] == false
    })
    .await;
}

/// The protocol of an upstream decides whether Envoy is needed.
async fn set_protocol(mesh: &Mesh, service: &str, protocol: &str) {
    let entry = json!({"Kind": "service-defaults", "Name": service, "Protocol": protocol});
    mesh.entry(entry).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_take_over_from_one_another_and_no_connection_fails() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    set_protocol(&mesh, "web", "tcp").await;
    mesh.intend("shop", "db", "allow").await;
    mesh.intend("front", "shop", "allow").await;
    mesh.use_proxy("builtin");
    let mut db = mesh.add(&DB).await;
    let mut front = mesh.add(&FRONT).await;
    mesh.use_proxy("auto");
    mesh.register(&SHOP).await;
    let flags = mesh.flags("shop").with("proxy-return-after", "2s");
    let mut shop = mesh.sidecar("shop", &flags);
    shop.ready().await;
    serves(&shop, "builtin").await;
    // Out of the mesh's sidecar and into it.
    let ways = [
        (mesh.upstream("shop", 0), "db: hello\n"),
        (mesh.upstream("front", 0), "shop: hello\n"),
    ];
    let (load, scope) = (Load::default(), Scope::new("load"));
    let mut open = Vec::new();
    for (address, expected) in ways {
        eventually(
            "it answers",
            || line(address, "hello"),
            |reply| reply == expected,
        )
        .await;
        load.start(address, expected, &scope);
        let mut new = Open::new(address).await;
        new.exchange(expected).await;
        open.push((new, expected));
    }
    for serving in ["envoy", "given up", "builtin", "envoy", "builtin"] {
        match serving {
            "envoy" => set_protocol(&mesh, "web", "http").await,
            _ => set_protocol(&mesh, "web", "tcp").await,
        }
        if serving == "given up" {
            // Envoy is needed again before the built-in proxy has taken over.
            choice(&shop, "it is about to take over", |choice| {
                choice["changing"] == true
            })
            .await;
            set_protocol(&mesh, "web", "http").await;
            serves(&shop, "envoy").await;
            let failure = shop.status().await["choice"]["failure"].clone();
            let failure = failure.as_str().unwrap_or_default();
            assert!(failure.ends_with("needs Envoy again"), "{failure}");
        } else {
            serves(&shop, serving).await;
        }
        for (open, expected) in &mut open {
            open.exchange(expected).await;
        }
        // The ones that the last proxy has are served by it.
        let (address, expected) = ways[0];
        let mut new = Open::new(address).await;
        new.exchange(expected).await;
        open.push((new, expected));
    }
    load.assert_unbroken(1_000);
    scope.stop(Duration::from_secs(5)).await.unwrap();
    drop(open);
    choice(&shop, "no Envoy is left", |choice| {
        choice["lingering_envoys"] == 0
    })
    .await;
    mesh.intend("shop", "db", "deny").await;
    eventually(
        "a denied caller",
        || line(ways[0].0, "hello"),
        String::is_empty,
    )
    .await;
    stop(mesh, [&mut shop, &mut front, &mut db]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_needs_envoy_gets_it_at_once() {
    let mut mesh = Mesh::start(MeshOptions {
        allow: true,
        ..MeshOptions::default()
    })
    .await;
    mesh.use_proxy("auto");
    let web = ServiceSpec {
        service: "web",
        instance: "web",
        protocol: "http",
        upstreams: &[],
    };
    let caller = ServiceSpec {
        service: "caller",
        instance: "caller",
        protocol: "http",
        upstreams: &["web"],
    };
    let mut web = mesh.add(&web).await;
    let mut caller = mesh.add(&caller).await;
    serves(&caller, "envoy").await;
    mesh.settle("caller", 200).await;
    // The pages of the admin interface are those of the proxy that serves.
    let info = client::get(caller.admin(), "/server_info").await.unwrap().1;
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["state"], "LIVE");
    assert!(
        info["command_line_options"]["concurrency"].is_number(),
        "{info}"
    );
    assert!(caller.stat("cluster_manager.active_clusters").await > 0);
    let log = caller.log();
    assert!(!log.contains("takes over"), "{log}");
    stop(mesh, [&mut caller, &mut web]).await;
}

/// How long Envoy may be needed and not serve before the sidecar says so, with some time to spare.
const OUTDATED: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_whose_envoy_does_not_start_serves_on_or_closes_and_says_why() {
    let mut mesh = Mesh::start(MeshOptions {
        allow: true,
        ..MeshOptions::default()
    })
    .await;
    set_protocol(&mesh, "web", "tcp").await;
    mesh.use_proxy("builtin");
    let mut db = mesh.add(&DB).await;
    let mut front = mesh.add(&FRONT).await;
    mesh.use_proxy("auto");
    mesh.register(&SHOP).await;
    let flags = mesh.flags("shop");
    let flags = flags.with("envoy-executable-path", "/no/such/envoy");
    let mut shop = mesh.sidecar("shop", &flags.with("proxy-close-outdated", "true"));
    shop.ready().await;
    let (out, into) = (mesh.upstream("shop", 0), mesh.upstream("front", 0));
    for (address, expected) in [(out, "db: hello\n"), (into, "shop: hello\n")] {
        eventually(
            "it answers",
            || line(address, "hello"),
            |reply| reply == expected,
        )
        .await;
    }
    set_protocol(&mesh, "web", "http").await;
    eventually_within(
        OUTDATED,
        "it is not ready",
        async || client::get(shop.lifecycle(), "/ready").await.unwrap(),
        |(status, why)| *status == 503 && why.contains("/no/such/envoy"),
    )
    .await;
    eventually("it is closed", || line(into, "hello"), String::is_empty).await;
    assert_eq!(
        line(out, "hello").await,
        "db: hello\n",
        "the application may call others"
    );
    set_protocol(&mesh, "web", "tcp").await;
    shop.ready().await;
    eventually(
        "it is open",
        || line(into, "hello"),
        |reply| reply == "shop: hello\n",
    )
    .await;
    stop(mesh, [&mut shop, &mut front, &mut db]).await;
}
