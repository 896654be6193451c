//! Several servers with one etcd: the rate of writes however they are spread over the servers, their
//! latency at a moderate rate, restarts under full load, and the gap when the server that commits is
//! killed or cut off from etcd.
//!
//! Prints tables and makes no assertions.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

#[path = "../store/client.rs"]
#[expect(dead_code, reason = "the bench of the store uses more of it")]
mod client;
#[expect(dead_code, reason = "the tests of replicas use more of it")]
mod cluster;
#[path = "../store/figures.rs"]
#[expect(dead_code, reason = "the bench of the store uses more of it")]
mod figures;
mod load;
#[path = "../store/process.rs"]
#[expect(dead_code, reason = "the bench of the store uses more of it")]
mod process;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use self::cluster::{SERVERS, Servers};
use self::figures::{Taken, print};
use self::load::{Load, Seen, missing};

/// The longest gap that is waited for.
const LONGEST_GAP: Duration = Duration::from_secs(30);
/// So many writers with 20 writes a second each: 120 a second.
const PACED_WRITERS: usize = 6;
const PACE: Duration = Duration::from_millis(50);

/// The scope of the measurement.
struct Options {
    /// The duration for each distribution of the writers.
    seconds: u64,
    /// The number of concurrent writers, divisible by the number of servers.
    writers: usize,
    members: usize,
    restarts: usize,
    /// How often the server that commits is killed: with all servers, and with one cut off.
    kills: usize,
    kills_cut_off: usize,
    /// How often the server that commits is cut off from etcd.
    cuts: usize,
}

impl Options {
    fn read() -> Self {
        let mut options = Self {
            seconds: 5,
            writers: 60,
            members: 3,
            restarts: 100,
            kills: 50,
            kills_cut_off: 50,
            cuts: 5,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let place = match arg.as_str() {
                "--seconds" => {
                    let value = args.next().and_then(|value| value.parse().ok());
                    options.seconds = value.unwrap_or(options.seconds);
                    continue;
                }
                "--writers" => &mut options.writers,
                "--members" => &mut options.members,
                "--restarts" => &mut options.restarts,
                "--kills" => &mut options.kills,
                "--kills-cut-off" => &mut options.kills_cut_off,
                "--cuts" => &mut options.cuts,
                _ => continue,
            };
            let value = args.next().and_then(|value| value.parse().ok());
            *place = value.unwrap_or(*place);
        }
        options
    }
}

fn main() {
    let options = Options::read();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(measure(&options));
}

async fn measure(options: &Options) {
    let mut servers = Servers::new(options.members).await;
    servers.start(0).await;
    let time = Duration::from_secs(options.seconds);
    let mut rows = rates_alone(&servers, options, time).await;
    for n in 1..SERVERS {
        servers.start(n).await;
    }
    rates_spread(&servers, options, time, &mut rows).await;
    print_rates("writes", &rows);
    let all: Vec<_> = (0..SERVERS).collect();
    let mut paced = vec![paced(&servers, &all, "three servers", 2 * time).await];
    restarts(&mut servers, options).await;
    kills(&mut servers, options.kills, &all, "of three servers").await;

    // One server that does not commit is cut off from etcd; clients use the others.
    let cut_off = (servers.led().await + 1) % SERVERS;
    servers.partition(cut_off).await;
    let rest: Vec<_> = all.iter().copied().filter(|n| *n != cut_off).collect();
    // Until its lease has expired, and it has noticed.
    sleep(Duration::from_secs(10)).await;
    let title = "with a server cut off from etcd";
    let mut rows = Vec::new();
    let spread = addresses(&servers, &rest, options.writers);
    rows.push((
        "spread over the two others".to_owned(),
        rate(&spread, time).await,
    ));
    print_rates(title, &rows);
    paced.push(self::paced(&servers, &rest, title, 2 * time).await);
    kills(&mut servers, options.kills_cut_off, &rest, title).await;
    servers.heal(cut_off).await;
    cuts(&servers, options.cuts).await;

    let columns = [
        ("writes per second", 0),
        ("median, ms", 2),
        ("99th percentile, ms", 2),
        ("failed", 0),
    ];
    let rows = paced.iter();
    let rows: Vec<_> = rows
        .map(|(name, row)| (name.as_str(), row.clone()))
        .collect();
    print("six writers, 20 writes a second each", &columns, &rows);
}

