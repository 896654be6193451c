//! Replacing a connection or its token while it is in use.
//!
//! What is new is made and tried beside what is in use. When it is good, it takes its place, and
//! users move to it in their own time. When it is not, nothing has happened to them.

use std::sync::Arc;
use std::time::Duration;

use super::event::{Link, Step};
use super::proving::{FRESH_CHECKS, SETTLE};
use super::{Action, Event, Failure, FailureKind, Features, Held, Machine, State};
use crate::error::SessionError;

impl Machine {
    /// When the connection or the token is to be replaced.
    pub(super) fn renewal_due(&self) -> Option<Duration> {
        self.link_renewal
            .into_iter()
            .chain(self.token.renewal)
            .min()
    }

    /// Begins the replacement that is due.
    pub(super) fn renew(&mut self, held: Held, link: Link) {
        self.stop(link);
        if self.link_renewal.is_some_and(|due| due <= self.now) {
            self.link_renewal = None;
            self.step(held, Step::Dialing, Action::DialBeside(held.server));
        } else {
            self.token.renewal = None;
            self.step(held, Step::LoggingIn, Action::LoginBeside);
        }
    }

    pub(super) fn renewing(&mut self, held: Held, step: Step, event: Event) {
        match (step, event) {
            (Step::Dialing, Event::Dialed(Ok(()))) => {
                self.step(held, Step::Checking, Action::CheckFeatures);
            }
            (Step::Dialing, Event::Dialed(Err(failure))) => self.link_not_renewed(held, &failure),
            (Step::Checking | Step::Proving, Event::Features(Ok(features)))
                if features.bootstrap =>
            {
                self.adopt(held, step, features);
            }
            (Step::Checking | Step::Proving, Event::Features(Ok(_))) => {
                let server = held.server;
                let failure = Failure {
                    kind: FailureKind::Server,
                    error: Arc::new(SessionError::MissingFeature { server }),
                };
                self.renewing(held, step, Event::Features(Err(failure)));
            }
            (Step::Checking, Event::Features(Err(failure))) => {
                if failure.kind == FailureKind::Rejected {
                    // That is the token that is in use, too.
                    self.give_up(held, failure);
                } else {
                    self.link_not_renewed(held, &failure);
                }
            }
            (Step::LoggingIn, Event::LoggedIn(result)) => self.logged_in_beside(held, result),
            (Step::Settling, Event::Timer) => {
                self.step(held, Step::Proving, Action::CheckFeatures);
            }
            (Step::Proving, Event::Features(Err(failure))) => {
                let delay = match failure.kind {
                    FailureKind::Rejected => self.token.patience(FRESH_CHECKS),
                    _ => None,
                };
                match delay {
                    Some(delay) => self.step(held, Step::Settling, Action::StartTimer(delay)),
                    None => self.token_not_renewed(held, &failure),
                }
            }
            (
                step,
                Event::CallFailed {
                    generation,
                    failure,
                },
            ) if self.concerns(generation, &failure) => {
                self.failed_meanwhile(held, step, failure);
            }
            _ => {}
        }
    }

    fn logged_in_beside(&mut self, held: Held, result: Result<(), Failure>) {
        match (result, self.doomed.take()) {
            (Ok(()), None) => {
                self.token.beside = Some(self.now);
                self.token.checks = FRESH_CHECKS;
                self.step(held, Step::Settling, Action::StartTimer(SETTLE));
            }
            (Ok(()), Some(failure)) => {
                self.out.push(Action::Adopt);
                let random = self.draw();
                self.token.fresh(self.now, random);
                self.leave(held, Link::Waiting, failure);
            }
            (Err(_), Some(failure)) => {
                self.postpone_token();
                self.leave(held, Link::Waiting, failure);
            }
            (Err(failure), None) => self.token_not_renewed(held, &failure),
        }
    }

    /// The connection in use has failed while its replacement, or that of its token, is made.
    fn failed_meanwhile(&mut self, held: Held, step: Step, failure: Failure) {
        let rejected = failure.kind == FailureKind::Rejected;
        match step {
            // The token in use has come to its end: the next one is under way.
            Step::LoggingIn | Step::Settling | Step::Proving if rejected => {}
            // A login must not be given up: the server may have made a token already.
            Step::LoggingIn => self.doomed = Some(failure),
            Step::Dialing | Step::Checking | Step::Settling | Step::Proving => {
                self.stop(Link::Renewing(step));
                self.give_up(held, failure);
            }
        }
    }

    /// Leaves the connection in use, and what was to replace it or its token.
    fn give_up(&mut self, held: Held, failure: Failure) {
        if self.token.beside.take().is_some() {
            self.postpone_token();
        } else {
            // Dialling anew is as good; when that is not what follows, this is still due.
            self.link_renewal = Some(self.now);
        }
        self.out.push(Action::Abandon);
        self.leave(held, Link::Waiting, failure);
    }

    fn adopt(&mut self, held: Held, step: Step, features: Features) {
        self.out.push(Action::Adopt);
        self.renewal_backoff.reset();
        if step == Step::Proving {
            let login = self.token.beside.take().unwrap_or(self.now);
            let random = self.draw();
            self.token.fresh(login, random);
        }
        self.connect(held, features);
    }

    fn link_not_renewed(&mut self, held: Held, failure: &Failure) {
        let random = self.draw();
        self.link_renewal = Some(self.now + self.renewal_backoff.next(random));
        self.not_renewed(held, &failure.error);
    }

    fn token_not_renewed(&mut self, held: Held, failure: &Failure) {
        self.token.beside = None;
        self.postpone_token();
        self.not_renewed(held, &failure.error);
    }

    fn postpone_token(&mut self) {
        let random = self.draw();
        self.token.renewal = Some(self.now + self.renewal_backoff.next(random));
    }

    fn not_renewed(&mut self, held: Held, error: &Arc<SessionError>) {
        self.out.push(Action::Abandon);
        self.out.push(Action::RenewalFailed(Arc::clone(error)));
        self.attend(held);
    }

    fn step(&mut self, held: Held, step: Step, action: Action) {
        let link = Link::Renewing(step);
        self.go(State::Connected { held, link }, action);
    }
}
