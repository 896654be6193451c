//! Which proxy serves in the mode `auto`: the built-in one as long as it can, otherwise Envoy. Pure; the driver starts
//! and stops Envoy, and lets one proxy take over from the other.

use std::time::Duration;

use tokio::time::Instant;

/// How long Envoy may be needed and not serve before the sidecar is not ready.
pub(super) const OUTDATED_AFTER: Duration = Duration::from_secs(60);

/// After which time an Envoy that could not be kept running, or a change that failed, is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// In so many times the time before a return there is one return at most.
const RETURN_SHARE: u32 = 12;

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The built-in proxy can serve everything.
    Fits,
    /// It cannot serve this.
    Needs(String),
    /// Envoy serves all that it needs.
    EnvoyServes,
    /// Envoy has ended and is not started again, for this reason.
    EnvoyEnded(String),
    /// The other proxy has taken over.
    Changed,
    /// It could not, for this reason.
    NotChanged(String),
    /// Time has passed.
    Time,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    StartEnvoy,
    /// Envoy ends at once: nothing of it is needed.
    StopEnvoy,
    /// Envoy ends once its connections have.
    DrainEnvoy,
    /// Envoy takes over.
    ToEnvoy,
    /// The built-in proxy takes over.
    ToBuiltIn,
    /// The process ends: nothing serves.
    Fail,
}

/// Where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The built-in proxy serves, or will.
    BuiltIn,
    /// Envoy is needed and is being started.
    Starting,
    /// Envoy was needed and could not be started. It is tried again then.
    Waiting(Instant),
    /// Envoy serves, and is taking over.
    ToEnvoy,
    /// Envoy serves.
    Envoy,
    /// The built-in proxy is taking over.
    ToBuiltIn,
}

/// The machine.
#[derive(Debug)]
pub(super) struct Choice {
    phase: Phase,
    /// What cannot be served by the built-in proxy.
    needs: Option<String>,
    /// Why the last start or change failed.
    failure: Option<String>,
    /// Since when Envoy is needed and does not serve.
    outdated_since: Option<Instant>,
    /// Since when everything fits, while Envoy serves.
    fits_since: Option<Instant>,
    last_return: Option<Instant>,
    return_after: Duration,
    /// Whether there is an Envoy that may serve.
    runs: bool,
}

impl Choice {
    /// The built-in proxy is to serve.
    pub(super) fn new(return_after: Duration) -> Choice {
        Choice {
            phase: Phase::BuiltIn,
            needs: None,
            failure: None,
            outdated_since: None,
            fits_since: None,
            last_return: None,
            return_after,
            runs: false,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// What cannot be served by the built-in proxy.
    pub(super) fn needs(&self) -> Option<&str> {
        self.needs.as_deref()
    }

    /// Why the last start or change failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Why what is served has been outdated for too long, if it has.
    pub(super) fn outdated(&self, now: Instant) -> Option<String> {
        let since = self.outdated_since?;
        (now >= since + OUTDATED_AFTER).then(|| {
            // It may fit again by now, and what has come since is for the Envoy that is being started.
            let what = self.needs().unwrap_or("an earlier configuration");
            let why = self.failure.as_deref().unwrap_or("it does not serve yet");
            format!("{what} needs Envoy, and has not been served for a minute: {why}")
        })
    }

    /// When time alone changes something.
    pub(super) fn due(&self) -> Option<Instant> {
        let outdated = self.outdated_since.map(|since| since + OUTDATED_AFTER);
        let phase = match self.phase {
            Phase::Waiting(until) => Some(until),
            Phase::Envoy => self.return_at(),
            _ => None,
        };
        outdated.into_iter().chain(phase).min()
    }

    fn return_at(&self) -> Option<Instant> {
        let fits = self.fits_since? + self.return_after;
        let again = self
            .last_return
            .map(|at| at + self.return_after * RETURN_SHARE);
        Some(again.map_or(fits, |again| fits.max(again)))
    }

    /// Handles an event.
    pub(super) fn handle(&mut self, event: Event, now: Instant) -> Option<Action> {
        let action = self.react(event, now);
        match action {
            Some(Action::StartEnvoy) => self.runs = true,
            Some(Action::StopEnvoy | Action::DrainEnvoy) => self.runs = false,
            _ => {}
        }
        action
    }

    fn react(&mut self, event: Event, now: Instant) -> Option<Action> {
        match event {
            Event::Fits => self.needs = None,
            Event::Needs(what) => self.needs = Some(what),
            Event::EnvoyServes if self.phase == Phase::Starting => {
                self.phase = Phase::ToEnvoy;
                return Some(Action::ToEnvoy);
            }
            Event::EnvoyEnded(why) => return self.on_ended(why, now),
            Event::Changed => return self.on_changed(now),
            Event::NotChanged(why) => return self.on_not_changed(why, now),
            Event::EnvoyServes | Event::Time => {}
        }
        self.reconsider(now)
    }

    /// What the phase, the needs and the time result in.
    fn reconsider(&mut self, now: Instant) -> Option<Action> {
        let needed = self.needs.is_some();
        if needed || self.phase != Phase::Envoy {
            self.fits_since = None;
        } else {
            self.fits_since.get_or_insert(now);
        }
        match self.phase {
            Phase::BuiltIn if needed => {
                self.outdated_since.get_or_insert(now);
                self.phase = Phase::Starting;
                Some(Action::StartEnvoy)
            }
            // One that is starting may listen already, and takes over: the way back is the same for all.
            Phase::Waiting(_) if !needed => {
                self.serve_built_in();
                None
            }
            Phase::Waiting(until) if now >= until => {
                self.phase = Phase::Starting;
                Some(Action::StartEnvoy)
            }
            Phase::Envoy if self.return_at().is_some_and(|at| now >= at) => {
                self.phase = Phase::ToBuiltIn;
                Some(Action::ToBuiltIn)
            }
            _ => None,
        }
    }

    fn serve_built_in(&mut self) {
        self.phase = Phase::BuiltIn;
        (self.outdated_since, self.failure) = (None, None);
    }

    fn on_ended(&mut self, why: String, now: Instant) -> Option<Action> {
        self.failure = Some(why);
        self.runs = false;
        match self.phase {
            // During a change it matters who has the addresses at its end.
            Phase::BuiltIn | Phase::Waiting(_) | Phase::ToEnvoy | Phase::ToBuiltIn => None,
            Phase::Starting => {
                self.phase = Phase::Waiting(now + RETRY);
                None
            }
            Phase::Envoy => Some(Action::Fail),
        }
    }

    fn on_changed(&mut self, now: Instant) -> Option<Action> {
        match self.phase {
            Phase::ToEnvoy if !self.runs => Some(Action::Fail),
            Phase::ToEnvoy => {
                self.phase = Phase::Envoy;
                (self.outdated_since, self.failure) = (None, None);
                self.reconsider(now)
            }
            Phase::ToBuiltIn => {
                self.serve_built_in();
                self.last_return = Some(now);
                self.runs.then_some(Action::DrainEnvoy)
            }
            _ => None,
        }
    }

    fn on_not_changed(&mut self, why: String, now: Instant) -> Option<Action> {
        self.failure = Some(why);
        match self.phase {
            Phase::ToEnvoy => {
                self.phase = Phase::Waiting(now + RETRY);
                self.runs.then_some(Action::StopEnvoy)
            }
            Phase::ToBuiltIn if !self.runs => Some(Action::Fail),
            Phase::ToBuiltIn => {
                self.phase = Phase::Envoy;
                self.last_return = Some(now);
                self.reconsider(now)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
