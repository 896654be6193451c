//! Single sequences of events, written as tables.

use std::time::Duration;

use super::super::options::{Policy, RETRIES, retry_wait};
use super::*;

mod cold_restart;
mod refusing;
mod timers;

type Event = super::Event<&'static str>;
type Action = super::Action<&'static str>;

const SECOND: Duration = Duration::from_secs(1);

pub(super) const CLEAN: ExitReason = ExitReason::Code(0);
pub(super) const FAILED: ExitReason = ExitReason::Code(1);
pub(super) const KILLED: ExitReason = ExitReason::Signal(String::new());

/// Result of a check of a configuration that Envoy rejects.
pub(super) fn refused<T>() -> Result<T, String> {
    Err("no such field".to_owned())
}

impl<D: Clone + PartialEq> Machine<D> {
    /// Whether the only epoch serves the wanted configuration, and nothing remains to be done.
    pub(super) fn settled(&self) -> bool {
        matches!(self.epochs.as_slice(), [only] if only.state.serves() && only.serial == self.wanted.serial)
    }
}

/// A machine, and its first actions.
fn begun<D: Clone + PartialEq>(
    policy: Policy,
    config: D,
    adopted: &[Adopted],
) -> (Machine<D>, Vec<super::Action<D>>) {
    let mut machine = Machine::new(policy, config, adopted);
    let actions = machine.begin();
    (machine, actions)
}

fn machine(policy: Policy) -> Machine<&'static str> {
    let (machine, actions) = begun(policy, "a", &[]);
    assert_eq!(started(&actions), Some((1, 0, "a")));
    machine
}

/// A machine that serves "a" as epoch 0.
fn serving() -> Machine<&'static str> {
    let mut machine = machine(Policy::default());
    machine.on(Event::Ready(1));
    machine
}

/// A machine where epoch 1 with "b" starts while epoch 0 is running.
fn replacing() -> Machine<&'static str> {
    let mut machine = serving();
    assert_eq!(machine.on(Event::Update("b")), [Action::Check(2, "b")]);
    let actions = machine.on(Event::Checked(2, Ok(RestartMode::Hot)));
    assert_eq!(started(&actions), Some((2, 1, "b")));
    machine
}

fn started(actions: &[Action]) -> Option<(Run, u32, &'static str)> {
    actions.iter().find_map(|action| match action {
        Action::Start(run, epoch, config) => Some((*run, *epoch, *config)),
        _ => None,
    })
}

fn states(machine: &Machine<&'static str>) -> Vec<(u32, EpochState)> {
    machine
        .epochs()
        .iter()
        .map(|epoch| (epoch.epoch, epoch.state))
        .collect()
}

#[test]
fn an_equal_configuration_starts_nothing() {
    let mut machine = serving();
    assert_eq!(machine.on(Event::Update("a")), []);
    assert!(machine.settled());
}

#[test]
fn a_new_epoch_takes_over_and_the_old_one_ends_in_its_own_time() {
    let mut machine = replacing();
    let actions = machine.on(Event::Ready(2));
    assert_eq!(
        actions,
        [Action::Arm(
            Timer::Over(1, EpochState::Draining),
            Policy::default().hand_over
        )]
    );
    assert_eq!(
        states(&machine),
        [(0, EpochState::Draining), (1, EpochState::Serving)]
    );
    assert_eq!(machine.on(Event::Exited(1, CLEAN)), [Action::CleanUp(0)]);
    assert!(machine.settled());
}

#[test]
fn an_old_epoch_that_stays_is_ended() {
    let mut machine = replacing();
    machine.on(Event::Ready(2));
    let actions = machine.on(Event::Elapsed(Timer::Over(1, EpochState::Draining)));
    assert_eq!(
        actions,
        [
            Action::Terminate(1),
            Action::Arm(Timer::Over(1, EpochState::Stopping), ABORT_WAIT)
        ]
    );
    let actions = machine.on(Event::Elapsed(Timer::Over(1, EpochState::Stopping)));
    assert_eq!(
        actions,
        [
            Action::Kill(1),
            Action::Arm(Timer::Over(1, EpochState::Killed), REAP_WAIT)
        ]
    );
}

