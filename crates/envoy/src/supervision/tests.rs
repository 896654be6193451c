//! The driver on a paused clock, with processes whose lifetimes are given by the test.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::files::{Entry, Stage};
use super::handle::Stopped;
use super::host::{Host, Work};
use super::machine::RestartMode;
use super::*;
use crate::admin::AdminError;
use crate::process::{ExitReason, Identity, Process};

mod adopting;
mod draining;
mod refusing;
mod resuming;

const SECOND: Duration = Duration::from_secs(1);

/// The calls of the driver, with their times.
#[derive(Clone, Debug)]
struct Record(Arc<Mutex<Vec<(Duration, String)>>>, Instant);

impl Record {
    fn push(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push((self.1.elapsed(), what.into()));
    }

    fn times(&self, prefix: &str) -> Vec<u128> {
        let all = self.0.lock().unwrap();
        let chosen = all.iter().filter(|(_, what)| what.starts_with(prefix));
        chosen.map(|(at, _)| at.as_millis()).collect()
    }

    fn all(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .map(|(_, what)| what.clone())
            .collect()
    }
}

/// A host for processes whose configuration is their lifetime; `None` means until they are asked to
/// end.
struct Fake {
    record: Record,
    ready_after: Duration,
    mode: Result<RestartMode, String>,
    adopts: bool,
    /// The epoch that reports that it serves.
    serving: Option<u32>,
    /// Duration and result of a validation.
    validation: (Duration, Result<(), String>),
    /// When the last connection ends, relative to the first start.
    connected: Option<Duration>,
}

type Config = (u32, Option<Duration>);

#[derive(Debug)]
struct FakeProcess {
    record: Record,
    pid: u32,
    dies: Option<Instant>,
    ended: mpsc::UnboundedReceiver<ExitReason>,
    ends: mpsc::UnboundedSender<ExitReason>,
}

impl FakeProcess {
    fn new(record: &Record, pid: u32, life: Option<Duration>) -> Self {
        let (ends, ended) = mpsc::unbounded_channel();
        let dies = life.map(|life| Instant::now() + life);
        Self {
            record: record.clone(),
            pid,
            dies,
            ended,
            ends,
        }
    }
}

impl Process for FakeProcess {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn identity(&self) -> Option<Identity> {
        Identity::of(std::process::id())
    }

    fn wait(&mut self) -> BoxFuture<'_, ExitReason> {
        let dies = self.dies;
        let dies = async move {
            match dies {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let ended = async {
            tokio::select! {
                Some(reason) = self.ended.recv() => reason,
                () = dies => ExitReason::Code(1),
            }
        };
        ended.boxed()
    }

    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        let (name, reason) = match signal {
            Signal::KILL => ("kill", ExitReason::Unobserved("killed".to_owned())),
            _ => ("term", ExitReason::Code(0)),
        };
        self.record.push(format!("{name} {}", self.pid));
        let _ = self.ends.send(reason);
        Ok(())
    }

    fn last_message(&self) -> Option<String> {
        None
    }

    fn detach(self: Box<Self>) {
        self.record.push(format!("detach {}", self.pid));
    }
}

impl Host for Fake {
    type Config = Config;

    fn start(&mut self, epoch: u32, config: &Config) -> Result<Box<dyn Process>, String> {
        self.record.push(format!("start {epoch} {}", config.0));
        if config.0 == NO_PROGRAM {
            return Err("no such program".to_owned());
        }
        let process = FakeProcess::new(&self.record, 100 + epoch, config.1);
        Ok(Box::new(process))
    }

    fn check(
        &mut self,
        config: &Config,
        running: Option<Identity>,
    ) -> Work<Result<RestartMode, String>> {
        assert!(running.is_some());
        self.record.push(format!("check {}", config.0));
        let mode = self.mode.clone();
        Box::pin(async move { mode })
    }

