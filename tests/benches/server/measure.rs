//! The measured scenario: all proxies connect at once, then nothing happens for a while, then a
//! sequence of changes.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET};
use legate_tests::program::{Program, Running};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::authority;
use crate::catalog::{self, CONCERNED, ROUTED};
use crate::figures::{Change, Figures};
use crate::protocol;
use crate::proxies::{Event, Proxies, What};
use crate::servers::{Kind, Server};

/// The time for remaining work after the last proxy has a change.
const SETTLE: Duration = Duration::from_secs(1);

/// The duration of the idle measurement: long enough for a ping on each connection.
const IDLE: Duration = Duration::from_secs(60);

/// The deadline for a change to reach the affected proxies.
const CHANGE: Duration = Duration::from_secs(60);

/// The deadline for a rotation. Consul spreads the new certificates over half a minute.
const ROTATION: Duration = Duration::from_secs(240);

/// A rotation is complete when no proxy has received anything for this long.
const QUIET: Duration = Duration::from_secs(10);

/// The number of repetitions of each change.
const ROUNDS: usize = 5;

/// The number of signed certificates.
const SIGNATURES: u32 = 500;

/// Measures a server with this many proxies. `place` separates the addresses of several servers.
pub(crate) async fn server(
    program: &Program,
    place: usize,
    proxies: usize,
    limit: Duration,
) -> Figures {
    let [high, low] = u16::try_from(proxies).unwrap_or_default().to_be_bytes();
    let network = 100 + u8::try_from(place).unwrap_or_default();
    let address = Ipv4Addr::new(127, network, high, low.max(1));
    let server = Server::start(program, address).await;
    server.put_all(&catalog::configuration()).await;
    server.put_all(&catalog::instances(proxies)).await;
    sleep(SETTLE).await;
    let mut figures = Figures::default();
    let mut crowd = Crowd::connect(&server, proxies, limit, &mut figures).await;
    if figures.configured == Some(proxies as f64) {
        sleep(SETTLE).await;
        figures.resident = Some(server.running.memory().resident / 1024.0);
        figures.idle = Some(idle(&server.running).await);
        crowd.changes(&mut figures).await;
    }
    figures.peak = Some(server.running.peak() / 1024.0);
    drop(crowd);
    server.running.stop().await;
    figures
}

/// CPU usage of an idle server, in percent of a core.
async fn idle(server: &Running) -> f64 {
    let before = server.processor_time();
    sleep(IDLE).await;
    let used = server.processor_time() - before;
    used / (IDLE.as_secs_f64() * 1e3) * 100.0
}

/// The proxies of one server.
struct Crowd<'a> {
    server: &'a Server,
    proxies: Proxies,
    count: usize,
}

impl<'a> Crowd<'a> {
    /// Connects all proxies at once and waits until each is configured, or the deadline has passed.
    async fn connect(
        server: &'a Server,
        count: usize,
        limit: Duration,
        figures: &mut Figures,
    ) -> Self {
        let start = Instant::now();
        let work = server.running.processor_time();
        let mut proxies = Proxies::connect(count, server.grpc(), server.references());
        let (mut connected, mut configured) = (HashSet::new(), HashSet::new());
        let (mut broken, mut end) = (0, start);
        while configured.len() < count
            && let Ok(Some(event)) = timeout_at(start + limit, proxies.events.recv()).await
        {
            match event.what {
                What::Connected => {
                    connected.insert(event.proxy);
                    if connected.len() == count {
                        figures.connected.get_or_insert(ms(start, event.at));
                    }
                }
                What::Configured => {
                    configured.insert(event.proxy);
                    end = end.max(event.at);
                }
                What::Ended(reason) => {
                    broken += 1;
                    figures.first_error.get_or_insert(reason);
                }
                What::Update(_) => {}
            }
        }
        figures.broken = Some(f64::from(broken));
        figures.configured = Some(configured.len() as f64);
        figures.configuring_work = Some((server.running.processor_time() - work) / 1e3);
        let all = configured.len() == count;
        figures.configuring = all.then(|| ms(start, end) / 1e3);
        Self {
            server,
            proxies,
            count,
        }
    }