#[test]
fn a_further_update_waits_until_the_handover_is_done() {
    let mut machine = replacing();
    machine.on(Event::Ready(2));
    assert_eq!(machine.on(Event::Update("c")), []);
    assert_eq!(machine.on(Event::Update("d")), []);
    let actions = machine.on(Event::Exited(1, CLEAN));
    assert_eq!(actions, [Action::CleanUp(0), Action::Check(4, "d")]);
}

#[test]
fn a_refused_configuration_is_tried_again_by_the_table_and_then_dropped() {
    let mut machine = serving();
    machine.on(Event::Update("b"));
    for failure in 1..=RETRIES {
        let actions = machine.on(Event::Checked(2, refused()));
        assert_eq!(actions, [Action::Arm(Timer::Retry, retry_wait(failure))]);
        let actions = machine.on(Event::Elapsed(Timer::Retry));
        assert_eq!(actions, [Action::Check(2, "b")]);
    }
    assert_eq!(machine.on(Event::Checked(2, refused())), [Action::Spent]);
    assert!(
        machine.settled(),
        "the serving configuration is wanted again"
    );
    assert_eq!(
        machine.on(Event::Update("b")),
        [Action::Check(3, "b")],
        "requested again"
    );
}

#[test]
fn a_replacement_that_dies_reuses_its_number() {
    let mut machine = replacing();
    let actions = machine.on(Event::Exited(2, FAILED));
    let retry = Action::Arm(Timer::Retry, Duration::from_millis(200));
    assert_eq!(actions, [Action::CleanUp(1), retry]);
    assert_eq!(states(&machine), [(0, EpochState::Serving)]);
    machine.on(Event::Elapsed(Timer::Retry));
    let actions = machine.on(Event::Checked(2, Ok(RestartMode::Hot)));
    assert_eq!(started(&actions), Some((3, 1, "b")));
}

#[test]
fn a_replacement_that_never_becomes_ready_is_ended() {
    let mut machine = replacing();
    let actions = machine.on(Event::Elapsed(Timer::Over(2, EpochState::Starting)));
    assert_eq!(actions[0], Action::Terminate(2));
    assert!(actions.contains(&Action::Arm(Timer::Retry, Duration::from_millis(200))));
    assert_eq!(machine.on(Event::Exited(2, CLEAN)), [Action::CleanUp(1)]);
    assert_eq!(states(&machine), [(0, EpochState::Serving)]);
}

#[test]
fn a_newer_update_ends_a_replacement_that_is_starting() {
    let mut machine = replacing();
    assert_eq!(machine.on(Event::Update("c"))[0], Action::Terminate(2));
    let actions = machine.on(Event::Exited(2, FAILED));
    assert_eq!(actions, [Action::CleanUp(1), Action::Check(3, "c")]);
    // Back to the serving configuration: nothing remains to be done.
    machine.on(Event::Checked(3, Ok(RestartMode::Hot)));
    machine.on(Event::Update("a"));
    machine.on(Event::Exited(3, FAILED));
    assert!(machine.settled());
}

#[test]
fn a_crash_during_a_replacement_rolls_back_to_the_last_ready_configuration() {
    let mut machine = replacing();
    let actions = machine.on(Event::Exited(1, FAILED));
    assert_eq!(actions[..2], [Action::CleanUp(0), Action::Kill(2)]);
    let actions = machine.on(Event::Exited(2, FAILED));
    assert_eq!(
        started(&actions),
        Some((3, 0, "b")),
        "nothing has failed of it yet"
    );
    let actions = machine.on(Event::Exited(3, FAILED));
    assert_eq!(started(&actions), Some((4, 0, "a")));
    assert_eq!(machine.on(Event::Ready(4)), [Action::Check(2, "b")]);
}

