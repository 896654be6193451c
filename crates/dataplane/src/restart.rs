//! Restarts of Envoy on request, each with an answer for the requester. It starts nothing itself: the
//! owner of the supervisor receives the requests, and progress is read from the supervisor's report.

use std::time::Duration;

use http::StatusCode;
use legate_envoy::supervision::{EpochReport, EpochState, Report};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

/// Capacity of the request queue.
const WAITING: usize = 8;

/// How long a requester waits for the new Envoy before the answer is that the restart is under way.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A request. The reply comes before the restart completes: the supervisor's report right after the
/// supervisor accepted the restart, or the reason why it did not. Later changes of the report are the
/// result of the request.
pub type Request = oneshot::Sender<Result<Report, String>>;

/// Outcome of a request as the lifecycle server returns it. Only [`StatusCode::OK`] means that a new
/// Envoy serves.
pub type Outcome = (StatusCode, String);

/// Requests restarts of Envoy.
#[derive(Debug, Clone)]
pub struct Restarter {
    requests: mpsc::Sender<Request>,
    report: watch::Receiver<Report>,
}

/// A connected pair for the supervisor that publishes `report`.
pub fn channel(report: watch::Receiver<Report>) -> (Restarter, mpsc::Receiver<Request>) {
    let (requests, received) = mpsc::channel(WAITING);
    (Restarter { requests, report }, received)
}

impl Restarter {
    /// Requests a new Envoy with the current configuration, and waits until it serves, is refused, or
    /// [`PATIENCE`] has elapsed.
    pub async fn restart(&self) -> Outcome {
        let mut report = self.report.clone();
        if let Some(outcome) = impossible(&report.borrow()) {
            return outcome;
        }
        let (request, answered) = oneshot::channel();
        if self.requests.try_send(request).is_err() {
            return unavailable(
                "too many requests are waiting already, or the dataplane is stopping",
            );
        }
        let asked = async {
            let before = match answered.await {
                Ok(Ok(before)) => before,
                // The reason may be that a stop came first.
                Ok(Err(reason)) => {
                    let impossible = impossible(&report.borrow());
                    return impossible.unwrap_or((StatusCode::CONFLICT, reason));
                }
                Err(_) => return ending(),
            };
            loop {
                if let Some(outcome) = outcome(&before, &report.borrow_and_update()) {
                    return outcome;
                }
                if report.changed().await.is_err() {
                    return ending();
                }
            }
        };
        match timeout(PATIENCE, asked).await {
            Ok(outcome) => outcome,
            Err(_) => (StatusCode::ACCEPTED, waiting(&self.report.borrow())),
        }
    }
}

fn unavailable(reason: &str) -> Outcome {
    (StatusCode::SERVICE_UNAVAILABLE, reason.to_owned())
}

fn ending() -> Outcome {
    unavailable("the dataplane is stopping")
}

/// The reason why no new Envoy can be started now, if there is one.
fn impossible(now: &Report) -> Option<Outcome> {
    if now.stopping {
        return Some(ending());
    }
    // An adopted Envoy was not started by this process.
    let never_started = now.starts == 0 && now.epochs.is_empty();
    never_started.then(|| unavailable("Envoy has not been started yet"))
}

/// Outcome of a request that was made when the report was `before`, once there is one.
fn outcome(before: &Report, now: &Report) -> Option<Outcome> {
    if now.stopping {
        return Some(ending());
    }
    if now.refusals > before.refusals {
        let reason = now.refusal.clone().unwrap_or_default();
        let running = match now.current().filter(|epoch| epoch.state.serves()) {
            Some(epoch) => format!("; epoch {} (pid {}) keeps running", epoch.epoch, epoch.pid),
            None => String::new(),
        };
        let text = format!("the new Envoy did not get to serve: {reason}{running}");
        return Some((StatusCode::CONFLICT, text));
    }
    let same =
        |one: &EpochReport, other: &EpochReport| (one.pid, one.since) == (other.pid, other.since);
    let current = now.current().filter(|epoch| epoch.state.serves())?;
    // An Envoy that was still starting at the time of the request counts as new.
    let mut served = before
        .epochs
        .iter()
        .filter(|old| old.state != EpochState::Starting);
    if served.any(|old| same(old, current)) {
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
        text += &format!("; it was a cold restart: {obstacle}");
    }
    Some((StatusCode::OK, text))
}

