//! How others tell a running supervisor what they want. Requests do not queue: of configurations the
//! last one counts, of restarts that there was one, and an end is final.

use tokio::sync::watch;

use super::machine::Event;
use super::report::Report;

/// The supervisor has ended or is about to; nothing can be started any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the supervisor was stopped, and a stop is final")]
pub struct Stopped;

/// How everything shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shutdown {
    No,
    Release,
    Stop,
    Kill,
}

/// What was asked for and has not reached the supervisor yet; an end stays.
#[derive(Debug)]
struct Requests<C> {
    shutdown: Shutdown,
    config: Option<C>,
    restart: bool,
}

/// Tells a supervisor what to do and sees what it does.
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

/// A connected pair: the handle for those who want something, the controls for [`super::run`].
pub fn handle<C>() -> (Handle<C>, Controls<C>) {
    let (requests, changed) = watch::channel(Requests {
        shutdown: Shutdown::No,
        config: None,
        restart: false,
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
    /// The end that is asked for.
    pub(super) fn shutdown(&self) -> Shutdown {
        self.requests.borrow().shutdown
    }

    /// What is asked for next. Cancel safe.
    pub(super) async fn requests(&mut self) -> Vec<Event<C>> {
        // There always is a sender: its own.
        let _ = self.changed.changed().await;
        let mut events = Vec::new();
        self.requests.send_if_modified(|requests| {
            events.extend(requests.config.take().map(Event::Update));
            if std::mem::take(&mut requests.restart) {
                events.push(Event::Restart);
            }
            match requests.shutdown {
                Shutdown::No => {}
                Shutdown::Release => events.push(Event::Release),
                Shutdown::Stop => events.push(Event::Stop),
                Shutdown::Kill => events.push(Event::Kill),
            }
            false
        });
        events
    }
}

impl<C> Handle<C> {
    /// Wants `config` to run from now on. When it differs from what runs, a new epoch is started.
    ///
    /// # Errors
    /// After a stop.
    pub fn update(&self, config: C) -> Result<(), Stopped> {
        self.request(|requests| requests.config = Some(config))
    }

    /// Wants the same configuration to run in a new process.
    ///
    /// # Errors
    /// After a stop.
    pub fn restart(&self) -> Result<(), Stopped> {
        self.request(|requests| requests.restart = true)
    }

    /// Asks for an orderly end of everything. Asking again changes nothing.
    pub fn stop(&self) {
        self.end(Shutdown::Stop);
    }

    /// Asks for an end at once.
    pub fn kill(&self) {
        self.end(Shutdown::Kill);
    }

    /// Ends supervision and lets the processes live, for a successor to adopt. Means nothing
    /// after a stop.
    pub fn release(&self) {
        self.end(Shutdown::Release);
    }

    /// What the supervisor does.
    pub fn report(&self) -> Report {
        self.report.borrow().clone()
    }

    /// Sees every change of the report, the last one when several came at once.
    pub fn watch(&self) -> watch::Receiver<Report> {
        self.report.clone()
    }

    fn request(&self, change: impl FnOnce(&mut Requests<C>)) -> Result<(), Stopped> {
        let open = self.requests.receiver_count() > 0
            && self.requests.send_if_modified(|requests| {
                let open = requests.shutdown == Shutdown::No;
                if open {
                    change(requests);
                }
                open
            });
        open.then_some(()).ok_or(Stopped)
    }

    fn end(&self, shutdown: Shutdown) {
        self.requests.send_if_modified(|requests| {
            let rises = shutdown > requests.shutdown && (requests.shutdown != Shutdown::Release);
            if rises {
                requests.shutdown = shutdown;
            }
            rises
        });
    }
}