#[test]
fn an_epoch_that_took_over_and_crashed_restarts_from_the_draining_parent() {
    let mut machine = replacing();
    machine.on(Event::Ready(2));
    let actions = machine.on(Event::Exited(2, FAILED));
    assert_eq!(started(&actions), Some((3, 1, "b")));
}

#[test]
fn a_stop_drains_quits_and_is_final() {
    let policy = Policy {
        drain: true,
        grace: 30 * SECOND,
        ..Policy::default()
    };
    let mut machine = machine(policy);
    machine.on(Event::Ready(1));
    let expected = [
        Action::Arm(Timer::Deadline, 40 * SECOND),
        Action::Arm(Timer::Grace, 30 * SECOND),
        Action::Drain(1),
    ];
    assert_eq!(machine.on(Event::Stop), expected);
    assert_eq!(machine.on(Event::Stop), []);
    assert_eq!(machine.on(Event::Update("b")), []);
    assert_eq!(machine.on(Event::Elapsed(Timer::Grace)), [Action::Quit(1)]);
    assert_eq!(machine.on(Event::QuitFailed(1)), [Action::Terminate(1)]);
    assert_eq!(machine.on(Event::Exited(1, CLEAN)), [Action::CleanUp(0)]);
    assert_eq!(machine.outcome(), Some(Outcome::Stopped { forced: false }));
}

/// A machine that serves and then drains for at most 30 s, and the actions of the stop.
fn draining(policy: Policy) -> (Machine<&'static str>, Vec<Action>) {
    let mut machine = machine(Policy {
        grace: 30 * SECOND,
        ..policy
    });
    machine.on(Event::Ready(1));
    let actions = machine.on(Event::Stop);
    (machine, actions)
}

const DRAIN: Policy = Policy {
    drain: true,
    min_drain: Some(Duration::from_secs(5)),
    grace: Duration::ZERO,
    kill_after: Duration::from_secs(10),
    hand_over: Duration::from_secs(65),
    cold_restart_grace: Duration::ZERO,
};

#[test]
fn a_drain_ends_without_connections_but_not_before_its_minimum() {
    let (mut machine, _) = draining(DRAIN);
    assert_eq!(machine.on(Event::Idle(1)), [], "not watched yet");
    assert_eq!(
        machine.on(Event::Elapsed(Timer::MinDrain)),
        [Action::AwaitIdle(1)]
    );
    assert_eq!(machine.on(Event::Idle(2)), [], "another process");
    let expected = [
        Action::Arm(Timer::Deadline, DRAIN.kill_after),
        Action::Quit(1),
    ];
    assert_eq!(machine.on(Event::Idle(1)), expected);
    assert_eq!(machine.on(Event::Idle(1)), []);
    assert_eq!(machine.on(Event::Elapsed(Timer::Grace)), []);
    assert_eq!(
        machine.on(Event::Elapsed(Timer::Deadline))[0],
        Action::Kill(1)
    );
    machine.on(Event::Exited(1, FAILED));
    assert_eq!(machine.outcome(), Some(Outcome::Stopped { forced: true }));
}

#[test]
fn a_drain_before_the_stop_counts_for_the_process_that_served_then() {
    let policy = Policy {
        grace: 30 * SECOND,
        ..DRAIN
    };
    let minimum = |machine: &mut Machine<&'static str>| {
        let actions = machine.on(Event::Stop);
        actions.into_iter().find_map(|action| match action {
            Action::Arm(Timer::MinDrain, wait) => Some(wait),
            _ => None,
        })
    };
    let mut told = machine(policy);
    told.on(Event::Ready(1));
    told.on(Event::Drained);
    assert_eq!(minimum(&mut told), Some(Duration::ZERO));
    let mut replaced = machine(policy);
    replaced.on(Event::Drained);
    replaced.on(Event::Ready(1));
    assert_eq!(
        minimum(&mut replaced),
        DRAIN.min_drain,
        "it did not serve yet"
    );
}

