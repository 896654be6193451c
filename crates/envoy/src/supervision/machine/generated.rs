//! Generated sequences of events with simulated processes that die, hang, ignore signals, or never
//! start. Checks invariants that hold for any sequence.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::super::options::{Policy, REAP_WAIT};
use super::*;

/// Number of generated sequences.
const ORDERS: u32 = 100_000;

const POLICY: Policy = Policy {
    drain: true,
    grace: Duration::from_secs(3),
    min_drain: Some(Duration::from_secs(1)),
    kill_after: Duration::from_secs(10),
    hand_over: Duration::from_secs(20),
    cold_restart_grace: Duration::from_secs(2),
};

/// Time limit of a stop according to the policy.
const STOP_BOUND: Duration = Duration::from_secs(3 + 10 + REAP_WAIT.as_secs());

#[derive(Debug, Clone, Copy, PartialEq)]
struct Process {
    epoch: u32,
    ready: bool,
    /// Whether it reacts to SIGTERM.
    heeds_term: bool,
    /// Blocked in the kernel, so that not even SIGKILL ends it.
    stuck: bool,
}

struct World {
    machine: Machine<u8>,
    now: Duration,
    alive: BTreeMap<Run, Process>,
    timers: BTreeSet<(Duration, u64, TimerKey)>,
    armed: BTreeMap<u64, Timer>,
    order: u64,
    check: Option<u64>,
    validation: Option<u64>,
    validated: BTreeSet<u64>,
    runs: BTreeSet<Run>,
    asked: Option<Duration>,
    /// The processes whose clients were told that they are about to end.
    drained: BTreeSet<Run>,
    /// When the machine began to stop, for whatever reason.
    began: Option<Duration>,
    /// The process whose connections are watched, and whether that was requested after the stop
    /// began.
    awaited: Option<(Run, bool)>,
    finished: Duration,
    wild: u8,
}

type TimerKey = u64;

impl World {
    fn new(adopted: &[Adopted]) -> Self {
        let mut machine = Machine::new(POLICY, 0, adopted);
        let actions = machine.begin();
        let mut world = Self {
            machine,
            now: Duration::ZERO,
            alive: BTreeMap::new(),
            timers: BTreeSet::new(),
            armed: BTreeMap::new(),
            order: 0,
            check: None,
            validation: None,
            validated: BTreeSet::new(),
            runs: BTreeSet::new(),
            asked: None,
            drained: BTreeSet::new(),
            began: None,
            awaited: None,
            finished: Duration::ZERO,
            wild: 0,
        };
        for (run, one) in (1..).zip(adopted) {
            let process = Process {
                epoch: one.epoch,
                ready: true,
                heeds_term: true,
                stuck: false,
            };
            world.alive.insert(run, process);
            world.runs.insert(run);
        }
        world.perform(actions);
        world
    }

    fn send(&mut self, event: Event<u8>) {
        let finished = self.machine.outcome().is_some();
        let idle = match event {
            Event::Idle(run) => Some(run),
            _ => None,
        };
        if event == Event::Drained && !self.machine.stopping() {
            let epochs = self.machine.epochs().iter();
            let serving = epochs.filter(|one| one.state.serves());
            self.drained.extend(serving.map(|one| one.run));
        }
        let actions = self.machine.on(event);
        assert!(
            !finished || actions.is_empty(),
            "after the end: {actions:?}"
        );
        let stopping = self.machine.stopping();
        if stopping {
            self.began.get_or_insert(self.now);
        }
        if let (Some(run), false) = (idle, actions.is_empty()) {
            let (asked, after_stop) = self.awaited.expect("connections were not watched");
            assert_eq!((asked, after_stop), (run, self.began.is_some()));
            let least = POLICY
                .min_drain
                .filter(|_| !self.drained.contains(&run))
                .unwrap_or_default();
            let minimum = self.began.map(|began| began + least);
            assert!(Some(self.now) >= minimum, "ended too early");
        }
        assert!(
            !stopping
                || !actions.iter().any(|action| matches!(
                    action,
                    Action::Start(..) | Action::Check(..) | Action::Validate(..)
                )),
            "started after a stop: {actions:?}"
        );
        assert!(
            !self.machine.refused()
                || !actions
                    .iter()
                    .any(|action| matches!(action, Action::Start(..))),
            "started in vain: {actions:?}"
        );
        if !finished && self.machine.outcome().is_some() {
            self.finished = self.now;
        }
        self.perform(actions);
        self.forget_timers();
        self.look();
    }