/// So many writers, spread evenly over these servers.
fn addresses(servers: &Servers, on: &[usize], writers: usize) -> Vec<SocketAddr> {
    let nth = |n: usize| servers.http(on[n % on.len()]);
    (0..writers).map(nth).collect()
}

async fn rate(writers: &[SocketAddr], time: Duration) -> (Taken, usize) {
    let load = Load::start(writers, None);
    sleep(time).await;
    let (seen, took) = load.finish().await;
    let times = seen.acknowledged.iter().map(|(_, took)| *took);
    (Taken::of(times.collect(), took), seen.failed)
}

type Rates = Vec<(String, (Taken, usize))>;

/// Few and many writers.
fn counts(options: &Options) -> [usize; 2] {
    [SERVERS, options.writers]
}

async fn rates_alone(servers: &Servers, options: &Options, time: Duration) -> Rates {
    let mut rows = Vec::new();
    for count in counts(options) {
        let writers = addresses(servers, &[0], count);
        // The first writes after a start are slower.
        rate(&writers, Duration::from_secs(1)).await;
        let name = format!("{count} writers, one server alone");
        rows.push((name, rate(&writers, time).await));
    }
    rows
}

async fn rates_spread(servers: &Servers, options: &Options, time: Duration, rows: &mut Rates) {
    for count in counts(options) {
        let leader = servers.led().await;
        let (next, last) = ((leader + 1) % SERVERS, (leader + 2) % SERVERS);
        let spreads = [
            ("all on the one that commits", vec![leader]),
            ("all on another one", vec![next]),
            ("on the two others", vec![next, last]),
            ("spread evenly", vec![leader, next, last]),
            (
                "1 of 10 on the one that commits",
                [vec![leader], vec![next; 9]].concat(),
            ),
        ];
        for (spread, on) in spreads {
            let writers = addresses(servers, &on, count);
            let name = format!("{count} writers, three servers, {spread}");
            rows.push((name, rate(&writers, time).await));
        }
    }
}

fn print_rates(title: &str, rates: &Rates) {
    let alone = |name: &str| {
        let count = name.split(' ').next();
        let alone = rates
            .iter()
            .find(|(other, _)| other.split(' ').next() == count && other.ends_with("alone"));
        alone.and_then(|(_, (taken, _))| taken.row()[0])
    };
    let rows = rates.iter().map(|(name, (taken, failed))| {
        let mut row = taken.row();
        let ratio = row[0].zip(alone(name)).map(|(rate, alone)| rate / alone);
        row.insert(1, ratio);
        row.push(Some(*failed as f64));
        (name.as_str(), row)
    });
    let columns = [
        ("writes per second", 0),
        ("of one server alone", 2),
        ("median, ms", 2),
        ("99th percentile, ms", 2),
        ("failed", 0),
    ];
    print(title, &columns, &rows.collect::<Vec<_>>());
}

/// Writers at a moderate rate.
async fn paced(
    servers: &Servers,
    on: &[usize],
    name: &str,
    time: Duration,
) -> (String, Vec<Option<f64>>) {
    let writers = addresses(servers, on, PACED_WRITERS);
    let load = Load::start(&writers, Some(PACE));
    sleep(time).await;
    let (seen, took) = load.finish().await;
    let times = seen.acknowledged.iter().map(|(_, took)| *took);
    let mut row = Taken::of(times.collect(), took).row();
    row.push(Some(seen.failed as f64));
    (name.to_owned(), row)
}

/// Restarts servers in turn while writers use the two others without pause.
async fn restarts(servers: &mut Servers, options: &Options) {
    let mut times = Vec::new();
    let mut load = None;
    for n in 0..options.restarts {
        // A different server after every tenth restart.
        let restarted = n / 10 % SERVERS;
        if n.is_multiple_of(10) {
            finish(load.take(), servers, "restarts").await;
            let others: Vec<_> = (0..SERVERS).filter(|n| *n != restarted).collect();
            let writers = addresses(servers, &others, options.writers);
            load = Some(Load::start(&writers, None));
        }
        servers.kill(restarted).await;
        times.push(servers.start(restarted).await);
    }
    finish(load, servers, "restarts").await;
    times.sort_unstable();
    let at = |percent: usize| {
        let time = times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
        time.copied().unwrap_or_default()
    };
    println!(
        "\nrestarts under full load: {} of {} served a write, median {:.2?}, longest {:.2?}",
        times.len(),
        options.restarts,
        at(50),
        at(100)
    );
}

