//! Single scenarios, event by event.

mod addresses;
mod outage;
mod renewals;
mod table;

use tonic::Code;

use super::servers::NAMES;
use super::token::{CALM, FRESH_CHECKS};
use super::*;

/// Whether the token comes from a login.
pub(super) const LOGIN: bool = true;
pub(super) const NO_LOGIN: bool = false;

pub(super) const SILENCE: Duration = Duration::from_secs(60);

pub(super) const SETTINGS: Settings = Settings {
    watch: true,
    login: NO_LOGIN,
    silence: SILENCE,
    spread: Duration::from_secs(10),
};

pub(super) fn server(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 8502))
}

pub(super) fn failure(kind: ErrorKind) -> SessionError {
    SessionError::new(kind, Code::Unavailable, "down")
}

const FEATURES: Features = Features { watch: true };

struct Story {
    machine: Machine,
    now: Duration,
    actions: Vec<Action>,
}

impl Story {
    /// Starts and resolves to servers 1 to `servers`. Random choices always pick the first.
    fn begin(login: bool, servers: u8) -> Self {
        Self::with(Settings { login, ..SETTINGS }, servers)
    }

    fn with(settings: Settings, servers: u8) -> Self {
        let machine = Machine::new(settings, Box::new(|| 0.5));
        let mut story = Self {
            machine,
            now: Duration::ZERO,
            actions: Vec::new(),
        };
        story.event(Event::Start);
        story.event(Event::Resolved(Ok((1..=servers).map(server).collect())));
        story
    }

    fn event(&mut self, event: Event) -> &mut Self {
        self.actions = self.machine.handle(self.now, event);
        self
    }

    /// Elapses the timer that the last event started.
    fn timer(&mut self) -> &mut Self {
        self.now += self.delay();
        self.event(Event::Timer)
    }

    #[track_caller]
    fn delay(&self) -> Duration {
        let timer = self.actions.iter().find_map(|action| match action {
            Action::StartTimer(delay) => Some(*delay),
            _ => None,
        });
        timer.unwrap_or_else(|| panic!("no timer in {:?}", self.actions))
    }

    #[track_caller]
    fn did(&self, wanted: fn(&Action) -> bool) -> &Self {
        assert!(
            self.actions.iter().any(wanted),
            "actions: {:?}, state: {:?}",
            self.actions,
            self.machine.state
        );
        self
    }

    fn dialed(&self) -> Option<SocketAddr> {
        self.actions.iter().find_map(|action| match action {
            Action::Dial(server) => Some(*server),
            _ => None,
        })
    }

    /// Without further failures the session is soon connected.
    #[track_caller]
    fn heal(&mut self, row: &str) {
        for _ in 0..20 {
            match self.machine.state {
                State::Connected { .. } => return,
                State::Resolving => self.event(Event::Resolved(Ok(vec![server(1), server(2)]))),
                State::Dialing(_) => self.event(Event::Dialed(Ok(()))),
                State::LoggingIn(_) => self.event(Event::LoggedIn(Ok(()))),
                State::CheckingFeatures(_) => self.event(Event::Features(Ok(FEATURES))),
                _ => self.timer(),
            };
        }
        panic!("{row}: {:?}", self.machine.state);
    }

    /// Continues from dialling to being connected.
    fn connect(&mut self) -> &mut Self {
        self.event(Event::Dialed(Ok(())));
        if matches!(self.machine.state, State::LoggingIn(_)) {
            self.event(Event::LoggedIn(Ok(()))).timer();
        }
        self.event(Event::Features(Ok(FEATURES)));
        self.did(|action| matches!(action, Action::PublishConnected { .. }));
        self
    }
}

#[test]
fn a_failed_server_is_followed_by_the_next_and_only_a_failed_round_backs_off() {
    let mut story = Story::begin(NO_LOGIN, 3);
    let mut dialed = Vec::new();
    for _ in 0..2 {
        dialed.push(story.dialed().unwrap());
        story.event(Event::Dialed(Err(failure(ErrorKind::Server))));
        assert!(story.delay() <= FAILOVER);
        story.timer();
    }
    dialed.push(story.dialed().unwrap());
    dialed.sort();
    assert_eq!(dialed, [server(1), server(2), server(3)]);
    story.event(Event::Dialed(Err(failure(ErrorKind::Server))));
    assert_eq!(story.delay(), Duration::from_millis(500));
    story
        .timer()
        .did(|action| matches!(action, Action::Resolve));
    story.event(Event::Resolved(Err(failure(ErrorKind::Server))));
    assert!(
        story.dialed().is_some(),
        "known servers are tried if the resolver fails"
    );
}

