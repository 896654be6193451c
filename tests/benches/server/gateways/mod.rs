//! Large gateways: the cost of configuring one, and of one change behind it.
//!
//! Both servers have one gateway, which connects several times and stays connected for the changes.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

mod envoy;
mod figures;
mod references;
mod scenarios;
mod session;

use std::net::Ipv4Addr;
use std::time::Duration;

use legate_runtime::BoxError;
use legate_tests::program::Program;
use legate_tests::table::median;
use tokio::time::{Instant, sleep, timeout_at};

use self::envoy::{Envoy, Event};
use self::figures::{Cost, Figures};
use self::scenarios::{Change, Mark, SCENARIOS, Scenario};
use crate::protocol;
use crate::servers::Server;

/// The number of times that the gateway connects.
const CONNECTS: usize = 3;

/// The number of repetitions of each change.
const ROUNDS: usize = 7;

/// The deadline for a change.
const CHANGE: Duration = Duration::from_secs(60);

/// The deadline for a configuration.
const LIMIT: Duration = Duration::from_secs(300);

/// A server whose CPU usage is that of an idle one for this long has no work left.
const QUIET: Duration = Duration::from_secs(1);

/// CPU milliseconds in that time that are not work.
const NOISE: f64 = 10.0;

/// The duration of the idle measurement.
const IDLE: Duration = Duration::from_secs(10);

/// Measures all gateways, or one, with each program.
pub(crate) async fn measure(programs: &[Program], only: Option<&str>) {
    for (kind, (name, scenario)) in SCENARIOS.into_iter().enumerate() {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let scenario = scenario();
        let mut columns = Vec::new();
        for (place, program) in programs.iter().enumerate() {
            let [place, kind] = [place, kind].map(|number| u8::try_from(number).unwrap_or(0));
            let address = Ipv4Addr::new(127, 120 + place, 1 + kind, 1);
            let mut figures = Figures::default();
            let measured = measure_one(program, address, &scenario, &mut figures).await;
            if let Err(error) = measured {
                println!("\n{}, {}: {error}", program.name, scenario.title);
            }
            columns.push(figures);
        }
        figures::print(&scenario, programs, &columns);
    }
}

/// Fills in the figures of a server until something is not possible with it.
async fn measure_one(
    program: &Program,
    address: Ipv4Addr,
    scenario: &Scenario,
    figures: &mut Figures,
) -> Result<(), BoxError> {
    let server = Server::start(program, address).await;
    for step in &scenario.steps {
        server.put_all(step).await;
    }
    settled(&server, f64::INFINITY).await;
    let before = server.running.processor_time();
    sleep(IDLE).await;
    let idle = (server.running.processor_time() - before) / IDLE.as_secs_f64();
    figures.idle = Some(idle / 10.0);
    let (mut times, mut work, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut connected, mut broken) = (None, Vec::new());
    for _ in 0..CONNECTS {
        drop(connected.take());
        settled(&server, idle).await;
        let meter = Meter::start(&server, idle);
        let mut gateway = connect(&server, scenario);
        let (configured, ended) = configured(&mut gateway).await?;
        broken.push(f64::from(ended));
        work.push(meter.work());
        times.push(configured.at.duration_since(meter.start).as_secs_f64() * 1e3);
        bytes.push(configured.bytes as f64);
        settled(&server, idle).await;
        connected = Some(gateway);
    }
    figures.configuring = median(&times);
    figures.configuring_work = median(&work);
    figures.configuring_bytes = median(&bytes);
    figures.broken = median(&broken);
    figures.resident = Some(server.running.memory().resident / 1024.0);
    if let Some(mut gateway) = connected {
        for change in &scenario.changes {
            let cost = repeat(&server, idle, &mut gateway, change).await?;
            figures.changes.push((change.label, cost));
        }
    }
    figures.peak = Some(server.running.peak() / 1024.0);
    server.running.stop().await;
    Ok(())
}

/// The CPU time of a server since a moment, without what it uses when it is idle.
struct Meter<'a> {
    server: &'a Server,
    start: Instant,
    before: f64,
    idle: f64,
}

