//! A caller and a called service, whose sidecars are measured.

use std::net::SocketAddr;
use std::time::Duration;

use legate_runtime::Scope;
use legate_tests::program::Memory;
use legate_tests::wait::eventually_within;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{echo, load};

const DB: ServiceSpec = ServiceSpec::tcp("db", &[]);
const SHOP: ServiceSpec = ServiceSpec::tcp("shop", &["db"]);

/// The most connections of a cluster, far above Envoy's default.
const CONNECTIONS: u32 = 20_000;
/// The ports of additional upstreams.
const FIRST_PORT: usize = 21_000;
/// Within this time Envoy has a thousand listeners.
const LISTENERS: Duration = Duration::from_secs(300);

/// A caller and a called service with the same kind of proxy.
pub(crate) struct Pair {
    kind: &'static str,
    mesh: Mesh,
    caller: Sidecar,
    called: Sidecar,
    pub(crate) upstream: SocketAddr,
    applications: Scope,
}

impl Pair {
    pub(crate) async fn start(kind: &'static str) -> Pair {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        let applications = Scope::new("applications");
        mesh.use_proxy(kind);
        mesh.intend("shop", "db", "allow").await;
        mesh.register_dead(&DB).await;
        let inbound = json!({"Config": {"max_inbound_connections": CONNECTIONS}});
        mesh.configure(&DB, inbound).await;
        echo::serve(mesh.application("db"), &applications).await;
        let called = mesh.join(&DB).await;
        mesh.register(&SHOP).await;
        let upstream = mesh.upstream("shop", 0);
        mesh.configure(&SHOP, json!({"Upstreams": [to_db(upstream)]}))
            .await;
        let caller = mesh.join(&SHOP).await;
        eventually(
            "an exchange succeeds",
            || load::exchanged(upstream),
            |done| *done,
        )
        .await;
        Pair {
            kind,
            mesh,
            caller,
            called,
            upstream,
            applications,
        }
    }

    /// The processes of both sidecars, with their Envoys.
    fn processes(&self) -> Vec<Pid> {
        let mut all = vec![self.caller.pid(), self.called.pid()];
        if self.kind == "envoy" {
            all.extend([self.caller.envoy(), self.called.envoy()]);
        }
        all
    }

    /// The processes of the caller's sidecar.
    pub(crate) fn callers(&self) -> Vec<Pid> {
        let mut all = vec![self.caller.pid()];
        if self.kind == "envoy" {
            all.push(self.caller.envoy());
        }
        all
    }

    /// Memory of both sidecars that is in no file, in KiB.
    pub(crate) fn memory(&self) -> f64 {
        memory_of(&self.processes())
    }

    /// CPU time of both sidecars so far.
    pub(crate) fn processor_time(&self) -> Duration {
        processor_time_of(&self.processes())
    }

    /// Gives the caller so many upstreams more, and waits until its proxy listens for each.
    pub(crate) async fn set_upstreams(&self, count: usize) {
        self.write_upstreams(count).await;
        // A page of a thousand listeners is work for Envoy, too: it is not asked all the time.
        let listeners = async || {
            sleep(Duration::from_secs(1)).await;
            let page = client::get(self.caller.admin(), "/listeners").await;
            page.map_or(0, |(_, page)| page.lines().count())
        };
        let enough = |listeners: &usize| *listeners > count;
        eventually_within(LISTENERS, "each upstream has a listener", listeners, enough).await;
    }

    /// Gives the caller so many upstreams more.
    pub(crate) async fn write_upstreams(&self, count: usize) {
        let address = self.upstream.ip();
        let others = (0..count).map(|number| {
            let port = FIRST_PORT + number;
            json!({"DestinationName": format!("up-{number}"), "LocalBindAddress": address, "LocalBindPort": port})
        });
        let mut upstreams = vec![to_db(self.upstream)];
        upstreams.extend(others);
        self.mesh
            .configure(&SHOP, json!({"Upstreams": upstreams}))
            .await;
    }

    /// Milliseconds from exec to ready of the called service's sidecar.
    pub(crate) fn start_time(&self) -> Option<f64> {
        start_time(&self.called)
    }

    pub(crate) async fn stop(self) {
        for mut sidecar in [self.caller, self.called] {
            sidecar.stop().await;
        }
        self.mesh.stop().await;
        let _ = self.applications.stop(Duration::from_secs(10)).await;
    }
}

/// Memory of processes that is in no file, in KiB.
pub(crate) fn memory_of(processes: &[Pid]) -> f64 {
    let all = processes.iter();
    all.map(|pid| Memory::of_pid(*pid).anonymous).sum()
}

/// CPU time of processes so far.
pub(crate) fn processor_time_of(processes: &[Pid]) -> Duration {
    let all = processes.iter().map(|pid| {
        let clock = clock_getcpuclockid(*pid).expect("the process has a clock");
        Duration::from(clock.now().expect("the process runs"))
    });
    all.sum()
}

/// The upstream at an address.
fn to_db(address: SocketAddr) -> Value {
    json!({
        "DestinationName": "db", "LocalBindAddress": address.ip(), "LocalBindPort": address.port(),
        "Config": {"limits": {"max_connections": CONNECTIONS}},
    })
}

/// Milliseconds from exec to ready, as a sidecar has logged it.
pub(crate) fn start_time(sidecar: &Sidecar) -> Option<f64> {
    let log = sidecar.log();
    let line = log.lines().find(|line| line.contains("ready: listen"))?;
    let (_, time) = line.rsplit_once("ready ")?;
    time.strip_suffix(" ms")?.parse().ok()
}
