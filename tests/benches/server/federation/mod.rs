//! Two datacenters with a delay between them: the proxies of `dc1` use services of `dc2`.
//!
//! `dc1` is the primary. The servers reach each other through a [`Link`] only; all else is local.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

mod callers;
mod figures;
mod mesh;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use legate_runtime::BoxError;
use legate_testkit::certs::TestCa;
use legate_tests::client;
use legate_tests::program::Program;
use legate_tests::wait::eventually_within;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use self::callers::{Callers, Event};
use self::figures::{Cost, Figures};
use self::mesh::INSTANCES;
use crate::relay::{End, Link, Ports};
use crate::servers::{Additional, Kind, Server};

/// The number of proxies in `dc1`, and of services in `dc2`.
pub(crate) const PROXIES: usize = 1_000;

/// The number of changes, of which the slowest hundredth is one.
const CHANGES: usize = 100;

/// The deadline for a change.
const CHANGE: Duration = Duration::from_secs(60);

/// After so many changes that did not arrive, no more are made.
const MISSED: usize = 3;

/// The share of the proxies, in percent, whose configuration is measured in addition to that of all: a single one may
/// wait for long.
const MOST: usize = 99;

/// The time for remaining traffic after a proxy has a change.
const SETTLE: Duration = Duration::from_secs(1);

/// The duration of the idle measurement: several probes between the servers.
const IDLE: Duration = Duration::from_secs(30);

/// The deadline for the servers to find each other.
const JOIN: Duration = Duration::from_secs(60);

/// The port of `legate-server` for other datacenters.
const LEGATE: u16 = 8302;

const LEGATE_PORTS: Ports = Ports {
    tcp: &[LEGATE],
    udp: &[],
};

/// Consul's port for servers, and that for gossip between datacenters.
const CONSUL_PORTS: Ports = Ports {
    tcp: &[8300, 8302],
    udp: &[8302],
};

