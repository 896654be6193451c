//! Invariants for all sequences of events that a simulated environment can produce.

use proptest::prelude::*;

use super::scenarios::{SETTINGS, failure, server};
use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Resolve,
    Dial { replacement: bool },
    Login,
    Features,
    Logout,
}

/// A simulated driver and environment.
struct World {
    machine: Machine,
    now: Duration,
    operation: Option<Operation>,
    timer: Option<Duration>,
    watching: bool,
    link: bool,
    replacement: bool,
    /// Whether the servers issued a token that was not logged out.
    token: bool,
    shut_down: bool,
    logouts: u32,
    failed: bool,
    finished: bool,
    generation: u64,
    connected: bool,
    connected_at: Duration,
    /// Whether the proxy has its configuration.
    configured: bool,
    /// Whether the connection that the last event ended had worked for a while.
    worked: bool,
    /// Number of lost connections, and of replaced ones.
    left: u32,
    adopted: u32,
}

impl World {
    fn new(settings: Settings, mut seed: u64) -> Self {
        let random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as f64 / f64::from(1_u32 << 31)
        };
        Self {
            machine: Machine::new(settings, Box::new(random)),
            now: Duration::ZERO,
            operation: None,
            timer: None,
            watching: false,
            link: false,
            replacement: false,
            token: false,
            shut_down: false,
            logouts: 0,
            failed: false,
            finished: false,
            generation: 0,
            connected: false,
            connected_at: Duration::ZERO,
            configured: false,
            worked: false,
            left: 0,
            adopted: 0,
        }
    }

    /// All events that can happen next.
    fn possible(&self, kind: ErrorKind, servers: u8) -> Vec<Event> {
        let failed = failure(kind);
        let list: Vec<_> = (1..=servers).map(server).collect();
        let mut events = Vec::new();
        match self.operation {
            None => {}
            Some(Operation::Resolve) => {
                events.push(Event::Resolved(Err(failed.clone())));
                if !list.is_empty() {
                    events.push(Event::Resolved(Ok(list.clone())));
                }
            }
            Some(Operation::Dial { .. }) => {
                events.extend([Event::Dialed(Ok(())), Event::Dialed(Err(failed.clone()))])
            }
            Some(Operation::Login) => {
                events.extend([
                    Event::LoggedIn(Ok(())),
                    Event::LoggedIn(Err(failed.clone())),
                ]);
            }
            Some(Operation::Features) => {
                let features = Features {
                    watch: servers != 3,
                };
                events.extend([
                    Event::Features(Ok(features)),
                    Event::Features(Err(failed.clone())),
                ]);
            }
            Some(Operation::Logout) => events.push(Event::LoggedOut),
        }
        if self.timer.is_some() {
            events.push(Event::Timer);
        }
        if self.watching {
            events.extend([Event::Servers(list), Event::WatchEnded(failed.clone())]);
        }
        for generation in [self.generation, self.generation.saturating_sub(1)] {
            events.push(Event::CallFailed {
                generation,
                error: failed.clone(),
            });
        }
        for (tls, bearer) in [(true, false), (false, true)] {
            events.push(Event::FilesChanged { tls, bearer });
        }
        events.push(Event::Configured);
        events
    }

    /// The next event if nothing fails.
    fn good(&self) -> Event {
        match self.operation {
            Some(Operation::Resolve) => Event::Resolved(Ok(vec![server(1)])),
            Some(Operation::Dial { .. }) => Event::Dialed(Ok(())),
            Some(Operation::Login) => Event::LoggedIn(Ok(())),
            Some(Operation::Features) => Event::Features(Ok(Features { watch: true })),
            Some(Operation::Logout) => Event::LoggedOut,
            None => Event::Timer,
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), TestCaseError> {
        match &event {
            Event::Timer => {
                self.now += self.timer.take().unwrap_or_default();
            }
            Event::Resolved(_) | Event::Features(_) | Event::LoggedOut => self.operation = None,
            Event::Dialed(result) => match self.operation.take() {
                Some(Operation::Dial { replacement: true }) => self.replacement = result.is_ok(),
                _ => self.link = result.is_ok(),
            },
            Event::LoggedIn(result) => {
                self.operation = None;
                self.token |= result.is_ok();
            }
            Event::WatchEnded(_) => self.watching = false,
            Event::Configured => self.configured = true,
            Event::Shutdown => self.shut_down = true,
            _ => {}
        }
        let finished = self.finished;
        let actions = self.machine.handle(self.now, event);
        prop_assert!(
            !finished || actions.is_empty(),
            "after the end: {actions:?}"
        );
        for action in actions {
            self.perform(action)?;
        }
        self.finished = self.machine.state == State::Closed;
        prop_assert!(
            self.goes_on(),
            "no operation or timer is running in {:?}",
            self.machine.state
        );
        self.pauses_are_bounded()?;
        prop_assert!(
            !self.replacement || self.connected || self.shut_down,
            "a replacement is left over"
        );
        Ok(())
    }

    /// Every waiting state has a running timer or operation.
    fn goes_on(&self) -> bool {
        let runs = |operation| self.operation == Some(operation);
        let waits = self.operation.is_none() && self.timer.is_some();
        match self.machine.state {
            State::Idle | State::Failed => self.operation.is_none(),
            State::Resolving => runs(Operation::Resolve),
            State::Dialing(_) => runs(Operation::Dial { replacement: false }),
            State::LoggingIn(_) => runs(Operation::Login),
            State::CheckingFeatures(_) => runs(Operation::Features),
            State::BackingOff(_) => waits,
            State::Connected { activity, .. } => match activity {
                Activity::Waiting => waits,
                Activity::Checking | Activity::CheckingReplacement => runs(Operation::Features),
                Activity::DialingReplacement => runs(Operation::Dial { replacement: true }),
            },
            // The logout and the login before it end in time.
            State::LoggingOut => self.operation.is_some() && self.timer.is_some(),
            State::Closed => self.finished,
        }
    }

    /// Pauses are short until the proxy has its configuration, and after a connection that worked.
    fn pauses_are_bounded(&mut self) -> Result<(), TestCaseError> {
        let worked = std::mem::take(&mut self.worked);
        if let (State::BackingOff(then), Some(pause)) = (self.machine.state, self.timer) {
            let bound = match then {
                // Logins have their own delays, because servers write every token to disk.
                Then::Resolve | Then::Dial if worked => Duration::from_millis(750),
                _ if !self.configured => Duration::from_millis(4_500),
                _ => Duration::from_secs(90),
            };
            prop_assert!(pause <= bound, "{:?} of {:?}", pause, bound);
        }
        Ok(())
    }

    fn start(&mut self, operation: Operation) -> Result<(), TestCaseError> {
        prop_assert_eq!(
            self.operation,
            None,
            "two operations at once: {:?}",
            operation
        );
        prop_assert!(!self.failed || operation == Operation::Logout);
        prop_assert!(!self.shut_down || operation == Operation::Logout);
        self.operation = Some(operation);
        Ok(())
    }

    fn perform(&mut self, action: Action) -> Result<(), TestCaseError> {
        match action {
            Action::Resolve => self.start(Operation::Resolve)?,
            Action::Dial(_) => {
                prop_assert!(!self.connected);
                self.link = false;
                self.start(Operation::Dial { replacement: false })?;
            }
            Action::DialReplacement(_) => {
                prop_assert!(self.connected && self.link && !self.replacement);
                self.watching = false;
                self.start(Operation::Dial { replacement: true })?;
            }
            Action::Login => {
                prop_assert!(!self.connected && self.link);
                self.start(Operation::Login)?;
            }
            Action::CheckFeatures => {
                prop_assert!(self.link);
                self.start(Operation::Features)?;
            }
            Action::OpenWatch => {
                prop_assert!(!self.watching && self.connected && self.link);
                self.watching = true;
            }
            Action::StartTimer(delay) => {
                prop_assert!(delay <= Duration::from_secs(90), "{delay:?}");
                self.timer = Some(delay);
            }
            Action::PublishConnected { .. }
            | Action::PublishConnecting(_)
            | Action::PublishFailed(_)
            | Action::PublishClosed
            | Action::ReplacementFailed(_) => self.publish(action)?,
            Action::RoundFailed { .. } => {}
            Action::Logout(_) => {
                prop_assert!(self.shut_down && self.token);
                self.logouts += 1;
                self.start(Operation::Logout)?;
            }
        }
        Ok(())
    }

    fn publish(&mut self, action: Action) -> Result<(), TestCaseError> {
        match action {
            Action::PublishConnected { generation } => {
                prop_assert!(generation > self.generation && !self.failed && !self.shut_down);
                prop_assert!(self.link && self.operation.is_none() && !self.watching);
                self.adopted += u32::from(std::mem::take(&mut self.replacement));
                self.generation = generation;
                if !self.connected {
                    self.connected_at = self.now;
                }
                self.connected = true;
            }
            Action::PublishConnecting(_) => {
                prop_assert!(!self.failed && !self.shut_down);
                let login = self.operation == Some(Operation::Login);
                prop_assert!(!login, "a token would be lost");
                self.operation = None;
                self.give_up();
                self.left += u32::from(self.connected);
                self.worked = self.connected && self.now - self.connected_at >= WORKING;
                self.connected = false;
            }
            Action::ReplacementFailed(_) => {
                prop_assert!(self.connected && self.operation.is_none() && !self.watching);
                self.replacement = false;
            }
            Action::PublishFailed(_) => {
                prop_assert_eq!(
                    self.generation,
                    0,
                    "a session that has worked never fails for good"
                );
                self.failed = true;
                self.operation = None;
                self.timer = None;
            }
            Action::PublishClosed => {
                prop_assert!(self.shut_down);
                self.connected = false;
                self.operation = self.operation.filter(|it| *it == Operation::Login);
                self.give_up();
            }
            action => panic!("{action:?}"),
        }
        Ok(())
    }

    /// Ends the watch and the replacement of the connection.
    fn give_up(&mut self) {
        self.watching = false;
        self.replacement = false;
    }
}

