//! A connection in use: how it is watched over, and when it is left.

use super::event::{Link, Then};
use super::{
    Action, Credential, Event, Failure, FailureKind, Features, Held, Machine, NAMES, Origin, State,
    WORKING,
};

impl Machine {
    pub(super) fn connect(&mut self, held: Held, features: Features) {
        self.established = true;
        self.reached = true;
        self.token.accepted();
        self.watches = self.settings.watch && features.watch;
        self.generation += 1;
        self.out.push(Action::PublishConnected {
            generation: self.generation,
        });
        self.attend(held);
    }

    /// Watches over the connection from now on.
    pub(super) fn attend(&mut self, held: Held) {
        self.heard();
        if self.watches {
            self.out.push(Action::OpenWatch);
            self.arm(held, Link::Watching);
        } else {
            self.arm(held, Link::Waiting);
        }
    }

    /// The server has said something.
    fn heard(&mut self) {
        let patience = self.settings.silence.mul_f64(0.75 + 0.5 * self.draw());
        self.silent_at = self.now + patience;
    }

    /// Waits for whatever is due first: a sign of life, or a replacement.
    pub(super) fn arm(&mut self, held: Held, link: Link) {
        let due = self
            .link_renewal
            .map_or(self.silent_at, |due| due.min(self.silent_at));
        let delay = due.saturating_sub(self.now);
        self.go(State::Connected { held, link }, Action::StartTimer(delay));
    }

    pub(super) fn connected(&mut self, held: Held, link: Link, event: Event) {
        match (link, event) {
            (Link::DialingReplacement | Link::CheckingReplacement, event) => {
                self.renewing(held, link, event);
            }
            (Link::Watching | Link::Probing, Event::Servers(servers)) => {
                if !servers.is_empty() {
                    self.servers.list(&servers, held.server);
                }
                if link == Link::Watching {
                    self.heard();
                    self.arm(held, link);
                }
            }
            (Link::Watching | Link::Probing, Event::WatchEnded(failure)) => {
                if failure.kind != FailureKind::Unsupported {
                    return self.leave(held, link, failure);
                }
                self.stop(link);
                self.watches = false;
                self.heard();
                self.arm(held, Link::Waiting);
            }
            (Link::Watching | Link::Waiting, Event::Timer) => self.time_has_come(held, link),
            (Link::Probing | Link::Polling, Event::Features(result)) => {
                // The check is over: there is nothing to cancel.
                let link = match link {
                    Link::Probing => Link::Watching,
                    _ => Link::Waiting,
                };
                match result {
                    Ok(_) => {
                        self.token.accepted();
                        self.heard();
                        self.arm(held, link);
                    }
                    Err(failure) => self.leave(held, link, failure),
                }
            }
            (
                _,
                Event::CallFailed {
                    generation,
                    failure,
                },
            ) if self.concerns(generation, &failure) => self.leave(held, link, failure),
            _ => {}
        }
    }

    /// Whether a failed call says something about the connection in use.
    pub(super) fn concerns(&self, generation: u64, failure: &Failure) -> bool {
        let excused = failure.kind == FailureKind::Rejected && self.is_fresh();
        generation == self.generation && !excused
    }

    fn time_has_come(&mut self, held: Held, link: Link) {
        if self.link_renewal.is_some_and(|due| due <= self.now) {
            return self.renew(held, link);
        }
        if self.silent_at > self.now {
            return self.arm(held, link);
        }
        let link = match link {
            Link::Watching => Link::Probing,
            _ => Link::Polling,
        };
        self.go(State::Connected { held, link }, Action::CheckFeatures);
    }

    /// The connection is no longer good.
    pub(super) fn leave(&mut self, held: Held, link: Link, failure: Failure) {
        self.stop(link);
        self.attempts = 0;
        if self.now.saturating_sub(held.since) >= WORKING {
            self.backoff.reset();
            self.clear_round();
        }
        if failure.kind == FailureKind::Rejected && self.settings.credential == Credential::Login {
            return self.doubt(held.server, failure.error);
        }
        let server = held.server;
        if failure.kind == FailureKind::Server
            && self.servers.is_detached(server)
            && self.second_chance != Some(server)
        {
            // It leads to servers by a way of its own: another one may answer there.
            self.second_chance = Some(server);
        } else {
            self.round.insert(server, false);
        }
        self.out.push(Action::PublishConnecting(failure.error));
        if self.next_server(0.0).is_none() {
            return self.end_round();
        }
        let stale = self.since(self.resolved_at).is_none_or(|age| age >= NAMES);
        if stale && self.servers.first() == Origin::Configured {
            self.wait_briefly(Then::Resolve);
        } else {
            self.wait_briefly(Then::Dial);
        }
    }

    /// Ends what watches over the connection.
    pub(super) fn stop(&mut self, link: Link) {
        let (watch, operation) = match link {
            Link::Watching => (true, false),
            Link::Probing => (true, true),
            Link::Waiting => (false, false),
            Link::Polling | Link::DialingReplacement | Link::CheckingReplacement => (false, true),
        };
        if operation {
            self.out.push(Action::CancelOperation);
        }
        if watch {
            self.out.push(Action::CloseWatch);
        }
    }
}
