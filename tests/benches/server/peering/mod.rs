//! Two peered clusters with a delay between them: one imports the services that the other one exports.
//!
//! The importing cluster generates the token, so the exporting one dials, through a [`Link`] only.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

mod figures;
mod mesh;
mod watch;

use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use legate_runtime::BoxError;
use legate_tests::client;
use legate_tests::program::Program;
use legate_tests::wait::eventually_within;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::figures::{Cost, Figures};
use self::mesh::{EXPORTER, IMPORTER};
use crate::relay::{End, Link, Ports};
use crate::servers::{Additional, Server};

/// The number of exported services.
pub(crate) const SERVICES: usize = 2_000;

/// The number of changes, of which the slowest hundredth is one.
const CHANGES: usize = 100;

/// The deadline for a change.
const CHANGE: Duration = Duration::from_secs(60);

/// The time for remaining work after an event.
const SETTLE: Duration = Duration::from_secs(1);

/// The number of seconds of the idle measurement: two heartbeats of each cluster.
const IDLE: usize = 30;

/// The deadline for the peering.
const PEER: Duration = Duration::from_secs(60);

/// The port for peered clusters.
const GRPC_TLS: u16 = 8503;

const PORTS: Ports = Ports {
    tcp: &[GRPC_TLS],
    udp: &[],
};

/// Measures each program with these numbers of services.
pub(crate) async fn measure(programs: &[Program], counts: &[usize], limit: Duration) {
    for count in counts.iter().copied() {
        let mut columns = Vec::new();
        for (place, program) in programs.iter().enumerate() {
            let network = 150 + u8::try_from(place).unwrap_or_default();
            let mut figures = Figures::default();
            let measured = measure_one(program, network, (count, limit), &mut figures).await;
            if let Err(error) = measured {
                println!("\n{}: {error}", program.name);
            }
            columns.push(figures);
        }
        figures::print(programs, (count, limit), &columns);
    }
}

/// Fills in the figures of a program until something is not possible with it.
async fn measure_one(
    program: &Program,
    network: u8,
    (count, limit): (usize, Duration),
    figures: &mut Figures,
) -> Result<(), BoxError> {
    let clusters = Clusters::start(program, network).await?;
    let [_, exporter] = &clusters.servers;
    exporter.put_all(&mesh::services(count)).await;
    clusters.peer().await?;
    sleep(SETTLE).await;
    clusters.import((count, limit), figures).await?;
    sleep(SETTLE).await;
    let mib = |kib: f64| kib / 1024.0;
    let memory = clusters.servers.each_ref().map(|one| one.running.memory());
    figures.resident = Some(memory.each_ref().map(|memory| mib(memory.resident)));
    figures.private = Some(memory.each_ref().map(|memory| mib(memory.private)));
    if figures.all.is_some() {
        let before = clusters.meter();
        watch::imported(clusters.importer(), count, limit, |_, _| {}).await;
        figures.reading = Some(before.cost(&clusters));
        clusters.changes(count, figures).await?;
    }
    let peak = |server: &Server| mib(server.running.peak());
    figures.peak = Some(clusters.servers.each_ref().map(peak));
    for server in clusters.servers {
        server.running.stop().await;
    }
    Ok(())
}

/// The servers of two clusters, first the importing one, and the link between them.
struct Clusters {
    servers: [Server; 2],
    link: Link,
    /// Where the exporting cluster reaches the importing one.
    relay: Ipv4Addr,
}

impl Clusters {
    async fn start(program: &Program, network: u8) -> Result<Self, BoxError> {
        let end = |number| End {
            server: Ipv4Addr::new(127, network, 0, number),
            relay: Ipv4Addr::new(127, network, 1, number),
        };
        let ends = [end(1), end(2)];
        let link = Link::start(ends, PORTS).await?;
        let [first, second] = ends;
        let importer = Server::start_with(program, first.server, &additional("dc1")).await;
        let exporter = Server::start_with(program, second.server, &additional("dc2")).await;
        Ok(Self {
            servers: [importer, exporter],
            link,
            relay: first.relay,
        })
    }

    fn importer(&self) -> &Server {
        let [importer, _] = &self.servers;
        importer
    }