/// What writers saw, and how many of their acknowledged writes are lost.
struct Outcome {
    seen: Seen,
    lost: usize,
}

/// Stops writers, and names lost and doubled writes.
async fn finish(load: Option<Load>, servers: &Servers, during: &str) -> Option<Outcome> {
    let (seen, _) = load?.finish().await;
    let leader = servers.led().await;
    // A server may still lack the last writes of others.
    sleep(Duration::from_millis(500)).await;
    let lost = missing(servers.http(leader), &seen.keys).await;
    if !lost.is_empty() || !seen.doubled.is_empty() {
        println!(
            "\n{during}: LOST {} and DOUBLED {} of {}: {lost:?} {:?}",
            lost.len(),
            seen.doubled.len(),
            seen.keys.len(),
            seen.doubled
        );
    }
    Some(Outcome {
        seen,
        lost: lost.len(),
    })
}

/// Kills the server that commits, again and again, while writers use these servers.
async fn kills(servers: &mut Servers, kills: usize, on: &[usize], name: &str) {
    let writers = addresses(servers, on, 20 * on.len());
    let load = Load::start(&writers, None);
    let mut gaps = Vec::new();
    for _ in 0..kills {
        let leader = servers.led().await;
        sleep(Duration::from_millis(300)).await;
        let killed = Instant::now();
        servers.kill(leader).await;
        // A write that was sent after the lease of the killed server has expired.
        if !load
            .resumed(killed + Duration::from_millis(100), LONGEST_GAP)
            .await
        {
            println!("no write within {LONGEST_GAP:?} after a kill");
        }
        gaps.push(load.gap(killed).await);
        servers.start(leader).await;
    }
    let outcome = finish(Some(load), servers, name).await;
    print_gaps("kills", name, &gaps, outcome.as_slice());
}

fn print_gaps(what: &str, name: &str, gaps: &[Duration], outcomes: &[Outcome]) {
    let longest = gaps.iter().max().copied().unwrap_or_default();
    let mean = gaps.iter().sum::<Duration>() / u32::try_from(gaps.len().max(1)).unwrap_or(1);
    let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(of).sum::<usize>();
    let mut reasons = outcomes
        .iter()
        .rev()
        .filter_map(|one| one.seen.reason.as_deref());
    println!(
        "\n{what} of the server that commits, {name}: {}; without a write: mean {mean:.2?}, longest \
         {longest:.2?}; {} writes acknowledged, {} lost, {} applied twice, {} failed (the last one: {})",
        gaps.len(),
        sum(|one| one.seen.keys.len()),
        sum(|one| one.lost),
        sum(|one| one.seen.doubled.len()),
        sum(|one| one.seen.failed),
        reasons.next().unwrap_or("-"),
    );
}

/// Cuts the server that commits off from etcd, while writers use the others.
async fn cuts(servers: &Servers, cuts: usize) {
    let mut gaps = Vec::new();
    let mut outcomes = Vec::new();
    for _ in 0..cuts {
        let leader = servers.led().await;
        let others: Vec<_> = (0..SERVERS).filter(|n| *n != leader).collect();
        let load = Load::start(&addresses(servers, &others, 40), None);
        sleep(Duration::from_millis(500)).await;
        let cut = Instant::now();
        servers.partition(leader).await;
        if !load
            .resumed(cut + Duration::from_millis(100), LONGEST_GAP)
            .await
        {
            println!("no write within {LONGEST_GAP:?} after a cut");
        }
        gaps.push(load.gap(cut).await);
        servers.heal(leader).await;
        outcomes.extend(finish(Some(load), servers, "cuts").await);
    }
    print_gaps("cuts from etcd", "of three servers", &gaps, &outcomes);
}