#[test]
fn a_token_that_every_server_rejects_ends_the_session_after_one_round() {
    let mut story = Story::begin(NO_LOGIN, 2);
    story.event(Event::Dialed(Ok(())));
    story.event(Event::Features(Err(failure(ErrorKind::Rejected))));
    story.did(|action| matches!(action, Action::PublishConnecting(_)));
    story.timer().event(Event::Dialed(Ok(())));
    story.event(Event::Features(Err(failure(ErrorKind::Rejected))));
    story.did(|action| matches!(action, Action::PublishFailed(_)));
    assert_eq!(story.machine.state, State::Failed);
}

#[test]
fn a_static_token_that_has_worked_is_tried_elsewhere() {
    let mut story = Story::begin(NO_LOGIN, 2);
    story.connect();
    let generation = 1;
    story.event(Event::CallFailed {
        generation,
        error: failure(ErrorKind::Rejected),
    });
    story.timer();
    story
        .event(Event::Dialed(Ok(())))
        .event(Event::Features(Err(failure(ErrorKind::Rejected))));
    story.did(|action| matches!(action, Action::PublishConnecting(_)));
    assert_eq!(story.delay(), Duration::from_millis(500));
}

#[test]
fn untrusted_servers_end_the_session_after_one_round() {
    let mut story = Story::begin(NO_LOGIN, 2);
    story
        .event(Event::Dialed(Err(failure(ErrorKind::Untrusted))))
        .timer();
    story.event(Event::Dialed(Err(failure(ErrorKind::Untrusted))));
    story.did(|action| matches!(action, Action::PublishFailed(error) if error.kind == ErrorKind::Untrusted));

    let mut story = Story::begin(NO_LOGIN, 2);
    story
        .event(Event::Dialed(Err(failure(ErrorKind::Server))))
        .timer();
    story.event(Event::Dialed(Err(failure(ErrorKind::Untrusted))));
    story.did(|action| matches!(action, Action::PublishConnecting(_)));
}

#[test]
fn a_refused_login_is_tried_three_times_with_growing_delays() {
    let mut story = Story::begin(LOGIN, 1);
    story.event(Event::Dialed(Ok(())));
    for delay in [500, 750] {
        story.event(Event::LoggedIn(Err(failure(ErrorKind::Rejected))));
        assert_eq!(story.delay(), Duration::from_millis(delay));
        story.timer().did(|action| matches!(action, Action::Login));
    }
    story.event(Event::LoggedIn(Err(failure(ErrorKind::Rejected))));
    story.did(|action| matches!(action, Action::PublishFailed(_)));
}

#[test]
fn an_unknown_auth_method_ends_the_session_at_once() {
    let mut story = Story::begin(LOGIN, 1);
    story
        .event(Event::Dialed(Ok(())))
        .event(Event::LoggedIn(Err(failure(ErrorKind::Invalid))));
    story.did(|action| matches!(action, Action::PublishFailed(_)));
}

#[test]
fn a_fresh_token_gets_two_seconds_to_be_found() {
    let mut story = Story::begin(LOGIN, 1);
    story
        .event(Event::Dialed(Ok(())))
        .event(Event::LoggedIn(Ok(())));
    assert_eq!(story.delay(), SETTLE);
    let mut delays = Vec::new();
    loop {
        story.timer();
        story.did(|action| matches!(action, Action::CheckFeatures));
        story.event(Event::Features(Err(failure(ErrorKind::Rejected))));
        if matches!(story.machine.state, State::BackingOff(Then::Login(_))) {
            break;
        }
        delays.push(story.delay().as_millis());
    }
    assert_eq!(delays, [100, 200, 400, 400, 400, 400]);
}

#[test]
fn an_expired_token_is_replaced_on_the_same_connection() {
    let mut story = Story::begin(LOGIN, 2);
    story.connect();
    story.now += CALM;
    story.event(Event::CallFailed {
        generation: 1,
        error: failure(ErrorKind::Rejected),
    });
    // The rejection counts once the same server has repeated it twice.
    for delay in [100, 200] {
        story.did(|action| matches!(action, Action::CheckFeatures));
        story.event(Event::Features(Err(failure(ErrorKind::Rejected))));
        assert_eq!(story.delay().as_millis(), delay);
        story.timer();
    }
    story.event(Event::Features(Err(failure(ErrorKind::Rejected))));
    assert!(
        story.delay() <= FAILOVER,
        "a long-lived token is replaced at once"
    );
    story.timer().did(|action| matches!(action, Action::Login));
    story
        .event(Event::LoggedIn(Ok(())))
        .timer()
        .event(Event::Features(Ok(FEATURES)));
    story.did(|action| matches!(action, Action::PublishConnected { generation: 2 }));
}