    fn validate(&self, config: &Config) -> Work<Result<(), String>> {
        self.record.push(format!("validate {}", config.0));
        let (after, answer) = self.validation.clone();
        Box::pin(async move {
            sleep(after).await;
            answer
        })
    }

    fn ready(&self, _epoch: u32) -> Work<()> {
        let after = self.ready_after;
        Box::pin(sleep(after))
    }

    fn drain(&self) -> Work<Result<(), AdminError>> {
        self.record.push("drain");
        Box::pin(std::future::pending())
    }

    fn idle(&self) -> Work<()> {
        self.record.push("idle?");
        match self.connected {
            Some(until) => Box::pin(tokio::time::sleep_until(self.record.1 + until)),
            None => Box::pin(std::future::pending()),
        }
    }

    fn quit(&self) -> Work<Result<(), AdminError>> {
        self.record.push("quit");
        Box::pin(async { Err(AdminError("connection refused".to_owned())) })
    }

    fn serves(&mut self, epoch: u32) {
        self.record.push(format!("serves {epoch}"));
    }

    fn clean_up(&mut self, epoch: u32, _idle: bool) {
        self.record.push(format!("clean {epoch}"));
    }

    fn fingerprint(&self, config: &Config) -> String {
        format!("{config:?}")
    }

    fn base_id(&self) -> Option<u32> {
        Some(7)
    }

    fn serving(&self) -> Work<Option<u32>> {
        let serving = self.serving;
        Box::pin(async move { serving })
    }

    fn adopt(&mut self, entry: &Entry) -> Result<Box<dyn Process>, String> {
        if !self.adopts {
            return Err("another process".to_owned());
        }
        let process = FakeProcess::new(&self.record, entry.identity.pid, None);
        Ok(Box::new(process))
    }

    fn adopted(&mut self, base_id: Option<u32>) {
        self.record.push(format!("adopted {base_id:?}"));
    }

    fn obstacle(&self) -> Option<String> {
        None
    }
}

const NO_PROGRAM: u32 = 99;

fn fake() -> (Fake, Record) {
    let record = Record(Arc::default(), Instant::now());
    let fake = Fake {
        record: record.clone(),
        ready_after: Duration::ZERO,
        mode: Ok(RestartMode::Hot),
        adopts: true,
        serving: None,
        validation: (Duration::ZERO, Ok(())),
        connected: None,
    };
    (fake, record)
}

/// Runs the supervisor concurrently with `requests`, which must end it.
async fn supervise<F: Future<Output = ()>>(
    fake: Fake,
    config: Config,
    options: Options,
    requests: impl FnOnce(Handle<Config>) -> F,
) -> Ended {
    let (handle, controls) = handle();
    let (ended, ()) = tokio::join!(run(fake, config, options, controls), requests(handle));
    ended.unwrap()
}

fn options() -> Options {
    Options {
        policy: Policy {
            hand_over: 20 * SECOND,
            ..Policy::default()
        },
        ..Options::default()
    }
}