fn waiting(report: &Report) -> String {
    let starts = |epoch: &EpochReport| epoch.state == EpochState::Starting;
    let leaves = |epoch: &EpochReport| epoch.state.leaves();
    let waits = !report.epochs.iter().any(starts)
        && (report.epochs.len() > 1 || report.epochs.iter().any(leaves));
    match report.epochs.first().filter(|_| waits) {
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

    /// Requests a restart while the report goes through `steps`.
    async fn restart(answer: Result<(), String>, steps: Vec<Report>) -> Outcome {
        restart_from(running(), answer, steps).await
    }

    async fn restart_from(
        first: Report,
        answer: Result<(), String>,
        steps: Vec<Report>,
    ) -> Outcome {
        let (sender, report) = watch::channel(first);
        let (restarter, mut requests) = channel(report);
        let fulfil = async {
            let answer = answer.map(|()| sender.borrow().clone());
            requests.recv().await.unwrap().send(answer).unwrap();
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
    async fn the_outcome_contains_the_new_epoch_and_the_draining_one() {
        let mut starting = running();
        starting.epochs.push(epoch(1, 11, EpochState::Starting));
        let mut taken = starting.clone();
        taken.epochs[0].state = EpochState::Draining;
        taken.epochs[1].state = EpochState::Serving;
        let outcome = restart(Ok(()), vec![starting, taken]).await;
        let expected = "epoch 1 (pid 11) serves, epoch 0 (pid 10) is draining";
        assert_eq!(outcome, (StatusCode::OK, expected.to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_contain_their_reason() {
        let outcome = restart(Err("no such file".to_owned()), Vec::new()).await;
        assert_eq!(outcome, (StatusCode::CONFLICT, "no such file".to_owned()));
        let mut refused = running();
        (refused.refusal, refused.refusals) = (Some("bad field".to_owned()), 1);
        // An epoch is identified by its start time, too, because numbers are reused.
        let (StatusCode::CONFLICT, text) = restart(Ok(()), vec![refused]).await else {
            panic!("it was refused")
        };
        assert!(
            text.contains("bad field") && text.contains("epoch 0 (pid 10) keeps running"),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_parent_that_drains_is_not_waited_for_without_bound() {
        let mut draining = running();
        draining.epochs[0].state = EpochState::Draining;
        draining.epochs.push(epoch(1, 11, EpochState::Serving));
        let (StatusCode::ACCEPTED, text) = restart_from(draining, Ok(()), Vec::new()).await else {
            panic!("it takes longer")
        };
        assert!(
            text.contains("epoch 0 (pid 10), which is draining"),
            "{text}"
        );
        // Nor is an epoch that drains for a cold restart.
        let mut retiring = running();
        retiring.epochs[0].state = EpochState::Draining;
        let (StatusCode::ACCEPTED, text) = restart(Ok(()), vec![retiring]).await else {
            panic!("it takes longer")
        };
        assert!(
            text.contains("epoch 0 (pid 10), which is draining"),
            "{text}"
        );
        // Once the new one has been started, the other one does not matter any more.
        let mut starting = running();
        starting.epochs.push(epoch(1, 11, EpochState::Starting));
        let (StatusCode::ACCEPTED, text) = restart(Ok(()), vec![starting]).await else {
            panic!("it takes longer")
        };
        assert!(text.contains("does not serve yet"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_envoy_that_is_still_starting_counts_as_new() {
        let mut starting = running();
        starting.epochs.push(epoch(1, 11, EpochState::Starting));
        let mut taken = starting.clone();
        taken.epochs[0].state = EpochState::Draining;
        taken.epochs[1].state = EpochState::Serving;
        let outcome = restart_from(starting, Ok(()), vec![taken]).await;
        assert!(matches!(outcome, (StatusCode::OK, _)), "{outcome:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_before_the_request_reaches_the_supervisor_are_not_its_outcome() {
        let mut starting = running();
        starting.epochs[0].state = EpochState::Starting;
        let (sender, report) = watch::channel(starting);
        let (restarter, mut requests) = channel(report);
        let fulfil = async {
            let request = requests.recv().await.unwrap();
            // It became ready while servers were queried, and is replaced nevertheless.
            sender.send_replace(running());
            request.send(Ok(sender.borrow().clone())).unwrap();
            tokio::task::yield_now().await;
            sender.send_replace(Report {
                epochs: vec![
                    epoch(0, 10, EpochState::Draining),
                    epoch(1, 11, EpochState::Serving),
                ],
                ..Report::default()
            });
        };
        let (outcome, ()) = tokio::join!(restarter.restart(), fulfil);
        let expected = "epoch 1 (pid 11) serves, epoch 0 (pid 10) is draining";
        assert_eq!(outcome, (StatusCode::OK, expected.to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_before_the_first_start_or_during_a_stop_fail_at_once() {
        let (sender, report) = watch::channel(Report::default());
        let (restarter, mut requests) = channel(report);
        let (StatusCode::SERVICE_UNAVAILABLE, text) = restarter.restart().await else {
            panic!("there is none yet")
        };
        assert!(text.contains("not been started yet"), "{text}");
        let stopping = Report {
            stopping: true,
            ..running()
        };
        sender.send_replace(stopping.clone());
        assert_eq!(restarter.restart().await, ending());
        assert!(requests.try_recv().is_err(), "nothing is left to be done");
        // A request from before the stop is refused because of the stop.
        sender.send_replace(running());
        let fulfil = async {
            let request = requests.recv().await.unwrap();
            sender.send_replace(stopping);
            request.send(Err("a stop is final".to_owned())).unwrap();
        };
        let (outcome, ()) = tokio::join!(restarter.restart(), fulfil);
        assert_eq!(outcome, ending());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_receiver_fail_at_once() {
        let (sender, report) = watch::channel(running());
        let (restarter, requests) = channel(report);
        drop(requests);
        let (status, _) = restarter.restart().await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        sender.send_replace(Report {
            stopping: true,
            ..running()
        });
    }
}
