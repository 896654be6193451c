//! How others tell a running supervisor what they want. Wishes do not queue: of configurations the
//! last one counts, of restarts that there was one, and an end is final.

use tokio::sync::watch;

use super::report::Report;

/// The supervisor has ended or is about to; nothing can be started any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the supervisor was stopped, and a stop is final")]
pub struct Stopped;

/// How everything shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Never,
    Release,
    Stop,
    Kill,
}

#[derive(Debug, Clone)]
pub(super) struct Wishes<C> {
    pub(super) end: End,
    pub(super) config: Option<C>,
    /// How often a configuration was wished for.
    pub(super) configs: u64,
    pub(super) restarts: u64,
}

/// Tells a supervisor what to do and sees what it does.
#[derive(Debug, Clone)]
pub struct Handle<C> {
    wishes: watch::Sender<Wishes<C>>,
    report: watch::Receiver<Report>,
}

/// The supervisor's end of a [`Handle`].
#[derive(Debug)]
pub struct Controls<C> {
    pub(super) wishes: watch::Receiver<Wishes<C>>,
    pub(super) report: watch::Sender<Report>,
}

/// A connected pair: the handle for those who want something, the controls for [`super::run`].
pub fn handle<C>() -> (Handle<C>, Controls<C>) {
    let (wishes, wished) = watch::channel(Wishes {
        end: End::Never,
        config: None,
        configs: 0,
        restarts: 0,
    });
    let (report, seen) = watch::channel(Report::default());
    (
        Handle {
            wishes,
            report: seen,
        },
        Controls {
            wishes: wished,
            report,
        },
    )
}

impl<C: Clone> Handle<C> {
    /// Wants `config` to run from now on. When it differs from what runs, a new epoch is started.
    ///
    /// # Errors
    /// After a stop.
    pub fn schedule_config_update(&self, config: C) -> Result<(), Stopped> {
        self.wish(|wishes| {
            wishes.config = Some(config);
            wishes.configs += 1;
        })
    }

    /// Wants the same configuration to run in a new process.
    ///
    /// # Errors
    /// After a stop.
    pub fn restart(&self) -> Result<(), Stopped> {
        self.wish(|wishes| wishes.restarts += 1)
    }

    /// Asks for an orderly end of everything. Asking again changes nothing.
    pub fn stop(&self) {
        self.end(End::Stop);
    }

    /// Asks for an end at once.
    pub fn kill(&self) {
        self.end(End::Kill);
    }

    /// Ends supervision and lets the processes live, for a successor to adopt. Means nothing
    /// after a stop.
    pub fn release(&self) {
        self.end(End::Release);
    }

    /// What the supervisor does.
    pub fn report(&self) -> Report {
        self.report.borrow().clone()
    }

    /// Sees every change of the report, the last one when several came at once.
    pub fn watch(&self) -> watch::Receiver<Report> {
        self.report.clone()
    }

    fn wish(&self, wish: impl FnOnce(&mut Wishes<C>)) -> Result<(), Stopped> {
        let possible = self.wishes.receiver_count() > 0
            && self.wishes.send_if_modified(|wishes| {
                let possible = wishes.end == End::Never;
                if possible {
                    wish(wishes);
                }
                possible
            });
        possible.then_some(()).ok_or(Stopped)
    }

    fn end(&self, end: End) {
        self.wishes.send_if_modified(|wishes| {
            let rises = end > wishes.end && (wishes.end != End::Release);
            if rises {
                wishes.end = end;
            }
            rises
        });
    }
}