/// The start times of processes with this lifetime.
async fn crash_loop(life: Duration) -> (Vec<u128>, Ended) {
    let (fake, record) = fake();
    let ended = supervise(fake, (1, Some(life)), options(), async |handle| {
        // The retries are never exhausted otherwise.
        sleep(400 * SECOND).await;
        handle.stop();
    })
    .await;
    (record.times("start"), ended)
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_follows_the_table_to_the_millisecond() {
    // The waits between starts: three at once, then doubled, then a minute, then no more starts.
    let waits = [0, 0, 2, 4, 8, 16, 32, 60, 60, 60];
    for life in [0, 5] {
        let (starts, ended) = crash_loop(Duration::from_secs(life)).await;
        let mut at = 0;
        let mut expected = vec![0];
        for wait in waits {
            at += (life + wait) * 1000;
            expected.push(u128::from(at));
        }
        assert_eq!(starts, expected, "each lives {life} s");
        assert_eq!(ended.outcome, Outcome::Spent);
        assert!(!ended.last.unwrap().expected);
    }
    let (starts, ended) = crash_loop(15 * SECOND).await;
    let expected: Vec<u128> = (0..27).map(|n| n * 15_000).collect();
    assert_eq!(
        starts, expected,
        "healthy after ten seconds, so always at once"
    );
    assert_eq!(ended.outcome, Outcome::Stopped { forced: false });
}

#[tokio::test(start_paused = true)]
async fn readiness_is_accurate_in_a_crash_loop() {
    let (mut fake, _) = fake();
    fake.ready_after = SECOND;
    supervise(fake, (1, Some(5 * SECOND)), options(), async |handle| {
        for (at, ready) in [
            (500, false),
            (1_500, true),
            (5_500, false),
            (6_500, true),
            (15_500, false),
        ] {
            sleep(Duration::from_millis(at).saturating_sub(handle.report().elapsed())).await;
            assert_eq!(handle.report().ready(), ready, "after {at} ms");
        }
        let report = handle.report();
        assert_eq!(
            (report.starts, report.exits.len(), report.epochs.len()),
            (3, 3, 0)
        );
        assert!(report.next_start.is_some());
        handle.stop();
    })
    .await;
}

impl Report {
    /// Time since the first start, which is when the test begins.
    fn elapsed(&self) -> Duration {
        let first = self.exits.front().map(|exit| exit.at - exit.lived);
        let first = first.or(self.epochs.first().map(|epoch| epoch.since));
        first.map_or(Duration::ZERO, |first| first.elapsed())
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_is_reported_when_the_retries_are_exhausted() {
    let (fake, record) = fake();
    let ended = supervise(fake, (NO_PROGRAM, None), options(), async |_| {}).await;
    assert_eq!(ended.outcome, Outcome::Spent);
    assert_eq!(ended.refusal.as_deref(), Some("no such program"));
    let starts = record.times("start");
    assert_eq!(starts[..5], [0, 0, 0, 2_000, 6_000]);
    assert_eq!(starts.len(), 11);
}

#[tokio::test(start_paused = true)]
async fn a_new_configuration_becomes_the_next_epoch() {
    let (fake, record) = fake();
    let ended = supervise(fake, (1, None), options(), async |handle| {
        sleep(SECOND).await;
        handle.update((2, None)).unwrap();
        handle.update((3, None)).unwrap();
        sleep(SECOND).await;
        let report = handle.report();
        assert_eq!(report.epochs.len(), 2);
        assert!(report.ready());
        sleep(30 * SECOND).await;
        assert_eq!(handle.report().epochs[0].state, EpochState::Healthy);
        handle.stop();
        handle.stop();
        sleep(SECOND).await;
        assert_eq!(handle.restart(), Err(Stopped));
        assert_eq!(handle.update((4, None)), Err(Stopped));
    })
    .await;
    assert_eq!(ended.outcome, Outcome::Stopped { forced: false });
    let expected = [
        "start 0 1",
        "serves 0",
        "check 3",
        "start 1 3",
        "serves 1",
        "term 100",
        "clean 0",
        "quit",
        "term 101",
        "clean 1",
    ];
    assert_eq!(record.all(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_refused_configuration_is_reported_and_the_serving_epoch_continues() {
    let (mut fake, record) = fake();
    fake.mode = Err("no such field".to_owned());
    supervise(fake, (1, None), options(), async |handle| {
        sleep(SECOND).await;
        handle.update((2, None)).unwrap();
        sleep(300 * SECOND).await;
        let report = handle.report();
        assert_eq!(report.refusal.as_deref(), Some("no such field"));
        assert!(report.ready() && report.epochs.len() == 1);
        handle.kill();
    })
    .await;
    let start = 1_000;
    let expected: Vec<u128> = (0..=10).map(|n| start + 200 * ((1 << n) - 1)).collect();
    assert_eq!(record.times("check 2"), expected);
    assert_eq!(record.times("start").len(), 1);
}
