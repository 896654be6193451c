//! The life of one Envoy process as a state machine: no clock, no process, no network. Events
//! come in, actions go out; [`super::run`] performs them.

use std::time::Duration;

use crate::process::ExitReason;

/// How long to wait for the kernel to end a process that was sent SIGKILL.
pub const REAP_WAIT: Duration = Duration::from_secs(5);

/// How a shutdown proceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupervisorConfig {
    /// Drain inbound listeners while the grace period runs.
    pub drain: bool,
    /// How long Envoy keeps serving after a shutdown was asked for.
    pub grace: Duration,
    /// How long Envoy may take to quit after the grace period, before it is killed.
    pub kill_after: Duration,
}

impl Default for SupervisorConfig {
    /// No drain, no grace period, 10 s to quit.
    fn default() -> Self {
        Self {
            drain: false,
            grace: Duration::ZERO,
            kill_after: Duration::from_secs(10),
        }
    }
}

/// Where the process is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Started, and not ready yet.
    Starting,
    /// Ready at least once.
    Running,
    /// Asked to end; the grace period runs.
    Draining,
    /// Told to quit.
    Quitting,
    /// Sent SIGKILL.
    Killing,
    /// Gone. Nothing follows.
    Exited,
}

/// What happens to the process or to its supervision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Envoy answered that it is ready.
    Ready,
    /// The process has ended.
    Exited(ExitReason),
    /// Someone wants the process to end in order.
    ShutdownRequested,
    /// Someone wants the process to end now.
    KillRequested,
    /// The grace period is over.
    GraceElapsed,
    /// Envoy confirmed that it quits.
    QuitDone,
    /// Envoy did not confirm that it quits.
    QuitFailed,
    /// Grace period and time to quit are both over.
    DeadlineElapsed,
    /// The process was killed a while ago and still has not ended.
    ReapElapsed,
}

/// Timers that the machine asks for. Each is started at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// Brings [`Event::GraceElapsed`].
    Grace,
    /// Brings [`Event::DeadlineElapsed`].
    Deadline,
    /// Brings [`Event::ReapElapsed`].
    Reap,
}

/// What has to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ask Envoy to drain its inbound listeners. A failure changes nothing.
    Drain,
    /// Ask Envoy to quit; brings [`Event::QuitDone`] or [`Event::QuitFailed`].
    Quit,
    /// Send SIGTERM, which Envoy takes as a wish to end.
    Terminate,
    /// Send SIGKILL.
    Kill,
    /// Bring the timer's event after this time.
    Start(Timer, Duration),
}

/// How the process ended, and whether that was wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// How it ended.
    pub reason: ExitReason,
    /// Whether a shutdown had been asked for before.
    pub requested: bool,
    /// Whether the supervisor had to kill it.
    pub forced: bool,
}

impl Exit {
    /// Whether this was the good end of a shutdown that someone asked for.
    pub fn graceful(&self) -> bool {
        self.requested && !self.forced && self.reason.success()
    }
}

/// The life of one process.
#[derive(Debug, Clone)]
pub struct Machine {
    config: SupervisorConfig,
    state: State,
    requested: bool,
    forced: bool,
    terminated: bool,
    exit: Option<Exit>,
}

impl Machine {
    /// A process that was just started.
    pub fn new(config: SupervisorConfig) -> Self {
        Self {
            config,
            state: State::Starting,
            requested: false,
            forced: false,
            terminated: false,
            exit: None,
        }
    }

    /// Where the process is.
    pub fn state(&self) -> State {
        self.state
    }

    /// How it ended, once it has.
    pub fn exit(&self) -> Option<&Exit> {
        self.exit.as_ref()
    }