/// Measures each program with these numbers of proxies.
pub(crate) async fn measure(programs: &[Program], counts: &[usize], limit: Duration) {
    for count in counts.iter().copied() {
        let mut columns = Vec::new();
        for (place, program) in programs.iter().enumerate() {
            let network = 140 + u8::try_from(place).unwrap_or_default();
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

/// Fills in the figures of a program until something does not happen in time.
async fn measure_one(
    program: &Program,
    network: u8,
    (count, limit): (usize, Duration),
    figures: &mut Figures,
) -> Result<(), BoxError> {
    let mesh = Datacenters::start(program, network).await?;
    let [dc1, dc2] = &mesh.servers;
    dc1.put_all(&mesh::configuration()).await;
    dc2.put_all(&mesh::services(count)).await;
    dc1.put_all(&mesh::callers(count)).await;
    mesh.joined(count).await;
    sleep(SETTLE).await;
    let (callers, configured) = mesh.configure(count, limit, figures).await;
    if !configured.is_empty() {
        mesh.changes(callers, &configured, figures).await?;
    }
    figures.peak = Some(mesh.of_both(|server| server.running.peak() / 1024.0));
    for server in mesh.servers {
        server.running.stop().await;
    }
    Ok(())
}

/// The servers of two datacenters, and the link between them.
struct Datacenters {
    servers: [Server; 2],
    link: Link,
    _authority: TestCa,
}

impl Datacenters {
    async fn start(program: &Program, network: u8) -> Result<Self, BoxError> {
        let end = |number| End {
            server: Ipv4Addr::new(127, network, 0, number),
            relay: Ipv4Addr::new(127, network, 1, number),
        };
        let ends = [end(1), end(2)];
        let ports = match Kind::of(program) {
            Kind::Legate => LEGATE_PORTS,
            Kind::Consul => CONSUL_PORTS,
        };
        let link = Link::start(ends, ports).await?;
        let authority = TestCa::new();
        let [first, second] = ends;
        let additional = additional("dc1", first, None, &authority);
        let dc1 = Server::start_with(program, first.server, &additional).await;
        let additional = self::additional("dc2", second, Some(first.relay), &authority);
        let dc2 = Server::start_with(program, second.server, &additional).await;
        Ok(Self {
            servers: [dc1, dc2],
            link,
            _authority: authority,
        })
    }

    fn of_both(&self, value: impl Fn(&Server) -> f64) -> [f64; 2] {
        self.servers.each_ref().map(value)
    }

    fn work(&self) -> [f64; 2] {
        self.of_both(|server| server.running.processor_time() / 1e3)
    }

    /// Waits until `dc1` can ask `dc2` about the last service.
    async fn joined(&self, count: usize) {
        let [dc1, _] = &self.servers;
        let path = format!("/v1/health/connect/service-{}?dc=dc2", count - 1);
        let instances = || async {
            let answer = client::get(dc1.http(), &path).await;
            let body = answer.map(|(_, body)| body).unwrap_or_default();
            let instances: Value = serde_json::from_str(&body).unwrap_or_default();
            instances.as_array().map(Vec::len)
        };
        let complete = |found: &Option<usize>| *found == Some(INSTANCES);
        eventually_within(JOIN, "dc1 knows the services of dc2", instances, complete).await;
    }

    /// Connects all proxies at once and waits until each is configured with all endpoints, or the limit is reached.
    /// Returns the proxies that are configured.
    async fn configure(
        &self,
        count: usize,
        limit: Duration,
        figures: &mut Figures,
    ) -> (Callers, Vec<usize>) {
        let [dc1, _] = &self.servers;
        let (work, bytes) = (self.work(), self.link.bytes());
        let start = Instant::now();
        let cost = |end: Instant| {
            let now = self.work();
            Cost {
                seconds: end.duration_since(start).as_secs_f64(),
                work: [0, 1].map(|place| now[place] - work[place]),
                bytes: (self.link.bytes() - bytes) as f64,
            }
        };
        let mut callers = Callers::connect(count, dc1.grpc(), dc1.references().secrets);
        // The largest number of healthy endpoints that each proxy had.
        let mut seen = BTreeMap::new();
        let (mut configured, mut broken, mut end) = (0, 0, start);
        while configured < count
            && let Ok(Some(event)) = timeout_at(start + limit, callers.events.recv()).await
        {
            match event {
                Event::Configured {
                    caller,
                    at,
                    healthy,
                } => {
                    let most = seen.entry(caller).or_insert(0);
                    if *most < INSTANCES && healthy == INSTANCES {
                        configured += 1;
                        end = end.max(at);
                        if configured == (count * MOST).div_ceil(100) {
                            figures.most = Some(cost(end));
                        }
                    }
                    *most = (*most).max(healthy);
                }
                Event::Ended(reason) => {
                    broken += 1;
                    figures.first_error.get_or_insert(reason);
                }
            }
        }
        figures.broken = Some(f64::from(broken));
        figures.configured = Some(configured as f64);
        figures.all = (configured == count).then(|| cost(end));
        sleep(SETTLE).await;
        figures.resident = Some(self.of_both(|server| server.running.memory().resident / 1024.0));
        let complete = |caller: &usize| seen.get(caller) == Some(&INSTANCES);
        let lacking = (0..count).filter(|caller| !complete(caller));
        let lacking = lacking.map(|caller| (caller, seen.get(&caller).copied()));
        figures.lacking = lacking.collect();
        (callers, (0..count).filter(complete).collect())
    }

    /// Makes the changes one after the other, after a while without any, and each for one of these proxies.
    async fn changes(
        &self,
        mut callers: Callers,
        configured: &[usize],
        figures: &mut Figures,
    ) -> Result<(), BoxError> {
        let before = self.link.bytes();
        sleep(IDLE).await;
        figures.idle_bytes = Some((self.link.bytes() - before) as f64 / IDLE.as_secs_f64());
        let [_, dc2] = &self.servers;
        let mut missed = 0;
        for round in 0..CHANGES {
            while callers.events.try_recv().is_ok() {}
            let change = mesh::change(configured, round);
            let before = self.link.bytes();
            let start = Instant::now();
            let expected = (change.caller, change.healthy);
            let (made, arrived) = tokio::join!(
                dc2.put(&change.write),
                has(&mut callers, expected, start + CHANGE)
            );
            made?;
            figures.changes += 1;
            let Some(arrived) = arrived else {
                missed += 1;
                if missed == MISSED {
                    break;
                }
                continue;
            };
            let delay = arrived.duration_since(start);
            figures.delays.push(delay.as_secs_f64() * 1e3);
            sleep(SETTLE).await;
            let bytes = self.link.bytes() - before;
            figures.change_bytes.push(bytes as f64);
        }
        Ok(())
    }
}

/// Waits until a proxy has this number of healthy endpoints. `None` if that does not happen in time.
async fn has(callers: &mut Callers, expected: (usize, usize), end: Instant) -> Option<Instant> {
    while let Ok(Some(event)) = timeout_at(end, callers.events.recv()).await {
        if let Event::Configured {
            caller,
            at,
            healthy,
        } = event
            && (caller, healthy) == expected
        {
            return Some(at);
        }
    }
    None
}

/// The settings of a server about other datacenters.
fn additional(
    datacenter: &str,
    end: End,
    join: Option<Ipv4Addr>,
    authority: &TestCa,
) -> Additional {
    let files = authority.agent(&[&format!("server.{datacenter}.consul")]);
    let file = |path: &Path| path.display().to_string();
    let mut flags = vec![
        format!("--datacenter={datacenter}"),
        "--primary-datacenter=dc1".to_owned(),
        format!("--wan-port={LEGATE}"),
        format!("--wan-cert-file={}", file(&files.cert)),
        format!("--wan-key-file={}", file(&files.key)),
        format!("--wan-ca-file={}", file(&authority.ca_file())),
        format!("--advertise-wan={}", end.relay),
    ];
    flags.extend(join.map(|address| format!("--retry-join-wan={address}:{LEGATE}")));
    // Consul's servers need no certificates.
    let settings = json!({
        "datacenter": datacenter,
        "primary_datacenter": "dc1",
        "advertise_addr_wan": end.relay,
        "retry_join_wan": join.into_iter().collect::<Vec<_>>(),
    });
    Additional { flags, settings }
}
