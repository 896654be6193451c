//! A sidecar of a real mesh under attack: its memory, open files and probes during the attack, and
//! whether it works afterwards.
//!
//! Each attack targets a separate sidecar with a real Envoy. The attackers use the sidecar's own
//! ports; their number and time are limited.

mod attack;
mod target;

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use legate_runtime::Scope;
use legate_tests::{Mesh, MeshOptions, ServiceSpec};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use self::attack::{Attack, Attackers};
use self::target::{State, Target};
use crate::metrics;
use legate_tests::program::Program;
use legate_tests::table::Table;

const API: ServiceSpec = ServiceSpec {
    service: "api",
    instance: "api",
    protocol: "http",
    upstreams: &[],
};
const WEB: ServiceSpec = ServiceSpec {
    service: "web",
    instance: "web",
    protocol: "http",
    upstreams: &["api"],
};
/// The port of Envoy's Prometheus listener; without it no metrics are merged.
const PROMETHEUS: u16 = 20200;
/// The size of the application's metrics page in bytes, sent in ten pieces.
const PAGE: usize = 20_000_000;
/// The pause before and after an attack, in which memory can be freed.
const CALM: Duration = Duration::from_secs(5);
/// The minimum duration of an attack, longer than the timeout of a request head.
const ATTACK: Duration = Duration::from_secs(15);
/// The number of probes during an attack, with Kubernetes' default timeout.
const PROBES: u32 = 10;
const PROBE: Duration = Duration::from_secs(1);
/// The deadline for steps that should complete at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// The effect of one attack on one program. Times in seconds.
struct Damage {
    attackers: usize,
    /// Connections still open at the end.
    held: usize,
    before: Option<State>,
    /// The maximum observed.
    most: State,
    answered: u32,
    envoy_again: Option<f64>,
    after: Option<State>,
    update: Option<f64>,
}

pub(crate) async fn measure(programs: &[Program]) {
    let each = target::attackers_on_each_port();
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let scope = Scope::new("the application's metrics");
    let application = application(&scope).await;
    mesh.intend("web", "api", "allow").await;
    mesh.register(&WEB).await;
    // This sidecar is not attacked, and its Envoy is unaffected by the change below.
    let flags = mesh.flags(WEB.instance);
    let flags = flags.with("envoy-bootstrap-refresh-interval", "0");
    let mut web = mesh.sidecar(WEB.instance, &flags);
    web.ready().await;
    mesh.register(&API).await;
    let listener = json!({
        "Kind": "proxy-defaults",
        "Name": "global",
        "Config": {"envoy_prometheus_bind_addr": format!("{}:{PROMETHEUS}", mesh.flags(API.instance).address)},
    });
    mesh.api(Method::PUT, "/v1/config", Some(listener)).await;
    for attack in Attack::all(each) {
        let mut damages = Vec::new();
        for program in programs {
            damages.push(suffer(&mut mesh, program, application, &attack).await);
        }
        print(&attack, programs, &damages);
    }
    web.stop().await;
    mesh.stop().await;
}

/// An application with a large metrics page.
async fn application(scope: &Scope) -> SocketAddr {
    let piece = metrics::page("app", PAGE / 10);
    metrics::serve(scope, SocketAddr::from(([127, 0, 0, 1], 0)), piece, 10).await
}

async fn suffer(
    mesh: &mut Mesh,
    program: &Program,
    application: SocketAddr,
    attack: &Attack,
) -> Damage {
    let mut target = Target::start(mesh, program, application).await;
    mesh.settle(WEB.instance, 200).await;
    sleep(CALM).await;
    let before = target.state();

    let begun = Instant::now();
    let ports = target.ports;
    let attackers = tokio::select! {
        attackers = Attackers::begin(attack, &ports) => attackers,
        () = target.watch() => unreachable!("it watches for ever"),
    };
    let mut answered = 0;
    for _ in 0..PROBES {
        let next = sleep(PROBE);
        answered += u32::from(target.probe(PROBE).await);
        target.state();
        next.await;
    }
    // Consul's dataplane exits with its Envoy.
    let envoy_again = match program.name {
        "legate-dataplane" => target.envoy_again(PATIENCE).await,
        _ => None,
    };
    sleep(ATTACK.saturating_sub(begun.elapsed())).await;
    let (count, held) = (attackers.count(), attackers.held());
    drop(attackers);

    sleep(CALM).await;
    let after = target.state();
    let damage = Damage {
        attackers: count,
        held,
        before,
        most: target.most(),
        answered,
        envoy_again,
        after,
        update: update(mesh).await,
    };
    if let Some(trouble) = target.stop(PATIENCE).await {
        println!("\n{} {trouble}", program.name);
    }
    damage
}

/// The time until a changed intention takes effect.
async fn update(mesh: &Mesh) -> Option<f64> {
    mesh.intend("web", "api", "deny").await;
    let begun = Instant::now();
    let upstream = mesh.upstream(WEB.instance, 0);
    let denied = timeout(PATIENCE, target::answers(upstream, 403)).await;
    let took = begun.elapsed().as_secs_f64();
    mesh.intend("web", "api", "allow").await;
    denied.ok().map(|()| took)
}

fn print(attack: &Attack, programs: &[Program], damages: &[Damage]) {
    let table = Table::new(&attack.to_string(), programs, 1);
    let row = |label: &str, value: fn(&Damage) -> Option<f64>| {
        table.row(label, &damages.iter().map(value).collect::<Vec<_>>());
    };
    row("attackers that got a connection", |d| {
        Some(d.attackers as f64)
    });
    row("still connected after the attack", |d| Some(d.held as f64));
    row("resident before, MiB", |d| {
        Some(d.before.as_ref()?.resident)
    });
    row("resident, peak, MiB", |d| Some(d.most.peak));
    row("resident afterwards, MiB", |d| {
        Some(d.after.as_ref()?.resident)
    });
    row("open files before", |d| Some(d.before.as_ref()?.files));
    row("open files, most", |d| Some(d.most.files));
    row("open files afterwards", |d| Some(d.after.as_ref()?.files));
    row(
        &format!("probes answered within {} s, of {PROBES}", PROBE.as_secs()),
        |d| Some(f64::from(d.answered)),
    );
    row("killed Envoy ready again, s", |d| d.envoy_again);
    row("a changed intention holds afterwards, s", |d| d.update);
}