    /// Takes an event and answers what has to be done, in this order. An event that means nothing
    /// in the present state is ignored.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        match (self.state, event) {
            (State::Exited, _) => Vec::new(),
            (_, Event::Exited(reason)) => self.end(reason),
            (State::Starting, Event::Ready) => {
                self.state = State::Running;
                Vec::new()
            }
            (State::Starting | State::Running, Event::ShutdownRequested) => self.shut_down(),
            (State::Draining, Event::GraceElapsed) => self.quit(),
            (State::Quitting, Event::QuitFailed) if !self.terminated => {
                self.terminated = true;
                vec![Action::Terminate]
            }
            (State::Killing, Event::ReapElapsed) => self.end(ExitReason::Unkillable),
            (State::Killing, _) => Vec::new(),
            (_, Event::KillRequested) => {
                self.requested = true;
                self.kill()
            }
            (State::Draining | State::Quitting, Event::DeadlineElapsed) => self.kill(),
            _ => Vec::new(),
        }
    }

    fn shut_down(&mut self) -> Vec<Action> {
        self.requested = true;
        let SupervisorConfig {
            drain,
            grace,
            kill_after,
        } = self.config;
        // An Envoy that was never ready carries no traffic that a grace period could save.
        let grace = if self.state == State::Starting {
            Duration::ZERO
        } else {
            grace
        };
        let mut actions = vec![Action::Start(
            Timer::Deadline,
            grace.saturating_add(kill_after),
        )];
        if grace.is_zero() {
            actions.extend(self.quit());
        } else {
            self.state = State::Draining;
            actions.push(Action::Start(Timer::Grace, grace));
            actions.extend(drain.then_some(Action::Drain));
        }
        actions
    }

    fn quit(&mut self) -> Vec<Action> {
        self.state = State::Quitting;
        vec![Action::Quit]
    }

    fn kill(&mut self) -> Vec<Action> {
        self.state = State::Killing;
        self.forced = true;
        vec![Action::Kill, Action::Start(Timer::Reap, REAP_WAIT)]
    }

    fn end(&mut self, reason: ExitReason) -> Vec<Action> {
        self.state = State::Exited;
        self.exit = Some(Exit {
            reason,
            requested: self.requested,
            forced: self.forced,
        });
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GRACE: Duration = Duration::from_secs(30);
    const KILL_AFTER: Duration = Duration::from_secs(10);

    fn machine(drain: bool, grace: Duration) -> Machine {
        Machine::new(SupervisorConfig {
            drain,
            grace,
            kill_after: KILL_AFTER,
        })
    }

    fn running(drain: bool, grace: Duration) -> Machine {
        let mut machine = machine(drain, grace);
        assert_eq!(machine.on(Event::Ready), []);
        machine
    }

    #[test]
    fn a_shutdown_drains_then_quits_then_ends() {
        let mut machine = running(true, GRACE);
        let actions = machine.on(Event::ShutdownRequested);
        let expected = [
            Action::Start(Timer::Deadline, GRACE + KILL_AFTER),
            Action::Start(Timer::Grace, GRACE),
            Action::Drain,
        ];
        assert_eq!(actions, expected);
        assert_eq!(machine.on(Event::GraceElapsed), [Action::Quit]);
        assert_eq!(machine.on(Event::QuitDone), []);
        assert_eq!(machine.on(Event::Exited(ExitReason::Code(0))), []);
        assert!(machine.exit().is_some_and(Exit::graceful));
    }

    #[test]
    fn without_grace_and_before_ready_it_quits_at_once() {
        for mut machine in [running(true, Duration::ZERO), machine(true, GRACE)] {
            let actions = machine.on(Event::ShutdownRequested);
            assert_eq!(
                actions,
                [Action::Start(Timer::Deadline, KILL_AFTER), Action::Quit]
            );
        }
    }

    #[test]
    fn a_failed_quit_becomes_a_signal_and_the_deadline_kills() {
        let mut machine = running(false, Duration::ZERO);
        machine.on(Event::ShutdownRequested);
        assert_eq!(machine.on(Event::QuitFailed), [Action::Terminate]);
        assert_eq!(machine.on(Event::QuitFailed), []);
        let kill = [Action::Kill, Action::Start(Timer::Reap, REAP_WAIT)];
        assert_eq!(machine.on(Event::DeadlineElapsed), kill);
        machine.on(Event::ReapElapsed);
        let expected = Exit {
            reason: ExitReason::Unkillable,
            requested: true,
            forced: true,
        };
        assert_eq!(machine.exit(), Some(&expected));
    }

    #[test]
    fn an_end_that_nobody_asked_for_is_not_graceful() {
        let mut machine = running(false, GRACE);
        machine.on(Event::Exited(ExitReason::Code(0)));
        let expected = Exit {
            reason: ExitReason::Code(0),
            requested: false,
            forced: false,
        };
        assert_eq!(machine.exit(), Some(&expected));
        assert!(!expected.graceful());
    }

    /// What the world does next, as far as the machine gave it cause to.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Ready,
        Shutdown,
        Kill,
        Exit,
        Admin {
            fails: bool,
        },
        /// Time passes until the next timer.
        Wait,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => Just(Step::Ready),
            2 => Just(Step::Shutdown),
            1 => Just(Step::Kill),
            1 => Just(Step::Exit),
            2 => any::<bool>().prop_map(|fails| Step::Admin { fails }),
            3 => Just(Step::Wait),
        ]
    }

    /// A world with a clock, running timers and an Envoy that may ignore everything but SIGKILL.
    struct World {
        machine: Machine,
        now: Duration,
        timers: Vec<(Duration, Timer)>,
        performed: Vec<(Duration, Action)>,
        quit_pending: bool,
        asked: Option<Duration>,
    }

    impl World {
        fn apply(&mut self, event: Event) {
            let gone = self.machine.state() == State::Exited;
            for action in self.machine.on(event) {
                assert!(!gone, "{action:?} after the end");
                self.performed.push((self.now, action));
                match action {
                    Action::Start(timer, after) => self.timers.push((self.now + after, timer)),
                    Action::Quit => self.quit_pending = true,
                    Action::Drain | Action::Terminate | Action::Kill => {}
                }
            }
        }

        fn count(&self, wanted: Action) -> usize {
            self.performed
                .iter()
                .filter(|(_, action)| *action == wanted)
                .count()
        }

        fn wait(&mut self) -> bool {
            self.timers.sort_by_key(|(at, _)| *at);
            if self.timers.is_empty() {
                return false;
            }
            let (at, timer) = self.timers.remove(0);
            self.now = self.now.max(at);
            self.apply(match timer {
                Timer::Grace => Event::GraceElapsed,
                Timer::Deadline => Event::DeadlineElapsed,
                Timer::Reap => Event::ReapElapsed,
            });
            true
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Ready => self.apply(Event::Ready),
                Step::Shutdown => {
                    self.asked.get_or_insert(self.now);
                    self.apply(Event::ShutdownRequested);
                }
                Step::Kill => {
                    self.asked.get_or_insert(self.now);
                    self.apply(Event::KillRequested);
                }
                Step::Exit => self.apply(Event::Exited(ExitReason::Code(1))),
                Step::Admin { fails } if self.quit_pending => {
                    self.quit_pending = false;
                    self.apply(if fails {
                        Event::QuitFailed
                    } else {
                        Event::QuitDone
                    });
                }
                Step::Admin { .. } => {}
                Step::Wait => drop(self.wait()),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn every_order_of_events_ends_in_time_and_does_nothing_twice(
            drain in any::<bool>(),
            grace in 0_u64..40,
            steps in prop::collection::vec(step(), 0..24),
        ) {
            let grace = Duration::from_secs(grace);
            let mut world = World {
                machine: machine(drain, grace),
                now: Duration::ZERO,
                timers: Vec::new(),
                performed: Vec::new(),
                quit_pending: false,
                asked: None,
            };
            for next in steps {
                world.step(next);
            }
            world.step(Step::Shutdown);
            while world.wait() {}

            prop_assert_eq!(world.machine.state(), State::Exited);
            prop_assert!(world.machine.exit().is_some());
            for once in [Action::Quit, Action::Kill, Action::Terminate, Action::Drain] {
                prop_assert!(world.count(once) <= 1, "{:?}", world.performed);
            }
            let asked = world.asked.expect("a shutdown was asked for");
            for (at, action) in &world.performed {
                if *action == Action::Kill {
                    prop_assert!(*at <= asked + grace + KILL_AFTER, "{:?}", world.performed);
                }
            }
            let ended_by_itself = !matches!(
                world.machine.exit().map(|exit| &exit.reason),
                Some(ExitReason::Unkillable)
            );
            prop_assert!(ended_by_itself || world.count(Action::Kill) == 1);
        }
    }
}
