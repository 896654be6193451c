//! What a sidecar costs: memory when idle, and time from exec to ready by stage.
//!
//! Prints tables; passes no judgement.
#![expect(clippy::print_stdout, reason = "its result is the table it prints")]

use std::collections::BTreeMap;
use std::time::Duration;

use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

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
/// Long enough for caches of the start to be gone.
const IDLE: Duration = Duration::from_secs(5);

fn main() {
    let mut starts = 10;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--starts" {
            starts = args
                .next()
                .and_then(|value| value.parse().ok())
                .unwrap_or(starts);
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(measure(starts));
}

async fn measure(starts: u32) {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = mesh.add(&API).await;
    mesh.register(&WEB).await;
    let flags = mesh.flags(WEB.instance);
    let mut stages: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut rows = Vec::new();
    for start in 0..starts {
        let mut web = mesh.sidecar("web", &flags);
        web.ready().await;
        for (stage, seconds) in startup_stages(&web).await {
            stages.entry(stage).or_default().push(seconds);
        }
        if start + 1 == starts {
            mesh.settle("web", 200).await;
            tokio::time::sleep(IDLE).await;
            rows.push(("legate-dataplane", memory(web.pid())));
            rows.push(("its Envoy", memory(web.envoy())));
        }
        web.signal(Signal::SIGTERM);
        web.exit().await;
    }
    api.signal(Signal::SIGTERM);
    api.exit().await;
    mesh.stop().await;
    println!(
        "\n| idle, after {} s | resident KiB | private KiB |",
        IDLE.as_secs()
    );
    println!("|---|---:|---:|");
    for (name, (resident, private)) in rows {
        println!("| {name} | {resident} | {private} |");
    }
    println!("\n| from exec to ready, {starts} starts | median ms | slowest ms |");
    println!("|---|---:|---:|");
    for (stage, mut seconds) in stages {
        seconds.sort_by(f64::total_cmp);
        let (median, slowest) = (seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
        println!(
            "| {stage} | {:.1} | {:.1} |",
            median * 1000.0,
            slowest * 1000.0
        );
    }
}

/// Resident and private memory of a process, in KiB, as the kernel counts them.
fn memory(pid: Pid) -> (u64, u64) {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process runs");
    let field = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .unwrap_or_default()
    };
    (
        field("Rss:"),
        field("Private_Clean:") + field("Private_Dirty:"),
    )
}

/// `startup_stage_seconds{stage="…"}` of the dataplane's own metrics.
async fn startup_stages(sidecar: &Sidecar) -> Vec<(String, f64)> {
    let (_, text) = client::get(sidecar.lifecycle(), "/metrics")
        .await
        .expect("metrics");
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && line.contains("startup_stage_seconds{"));
    lines
        .filter_map(|line| {
            let stage = line.split("stage=\"").nth(1)?.split('"').next()?;
            Some((stage.to_owned(), line.rsplit(' ').next()?.parse().ok()?))
        })
        .collect()
}