    /// Establishes the peering and waits until both clusters are connected.
    async fn peer(&self) -> Result<(), BoxError> {
        let [importer, exporter] = &self.servers;
        let body = json!({
            "PeerName": EXPORTER,
            "ServerExternalAddresses": [format!("{}:{GRPC_TLS}", self.relay)],
        });
        let body = Bytes::from(body.to_string());
        let token = importer
            .call(Method::POST, "/v1/peering/token", body)
            .await?;
        let token: Value = serde_json::from_slice(&token)?;
        let body = json!({"PeerName": IMPORTER, "PeeringToken": token["PeeringToken"]});
        let body = Bytes::from(body.to_string());
        exporter
            .call(Method::POST, "/v1/peering/establish", body)
            .await?;
        for (server, peer) in [(importer, EXPORTER), (exporter, IMPORTER)] {
            let path = format!("/v1/peering/{peer}");
            let state = || async {
                let answer = client::get(server.http(), &path).await.ok()?;
                let peering: Value = serde_json::from_str(&answer.1).ok()?;
                peering["State"].as_str().map(str::to_owned)
            };
            let active = |state: &Option<String>| state.as_deref() == Some("ACTIVE");
            eventually_within(PEER, "the clusters are connected", state, active).await;
        }
        Ok(())
    }

    fn meter(&self) -> Meter {
        Meter {
            start: Instant::now(),
            work: self.work(),
            bytes: self.link.bytes(),
        }
    }

    /// CPU milliseconds of each server so far.
    fn work(&self) -> [f64; 2] {
        let servers = self.servers.each_ref();
        servers.map(|server| server.running.processor_time())
    }

    /// Exports everything and waits until it is imported, or the limit is reached.
    async fn import(
        &self,
        (count, limit): (usize, Duration),
        figures: &mut Figures,
    ) -> Result<(), BoxError> {
        let [importer, exporter] = &self.servers;
        let before = self.meter();
        let watched = watch::imported(importer, count, limit, |imported, at| {
            let cost = || Some(before.cost_until(at, self));
            if imported == (count * figures::MOST).div_ceil(100) {
                figures.most = cost();
            }
            if imported == count {
                figures.all = cost();
            }
        });
        let export = mesh::export();
        let (made, imported) = tokio::join!(exporter.put(&export), watched);
        made?;
        figures.imported = Some(imported as f64);
        Ok(())
    }

    /// Makes the changes one after the other, after a while without any.
    async fn changes(&self, count: usize, figures: &mut Figures) -> Result<(), BoxError> {
        let [importer, exporter] = &self.servers;
        for _ in 0..IDLE {
            let before = self.meter();
            sleep(SETTLE).await;
            figures.idle.push(before.cost(self));
        }
        let usual = figures.usual_work();
        for round in 0..CHANGES {
            let change = mesh::change(count, round);
            let watch = watch::Watch::start(importer, change.query).await?;
            let before = self.meter();
            let (made, arrived) = tokio::join!(
                exporter.put(&change.write),
                watch.has(change.healthy, before.start + CHANGE)
            );
            made?;
            let delay = arrived?.duration_since(before.start);
            figures.delays.push(delay.as_secs_f64() * 1e3);
            sleep(SETTLE).await;
            figures.changes.push(before.cost(self).without(usual));
        }
        Ok(())
    }
}

/// What both servers and the link had used at a moment.
struct Meter {
    start: Instant,
    work: [f64; 2],
    bytes: u64,
}

impl Meter {
    /// What was used since then.
    fn cost(&self, clusters: &Clusters) -> Cost {
        self.cost_until(Instant::now(), clusters)
    }

    /// The same, if what it was used for ended a moment ago.
    fn cost_until(&self, end: Instant, clusters: &Clusters) -> Cost {
        let now = clusters.work();
        Cost {
            seconds: end.duration_since(self.start).as_secs_f64(),
            work: [0, 1].map(|place| now[place] - self.work[place]),
            bytes: (clusters.link.bytes() - self.bytes) as f64,
        }
    }
}

/// The settings of a server for peered clusters.
fn additional(datacenter: &str) -> Additional {
    Additional {
        flags: vec![
            format!("--datacenter={datacenter}"),
            format!("--grpc-tls-port={GRPC_TLS}"),
            "--peering".to_owned(),
        ],
        settings: json!({
            "datacenter": datacenter,
            "ports": {
                "http": 8500, "grpc": 8502, "grpc_tls": GRPC_TLS, "dns": -1, "serf_wan": -1,
            },
        }),
    }
}