#[test]
fn logins_refused_after_the_first_connection_never_end_the_session() {
    let mut story = Story::begin(LOGIN, 1);
    story.connect();
    story.now += CALM;
    story.event(Event::CallFailed {
        generation: 1,
        error: failure(ErrorKind::Rejected),
    });
    for _ in 0..200 {
        let event = match story.machine.state {
            State::Resolving => Event::Resolved(Ok(vec![server(1)])),
            State::Dialing(_) => Event::Dialed(Ok(())),
            State::LoggingIn(_) => Event::LoggedIn(Err(failure(ErrorKind::Rejected))),
            State::CheckingFeatures(_) => Event::Features(Err(failure(ErrorKind::Rejected))),
            State::BackingOff(_) => {
                story.timer();
                continue;
            }
            state => panic!("{state:?}"),
        };
        story.event(event);
    }
    assert!(
        story.now > CALM + Duration::from_secs(60),
        "the delays grow"
    );
}

#[test]
fn only_the_current_connection_can_be_reported() {
    let mut story = Story::begin(NO_LOGIN, 2);
    story.connect();
    let first = story.machine.state;
    story.event(Event::CallFailed {
        generation: 0,
        error: failure(ErrorKind::Server),
    });
    assert_eq!(story.machine.state, first);
    story
        .event(Event::CallFailed {
            generation: 1,
            error: failure(ErrorKind::Server),
        })
        .timer();
    let next = story.dialed().unwrap();
    assert_ne!(
        State::Dialing(next),
        State::Dialing(match first {
            State::Connected { server, .. } => server,
            state => panic!("{state:?}"),
        })
    );
}

#[test]
fn servers_that_shed_load_are_not_hammered() {
    // Until the proxy has its configuration, frequent attempts cost nothing.
    for (configured, bound) in [(false, 3 * 1300), (true, 3 * 80)] {
        let dials = dials_in_an_hour(configured);
        assert!(dials < bound, "{dials} dials in an hour");
    }
}

/// The number of dials for three servers that close every connection at once.
fn dials_in_an_hour(configured: bool) -> u32 {
    let mut story = Story::begin(NO_LOGIN, 3);
    if configured {
        story.machine.handle(story.now, Event::Configured);
    }
    let mut dials = 1;
    let mut generation = 0;
    while story.now < Duration::from_secs(3600) {
        story.connect();
        story.event(Event::Servers((1..=3).map(server).collect()));
        generation += 1;
        story
            .event(Event::CallFailed {
                generation,
                error: failure(ErrorKind::Server),
            })
            .timer();
        if matches!(story.machine.state, State::Resolving) {
            story.event(Event::Resolved(Ok((1..=3).map(server).collect())));
        }
        dials += 1;
    }
    dials
}

#[test]
fn a_server_without_a_list_is_polled() {
    let mut story = Story::begin(NO_LOGIN, 1);
    story.event(Event::Dialed(Ok(())));
    story.event(Event::Features(Ok(Features { watch: false })));
    for _ in 0..3 {
        assert_eq!(story.delay(), SILENCE);
        story
            .timer()
            .did(|action| matches!(action, Action::CheckFeatures));
        story.event(Event::Features(Ok(FEATURES)));
    }
    story
        .timer()
        .event(Event::Features(Err(failure(ErrorKind::Server))));
    story.did(|action| matches!(action, Action::PublishConnecting(_)));
}

#[test]
fn a_list_that_is_not_served_is_replaced_by_polling() {
    let mut story = Story::begin(NO_LOGIN, 1);
    story
        .connect()
        .event(Event::WatchEnded(failure(ErrorKind::Unsupported)));
    assert_eq!(story.delay(), SILENCE);
}

#[test]
fn a_login_under_way_at_shutdown_is_undone() {
    let mut story = Story::begin(LOGIN, 1);
    story.event(Event::Dialed(Ok(()))).event(Event::Shutdown);
    story.did(|action| matches!(action, Action::PublishClosed));
    assert_eq!(story.delay(), LOGOUT);
    story
        .event(Event::LoggedIn(Ok(())))
        .did(|action| matches!(action, Action::Logout(_)));
    story.event(Event::LoggedOut);
    assert_eq!(story.machine.state, State::Closed);
}

#[test]
fn a_failed_session_logs_out_too() {
    let mut story = Story::begin(LOGIN, 1);
    story.event(Event::Dialed(Ok(())));
    for _ in 0..3 {
        story.event(Event::LoggedIn(Ok(()))).timer();
        for _ in 0..FRESH_CHECKS {
            story
                .event(Event::Features(Err(failure(ErrorKind::Rejected))))
                .timer();
        }
        story.event(Event::Features(Err(failure(ErrorKind::Rejected))));
        if story.machine.state != State::Failed {
            story.timer();
        }
    }
    assert_eq!(story.machine.state, State::Failed);
    story
        .event(Event::Shutdown)
        .did(|action| matches!(action, Action::Logout(_)));
}
