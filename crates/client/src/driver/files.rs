//! Looks from time to time whether certificates, keys or the bearer token have changed.
//!
//! A look is a few metadata calls; files are read only when those tell of a change.

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::Parts;
use crate::bearer;
use crate::machine::Event;
use crate::tls::{Mark, Tls};

pub(super) struct Files {
    /// `None` without files.
    ticks: Option<Interval>,
    bearer: Option<Mark>,
}

impl Files {
    pub(super) fn new(parts: &Parts) -> Self {
        let login = parts.login.as_ref();
        let bearer = login.and_then(|login| bearer::mark(&login.bearer));
        let needed = bearer.is_some() || parts.dialer.tls().is_some_and(Tls::has_files);
        // An interval of nothing would be a busy loop.
        let period = parts.timing.files;
        let ticks = (needed && !period.is_zero()).then(|| {
            let mut ticks = interval_at(Instant::now() + period, period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        Self { ticks, bearer }
    }

    /// Waits until it is time to look.
    pub(super) async fn due(&mut self) {
        match &mut self.ticks {
            Some(ticks) => drop(ticks.tick().await),
            None => std::future::pending().await,
        }
    }

    /// Looks, and tells what has changed.
    pub(super) fn look(&mut self, parts: &Parts) -> Option<Event> {
        let tls = parts.dialer.tls().is_some_and(Tls::has_changed);
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
        let mark = bearer::mark(&login.bearer);
        if mark == self.bearer {
            return false;
        }
        self.bearer = mark;
        // A file that is being replaced is looked at again when it is there.
        let Ok(token) = bearer::read(&login.bearer) else {
            return false;
        };
        tracing::debug!(target: "server-connection-manager", "the bearer token has changed");
        parts.facts.bearer_expires(bearer::expires(&token));
        true
    }
}
