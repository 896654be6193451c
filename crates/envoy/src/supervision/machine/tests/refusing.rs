//! First configurations that Envoy may reject.

use super::*;

/// A machine whose first process has failed, and the resulting actions.
fn failed() -> (Machine<&'static str>, Vec<Action>) {
    let mut machine = machine(Policy::default());
    let actions = machine.on(Event::Exited(1, FAILED));
    (machine, actions)
}

const SPENT: [Action; 1] = [Action::Spent];

#[test]
fn a_refused_first_configuration_ends_supervision_when_its_last_process_ends() {
    let (mut machine, actions) = failed();
    assert_eq!(actions[..2], [Action::CleanUp(0), Action::Validate(1, "a")]);
    assert_eq!(
        started(&actions),
        Some((2, 0, "a")),
        "the retry does not wait for it"
    );
    assert_eq!(machine.on(Event::Validated(1, refused())), []);
    assert!(machine.refused());
    let actions = machine.on(Event::Exited(2, FAILED));
    assert_eq!(actions, [Action::CleanUp(0), SPENT[0].clone()]);
    assert_eq!(machine.outcome(), Some(Outcome::Spent));
}

#[test]
fn a_refusal_while_nothing_runs_ends_the_wait() {
    let (mut machine, _) = failed();
    machine.on(Event::SpawnFailed(2));
    let actions = machine.on(Event::SpawnFailed(3));
    assert_eq!(actions, [Action::Arm(Timer::Crash, 2 * SECOND)]);
    assert_eq!(machine.on(Event::Validated(1, refused())), SPENT);
    assert_eq!(machine.outcome(), Some(Outcome::Spent));
}

#[test]
fn a_running_process_overrides_the_validation() {
    let (mut machine, _) = failed();
    machine.on(Event::Validated(1, refused()));
    machine.on(Event::Ready(2));
    assert!(!machine.refused());
    let actions = machine.on(Event::Exited(2, FAILED));
    assert_eq!(started(&actions), Some((3, 0, "a")));

    let (mut machine, _) = failed();
    machine.on(Event::Ready(2));
    machine.on(Event::Validated(1, refused()));
    assert!(!machine.refused(), "the answer came too late");
}

#[test]
fn a_configuration_is_checked_once_and_only_when_that_can_explain_the_end() {
    let asks = |actions: &[Action]| {
        let is = |action: &Action| matches!(action, Action::Validate(..));
        actions.iter().any(is)
    };
    // The validation passes, and the retries continue.
    let (mut machine, actions) = failed();
    assert!(asks(&actions));
    assert_eq!(machine.on(Event::Validated(1, Ok(()))), []);
    assert!(!asks(&machine.on(Event::Exited(2, FAILED))));
    // A new configuration is validated separately, and the result of the previous one is ignored.
    machine.on(Event::Update("b"));
    machine.on(Event::Exited(3, FAILED));
    let actions = machine.on(Event::Exited(4, FAILED));
    assert_eq!(actions[1], Action::Validate(2, "b"));
    machine.on(Event::Validated(1, refused()));
    assert!(!machine.refused());

    let mut killed = super::machine(Policy::default());
    assert!(!asks(&killed.on(Event::Exited(1, KILLED))));
    assert!(!asks(&killed.on(Event::SpawnFailed(2))));
    assert!(asks(&killed.on(Event::Exited(3, FAILED))));
    // The process has served.
    assert!(!asks(&serving().on(Event::Exited(1, FAILED))));
    // An older process serves, or its configuration can be restored.
    assert!(!asks(&replacing().on(Event::Exited(2, FAILED))));
    let mut machine = serving();
    machine.on(Event::Exited(1, KILLED));
    machine.on(Event::Update("b"));
    machine.on(Event::Exited(2, KILLED));
    let actions = machine.on(Event::Exited(3, FAILED));
    assert_eq!(started(&actions), Some((4, 0, "a")));
    assert!(!asks(&actions));
}
