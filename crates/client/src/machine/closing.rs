//! The end of a session: what was begun is ended, and tokens are logged out, within one deadline.

use super::{Action, Event, LOGOUT, Machine, State};

/// How many servers are asked to log out when the session has no connection.
const LOGOUT_SERVERS: usize = 3;

impl Machine {
    pub(super) fn shut_down(&mut self) {
        self.out.push(Action::PublishClosed);
        match self.state {
            State::LoggingIn(_) => {
                // The server may have made a token already: only its answer can tell which.
                let state = State::LoggingOut {
                    awaiting_login: true,
                };
                return self.go(state, Action::StartTimer(LOGOUT));
            }
            State::Connected { link, .. } => self.stop(link),
            State::Resolving | State::Dialing(_) | State::CheckingFeatures(_) => {
                self.out.push(Action::CancelOperation);
            }
            _ => {}
        }
        if self.token.held {
            self.out.push(Action::StartTimer(LOGOUT));
        }
        self.log_out();
    }

    fn log_out(&mut self) {
        if !self.token.held {
            return self.go(State::Closed, Action::Finish);
        }
        let servers = self.servers.iter().take(LOGOUT_SERVERS);
        let servers = servers.map(|(server, _)| server).collect();
        self.go(
            State::LoggingOut {
                awaiting_login: false,
            },
            Action::Logout(servers),
        );
    }

    pub(super) fn logging_out(&mut self, awaiting_login: bool, event: Event) {
        match event {
            Event::LoggedIn(result) if awaiting_login => {
                self.token.held |= result.is_ok();
                self.log_out();
            }
            Event::LoggedOut if !awaiting_login => self.go(State::Closed, Action::Finish),
            Event::Timer => {
                self.out.push(Action::CancelOperation);
                self.go(State::Closed, Action::Finish);
            }
            _ => {}
        }
    }
}
