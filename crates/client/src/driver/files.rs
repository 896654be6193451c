//! Checks at intervals whether certificates, keys or the bearer token have changed.
//!
//! A check reads metadata only; files are read when that has changed.

use legate_runtime::file_stamp::FileStamp;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::Parts;
use crate::bearer;
use crate::machine::Event;
use crate::tls::Tls;

pub(super) struct Files {
    /// `None` without files.
    ticks: Option<Interval>,
    bearer: Option<FileStamp>,
}

impl Files {
    pub(super) fn new(parts: &Parts) -> Self {
        let login = parts.login.as_ref();
        let bearer = login.and_then(|login| bearer::stamp(&login.bearer));
        let needed = bearer.is_some() || parts.dialer.tls.as_ref().is_some_and(Tls::has_files);
        // An interval of nothing would be a busy loop.
        let period = parts.timing.files;
        let ticks = (needed && !period.is_zero()).then(|| {
            let mut ticks = interval_at(Instant::now() + period, period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        Self { ticks, bearer }
    }

    /// Waits until the next check.
    pub(super) async fn due(&mut self) {
        match &mut self.ticks {
            Some(ticks) => drop(ticks.tick().await),
            None => std::future::pending().await,
        }
    }

    /// Checks, and returns what has changed.
    pub(super) fn check(&mut self, parts: &Parts) -> Option<Event> {
        let tls = parts.dialer.tls.as_ref().is_some_and(Tls::has_changed);
        let bearer = self.bearer_has_changed(parts);
        if tls {
            tracing::info!(target: "server-connection-manager", "TLS files have changed");
        }
        (tls || bearer).then_some(Event::FilesChanged { tls, bearer })
    }

    fn bearer_has_changed(&mut self, parts: &Parts) -> bool {
        let Some(login) = &parts.login else {
            return false;
        };
        let stamp = bearer::stamp(&login.bearer);
        if stamp == self.bearer {
            return false;
        }
        self.bearer = stamp;
        // A file that is just being replaced is found by the next check.
        let Ok(token) = bearer::read(&login.bearer) else {
            return false;
        };
        tracing::debug!(target: "server-connection-manager", "the bearer token has changed");
        parts.facts.bearer_expires(bearer::expires(&token));
        true
    }
}
