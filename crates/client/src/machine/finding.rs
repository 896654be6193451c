//! Finding a server: addresses, whose turn it is, rounds and the delays between them.

use std::net::SocketAddr;
use std::sync::Arc;

use super::event::Then;
use super::{Action, Failure, FailureKind, Machine, State};
use crate::error::SessionError;

impl Machine {
    pub(super) fn resolve(&mut self) {
        self.go(State::Resolving, Action::Resolve);
    }

    pub(super) fn resolved(&mut self, result: Result<Vec<SocketAddr>, Arc<SessionError>>) {
        match result {
            Ok(servers) => {
                self.servers.configure(&servers);
                self.resolved_at = Some(self.now);
            }
            // Servers that were known before may still be there.
            Err(error) => self.out.push(Action::PublishConnecting(error)),
        }
        self.dial_next();
    }

    /// The next server of this round. Addresses that only the servers themselves use are not tried
    /// again and again while others lead to servers.
    pub(super) fn next_server(&self, random: f64) -> Option<SocketAddr> {
        self.servers.pick(random, |server| {
            let hopeless = self.reached && self.servers.is_out_of_reach(*server);
            !hopeless && !self.round.contains_key(server)
        })
    }

    /// Dials the next server of this round, or backs off when there is none left.
    pub(super) fn dial_next(&mut self) {
        let random = self.draw();
        match self.next_server(random) {
            Some(server) => {
                self.servers.attempt(server);
                self.attempts += 1;
                // The files are read now.
                self.link_renewal = None;
                self.go(State::Dialing(server), Action::Dial(server));
            }
            None => self.end_round(),
        }
    }

    pub(super) fn end_round(&mut self) {
        let list_misleads = self.reached && self.servers.is_list_out_of_reach();
        self.out.push(Action::RoundFailed { list_misleads });
        self.clear_round();
        let random = self.draw();
        let delay = self.backoff.next(random);
        self.wait(delay, Then::Resolve);
    }

    pub(super) fn clear_round(&mut self) {
        self.round.clear();
        self.second_chance = None;
        self.reached = false;
    }

    pub(super) fn dialed(&mut self, server: SocketAddr, result: Result<(), Failure>) {
        self.servers.reached(server, result.is_ok());
        self.reached |= result.is_ok();
        match result {
            Err(failure) => self.server_failed(server, failure),
            Ok(()) if self.token.needed => self.go(State::LoggingIn(server), Action::Login),
            Ok(()) => self.check(server),
        }
    }

    /// On to the next server of the round; after the last one, back off.
    pub(super) fn server_failed(&mut self, server: SocketAddr, failure: Failure) {
        let hopeless = matches!(failure.kind, FailureKind::Untrusted | FailureKind::Rejected);
        self.round.insert(server, hopeless);
        let left = self.next_server(0.0).is_some();
        if !left && !self.established && self.round.values().all(|hopeless| *hopeless) {
            return self.fail(failure.error);
        }
        self.out.push(Action::PublishConnecting(failure.error));
        if left {
            self.wait_briefly(Then::Dial);
        } else {
            self.end_round();
        }
    }
}