fn kinds() -> impl Strategy<Value = ErrorKind> {
    prop_oneof![
        1 => Just(ErrorKind::Untrusted),
        2 => Just(ErrorKind::Rejected),
        1 => Just(ErrorKind::Invalid),
        1 => Just(ErrorKind::Unsupported),
        3 => Just(ErrorKind::Server),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    any::<(bool, bool)>().prop_map(|(watch, login)| Settings {
        watch,
        login,
        ..SETTINGS
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_history_keeps_the_rules(
        settings in settings(),
        seed: u64,
        history in prop::collection::vec((kinds(), 0_u8..5, any::<prop::sample::Index>()), 0..160),
        endings in prop::collection::vec((kinds(), any::<prop::sample::Index>()), 0..6),
    ) {
        let mut world = World::new(settings, seed);
        world.happen(Event::Start)?;
        for (kind, servers, choice) in history {
            let possible = world.possible(kind, servers);
            let event = possible[choice.index(possible.len())].clone();
            world.happen(event)?;
        }
        world.happen(Event::Shutdown)?;
        let login_under_way = world.operation == Some(Operation::Login);
        let held = world.token;
        for (kind, choice) in endings {
            let possible = world.possible(kind, 1);
            world.happen(possible[choice.index(possible.len())].clone())?;
        }
        // The timer ends everything that has not ended by then.
        if !world.finished {
            world.happen(Event::Timer)?;
        }
        prop_assert!(world.finished, "the end takes at most one timer");
        prop_assert!(world.logouts <= 1);
        if held && !login_under_way {
            prop_assert_eq!(world.logouts, 1);
        }
        world.happen(Event::Shutdown)?;
    }

    #[test]
    fn a_world_that_heals_is_connected_to(
        settings in settings(),
        seed: u64,
        history in prop::collection::vec((1_u8..5, any::<prop::sample::Index>()), 0..60),
    ) {
        let mut world = World::new(Settings { watch: true, ..settings }, seed);
        world.happen(Event::Start)?;
        for (servers, choice) in history {
            let possible = world.possible(ErrorKind::Server, servers);
            world.happen(possible[choice.index(possible.len())].clone())?;
        }
        for _ in 0..30 {
            if world.connected {
                break;
            }
            world.happen(world.good())?;
        }
        prop_assert!(world.connected);
    }

    #[test]
    fn trouble_of_any_length_is_forgotten_soon(
        settings in settings(),
        seed: u64,
        history in prop::collection::vec(0_u8..24, 0..400),
    ) {
        let mut world = World::new(settings, seed);
        world.happen(Event::Start)?;
        for choice in history {
            let failed = failure(ErrorKind::Server);
            let event = match (choice, world.operation) {
                (0, _) => Event::Configured,
                (1, _) if world.connected => {
                    let generation = world.generation;
                    Event::CallFailed { generation, error: failed }
                }
                (2..8, _) => world.good(),
                (_, Some(Operation::Resolve) | None) => world.good(),
                (_, Some(Operation::Dial { .. })) => Event::Dialed(Err(failed)),
                (_, Some(Operation::Login)) => Event::LoggedIn(Err(failed)),
                (_, Some(Operation::Features)) => Event::Features(Err(failed)),
                (_, Some(Operation::Logout)) => Event::LoggedOut,
            };
            world.happen(event)?;
        }
    }

    #[test]
    fn replacing_connections_affects_no_user(
        settings in settings(),
        seed: u64,
        changes in prop::collection::vec(0_u8..8, 40..200),
        trouble in kinds(),
    ) {
        let mut world = World::new(settings, seed);
        world.happen(Event::Start)?;
        while !world.connected {
            world.happen(world.good())?;
        }
        let mut changed = false;
        for change in changes {
            match (change, world.machine.state) {
                (0, _) => {
                    changed = true;
                    world.happen(Event::FilesChanged { tls: true, bearer: true })?;
                }
                (1, _) if world.watching => world.happen(Event::Servers(vec![server(1), server(2)]))?,
                // The replacement fails. The token in use is not affected.
                (2, State::Connected { activity: activity @ (Activity::DialingReplacement | Activity::CheckingReplacement), .. })
                    if trouble != ErrorKind::Rejected || activity == Activity::DialingReplacement =>
                {
                    match world.operation {
                        Some(Operation::Dial { .. }) => world.happen(Event::Dialed(Err(failure(trouble))))?,
                        Some(Operation::Features) => world.happen(Event::Features(Err(failure(trouble))))?,
                        _ => {}
                    }
                }
                _ => world.happen(world.good())?,
            }
            prop_assert!(world.connected, "in {:?}", world.machine.state);
        }
        prop_assert_eq!(world.left, 0);
        prop_assert!(changed || world.adopted == 0);
    }

    #[test]
    fn a_server_that_falls_silent_is_left_in_time(settings in settings(), seed: u64) {
        let mut world = World::new(settings, seed);
        world.happen(Event::Start)?;
        while !world.connected {
            world.happen(world.good())?;
        }
        let connected = world.now;
        world.happen(Event::Timer)?;
        prop_assert_eq!(world.operation, Some(Operation::Features), "a health check is due");
        prop_assert!(world.now - connected <= settings.silence.mul_f64(1.25));
        world.happen(Event::Features(Err(failure(ErrorKind::Server))))?;
        prop_assert!(!world.connected);
    }
}
