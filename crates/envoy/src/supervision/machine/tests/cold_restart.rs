//! Replacements that cannot run at the same time as the serving process, which drains and ends
//! first, or stays.

use super::*;

const POLICY: Policy = Policy {
    drain: true,
    grace: Duration::from_secs(30),
    cold_restart_grace: Duration::from_secs(20),
    ..DRAIN
};

/// A machine whose process drains for a cold restart, and the resulting actions.
fn retiring() -> (Machine<&'static str>, Vec<Action>) {
    let mut machine = machine(POLICY);
    machine.on(Event::Ready(1));
    assert_eq!(machine.on(Event::Restart), [Action::Check(2, "a")]);
    let actions = machine.on(Event::Checked(2, Ok(RestartMode::Cold)));
    (machine, actions)
}

#[test]
fn a_cold_restart_drains_and_ends_the_old_process_first() {
    let (mut machine, actions) = retiring();
    let expected = [
        Action::Drain(1),
        Action::Arm(Timer::Over(1, EpochState::Draining), 20 * SECOND),
        Action::AwaitIdle(1),
    ];
    assert_eq!(actions, expected);
    let actions = machine.on(Event::Elapsed(Timer::Over(1, EpochState::Draining)));
    assert_eq!(actions[0], Action::Terminate(1));
    let actions = machine.on(Event::Exited(1, CLEAN));
    assert_eq!(started(&actions), Some((2, 0, "a")));
}

#[test]
fn the_end_of_all_connections_ends_that_drain() {
    let (mut machine, _) = retiring();
    assert_eq!(machine.on(Event::Idle(1))[0], Action::Terminate(1));
    let actions = machine.on(Event::Exited(1, CLEAN));
    assert_eq!(started(&actions), Some((2, 0, "a")));
    // A later stop has its own drain, with its minimum.
    machine.on(Event::Ready(2));
    let actions = machine.on(Event::Stop);
    assert!(!actions.contains(&Action::AwaitIdle(2)), "{actions:?}");
    let actions = machine.on(Event::Elapsed(Timer::MinDrain));
    assert_eq!(actions, [Action::AwaitIdle(2)]);
}

#[test]
fn a_stop_meanwhile_has_its_own_grace_period() {
    let (mut machine, _) = retiring();
    let expected = [
        Action::Arm(Timer::Deadline, 40 * SECOND),
        Action::Arm(Timer::Grace, 30 * SECOND),
        Action::Arm(Timer::MinDrain, 5 * SECOND),
    ];
    assert_eq!(machine.on(Event::Stop), expected, "it drains already");
    assert_eq!(machine.on(Event::Idle(1)), [], "too early");
    assert_eq!(
        machine.on(Event::Elapsed(Timer::Over(1, EpochState::Draining))),
        []
    );
    let actions = machine.on(Event::Elapsed(Timer::MinDrain));
    assert_eq!(actions, [Action::AwaitIdle(1)]);
    assert_eq!(machine.on(Event::Elapsed(Timer::Grace)), [Action::Quit(1)]);
}

#[test]
fn a_hot_only_configuration_keeps_the_serving_process() {
    let mut machine = machine(POLICY);
    machine.on(Event::Ready(1));
    assert_eq!(machine.on(Event::Update("b")), [Action::Check(2, "b")]);
    assert_eq!(machine.on(Event::Checked(2, Ok(RestartMode::Deferred))), []);
    assert!(machine.settled(), "the serving configuration is wanted");
    assert_eq!(machine.on(Event::Update("b")), [Action::Check(3, "b")]);
    // The same holds for an adopted process, whose configuration is unknown.
    let adopted = [Adopted {
        epoch: 4,
        current: false,
    }];
    let (mut machine, actions) = begun(POLICY, "a", &adopted);
    assert_eq!(actions[1], Action::Check(1, "a"));
    assert_eq!(machine.on(Event::Checked(1, Ok(RestartMode::Deferred))), []);
    assert!(machine.settled());
    assert_eq!(machine.on(Event::Restart), [Action::Check(2, "a")]);
}
