//! How other tasks ask a running supervisor for something. Requests do not queue: only the latest
//! configuration counts, several restarts are one, and a stop is final.

use std::mem::discriminant;

use tokio::sync::watch;

use super::machine::Event;
use super::report::Report;

/// The supervisor has ended or is about to; nothing can be started any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the supervisor was stopped, and a stop is final")]
pub struct Stopped;

/// The requests that were made.
#[derive(Debug)]
struct Requests<C> {
    /// Those that the supervisor has not taken yet, at most one of each kind.
    pending: Vec<Event<C>>,
    /// Whether one of them was to stop, kill or release.
    end: bool,
}

/// Makes requests of a supervisor and reads its report.
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

/// A connected pair: the handle for those who make requests, the controls for [`super::run`].
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
    /// Whether the supervisor was asked to stop, kill or release.
    pub(super) fn end(&self) -> bool {
        self.requests.borrow().end
    }

    /// Waits for requests and takes them. Cancel safe.
    pub(super) async fn requests(&mut self) -> Vec<Event<C>> {
        // There always is a sender: its own.
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
    /// Wants `config` to run from now on. When it differs from what runs, a new epoch is started.
    ///
    /// # Errors
    /// After a stop.
    pub fn update(&self, config: C) -> Result<(), Stopped> {
        self.request(Event::Update(config))
    }

    /// Wants the same configuration to run in a new process.
    ///
    /// # Errors
    /// After a stop.
    pub fn restart(&self) -> Result<(), Stopped> {
        self.request(Event::Restart)
    }

    /// Asks for an orderly end of everything. Asking again changes nothing.
    pub fn stop(&self) {
        let _ = self.request(Event::Stop);
    }

    /// Asks for an end at once.
    pub fn kill(&self) {
        let _ = self.request(Event::Kill);
    }

    /// Ends supervision and lets the processes live, for a successor to adopt. Means nothing
    /// after a stop.
    pub fn release(&self) {
        let _ = self.request(Event::Release);
    }

    /// What the supervisor does.
    pub fn report(&self) -> Report {
        self.report.borrow().clone()
    }

    /// Sees every change of the report, the last one when several came at once.
    pub fn watch(&self) -> watch::Receiver<Report> {
        self.report.clone()
    }

    /// Of several requests of a kind the last one counts.
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
