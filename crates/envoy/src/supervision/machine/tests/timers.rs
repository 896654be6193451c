//! Which timers are relevant.

use super::*;

/// The timers that a driver retains.
fn kept(machine: &Machine<&'static str>, armed: &mut Vec<Timer>, actions: &[Action]) {
    armed.extend(actions.iter().filter_map(|action| match action {
        Action::Arm(timer, _) => Some(*timer),
        _ => None,
    }));
    armed.retain(|timer| machine.waits_for(*timer));
}

#[test]
fn a_process_that_has_ended_leaves_no_timer() {
    let (mut machine, actions) = begun(Policy::default(), "a", &[]);
    let mut armed = Vec::new();
    kept(&machine, &mut armed, &actions);
    assert_eq!(armed, [Timer::Healthy(1)]);
    // A day of replacements, each faster than any timer.
    for restart in 0..10_000 {
        let run = restart + 1;
        for event in [
            Event::Ready(run),
            Event::Restart,
            Event::Checked(restart + 2, Ok(RestartMode::Hot)),
            Event::Ready(run + 1),
            Event::Exited(run, CLEAN),
        ] {
            let actions = machine.on(event);
            kept(&machine, &mut armed, &actions);
            assert!(armed.len() <= 4, "{armed:?}");
        }
    }
    assert_eq!(armed, [Timer::Healthy(10_001)]);
}

#[test]
fn obsolete_waits_end() {
    let mut machine = serving();
    machine.on(Event::Update("b"));
    machine.on(Event::Checked(2, refused()));
    assert!(machine.waits_for(Timer::Retry));
    machine.on(Event::Update("c"));
    assert!(!machine.waits_for(Timer::Retry));
    machine.on(Event::Exited(1, KILLED));
    machine.on(Event::Stop);
    assert!(!machine.waits_for(Timer::Healthy(1)));
}