    fn perform(&mut self, actions: Vec<Action<u8>>) {
        for action in actions {
            match action {
                Action::Check(serial, _) => self.check = Some(serial),
                Action::Validate(serial, _) => {
                    assert!(self.validated.insert(serial), "checked twice");
                    let mut epochs = self.machine.epochs().iter();
                    assert!(!epochs.any(|one| one.state.serves()));
                    self.validation = Some(serial);
                }
                Action::Start(run, epoch, _) => self.start(run, epoch),
                Action::Drain(run) => assert!(self.machine.state(run).is_some()),
                Action::AwaitIdle(run) => {
                    assert_eq!(self.machine.state(run), Some(EpochState::Draining));
                    let asked = (run, self.machine.stopping());
                    assert_ne!(self.awaited.replace(asked), Some(asked), "watched twice");
                }
                Action::Quit(run) | Action::Terminate(run) => {
                    if self
                        .alive
                        .get(&run)
                        .is_some_and(|process| process.heeds_term)
                    {
                        self.dies(run, CLEAN);
                    }
                }
                Action::Kill(run) => {
                    if self.alive.get(&run).is_some_and(|process| !process.stuck) {
                        self.dies(run, KILLED);
                    }
                }
                Action::CleanUp(epoch) => {
                    assert!(!self.alive.values().any(|process| process.epoch == epoch));
                }
                Action::Arm(timer, wait) => self.arm(timer, wait),
                Action::Spent => {}
            }
        }
    }

    /// Like the driver: a timer fires once, at the earlier time.
    fn arm(&mut self, timer: Timer, wait: Duration) {
        let at = self.now + wait;
        let same = |(_, _, key): &&(Duration, u64, TimerKey)| self.armed[key] == timer;
        let before = self.timers.iter().find(same).copied();
        if before.is_some_and(|before| before.0 <= at) {
            return;
        }
        if let Some(before) = before {
            self.timers.remove(&before);
            self.armed.remove(&before.2);
        }
        self.order += 1;
        self.armed.insert(self.order, timer);
        self.timers.insert((at, self.order, self.order));
    }

    /// Like the driver: obsolete timers are dropped.
    fn forget_timers(&mut self) {
        let (machine, armed) = (&self.machine, &mut self.armed);
        armed.retain(|_, timer| *timer == DEATH || machine.waits_for(*timer));
        self.timers.retain(|(_, _, key)| armed.contains_key(key));
        let waiting = armed.values().filter(|timer| **timer != DEATH).count();
        let epochs = self.machine.epochs().len();
        assert!(
            waiting <= 2 * epochs + 4,
            "{waiting} timers, {epochs} epochs"
        );
    }

    fn start(&mut self, run: Run, epoch: u32) {
        assert!(self.runs.insert(run), "a run's number is used twice");
        // A process whose end was not reported yet counts as running.
        let others = self.machine.epochs().iter().filter(|one| one.run != run);
        let highest = others.map(|one| one.epoch).max();
        let expected = highest.map_or(0, |highest| highest + 1);
        assert_eq!(epoch, expected, "one above the highest that runs");
        // Envoy refuses a second child while one initialises.
        let initialising = self
            .machine
            .epochs()
            .iter()
            .filter(|one| one.state == EpochState::Starting);
        assert_eq!(initialising.count(), 1);
        let (heeds_term, stuck) = (self.wild & 3 != 3, self.wild & 0x38 == 0x38);
        let process = Process {
            epoch,
            ready: false,
            heeds_term,
            stuck,
        };
        self.alive.insert(run, process);
    }

