//! Sidecars of a real mesh with real Envoys: time from exec to ready, idle memory, health probe.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use axum::{Router, routing};
use legate_runtime::Scope;
use legate_testkit::envoy;
use legate_testkit::network::free_port;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, client};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::Options;
use legate_tests::program::{Memory, Program, Running};
use legate_tests::table::{Table, median};

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
/// The xDS cluster of the bootstrap document.
const XDS_CLUSTER: &str = "consul-dataplane";
/// The server's plaintext gRPC port.
const GRPC: u16 = 8502;
/// Envoy's admin port.
const ADMIN: u16 = 19000;
/// Long enough for temporary memory of the start to be freed.
const IDLE: Duration = Duration::from_secs(5);
/// The polling interval.
const POLL: Duration = Duration::from_micros(500);
/// The deadline for a start, with a wide margin.
const LIMIT: Duration = Duration::from_secs(30);

/// Durations in milliseconds of one program's starts.
#[derive(Default)]
struct Starts {
    until_envoy: Vec<f64>,
    until_ready: Vec<f64>,
}

/// The resources of an idle sidecar.
struct Idle {
    own: Memory,
    envoy: Memory,
    threads: usize,
}

pub(crate) async fn measure(programs: &[Program], options: &Options) {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = mesh.add(&API).await;
    mesh.register(&WEB).await;
    let bench = Bench::new(&mut mesh);
    let mut starts: Vec<Starts> = programs.iter().map(|_| Starts::default()).collect();
    let mut idle = Vec::new();
    let mut stages = Vec::new();
    let (mut alone, mut bootstrap) = (Vec::new(), None);
    for round in 0..options.starts {
        if let Some(document) = &bootstrap {
            alone.push(bench.envoy_alone(document).await);
        }
        for (program, starts) in programs.iter().zip(&mut starts) {
            let (running, until_envoy, until_ready) = bench.sidecar(program).await;
            starts.until_envoy.push(until_envoy);
            starts.until_ready.push(until_ready);
            if std::ptr::eq(program, &raw const programs[0]) {
                stages.push(bench.stages().await);
                if bootstrap.is_none() {
                    bootstrap = Some(bench.bootstrap().await);
                }
            }
            if round + 1 == options.starts {
                mesh.settle(WEB.instance, 200).await;
                sleep(IDLE).await;
                idle.push(Idle {
                    own: running.memory(),
                    envoy: Memory::of_pid(running.children()[0]),
                    threads: running.thread_count(),
                });
            }
            running.stop().await;
        }
    }
    api.signal(Signal::SIGTERM);
    api.exit().await;
    mesh.stop().await;
    print_idle(programs, &idle);
    print_starts(programs, &starts, &alone);
    print_stages(&stages);
    probes(programs, options.probes).await;
}

fn print_idle(programs: &[Program], idle: &[Idle]) {
    let title = format!("idle for {} s with an upstream, KiB", IDLE.as_secs());
    let table = Table::new(&title, programs, 0);
    let row = |label: &str, value: fn(&Idle) -> f64| {
        table.row(
            label,
            &idle
                .iter()
                .map(|idle| Some(value(idle)))
                .collect::<Vec<_>>(),
        );
    };
    row("resident", |idle| idle.own.resident);
    row("private", |idle| idle.own.private);
    row("private, in no file", |idle| idle.own.anonymous);
    row("threads", |idle| idle.threads as f64);
    row("its Envoy, resident", |idle| idle.envoy.resident);
}

fn print_starts(programs: &[Program], starts: &[Starts], alone: &[f64]) {
    let title = format!("{} starts, ms from exec", starts[0].until_ready.len());
    let table = Table::new(&title, programs, 1);
    let until = |value: fn(&Starts) -> &Vec<f64>| -> Vec<Vec<f64>> {
        starts.iter().map(|starts| value(starts).clone()).collect()
    };
    let (envoy, ready) = (until(|s| &s.until_envoy), until(|s| &s.until_ready));
    table.medians("to Envoy's exec, median", &envoy);
    table.medians("to Envoy's readiness, median", &ready);
    table.largest("to Envoy's readiness, slowest", &ready);
    if let Some(alone) = median(alone) {
        table.row(
            "Envoy alone, same document and server, median",
            &vec![Some(alone); programs.len()],
        );
        let added: Vec<_> = ready
            .iter()
            .map(|ready| Some(median(ready)? - alone))
            .collect();
        table.row("added to Envoy's own start", &added);
    }
}

fn print_stages(starts: &[Vec<(String, f64)>]) {
    println!("\n| legate-dataplane, ms from exec, by its own clock | median |");
    println!("|---|---:|");
    for (stage, _) in starts.first().into_iter().flatten() {
        let all = starts.iter().flatten();
        let times: Vec<f64> = all
            .filter(|(name, _)| name == stage)
            .map(|(_, seconds)| seconds * 1000.0)
            .collect();
        println!("| {stage} | {:.1} |", median(&times).unwrap_or_default());
    }
}

struct Bench {
    arguments: Vec<String>,
    server: SocketAddr,
    admin: SocketAddr,
    lifecycle: SocketAddr,
    folder: PathBuf,
}

