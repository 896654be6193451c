//! Replacing a connection while it is in use, because certificate files have changed.
//!
//! The new connection is opened and checked while the present one stays in use. When the check
//! succeeds, users move to it in their own time. When it fails, nothing has happened to them.

use std::sync::Arc;

use super::event::Link;
use super::{Action, Event, Failure, FailureKind, Held, Machine, State};
use crate::error::SessionError;

impl Machine {
    /// Begins the replacement that is due.
    pub(super) fn renew(&mut self, held: Held, link: Link) {
        self.stop(link);
        self.link_renewal = None;
        let link = Link::DialingReplacement;
        let state = State::Connected { held, link };
        self.go(state, Action::DialReplacement(held.server));
    }

    pub(super) fn renewing(&mut self, held: Held, link: Link, event: Event) {
        match event {
            Event::Dialed(Ok(())) => {
                let link = Link::CheckingReplacement;
                self.go(State::Connected { held, link }, Action::CheckFeatures);
            }
            Event::Features(Ok(features)) if features.bootstrap => {
                self.out.push(Action::Adopt);
                self.renewal_backoff.reset();
                self.connect(held, features);
            }
            Event::Features(Ok(_)) => {
                let server = held.server;
                self.not_renewed(held, Arc::new(SessionError::MissingFeature { server }));
            }
            // The connection in use has the same token.
            Event::Features(Err(failure)) if failure.kind == FailureKind::Rejected => {
                self.give_up(held, failure);
            }
            Event::Dialed(Err(failure)) | Event::Features(Err(failure)) => {
                self.not_renewed(held, failure.error);
            }
            Event::CallFailed {
                generation,
                failure,
            } if self.concerns(generation, &failure) => {
                self.stop(link);
                self.give_up(held, failure);
            }
            _ => {}
        }
    }

    /// Leaves the connection in use and its replacement.
    fn give_up(&mut self, held: Held, failure: Failure) {
        // Still due, unless the session dials again, which reads the files.
        self.link_renewal = Some(self.now);
        self.out.push(Action::Abandon);
        self.leave(held, Link::Waiting, failure);
    }

    fn not_renewed(&mut self, held: Held, error: Arc<SessionError>) {
        let random = self.draw();
        self.link_renewal = Some(self.now + self.renewal_backoff.next(random));
        self.out.push(Action::Abandon);
        self.out.push(Action::ReplacementFailed(error));
        self.attend(held);
    }
}