    /// Makes all changes until one does not reach every proxy in time: an overloaded server would
    /// only use more and more memory.
    async fn changes(&mut self, figures: &mut Figures) -> Option<()> {
        let count = self.count;
        let flap = |round| catalog::flap(count, round);
        figures.flap = Some(self.change(&[ENDPOINT], CONCERNED, flap).await?);
        let rules = [LISTENER, ROUTE];
        let intention = catalog::intention;
        figures.intention = Some(self.change(&rules, CONCERNED, intention).await?);
        let router = |round| catalog::router(1 + round);
        figures.router = Some(self.change(&[ROUTE], ROUTED, router).await?);
        let defaults = catalog::proxy_defaults_change;
        figures.defaults = Some(self.change(&[CLUSTER], count, defaults).await?);
        let signature = authority::signature(self.server, SIGNATURES).await;
        figures.signature = Some(signature.ok()?);
        figures.rotation = Some(self.rotation().await?);
        Some(())
    }

    /// Repeats a change. `None` if not all affected proxies, which are the first ones, receive it
    /// in time.
    async fn change(
        &mut self,
        types: &[&str],
        concerned: usize,
        write: impl Fn(usize) -> catalog::Write,
    ) -> Option<Change> {
        let (mut delays, mut work) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            self.drain();
            let before = self.server.running.processor_time();
            let start = Instant::now();
            let server = self.server;
            // Responses are read while the server still processes the write.
            let change = write(round);
            let (received, made) = tokio::join!(
                self.received(types, concerned, start + CHANGE),
                server.put(&change)
            );
            if made.is_err() || received.len() < concerned {
                return None;
            }
            delays.extend(received.into_iter().map(|at| ms(start, at)));
            sleep(SETTLE).await;
            work.push(self.server.running.processor_time() - before);
        }
        Some(Change::new(delays, &work))
    }

    /// The time at which each affected proxy received the first update of one of these types, or
    /// its full configuration on a new stream.
    async fn received(&mut self, types: &[&str], concerned: usize, end: Instant) -> Vec<Instant> {
        let places: Vec<usize> = types.iter().map(|url| protocol::place(url)).collect();
        let (mut seen, mut times) = (HashSet::new(), Vec::new());
        while times.len() < concerned
            && let Ok(Some(event)) = timeout_at(end, self.proxies.events.recv()).await
        {
            let has_it = match event.what {
                What::Update(place) => places.contains(&place),
                What::Configured => true,
                What::Connected | What::Ended(_) => false,
            };
            if has_it && event.proxy < concerned && seen.insert(event.proxy) {
                times.push(event.at);
            }
        }
        times
    }

    fn drain(&mut self) {
        while self.proxies.events.try_recv().is_ok() {}
    }

    /// Rotates the root. A proxy is finished when it has received its last certificate; `None` if a
    /// proxy gets none.
    async fn rotation(&mut self) -> Option<Change> {
        let change = authority::Rotation::prepare(self.server).await.ok()?;
        // The resource type that contains the certificates.
        let secrets = protocol::place(match self.server.kind {
            Kind::Legate => SECRET,
            Kind::Consul => CLUSTER,
        });
        self.drain();
        let before = self.server.running.processor_time();
        let start = Instant::now();
        change.make(self.server).await.ok()?;
        let mut last = vec![None; self.count];
        let mut quiet = Instant::now() + QUIET;
        loop {
            tokio::select! {
                biased;
                event = self.proxies.events.recv() => {
                    let Some(Event { proxy, at, what }) = event else {
                        break;
                    };
                    let update = matches!(what, What::Update(place) if place == secrets);
                    if update || matches!(what, What::Configured) {
                        last[proxy] = Some(at);
                        quiet = at + QUIET;
                    }
                }
                () = sleep_until(quiet.min(start + ROTATION)) => break,
            }
        }
        let work = self.server.running.processor_time() - before;
        let times: Option<Vec<Instant>> = last.into_iter().collect();
        let delays = times?.into_iter().map(|at| ms(start, at)).collect();
        Some(Change::new(delays, &[work]))
    }
}

fn ms(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1e3
}
