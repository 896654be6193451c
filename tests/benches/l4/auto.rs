//! The mode `auto`: the start of a service that needs Envoy, and connections while one proxy takes over
//! from the other.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use legate_runtime::Scope;
use legate_tests::wait::eventually_within;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::pair::start_time;
use crate::{Row, echo, load};

const API: ServiceSpec = ServiceSpec {
    service: "api",
    instance: "api",
    protocol: "http",
    upstreams: &[],
};
const DB: ServiceSpec = ServiceSpec::tcp("db", &[]);
/// Envoy is needed while `web` speaks HTTP.
const SHOP: ServiceSpec = ServiceSpec::tcp("shop", &["db", "web"]);
const FRONT: ServiceSpec = ServiceSpec::tcp("front", &["shop"]);

/// A proxy that takes over waits some seconds, three times on the way back.
const CHANGE: Duration = Duration::from_secs(90);
/// Callers at a time of each address, and the pause of each between two connections.
const CALLERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);

/// Starts a service that needs Envoy, with Envoy and in the mode `auto`, in turns.
pub(crate) async fn starts(count: usize) {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.register(&API).await;
    let mut row = Row::new("from exec to ready of a service that needs Envoy, ms", 0);
    for _ in 0..count {
        for (kind, column) in [("envoy", 1), ("auto", 2)] {
            mesh.use_proxy(kind);
            let flags = mesh.flags("api");
            let mut sidecar = mesh.sidecar("api", &flags);
            sidecar.ready().await;
            row.values[column].extend(start_time(&sidecar));
            sidecar.stop().await;
        }
    }
    row.print();
    mesh.stop().await;
}

/// What happened to connections.
#[derive(Default)]
struct Seen {
    answered: u64,
    failed: u64,
    slowest: Duration,
}

fn note(seen: &Mutex<Seen>, answered: bool, took: Duration) {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    match answered {
        true => seen.answered += 1,
        false => seen.failed += 1,
    }
    seen.slowest = seen.slowest.max(took);
}

fn call(address: SocketAddr, seen: &Arc<Mutex<Seen>>, scope: &Scope) {
    for _ in 0..CALLERS {
        let seen = Arc::clone(seen);
        scope.spawner().spawn_until_stop("caller", async move {
            loop {
                let start = Instant::now();
                let answered = load::exchanged(address).await;
                note(&seen, answered, start.elapsed());
                sleep(PAUSE).await;
            }
        });
    }
}

async fn serves(sidecar: &Sidecar, expected: &str) {
    let choice = async || sidecar.status().await["choice"].clone();
    eventually_within(CHANGE, "the other proxy serves", choice, |choice| {
        choice["serves"] == expected && choice["changing"] == false
    })
    .await;
}

/// Each proxy takes over from the other one so many times, under load out of a sidecar and into it.
pub(crate) async fn hand_overs(count: usize) {
    let mut mesh = Mesh::start(MeshOptions {
        allow: true,
        ..MeshOptions::default()
    })
    .await;
    let applications = Scope::new("applications");
    for spec in [&DB, &SHOP] {
        mesh.register_dead(spec).await;
        echo::serve(mesh.application(spec.instance), &applications).await;
    }
    let protocol =
        |name: &str| json!({"Kind": "service-defaults", "Name": "web", "Protocol": name});
    mesh.entry(protocol("tcp")).await;
    mesh.use_proxy("builtin");
    let mut sidecars = vec![mesh.join(&DB).await, mesh.add(&FRONT).await];
    mesh.use_proxy("auto");
    let flags = mesh.flags("shop").with("proxy-return-after", "2s");
    let mut shop = mesh.sidecar("shop", &flags);
    shop.ready().await;
    serves(&shop, "builtin").await;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let callers = Scope::new("callers");
    for instance in ["shop", "front"] {
        let address = mesh.upstream(instance, 0);
        let answers = || load::exchanged(address);
        eventually("an exchange succeeds", answers, |done| *done).await;
        call(address, &seen, &callers);
    }
    for _ in 0..count {
        for (name, serving) in [("http", "envoy"), ("tcp", "builtin")] {
            mesh.entry(protocol(name)).await;
            serves(&shop, serving).await;
        }
    }
    callers
        .stop(Duration::from_secs(10))
        .await
        .expect("callers stop");
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    println!(
        "\nEach proxy took over {count} times: {} new connections failed of {}, the slowest took {} ms.",
        seen.failed,
        seen.failed + seen.answered,
        seen.slowest.as_millis()
    );
    sidecars.push(shop);
    for sidecar in &mut sidecars {
        sidecar.stop().await;
    }
    mesh.stop().await;
    let _ = applications.stop(Duration::from_secs(10)).await;
}
