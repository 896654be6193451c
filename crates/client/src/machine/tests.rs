//! Any order of events that a world can produce keeps the rules.

use proptest::prelude::*;

use super::scenarios::{failure, server};
use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Resolve,
    Dial,
    Login,
    Features,
    Logout,
}

/// What the driver and everything behind it would do.
struct World {
    machine: Machine,
    now: Duration,
    operation: Option<Operation>,
    timer: Option<Duration>,
    watching: bool,
    /// The servers gave a token and did not take it back.
    token: bool,
    shut_down: bool,
    logouts: u32,
    failed: bool,
    finished: bool,
    generation: u64,
    connected: bool,
}

impl World {
    fn new(watch: bool, credential: Credential, mut seed: u64) -> Self {
        let random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as f64 / f64::from(1_u32 << 31)
        };
        Self {
            machine: Machine::new(Settings { watch, credential }, Box::new(random)),
            now: Duration::ZERO,
            operation: None,
            timer: None,
            watching: false,
            token: false,
            shut_down: false,
            logouts: 0,
            failed: false,
            finished: false,
            generation: 0,
            connected: false,
        }
    }

    /// What could happen next.
    fn possible(&self, kind: FailureKind, servers: u8) -> Vec<Event> {
        let failed = failure(kind);
        let list: Vec<_> = (1..=servers).map(server).collect();
        let mut events = Vec::new();
        match self.operation {
            None => {}
            Some(Operation::Resolve) => {
                events.push(Event::Resolved(Err(Arc::clone(&failed.error))));
                if !list.is_empty() {
                    events.push(Event::Resolved(Ok(list.clone())));
                }
            }
            Some(Operation::Dial) => {
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
                    bootstrap: servers != 2,
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
                failure: failed.clone(),
            });
        }
        events
    }

    fn happen(&mut self, event: Event) -> Result<(), TestCaseError> {
        match &event {
            Event::Timer => {
                self.now += self.timer.take().unwrap_or_default();
            }
            Event::Resolved(_) | Event::Dialed(_) | Event::Features(_) | Event::LoggedOut => {
                self.operation = None
            }
            Event::LoggedIn(result) => {
                self.operation = None;
                self.token |= result.is_ok();
            }
            Event::WatchEnded(_) => {}
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
        let waits = self.operation.is_some() || self.timer.is_some() || self.watching;
        prop_assert!(
            waits || self.failed || self.finished || self.machine.state() == State::Idle,
            "nothing can happen any more in {:?}",
            self.machine.state()
        );
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
        prop_assert!(!self.finished, "after the end: {action:?}");
        match action {
            Action::Resolve => self.start(Operation::Resolve)?,
            Action::Dial(_) => {
                prop_assert!(!self.connected);
                self.start(Operation::Dial)?;
            }
            Action::Login => self.start(Operation::Login)?,
            Action::CheckFeatures => self.start(Operation::Features)?,
            Action::CancelOperation => self.operation = None,
            Action::OpenWatch => {
                prop_assert!(!self.watching && self.connected);
                self.watching = true;
            }
            Action::CloseWatch => {
                prop_assert!(self.watching);
                self.watching = false;
            }
            Action::StartTimer(delay) => {
                prop_assert!(delay <= Duration::from_secs(90), "{delay:?}");
                self.timer = Some(delay);
            }
            Action::PublishConnected { generation } => {
                prop_assert!(generation > self.generation && !self.failed && !self.shut_down);
                self.generation = generation;
                self.connected = true;
            }
            Action::PublishConnecting(_) => {
                prop_assert!(!self.failed && !self.shut_down);
                self.connected = false;
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
            }
            Action::RoundFailed { .. } => {}
            Action::Logout(_) => {
                prop_assert!(self.shut_down && self.token);
                self.logouts += 1;
                self.start(Operation::Logout)?;
            }
            Action::Finish => {
                self.finished = true;
                prop_assert!(!self.watching);
            }
        }
        Ok(())
    }
}

fn kinds() -> impl Strategy<Value = FailureKind> {
    prop_oneof![
        1 => Just(FailureKind::Untrusted),
        2 => Just(FailureKind::Rejected),
        1 => Just(FailureKind::Invalid),
        1 => Just(FailureKind::Unsupported),
        3 => Just(FailureKind::Server),
    ]
}

fn credentials() -> impl Strategy<Value = Credential> {
    prop_oneof![
        Just(Credential::None),
        Just(Credential::Static),
        Just(Credential::Login)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_history_keeps_the_rules(
        watch: bool,
        credential in credentials(),
        seed: u64,
        history in prop::collection::vec((kinds(), 0_u8..5, any::<prop::sample::Index>()), 0..120),
        endings in prop::collection::vec((kinds(), any::<prop::sample::Index>()), 0..6),
    ) {
        let mut world = World::new(watch, credential, seed);
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
        // Whatever has not ended by then is ended by the timer.
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
        credential in credentials(),
        seed: u64,
        history in prop::collection::vec((1_u8..5, any::<prop::sample::Index>()), 0..60),
    ) {
        let mut world = World::new(true, credential, seed);
        world.happen(Event::Start)?;
        for (servers, choice) in history {
            let possible = world.possible(FailureKind::Server, servers);
            world.happen(possible[choice.index(possible.len())].clone())?;
        }
        for _ in 0..30 {
            let event = match world.operation {
                _ if world.connected => break,
                Some(Operation::Resolve) => Event::Resolved(Ok(vec![server(1)])),
                Some(Operation::Dial) => Event::Dialed(Ok(())),
                Some(Operation::Login) => Event::LoggedIn(Ok(())),
                Some(Operation::Features) => Event::Features(Ok(Features { bootstrap: true, watch: true })),
                Some(Operation::Logout) => panic!("nobody shut down"),
                None => Event::Timer,
            };
            world.happen(event)?;
        }
        prop_assert!(world.connected);
    }
}
