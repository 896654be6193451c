//! Hand-written and generated orders of events.

use proptest::prelude::*;

use super::*;

const RETURN_AFTER: Duration = Duration::from_secs(300);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn needs() -> Event {
    Event::Needs("an HTTP filter".to_owned())
}

/// Envoy serves, because it was needed.
fn envoy(now: Instant) -> Choice {
    let mut choice = Choice::new(RETURN_AFTER);
    assert_eq!(choice.handle(needs(), now), Some(Action::StartEnvoy));
    assert_eq!(
        choice.handle(Event::EnvoyServes, now),
        Some(Action::ToEnvoy)
    );
    assert_eq!(choice.handle(Event::Changed, now), None);
    assert_eq!(choice.phase(), Phase::Envoy);
    choice
}

#[test]
fn envoy_serves_while_it_is_needed_and_some_time_longer() {
    let begin = Instant::now();
    let mut choice = envoy(begin);
    assert_eq!(choice.due(), None);
    assert_eq!(choice.handle(Event::Fits, begin), None);
    // It alternates: the time begins again.
    let now = begin + seconds(299);
    assert_eq!(choice.handle(needs(), now), None);
    assert_eq!(choice.handle(Event::Fits, now), None);
    assert_eq!(choice.due(), Some(now + RETURN_AFTER));
    assert_eq!(choice.handle(Event::Time, now + seconds(299)), None);
    let now = now + RETURN_AFTER;
    assert_eq!(choice.handle(Event::Time, now), Some(Action::ToBuiltIn));
    assert_eq!(choice.handle(Event::Changed, now), Some(Action::DrainEnvoy));
    assert_eq!(choice.phase(), Phase::BuiltIn);
    // The next return is an hour after this one.
    assert_eq!(choice.handle(needs(), now), Some(Action::StartEnvoy));
    choice.handle(Event::EnvoyServes, now);
    choice.handle(Event::Changed, now);
    choice.handle(Event::Fits, now);
    assert_eq!(choice.due(), Some(now + seconds(3_600)));
}

#[test]
fn an_envoy_that_does_not_start_is_tried_again_and_said_after_a_minute() {
    let begin = Instant::now();
    let mut choice = Choice::new(RETURN_AFTER);
    assert_eq!(choice.handle(needs(), begin), Some(Action::StartEnvoy));
    let ended = Event::EnvoyEnded("no such file".to_owned());
    assert_eq!(choice.handle(ended.clone(), begin), None);
    assert_eq!(choice.due(), Some(begin + RETRY));
    assert_eq!(choice.outdated(begin + seconds(59)), None);
    let now = begin + seconds(60);
    assert_eq!(
        choice.outdated(now).unwrap(),
        "an HTTP filter needs Envoy, and has not been served for a minute: no such file"
    );
    assert_eq!(choice.handle(Event::Time, now), Some(Action::StartEnvoy));
    assert_eq!(choice.handle(ended, now), None);
    // It is not needed any more.
    assert_eq!(choice.handle(Event::Fits, now), None);
    assert_eq!(
        (choice.phase(), choice.outdated(now)),
        (Phase::BuiltIn, None)
    );
}

#[test]
fn an_envoy_that_is_not_needed_any_more_takes_over_and_gives_back() {
    let now = Instant::now();
    let mut choice = Choice::new(RETURN_AFTER);
    choice.handle(needs(), now);
    assert_eq!(choice.handle(Event::Fits, now), None);
    assert_eq!(
        choice.handle(Event::EnvoyServes, now),
        Some(Action::ToEnvoy)
    );
    assert_eq!(choice.handle(Event::Changed, now), None);
    assert_eq!(choice.due(), Some(now + RETURN_AFTER));
}

#[test]
fn what_is_needed_during_a_change_is_done_after_it() {
    let begin = Instant::now();
    let mut choice = envoy(begin);
    choice.handle(Event::Fits, begin);
    let now = begin + RETURN_AFTER;
    assert_eq!(choice.handle(Event::Time, now), Some(Action::ToBuiltIn));
    assert_eq!(choice.handle(needs(), now), None);
    let refused = Event::NotChanged("needs Envoy again".to_owned());
    assert_eq!(choice.handle(refused, now), None);
    assert_eq!(choice.phase(), Phase::Envoy);
    choice.handle(Event::Fits, now);
    let now = now + seconds(3_600);
    assert_eq!(choice.handle(Event::Time, now), Some(Action::ToBuiltIn));
    assert_eq!(choice.handle(needs(), now), None);
    // It comes too late to give up.
    assert_eq!(choice.handle(Event::Changed, now), Some(Action::DrainEnvoy));
    assert_eq!(choice.handle(Event::Time, now), Some(Action::StartEnvoy));
}

