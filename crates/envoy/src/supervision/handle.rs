//! Requests of other tasks to a running supervisor. Requests do not queue up: only the latest
//! configuration counts, several restarts are merged, and a stop is final.

use std::mem::discriminant;

use tokio::sync::watch;

use super::machine::Event;
use super::report::Report;

/// The supervisor has ended or is about to end, so nothing can be started any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the supervisor was stopped, and a stop is final")]
pub struct Stopped;

/// Requests so far.
#[derive(Debug)]
struct Requests<C> {
    /// Requests that the supervisor has not processed yet, at most one of each kind.
    pending: Vec<Event<C>>,
    /// Whether a stop, kill or release has been requested.
    end: bool,
}

/// Sends requests to a supervisor and reads its report.
#[derive(Debug, Clone)]
pub struct Handle<C> {
    requests: watch::Sender<Requests<C>>,
    report: watch::Receiver<Report>,
}

/// The supervisor's end of a [`Handle`].
#[derive(Debug)]
pub struct Controls<C> {
    requests: watch::Sender<Requests<C>>,
    changed: watch::Receiver<Requests<C>>,
    pub(super) report: watch::Sender<Report>,
}

/// A connected pair: the handle for requesters, the controls for [`super::run`].
pub fn handle<C>() -> (Handle<C>, Controls<C>) {
    let (requests, changed) = watch::channel(Requests {
        pending: Vec::new(),
        end: false,
    });
    let (report, seen) = watch::channel(Report::default());
    let handle = Handle {
        requests: requests.clone(),
        report: seen,
    };
    let controls = Controls {
        requests,
        changed,
        report,
    };
    (handle, controls)
}

impl<C> Controls<C> {
    /// Whether a stop, kill or release has been requested.
    pub(super) fn end(&self) -> bool {
        self.requests.borrow().end
    }

    /// Waits for requests and takes them. Cancel safe.
    pub(super) async fn requests(&mut self) -> Vec<Event<C>> {
        // This cannot fail: `self` holds a sender.
        let _ = self.changed.changed().await;
        let mut requests = Vec::new();
        self.requests.send_if_modified(|all| {
            requests.append(&mut all.pending);
            false
        });
        requests
    }
}

impl<C> Handle<C> {
    /// Requests to run `config`. If it differs from the running configuration, a new epoch is
    /// started.
    ///
    /// # Errors
    /// After a stop.
    pub fn update(&self, config: C) -> Result<(), Stopped> {
        self.request(Event::Update(config))
    }

    /// Requests a new process with the current configuration.
    ///
    /// # Errors
    /// After a stop.
    pub fn restart(&self) -> Result<(), Stopped> {
        self.request(Event::Restart)
    }

    /// Reports that inbound connections of the serving process were drained on request: its clients
    /// know that it is about to end, so that a stop needs no minimum time for that.
    pub fn drained(&self) {
        let _ = self.request(Event::Drained);
    }

    /// Requests a graceful end of all processes. Idempotent.
    pub fn stop(&self) {
        let _ = self.request(Event::Stop);
    }

    /// Requests that all processes are killed.
    pub fn kill(&self) {
        let _ = self.request(Event::Kill);
    }

    /// Ends supervision without ending the processes, so that a successor can adopt them. No-op
    /// after a stop.
    pub fn release(&self) {
        let _ = self.request(Event::Release);
    }

    /// The current report.
    pub fn report(&self) -> Report {
        self.report.borrow().clone()
    }

    /// A receiver for changes of the report; rapid changes may be merged.
    pub fn watch(&self) -> watch::Receiver<Report> {
        self.report.clone()
    }

    /// A later request of the same kind replaces an earlier one.
    fn request(&self, event: Event<C>) -> Result<(), Stopped> {
        let kind = discriminant(&event);
        let end = matches!(event, Event::Stop | Event::Kill | Event::Release);
        let taken = self.requests.send_if_modified(|requests| {
            if requests.end && !end {
                return false;
            }
            requests.end |= end;
            requests.pending.retain(|other| discriminant(other) != kind);
            requests.pending.push(event);
            true
        });
        let open = taken && self.requests.receiver_count() > 0;
        open.then_some(()).ok_or(Stopped)
    }
}