impl<'a> Meter<'a> {
    /// `idle` is in milliseconds a second.
    fn start(server: &'a Server, idle: f64) -> Self {
        Self {
            server,
            start: Instant::now(),
            before: server.running.processor_time(),
            idle,
        }
    }

    fn work(&self) -> f64 {
        let used = self.server.running.processor_time() - self.before;
        (used - self.idle * self.start.elapsed().as_secs_f64()).max(0.0)
    }
}

/// Waits until a server has no work left. Without knowing what it uses when idle, until two periods are alike.
async fn settled(server: &Server, idle: f64) {
    let end = Instant::now() + LIMIT;
    let mut last = f64::INFINITY;
    while Instant::now() < end {
        let before = server.running.processor_time();
        sleep(QUIET).await;
        let used = server.running.processor_time() - before;
        let usual = if idle.is_finite() { idle } else { last };
        if used <= usual * 1.5 + NOISE && used < 100.0 {
            return;
        }
        last = used;
    }
}

fn connect(server: &Server, scenario: &Scenario) -> Envoy {
    let (id, node) = (scenarios::GATEWAY, scenarios::NODE);
    let node = protocol::node(id.to_owned(), id.to_owned(), node.to_owned());
    Envoy::connect(server.grpc(), node, scenario.expected)
}

/// What happened until the gateway had something.
struct Arrival {
    at: Instant,
    bytes: usize,
}

/// Waits until the gateway is configured; also returns how many of its streams ended before.
async fn configured(gateway: &mut Envoy) -> Result<(Arrival, u32), BoxError> {
    let end = Instant::now() + LIMIT;
    let mut total = 0;
    let (mut last, mut broken) = (None, 0);
    loop {
        match timeout_at(end, gateway.events.recv()).await {
            Ok(Some(Event::Response {
                at, bytes, lacks, ..
            })) => {
                total += bytes.len();
                let Some(lack) = lacks else {
                    let arrival = Arrival { at, bytes: total };
                    return Ok((arrival, broken));
                };
                last = Some(lack);
            }
            Ok(Some(Event::Ended(reason))) => {
                broken += 1;
                last = Some(reason);
            }
            Ok(None) => return Err("the gateway has ended".into()),
            Err(_) => return Err(format!("the gateway did not get everything: {last:?}").into()),
        }
    }
}

async fn repeat(
    server: &Server,
    idle: f64,
    gateway: &mut Envoy,
    change: &Change,
) -> Result<Cost, BoxError> {
    let mut cost = Cost::default();
    for round in 1..=ROUNDS {
        while gateway.events.try_recv().is_ok() {}
        let (write, mark) = (change.write)(round);
        let meter = Meter::start(server, idle);
        let (made, arrived) = tokio::join!(server.put(&write), has(gateway, &mark));
        made?;
        let mut arrived = arrived.map_err(|error| format!("{}: {error}", change.label))?;
        settled(server, idle).await;
        while let Ok(event) = gateway.events.try_recv() {
            if let Event::Response { bytes, .. } = event {
                arrived.bytes += bytes.len();
            }
        }
        cost.work.push(meter.work());
        cost.bytes.push(arrived.bytes as f64);
        let delay = arrived.at.duration_since(meter.start);
        cost.delays.push(delay.as_secs_f64() * 1e3);
    }
    Ok(cost)
}

/// Waits for a response with the mark.
async fn has(gateway: &mut Envoy, mark: &Mark) -> Result<Arrival, BoxError> {
    let end = Instant::now() + CHANGE;
    let mut total = 0;
    while let Ok(Some(event)) = timeout_at(end, gateway.events.recv()).await {
        match event {
            Event::Response { at, url, bytes, .. } => {
                total += bytes.len();
                let found = match mark {
                    Mark::Type(expected) => url == *expected,
                    Mark::Text(text) => contains(&bytes, text.as_bytes()),
                };
                if found {
                    return Ok(Arrival { at, bytes: total });
                }
            }
            // The next stream brings everything again.
            Event::Ended(_) => {}
        }
    }
    Err("the change did not arrive".into())
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}