#[test]
fn an_envoy_that_ends_during_a_change_leaves_something_that_serves_or_ends_the_process() {
    let begin = Instant::now();
    let ended = || Event::EnvoyEnded("it crashed".to_owned());
    let not_changed = || Event::NotChanged("it crashed".to_owned());
    // The built-in proxy has its addresses yet, or not any more.
    for (then, action, phase) in [
        (not_changed(), None, Phase::Waiting(begin + RETRY)),
        (Event::Changed, Some(Action::Fail), Phase::ToEnvoy),
    ] {
        let mut choice = Choice::new(RETURN_AFTER);
        choice.handle(needs(), begin);
        choice.handle(Event::EnvoyServes, begin);
        assert_eq!(choice.handle(ended(), begin), None);
        assert_eq!(choice.handle(then, begin), action);
        assert_eq!(choice.phase(), phase);
    }
    // It has them, or has given them back.
    for (then, action, phase) in [
        (Event::Changed, None, Phase::BuiltIn),
        (not_changed(), Some(Action::Fail), Phase::ToBuiltIn),
    ] {
        let mut choice = envoy(begin);
        choice.handle(Event::Fits, begin);
        let now = begin + RETURN_AFTER;
        assert_eq!(choice.handle(Event::Time, now), Some(Action::ToBuiltIn));
        assert_eq!(choice.handle(ended(), now), None);
        assert_eq!(choice.handle(then, now), action);
        assert_eq!(choice.phase(), phase);
    }
}

fn event() -> impl Strategy<Value = Event> {
    let why = || "why".to_owned();
    prop_oneof![
        Just(Event::Fits),
        Just(Event::Needs(why())),
        Just(Event::EnvoyServes),
        Just(Event::EnvoyEnded(why())),
        Just(Event::Changed),
        Just(Event::NotChanged(why())),
        Just(Event::Time),
    ]
}

proptest! {
    /// Envoy is started only while there is none, and takes over only while it runs; returns are rare; and a proxy is
    /// left for the other one only if that makes sense.
    #[test]
    fn every_order_of_events_has_one_proxy(
        events in proptest::collection::vec((event(), 0..900_u64), 0..120),
    ) {
        let mut choice = Choice::new(RETURN_AFTER);
        let mut now = Instant::now();
        let (mut runs, mut last_return) = (false, None);
        for (event, pause) in events {
            now += seconds(pause);
            // The driver reports only what can be.
            let changes = matches!(choice.phase(), Phase::ToEnvoy | Phase::ToBuiltIn);
            match event {
                Event::EnvoyServes | Event::EnvoyEnded(_) if !runs => continue,
                Event::Changed | Event::NotChanged(_) if !changes => continue,
                Event::EnvoyEnded(_) => runs = false,
                _ => {}
            }
            let needed = choice.needs().is_some();
            match choice.handle(event.clone(), now) {
                Some(Action::StartEnvoy) => {
                    prop_assert!(!runs, "{event:?}");
                    prop_assert!(choice.needs().is_some());
                    runs = true;
                }
                Some(Action::StopEnvoy | Action::DrainEnvoy) => {
                    prop_assert!(runs, "{event:?}");
                    runs = false;
                }
                Some(Action::ToEnvoy) => prop_assert!(runs),
                Some(Action::ToBuiltIn) => {
                    prop_assert!(!needed);
                    if let Some(last) = last_return {
                        prop_assert!(now >= last + RETURN_AFTER * RETURN_SHARE);
                    }
                }
                Some(Action::Fail) => return Ok(()),
                None => {}
            }
            if event == Event::Changed && choice.phase() == Phase::BuiltIn {
                last_return = Some(now);
            }
            prop_assert!(choice.phase() != Phase::Envoy || runs, "nothing serves: {event:?}");
            let waits = choice.needs().is_some() && choice.phase() == Phase::BuiltIn;
            prop_assert!(!waits || event == Event::Changed, "{event:?}");
        }
    }
}
