//! The outage when Envoy is killed or replaced, under load and without any server, with and without
//! hot restart.

use std::path::PathBuf;
use std::time::Duration;

use legate_tests::load::Load;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::Options;
use legate_tests::program::Program;
use legate_tests::table::Table;

const API: ServiceSpec = ServiceSpec {
    service: "api",
    instance: "api",
    protocol: "http",
    upstreams: &[],
};

/// The number of sidecars of each kind. An Envoy is killed once it counts as healthy, which takes
/// 10 s, so several are used in turn.
const EACH: usize = 3;
const INSTANCES: [[&str; EACH]; 2] = [["hot-1", "hot-2", "hot-3"], ["cold-1", "cold-2", "cold-3"]];

/// The number of hot restarts: each waits until the previous one has released its parent.
const HAND_OVERS: usize = 3;

/// The deadline of every step, with a wide margin.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// The interval between requests that probe for an outage.
const PAUSE: Duration = Duration::from_millis(1);
/// How long probing continues after the new Envoy serves.
const AFTER: Duration = Duration::from_millis(500);

struct Bench {
    mesh: Mesh,
    /// Sidecars with and without hot restart.
    kinds: [Vec<(&'static str, Sidecar)>; 2],
}

/// The outage seen by a client while Envoy was replaced.
#[derive(Default)]
struct Gap {
    failed: u32,
    longest: f64,
}

pub(crate) async fn measure(options: &Options) {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = mesh.add(&API).await;
    let kinds = [
        sidecars(&mut mesh, INSTANCES[0], "true").await,
        sidecars(&mut mesh, INSTANCES[1], "false").await,
    ];
    mesh.stop_server().await;
    let bench = Bench { mesh, kinds };
    bench.kills(options.kills as usize).await;
    bench.replacements(options.kills as usize).await;
    let Bench { mesh, kinds } = bench;
    for (_, mut sidecar) in kinds.into_iter().flatten() {
        sidecar.stop().await;
    }
    api.stop().await;
    mesh.stop().await;
}

async fn sidecars(
    mesh: &mut Mesh,
    instances: [&'static str; EACH],
    hot: &str,
) -> Vec<(&'static str, Sidecar)> {
    let mut sidecars = Vec::new();
    for instance in instances {
        mesh.register(&ServiceSpec {
            service: "web",
            instance,
            protocol: "http",
            upstreams: &["api"],
        })
        .await;
        let flags = mesh
            .flags(instance)
            .with("envoy-hot-restart", hot)
            .with("envoy-drain-time-seconds", "1");
        let mut sidecar = mesh.sidecar(instance, &flags);
        sidecar.ready().await;
        mesh.settle(instance, 200).await;
        sidecars.push((instance, sidecar));
    }
    sidecars
}

/// Waits for a state of a sidecar's Envoy.
async fn until(sidecar: &Sidecar, what: &str, accept: impl Fn(&Value) -> bool) {
    let waited = timeout(LIMIT, async {
        while !accept(&sidecar.status().await["envoy"]) {
            sleep(POLL).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}:\n{}", sidecar.log());
}

impl Bench {
    /// Starts the load on every sidecar of one kind.
    fn load(&self, kind: usize) -> Vec<Load> {
        let instances = self.kinds[kind].iter();
        let upstreams = instances.map(|(instance, _)| self.mesh.upstream(instance, 0));
        upstreams.map(Load::start).collect()
    }

    async fn kills(&self, kills: usize) {
        let loads = [self.load(0), self.load(1)];
        let mut taken = [Vec::new(), Vec::new()];
        for turn in 0..kills {
            for (kind, taken) in self.kinds.iter().zip(&mut taken) {
                let (instance, sidecar) = &kind[turn % EACH];
                until(sidecar, "healthy", |envoy| envoy["state"] == "healthy").await;
                let upstream = self.mesh.upstream(instance, 0);
                let killed = Instant::now();
                kill(sidecar.envoy(), Signal::SIGKILL).expect("Envoy runs");
                let answered = timeout(LIMIT, async {
                    while !client::get(upstream, "/")
                        .await
                        .is_ok_and(|(s, _)| s.is_success())
                    {
                        sleep(PAUSE).await;
                    }
                });
                assert!(answered.await.is_ok(), "no answer:\n{}", sidecar.log());
                taken.push(killed.elapsed().as_secs_f64() * 1e3);
            }
        }
        finish(loads).await;
        let title = format!("Envoy killed {kills} times, no server: ms until the next answer");
        let columns = columns();
        let table = Table::new(&title, &columns, 0);
        table.medians("median", &taken);
        table.row(
            "90th percentile",
            &taken.each_ref().map(|values| percentile(values, 0.9)),
        );
        table.largest("slowest", &taken);
    }

    async fn replacements(&self, kills: usize) {
        let loads = [self.load(0), self.load(1)];
        let mut gaps = [Vec::new(), Vec::new()];
        for (kind, times) in [(0, HAND_OVERS * EACH), (1, kills)] {
            for turn in 0..times {
                let (instance, sidecar) = &self.kinds[kind][turn % EACH];
                let alone =
                    |envoy: &Value| envoy["epochs"].as_array().is_some_and(|e| e.len() == 1);
                until(sidecar, "alone", alone).await;
                gaps[kind].push(self.replace(instance, sidecar).await);
            }
        }
        finish(loads).await;
        let title = format!(
            "Envoy replaced {} times hot and {kills} times cold, no server",
            HAND_OVERS * EACH
        );
        let columns = columns();
        let table = Table::new(&title, &columns, 0);
        let of = |value: fn(&Gap) -> f64| {
            gaps.each_ref()
                .map(|gaps| gaps.iter().map(value).collect::<Vec<f64>>())
        };
        let failed = of(|gap| f64::from(gap.failed)).map(|failed| Some(failed.iter().sum()));
        table.row("failed requests of one client", &failed);
        let longest = of(|gap| gap.longest);
        table.medians("longest time without an answer, ms, median", &longest);
        table.largest("longest time without an answer, ms, slowest", &longest);
    }

    /// Replaces Envoy while a client sends requests on new connections without pause.
    async fn replace(&self, instance: &str, sidecar: &Sidecar) -> Gap {
        let upstream = self.mesh.upstream(instance, 0);
        let mut gap = Gap::default();
        let mut last = Instant::now();
        let asking = async {
            loop {
                if client::get(upstream, "/")
                    .await
                    .is_ok_and(|(s, _)| s.is_success())
                {
                    gap.longest = gap.longest.max(last.elapsed().as_secs_f64() * 1e3);
                    last = Instant::now();
                } else {
                    gap.failed += 1;
                }
                sleep(PAUSE).await;
            }
        };
        let replacing = async {
            let (status, text) = sidecar.restart().await;
            assert!(status.is_success(), "{status}: {text}\n{}", sidecar.log());
            sleep(AFTER).await;
        };
        tokio::select! { () = asking => {}, () = replacing => {} }
        gap
    }
}

async fn finish(loads: [Vec<Load>; 2]) {
    for load in loads.into_iter().flatten() {
        load.finish().await;
    }
}

fn columns() -> [Program; 2] {
    ["hot restart", "cold restart"].map(|name| Program {
        name,
        path: PathBuf::new(),
    })
}

fn percentile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied()
}
