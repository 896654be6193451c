//! The driver on a paused clock, with a process and an admin interface that do as they are told.

use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;
use crate::process::OutOfMemory;

/// What reached the process, and when.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<Vec<(Duration, &'static str)>>>);

#[derive(Clone)]
struct FakeAdmin {
    record: Record,
    start: Instant,
    ready_after: Duration,
    quit: Quit,
    ends: mpsc::UnboundedSender<ExitReason>,
}

#[derive(Clone, Copy, PartialEq)]
enum Quit {
    Works,
    Fails,
    /// Confirmed, and nothing happens.
    Lies,
    /// Never answered.
    Hangs,
}

struct FakeProcess {
    record: Record,
    start: Instant,
    ended: mpsc::UnboundedReceiver<ExitReason>,
    ends: mpsc::UnboundedSender<ExitReason>,
    heeds_term: bool,
}

impl Record {
    fn push(&self, start: Instant, what: &'static str) {
        self.0.lock().unwrap().push((start.elapsed(), what));
    }
}

impl Control for FakeAdmin {
    async fn ready(&self) -> bool {
        self.start.elapsed() >= self.ready_after
    }

    async fn drain(&self) -> Result<(), String> {
        self.record.push(self.start, "drain");
        Err("a failed drain changes nothing".to_owned())
    }

    async fn quit(&self) -> Result<(), String> {
        self.record.push(self.start, "quit");
        match self.quit {
            Quit::Works => self
                .ends
                .send(ExitReason::Code(0))
                .map_err(|error| error.to_string()),
            Quit::Fails => Err("connection refused".to_owned()),
            Quit::Lies => Ok(()),
            Quit::Hangs => std::future::pending().await,
        }
    }
}

impl Supervised for FakeProcess {
    async fn wait(&mut self) -> ExitReason {
        match self.ended.recv().await {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    fn terminate(&mut self) -> io::Result<()> {
        self.record.push(self.start, "term");
        if self.heeds_term {
            let _ = self.ends.send(ExitReason::Code(0));
        }
        Ok(())
    }

    fn kill(&mut self) -> io::Result<()> {
        self.record.push(self.start, "kill");
        let reason = ExitReason::Signal {
            signal: 9,
            core: false,
            out_of_memory: OutOfMemory::No,
        };
        let _ = self.ends.send(reason);
        Ok(())
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn fakes(quit: Quit, heeds_term: bool) -> (FakeProcess, FakeAdmin, Record) {
    let (record, start) = (Record::default(), Instant::now());
    let (ends, ended) = mpsc::unbounded_channel();
    let process = FakeProcess {
        record: record.clone(),
        start,
        ended,
        ends: ends.clone(),
        heeds_term,
    };
    let admin = FakeAdmin {
        record: record.clone(),
        start,
        ready_after: Duration::from_millis(120),
        quit,
        ends,
    };
    (process, admin, record)
}

fn config(grace: u64) -> SupervisorConfig {
    SupervisorConfig {
        drain: true,
        grace: seconds(grace),
        kill_after: seconds(10),
    }
}

/// Waits until ready, asks for a shutdown at one second, and tells how it ended and what was done.
async fn shut_down(
    quit: Quit,
    heeds_term: bool,
    grace: u64,
) -> (Exit, Vec<(Duration, &'static str)>) {
    let (process, admin, record) = fakes(quit, heeds_term);
    let (mut handle, controls) = handle();
    let asks = async {
        assert_eq!(handle.changed().await, Some(State::Running));
        sleep(Duration::from_millis(850)).await;
        handle.shut_down();
        handle.shut_down();
        // Held on to: a supervisor whose handles are gone keeps its process.
        std::future::pending::<()>().await;
    };
    let exit = tokio::select! {
        exit = run(process, admin, config(grace), controls) => exit,
        () = asks => unreachable!("asking never ends"),
    };
    let done = record.0.lock().unwrap().clone();
    (exit, done)
}

#[tokio::test(start_paused = true)]
async fn drain_grace_quit_exit() {
    let (exit, done) = shut_down(Quit::Works, true, 30).await;
    assert!(exit.graceful(), "{exit:?}");
    assert_eq!(done, [(seconds(1), "drain"), (seconds(31), "quit")]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_quit_becomes_sigterm() {
    let (exit, done) = shut_down(Quit::Fails, true, 0).await;
    assert!(exit.graceful(), "{exit:?}");
    assert_eq!(done, [(seconds(1), "quit"), (seconds(1), "term")]);
}

#[tokio::test(start_paused = true)]
async fn an_envoy_that_stays_is_killed_at_the_deadline() {
    for quit in [Quit::Lies, Quit::Hangs] {
        let (exit, done) = shut_down(quit, false, 5).await;
        assert!(
            exit.forced && exit.requested && !exit.graceful(),
            "{exit:?}"
        );
        assert_eq!(
            done,
            [
                (seconds(1), "drain"),
                (seconds(6), "quit"),
                (seconds(16), "kill")
            ]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_wish_kills_at_once() {
    let (process, admin, record) = fakes(Quit::Lies, false);
    let (handle, controls) = handle();
    let asks = async {
        sleep(seconds(1)).await;
        handle.shut_down();
        sleep(seconds(1)).await;
        handle.kill();
        std::future::pending::<()>().await;
    };
    let exit = tokio::select! {
        exit = run(process, admin, config(60), controls) => exit,
        () = asks => unreachable!("asking never ends"),
    };
    assert!(exit.forced && exit.requested);
    assert_eq!(
        *record.0.lock().unwrap(),
        [(seconds(1), "drain"), (seconds(2), "kill")]
    );
    assert_eq!(handle.state(), State::Exited);
}

#[tokio::test(start_paused = true)]
async fn an_end_by_itself_is_told_as_such() {
    let (process, admin, _) = fakes(Quit::Works, true);
    let ends = process.ends.clone();
    let (_handle, controls) = handle();
    ends.send(ExitReason::Code(3)).unwrap();
    let exit = run(process, admin, config(0), controls).await;
    assert_eq!(
        exit,
        Exit {
            reason: ExitReason::Code(3),
            requested: false,
            forced: false
        }
    );
}

#[tokio::test(start_paused = true)]
async fn without_handles_the_process_lives_on() {
    let (process, admin, _) = fakes(Quit::Works, true);
    let (handle, controls) = handle();
    drop(handle);
    let running = run(process, admin, config(0), controls);
    assert!(tokio::time::timeout(seconds(3600), running).await.is_err());
}
