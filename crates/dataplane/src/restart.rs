//! A new Envoy on request: who asks is told what became of it. It starts nothing itself; the
//! supervisor's owner receives the requests, and the supervisor's report shows the rest.

use std::time::Duration;

use legate_envoy::epochs::{EpochReport, Report};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

/// How many requests may wait.
const WAITING: usize = 8;

/// How long one who asks waits for the new Envoy before being told that it is under way.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A new Envoy serves.
    Serves(String),
    /// It goes on, and takes longer than anyone waits.
    UnderWay(String),
    /// There will be no new Envoy, and the reason; the one that runs goes on.
    Refused(String),
    /// Too many requests wait already, or everything is about to end.
    Unavailable(String),
}

/// Asks for a new Envoy.
#[derive(Debug, Clone)]
pub struct Restarter {
    requests: mpsc::Sender<Request>,
    report: watch::Receiver<Report>,
}

/// A request; it is answered before it is fulfilled.
#[derive(Debug)]
pub struct Request {
    answer: oneshot::Sender<Result<(), String>>,
}

impl Request {
    /// Tells whether the supervisor was asked for a new Envoy, or why not.
    pub fn answer(self, answer: Result<(), String>) {
        // Whoever asked may have gone.
        let _ = self.answer.send(answer);
    }
}

/// A connected pair, for a supervisor with this report.
pub fn channel(report: watch::Receiver<Report>) -> (Restarter, mpsc::Receiver<Request>) {
    let (requests, received) = mpsc::channel(WAITING);
    (Restarter { requests, report }, received)
}

impl Restarter {
    /// Asks for a new Envoy with the configuration of now, and waits until it serves, is refused,
    /// or has taken half a minute.
    pub async fn restart(&self) -> Outcome {
        let mut report = self.report.clone();
        let before = report.borrow_and_update().clone();
        let (answer, answered) = oneshot::channel();
        if self.requests.try_send(Request { answer }).is_err() {
            return Outcome::Unavailable(match before.epochs.is_empty() {
                true => "Envoy has not been started yet".to_owned(),
                false => "too many requests wait already, or the dataplane ends".to_owned(),
            });
        }
        let asked = async {
            match answered.await {
                Ok(Ok(())) => {}
                Ok(Err(reason)) => return Outcome::Refused(reason),
                Err(_) => return Outcome::Unavailable("the dataplane ends".to_owned()),
            }
            loop {
                if let Some(outcome) = outcome(&before, &report.borrow_and_update()) {
                    return outcome;
                }
                if report.changed().await.is_err() {
                    return Outcome::Unavailable("the dataplane ends".to_owned());
                }
            }
        };
        match timeout(PATIENCE, asked).await {
            Ok(outcome) => outcome,
            Err(_) => Outcome::UnderWay(waiting(&self.report.borrow())),
        }
    }
}

/// What became of a request that was made when the report was `before`.
fn outcome(before: &Report, now: &Report) -> Option<Outcome> {
    if now.stopping {
        return Some(Outcome::Unavailable("the dataplane ends".to_owned()));
    }
    if now.refusals > before.refusals {
        let reason = now.refusal.clone().unwrap_or_default();
        let running = match now.current().filter(|epoch| epoch.state.serves()) {
            Some(epoch) => format!("; epoch {} (pid {}) goes on", epoch.epoch, epoch.pid),
            None => String::new(),
        };
        return Some(Outcome::Refused(format!(
            "the new Envoy did not get to serve: {reason}{running}"
        )));
    }
    let same =
        |one: &EpochReport, other: &EpochReport| (one.pid, one.since) == (other.pid, other.since);
    let current = now.current().filter(|epoch| epoch.state.serves())?;
    if before.epochs.iter().any(|old| same(old, current)) {
        return None;
    }
    let mut text = format!("epoch {} (pid {}) serves", current.epoch, current.pid);
    for older in now.epochs.iter().filter(|older| !same(older, current)) {
        text += &format!(
            ", epoch {} (pid {}) is {}",
            older.epoch,
            older.pid,
            older.state.as_str()
        );
    }
    if let Some(obstacle) = &now.obstacle {
        text += &format!("; it was a plain restart: {obstacle}");
    }
    Some(Outcome::Serves(text))
}

fn waiting(report: &Report) -> String {
    let draining = report.epochs.len() > 1;
    match report.epochs.first().filter(|_| draining) {
        Some(oldest) => format!(
            "the new Envoy is started as soon as epoch {} (pid {}), which is {}, has ended",
            oldest.epoch,
            oldest.pid,
            oldest.state.as_str()
        ),
        None => "the new Envoy does not serve yet; see /status".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use legate_envoy::epochs::EpochState;
    use tokio::time::Instant;

    use super::*;

    fn epoch(epoch: u32, pid: u32, state: EpochState) -> EpochReport {
        EpochReport {
            epoch,
            pid,
            state,
            since: Instant::now(),
            adopted: false,
        }
    }

    fn running() -> Report {
        Report {
            epochs: vec![epoch(0, 10, EpochState::Healthy)],
            ..Report::default()
        }
    }

    /// Asks while the report goes through `steps`.
    async fn restart(answer: Result<(), String>, steps: Vec<Report>) -> Outcome {
        let (sender, report) = watch::channel(running());
        let (restarter, mut requests) = channel(report);
        let fulfil = async {
            requests.recv().await.unwrap().answer(answer);
            for step in steps {
                tokio::task::yield_now().await;
                sender.send_replace(step);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            outcome = restarter.restart() => outcome,
            () = fulfil => unreachable!("it never ends"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_epoch_that_serves_is_told_with_the_one_that_drains() {
        let mut starting = running();
        starting.epochs.push(epoch(1, 11, EpochState::Starting));
        let mut taken = starting.clone();
        taken.epochs[0].state = EpochState::Draining;
        taken.epochs[1].state = EpochState::Serving;
        let outcome = restart(Ok(()), vec![starting, taken]).await;
        let expected = "epoch 1 (pid 11) serves, epoch 0 (pid 10) is draining";
        assert_eq!(outcome, Outcome::Serves(expected.to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_told_with_their_reason() {
        let outcome = restart(Err("no such file".to_owned()), Vec::new()).await;
        assert_eq!(outcome, Outcome::Refused("no such file".to_owned()));
        let mut refused = running();
        (refused.refusal, refused.refusals) = (Some("bad field".to_owned()), 1);
        // The epoch of before is known by its start as well as by its number.
        let Outcome::Refused(text) = restart(Ok(()), vec![refused]).await else {
            panic!("it was refused")
        };
        assert!(
            text.contains("bad field") && text.contains("epoch 0 (pid 10) goes on"),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_parent_that_drains_is_not_waited_for_without_bound() {
        let mut draining = running();
        draining.epochs[0].state = EpochState::Draining;
        draining.epochs.push(epoch(1, 11, EpochState::Starting));
        let Outcome::UnderWay(text) = restart(Ok(()), vec![draining]).await else {
            panic!("it takes longer")
        };
        assert!(
            text.contains("epoch 0 (pid 10), which is draining"),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_where_nobody_answers() {
        let (sender, report) = watch::channel(running());
        let (restarter, requests) = channel(report);
        drop(requests);
        assert!(matches!(restarter.restart().await, Outcome::Unavailable(_)));
        sender.send_replace(Report {
            stopping: true,
            ..running()
        });
    }
}
