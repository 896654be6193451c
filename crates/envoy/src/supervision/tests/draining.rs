//! The end of the drain of a stop, on a paused clock.

use super::*;

/// Time of the stop.
const ASKED: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(30);

/// The time from the stop until Envoy has to quit, if its last connection ends `connected` after
/// the stop, and the calls until then.
async fn quits(policy: Policy, connected: Option<Duration>) -> (Duration, Vec<String>) {
    let (mut fake, record) = fake();
    fake.connected = connected.map(|connected| ASKED + connected);
    let options = Options {
        policy,
        ..options()
    };
    let ended = supervise(fake, (1, None), options, async |handle| {
        sleep(ASKED).await;
        handle.stop();
    })
    .await;
    assert_eq!(ended.outcome, Outcome::Stopped { forced: false });
    let quit = Duration::from_millis(u64::try_from(record.times("quit")[0]).unwrap());
    (quit - ASKED, record.all())
}

fn drain() -> Policy {
    Policy {
        drain: true,
        grace: GRACE,
        min_drain: Some(MIN_DRAIN),
        ..Policy::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_lasts_the_whole_grace_period_unless_it_may_end_early() {
    let policy = Policy {
        min_drain: Policy::default().min_drain,
        ..drain()
    };
    for connected in [Some(Duration::ZERO), Some(12 * SECOND), None] {
        let (quit, seen) = quits(policy, connected).await;
        assert_eq!(quit, GRACE, "the last connection ends {connected:?}");
        assert!(!seen.contains(&"idle?".to_owned()), "{seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_early_end_comes_with_the_last_connection_between_its_minimum_and_the_grace_period() {
    assert_eq!(MIN_DRAIN, 5 * SECOND);
    for (connected, expected) in [
        (Some(Duration::ZERO), 5 * SECOND),
        (Some(2 * SECOND), 5 * SECOND),
        (Some(12 * SECOND), 12 * SECOND),
        (Some(29 * SECOND), 29 * SECOND),
        (Some(40 * SECOND), GRACE),
        (None, GRACE),
    ] {
        let (quit, seen) = quits(drain(), connected).await;
        assert_eq!(quit, expected, "the last connection ends {connected:?}");
        let mut expected = vec!["start 0 1", "serves 0", "drain", "idle?", "quit"];
        expected.extend(["term 100", "clean 0"]);
        assert_eq!(seen, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_on_request_before_the_stop_leaves_no_minimum() {
    let (mut fake, record) = fake();
    fake.connected = Some(Duration::ZERO);
    let options = Options {
        policy: drain(),
        ..options()
    };
    supervise(fake, (1, None), options, async |handle| {
        sleep(ASKED).await;
        handle.drained();
        handle.stop();
    })
    .await;
    assert_eq!(record.times("quit"), record.times("drain"));
}

#[tokio::test(start_paused = true)]
async fn the_minimum_is_the_policy_s() {
    let policy = Policy {
        min_drain: Some(Duration::ZERO),
        ..drain()
    };
    let (quit, _) = quits(policy, Some(Duration::ZERO)).await;
    assert_eq!(quit, Duration::ZERO);
    let policy = Policy {
        min_drain: Some(8 * SECOND),
        ..drain()
    };
    let (quit, _) = quits(policy, Some(6 * SECOND)).await;
    assert_eq!(quit, 8 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn without_a_drain_or_time_for_its_minimum_connections_are_not_watched() {
    let no_drain = Policy {
        drain: false,
        ..drain()
    };
    let short = Policy {
        grace: 3 * SECOND,
        ..drain()
    };
    for (policy, expected) in [(no_drain, GRACE), (short, 3 * SECOND)] {
        let (quit, seen) = quits(policy, Some(Duration::ZERO)).await;
        assert_eq!(quit, expected);
        assert!(!seen.contains(&"idle?".to_owned()), "{seen:?}");
    }
}