    /// The end is reported later, as in reality.
    fn dies(&mut self, run: Run, exit: usize) {
        if self.alive.remove(&run).is_some() {
            self.order += 1;
            self.armed.insert(self.order, DEATH);
            let key = self.order;
            self.timers.insert((self.now, run * 3 + exit as u64, key));
        }
    }

    fn tick(&mut self) -> bool {
        let Some((at, detail, key)) = self.timers.pop_first() else {
            return false;
        };
        self.now = self.now.max(at);
        match self.armed.remove(&key) {
            Some(DEATH) => {
                let exit = ENDS[(detail % 3) as usize].clone();
                self.send(Event::Exited(detail / 3, exit));
            }
            Some(timer) => self.send(Event::Elapsed(timer)),
            None => {}
        }
        true
    }

    /// Invariants that hold at any time.
    fn look(&self) {
        let mut numbers: Vec<u32> = self.alive.values().map(|process| process.epoch).collect();
        numbers.sort_unstable();
        assert!(
            numbers.windows(2).all(|pair| pair[0] != pair[1]),
            "{numbers:?}"
        );
        if self.machine.outcome().is_none() {
            let known = |run: &Run| self.machine.state(*run).is_some();
            assert!(self.alive.keys().all(known), "an orphan");
        }
    }

    fn step(&mut self, byte: u8, detail: u8) {
        self.wild = detail;
        let one = self
            .alive
            .keys()
            .nth(usize::from(detail) % self.alive.len().max(1))
            .copied();
        match byte % 40 {
            0..=2 => self.send(Event::Update(detail % 4)),
            3 => self.send(Event::Restart),
            4..=9 => drop(self.tick()),
            10..=14 => {
                if let Some(run) = one {
                    self.alive
                        .entry(run)
                        .and_modify(|process| process.ready = true);
                    self.send(Event::Ready(run));
                }
            }
            15..=19 => {
                if let Some(run) = one {
                    self.dies(
                        run,
                        match detail & 0x70 {
                            0x70 => CLEAN,
                            0x00..=0x30 => FAILED,
                            _ => KILLED,
                        },
                    );
                }
            }
            20..=25 => {
                if let Some(serial) = self.check.take() {
                    let modes = [
                        RestartMode::Hot,
                        RestartMode::Hot,
                        RestartMode::Cold,
                        RestartMode::Deferred,
                    ];
                    let mode = modes.get(usize::from(detail) % 5).copied();
                    self.check_is(serial, mode);
                }
            }
            26..=29 => {
                if let Some(run) = self.machine.epochs().last().map(|newest| newest.run)
                    && !self.alive.get(&run).is_some_and(|process| process.ready)
                    && self.alive.remove(&run).is_some()
                {
                    self.send(Event::SpawnFailed(run));
                }
            }
            30 => self.end(detail),
            31..=33 => {
                if let Some(serial) = self.validation.take() {
                    let passes = detail & 1 == 0;
                    let result = passes.then_some(()).ok_or_else(String::new);
                    self.send(Event::Validated(serial, result));
                }
            }
            39 => self.send(Event::Drained),
            34..=36 => {
                if let Some(run) = self.awaited.map(|(run, _)| run).or(one) {
                    self.send(Event::Idle(run));
                }
            }
            _ => {
                if let Some(run) = one {
                    self.send(Event::QuitFailed(run));
                }
            }
        }
    }

    fn check_is(&mut self, serial: u64, mode: Option<RestartMode>) {
        let serving = |machine: &Machine<u8>| machine.serving().map(|epoch| epoch.run);
        let before = serving(&self.machine);
        let checked = mode.ok_or_else(String::new);
        self.send(Event::Checked(serial, checked));
        if mode != Some(RestartMode::Cold) {
            assert_eq!(serving(&self.machine), before, "{mode:?} ends nothing");
        }
    }