#[test]
fn connections_are_watched_only_if_they_may_end_a_drain_early() {
    let minimum = |actions: &[Action]| {
        let is = |action: &Action| matches!(action, Action::Arm(Timer::MinDrain, _));
        actions.iter().any(is)
    };
    assert!(minimum(&draining(DRAIN).1));
    let policy = Policy {
        drain: false,
        ..DRAIN
    };
    assert!(!minimum(&draining(policy).1));
    for min_drain in [None, Some(30 * SECOND)] {
        let policy = Policy { min_drain, ..DRAIN };
        assert!(!minimum(&draining(policy).1));
    }
}

#[test]
fn a_drain_is_not_cut_short_while_an_older_epoch_has_connections() {
    let policy = Policy {
        grace: 30 * SECOND,
        ..DRAIN
    };
    let mut machine = machine(policy);
    machine.on(Event::Ready(1));
    machine.on(Event::Update("b"));
    machine.on(Event::Checked(2, Ok(RestartMode::Hot)));
    machine.on(Event::Ready(2));
    machine.on(Event::Stop);
    assert_eq!(machine.on(Event::Elapsed(Timer::MinDrain)), []);
    let actions = machine.on(Event::Exited(1, CLEAN));
    assert_eq!(actions, [Action::CleanUp(0), Action::AwaitIdle(2)]);
    assert!(machine.on(Event::Idle(2)).contains(&Action::Quit(2)));
}

#[test]
fn no_process_is_asked_to_quit_over_the_admin_interface_of_another() {
    // A child has the admin interface as soon as it starts. It would confirm a request meant for
    // its parent.
    let mut machine = replacing();
    let actions = machine.on(Event::Stop);
    assert!(actions.contains(&Action::Terminate(1)) && actions.contains(&Action::Terminate(2)));
    let quits = |action: &Action| matches!(action, Action::Quit(_));
    assert!(!actions.iter().any(quits), "{actions:?}");
}

#[test]
fn a_stop_in_the_middle_of_a_hand_over_ends_both() {
    let mut machine = replacing();
    machine.on(Event::Ready(2));
    let actions = machine.on(Event::Stop);
    assert!(actions.contains(&Action::Quit(2)) && actions.contains(&Action::Terminate(1)));
    machine.on(Event::Exited(1, CLEAN));
    assert_eq!(machine.outcome(), None);
    let actions = machine.on(Event::Elapsed(Timer::Deadline));
    assert_eq!(actions[0], Action::Kill(2));
    machine.on(Event::Exited(2, FAILED));
    assert_eq!(machine.outcome(), Some(Outcome::Stopped { forced: true }));
}

#[test]
fn a_process_that_survives_a_kill_is_reported() {
    let mut machine = serving();
    machine.on(Event::Kill);
    assert_eq!(
        machine.on(Event::Elapsed(Timer::Over(1, EpochState::Killed))),
        []
    );
    machine.on(Event::Elapsed(Timer::Last));
    assert_eq!(machine.outcome(), Some(Outcome::Unkillable));
}

#[test]
fn an_unrequested_clean_exit_ends_supervision() {
    let mut machine = serving();
    machine.on(Event::Exited(1, CLEAN));
    assert_eq!(machine.outcome(), Some(Outcome::Ended));
}

#[test]
fn adopted_processes_go_on_and_are_replaced_when_they_run_something_else() {
    let adopted = |current| {
        [
            Adopted {
                epoch: 3,
                current: false,
            },
            Adopted { epoch: 4, current },
        ]
    };
    let (machine, actions) = begun(Policy::default(), "a", &adopted(true));
    assert_eq!(
        states(&machine),
        [(3, EpochState::Draining), (4, EpochState::Serving)]
    );
    assert!(started(&actions).is_none());
    let (mut machine, _) = begun(Policy::default(), "a", &adopted(false));
    let actions = machine.on(Event::Exited(1, FAILED));
    assert_eq!(actions, [Action::CleanUp(3), Action::Check(1, "a")]);
    let actions = machine.on(Event::Checked(1, Ok(RestartMode::Hot)));
    assert_eq!(started(&actions), Some((3, 5, "a")));
    machine.on(Event::Release);
    assert_eq!(machine.outcome(), Some(Outcome::Released));
}