impl Bench {
    fn new(mesh: &mut Mesh) -> Bench {
        let flags = mesh.flags(WEB.instance);
        let address = flags.address.to_string();
        let mut arguments = vec![
            format!("-envoy-executable-path={}", envoy::binary().display()),
            format!("-envoy-admin-bind-address={address}"),
            format!("-graceful-addr={address}"),
        ];
        let named = flags.flags.iter();
        arguments.extend(named.map(|(flag, value)| format!("-{flag}={value}")));
        let server = flags.flags.iter().find(|(flag, _)| *flag == "addresses");
        let server = server.and_then(|(_, address)| address.parse().ok());
        Bench {
            arguments,
            server: SocketAddr::new(server.expect("the server's address"), GRPC),
            admin: (flags.address, ADMIN).into(),
            lifecycle: (flags.address, 20300).into(),
            folder: mesh.file(""),
        }
    }

    /// Starts a sidecar; returns milliseconds until it has started Envoy, and until Envoy is ready.
    async fn sidecar(&self, program: &Program) -> (Running, f64, f64) {
        let log = self.folder.join(format!("{}.log", program.name));
        let start = Instant::now();
        let mut running = Running::start(&program.path, &self.arguments, log);
        let mut until_envoy = None;
        let until_ready = self
            .until_ready(start, || {
                running.check();
                if until_envoy.is_none() && !running.children().is_empty() {
                    until_envoy = Some(milliseconds(start));
                }
            })
            .await;
        let until_envoy = until_envoy.expect("Envoy does not run without a process");
        (running, until_envoy, until_ready)
    }

    /// Milliseconds until an Envoy that connects to the server directly is ready.
    async fn envoy_alone(&self, document: &Value) -> f64 {
        let file = self.folder.join("bootstrap.json");
        std::fs::write(&file, document.to_string()).expect("the document can be written");
        let arguments = [
            "--config-path",
            &file.display().to_string(),
            "--disable-hot-restart",
            "--concurrency",
            "2",
        ]
        .map(str::to_owned);
        let start = Instant::now();
        let log = self.folder.join("alone.log");
        let mut running = Running::start(&envoy::binary(), &arguments, log);
        let ready = self.until_ready(start, || running.check()).await;
        running.stop().await;
        ready
    }

    async fn until_ready(&self, start: Instant, mut look: impl FnMut()) -> f64 {
        let wait = async {
            loop {
                look();
                // Requests are sent once Envoy listens.
                if TcpStream::connect(self.admin).await.is_ok() {
                    let answer = client::get(self.admin, "/ready").await;
                    if answer.is_ok_and(|(status, _)| status.is_success()) {
                        return milliseconds(start);
                    }
                }
                sleep(POLL).await;
            }
        };
        timeout(LIMIT, wait).await.expect("Envoy gets ready")
    }

    /// The bootstrap document of the running Envoy, with the server in place of the dataplane.
    async fn bootstrap(&self) -> Value {
        let path = "/config_dump?resource=&mask=bootstrap";
        let (_, text) = client::get(self.admin, path)
            .await
            .expect("Envoy's document");
        let dump: Value = serde_json::from_str(&text).expect("a JSON document");
        let dumps = dump["configs"].as_array().expect("a list");
        let found = dumps.iter().find(|dump| dump.get("bootstrap").is_some());
        let mut document = found.expect("the bootstrap document")["bootstrap"].clone();
        let clusters = document["static_resources"]["clusters"].as_array_mut();
        let cluster = clusters
            .into_iter()
            .flatten()
            .find(|cluster| cluster["name"] == XDS_CLUSTER)
            .expect("the cluster of the xDS server");
        let endpoint = &mut cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0];
        endpoint["endpoint"]["address"] = json!({"socket_address": {
            "address": self.server.ip().to_string(),
            "port_value": self.server.port(),
        }});
        document
    }

    /// `startup_stage_seconds{stage="…"}` from the dataplane's own metrics, in order.
    async fn stages(&self) -> Vec<(String, f64)> {
        let text = match client::get(self.lifecycle, "/metrics").await {
            Ok((_, text)) => text,
            Err(error) => panic!("the dataplane's own metrics: {error}"),
        };
        let lines = text
            .lines()
            .filter(|line| !line.starts_with('#') && line.contains("startup_stage_seconds{"));
        let stages = lines.filter_map(|line| {
            let stage = line.split("stage=\"").nth(1)?.split('"').next()?;
            Some((stage.to_owned(), line.rsplit(' ').next()?.parse().ok()?))
        });
        let mut stages: Vec<(String, f64)> = stages.collect();
        stages.sort_by(|(_, one), (_, other)| one.total_cmp(other));
        stages
    }
}

/// `-check-proxy-health` against a loopback server that reports ready.
async fn probes(programs: &[Program], count: u32) {
    let scope = Scope::new("ready");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let listener = TcpListener::bind(address).await.expect("a free address");
    let router = Router::new().route("/ready", routing::get(async || "LIVE\n"));
    let stop = scope.token().cancelled_owned();
    scope.spawn("ready", async move {
        axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
    });
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); programs.len()];
    for _ in 0..count {
        for (program, times) in programs.iter().zip(&mut times) {
            let mut probe = Command::new(&program.path);
            probe
                .arg("-check-proxy-health")
                .arg(format!("-envoy-admin-bind-port={}", address.port()))
                .env_clear()
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let start = Instant::now();
            // The server runs on other threads.
            let status = probe.status().expect("the program can be started");
            times.push(milliseconds(start));
            assert!(status.success(), "{}: {status}", program.name);
        }
    }
    scope.stop(LIMIT).await.expect("the server stops");
    let table = Table::new(&format!("{count} health probes, ms"), programs, 2);
    table.medians("median", &times);
    table.largest("slowest", &times);
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1000.0
}