    fn end(&mut self, detail: u8) {
        match detail {
            0..=5 => self.send(Event::Release),
            6..=30 => {
                self.asked.get_or_insert(self.now);
                self.send(Event::Kill);
            }
            31..=60 => {
                self.asked.get_or_insert(self.now);
                self.send(Event::Stop);
            }
            _ => {}
        }
    }

    /// Without further faults, the wanted configuration must come to run.
    fn recovers(&mut self) {
        // Blocked processes have been sent SIGKILL, which takes effect once the kernel releases
        // them.
        let killed = |run: &Run| self.machine.state(*run) == Some(EpochState::Killed);
        let freed: Vec<Run> = self.alive.keys().copied().filter(killed).collect();
        for run in freed {
            self.dies(run, KILLED);
        }
        for process in self.alive.values_mut() {
            *process = Process {
                heeds_term: true,
                stuck: false,
                ..*process
            };
        }
        self.wild = 0;
        for _ in 0..500 {
            if self.machine.settled() || self.machine.stopping() {
                break;
            }
            if let Some(serial) = self.check.take() {
                self.send(Event::Checked(serial, Ok(RestartMode::Hot)));
            }
            if let Some(serial) = self.validation.take() {
                self.send(Event::Validated(serial, Ok(())));
            }
            let starting = self
                .machine
                .epochs()
                .iter()
                .find(|one| one.state == EpochState::Starting);
            match starting
                .map(|one| one.run)
                .filter(|run| self.alive.contains_key(run))
            {
                Some(run) => self.send(Event::Ready(run)),
                None => drop(self.tick()),
            }
        }
        assert!(
            self.machine.settled() || self.machine.stopping(),
            "{:?}",
            self.machine
        );
    }

    fn stops(&mut self) {
        let asked = *self.asked.get_or_insert(self.now);
        self.send(Event::Stop);
        while self.machine.outcome().is_none() && self.tick() {}
        let outcome = self.machine.outcome().expect("a stop does not hang");
        assert!(self.finished <= asked + STOP_BOUND, "{:?}", self.finished);
        if !matches!(outcome, Outcome::Released | Outcome::Unkillable) {
            let stuck = self.alive.values().all(|process| process.stuck);
            assert!(
                self.alive.is_empty() || (stuck && outcome == Outcome::Spent),
                "{outcome:?} leaves {:?}",
                self.alive
            );
        }
        for event in [
            Event::Update(9),
            Event::Restart,
            Event::Stop,
            Event::Kill,
            Event::Release,
        ] {
            self.send(event);
        }
    }
}

/// A pseudo timer for an end that has not been reported yet.
const DEATH: Timer = Timer::Healthy(Run::MAX);

/// Exit reasons of processes.
const ENDS: [ExitReason; 3] = [tests::CLEAN, tests::FAILED, tests::KILLED];
const CLEAN: usize = 0;
const FAILED: usize = 1;
const KILLED: usize = 2;

proptest! {
    #![proptest_config(ProptestConfig { cases: ORDERS, max_shrink_iters: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_events_violates_the_invariants(
        steps in prop::collection::vec(any::<u16>(), 0..48),
        adopted in 0_u8..8,
        stops in any::<bool>(),
    ) {
        let adopted: Vec<Adopted> = (adopted < 3)
            .then(|| (4..=4 + u32::from(adopted)).map(|epoch| Adopted { epoch, current: adopted == 1 }))
            .into_iter()
            .flatten()
            .collect();
        let mut world = World::new(&adopted);
        for step in steps {
            let [byte, detail] = step.to_le_bytes();
            world.step(byte, detail);
        }
        if !stops {
            world.recovers();
        }
        world.stops();
    }
}
