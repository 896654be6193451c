//! The schedule in isolation: single steps, then generated sequences.

use super::*;
use proptest::prelude::*;

const HOUR: Duration = Duration::from_secs(3600);
const LIFETIME: Duration = Duration::from_secs(72 * 3600);

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn held(random: f64) -> Renewal {
    let mut renewal = Renewal::Missing;
    renewal.handle(Event::Issued {
        valid_after: start(),
        valid_before: start() + LIFETIME,
        authority_key_id: "aa",
        random,
    });
    renewal
}

fn signer(renewal: &mut Renewal, key_id: &str, now: SystemTime, random: f64) {
    renewal.handle(Event::Signer {
        key_id,
        now,
        random,
    });
}

#[test]
fn a_leaf_is_renewed_between_60_and_90_percent_of_its_lifetime() {
    let end = start() + 10 * HOUR;
    for (random, hours) in [(0.0, 6.0), (0.5, 7.5), (1.0, 9.0), (7.0, 9.0)] {
        let at = renewal_time(start(), end, random);
        let expected = start() + HOUR.mul_f64(hours);
        let difference = at.max(expected).duration_since(at.min(expected)).unwrap();
        assert!(difference < Duration::from_millis(1), "{random}");
    }
    assert_eq!(renewal_time(end, start(), 0.5), end, "no lifetime at all");
}

#[test]
fn a_missing_certificate_is_issued_immediately() {
    assert_eq!(Renewal::Missing.action(start()), Action::Issue);
    let renewal = held(0.0);
    let due = LIFETIME.mul_f64(EARLIEST);
    assert_eq!(renewal.action(start() + HOUR), Action::Wait(due - HOUR));
    assert_eq!(renewal.action(start() + due), Action::Issue);
    assert_eq!(renewal.action(start() + 2 * LIFETIME), Action::Issue);
}

#[test]
fn failures_are_retried_with_backoff() {
    let mut renewal = held(0.0);
    let now = start() + LIFETIME;
    let mut delays = Vec::new();
    for _ in 0..8 {
        renewal.handle(Event::Failed { now, random: 0.5 });
        match renewal.action(now) {
            Action::Wait(delay) => delays.push(delay.as_secs()),
            Action::Issue => panic!("tried again without a delay"),
        }
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
    let later = now + Duration::from_secs(60);
    assert_eq!(renewal.action(later), Action::Issue);
}

#[test]
fn a_new_signing_key_renews_within_30_seconds() {
    let now = start() + HOUR;
    let mut renewal = held(0.5);
    signer(&mut renewal, "aa", now, 0.0);
    assert!(matches!(renewal.action(now), Action::Wait(wait) if wait > 24 * HOUR));
    signer(&mut renewal, "bb", now, 0.5);
    let wait = Action::Wait(ROOT_SPREAD / 2);
    assert_eq!(renewal.action(now), wait);
    // The same key again does not move the renewal.
    signer(&mut renewal, "bb", now, 1.0);
    assert_eq!(renewal.action(now), wait);
}

#[test]
fn a_new_signing_key_never_delays_a_renewal() {
    let mut renewal = held(0.0);
    let now = start() + LIFETIME.mul_f64(EARLIEST) - Duration::from_secs(3);
    signer(&mut renewal, "bb", now, 1.0);
    assert!(matches!(renewal.action(now), Action::Wait(wait) if wait <= Duration::from_secs(3)));
}

#[test]
fn a_clock_set_back_makes_the_renewal_due() {
    assert_eq!(held(0.5).action(start() - HOUR), Action::Issue);
    let mut failing = Renewal::Missing;
    failing.handle(Event::Failed {
        now: start(),
        random: 0.5,
    });
    assert_eq!(failing.action(start() - HOUR), Action::Issue);
}

/// One step in the life of a renewal.
#[derive(Clone, Debug)]
enum Step {
    /// Time passes, in seconds.
    Pass(u64),
    /// Another of four keys signs.
    Rotate(u8),
    /// From now on, issuing fails or succeeds.
    Broken(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u64..200_000).prop_map(Step::Pass),
        1 => (0_u8..4).prop_map(Step::Rotate),
        1 => any::<bool>().prop_map(Step::Broken),
    ]
}

proptest! {
    /// For any sequence: as long as issuing works, the certificate is never past 90 % of its lifetime
    /// and never more than 30 s behind the signing key, and repeated failures never retry without a
    /// delay.
    #[test]
    fn certificates_stay_current_while_issuing_works(
        steps in proptest::collection::vec(step(), 1..40),
        randoms in proptest::collection::vec(0.0..1.0_f64, 16),
    ) {
        let mut randoms = randoms.into_iter().cycle();
        let mut random = move || randoms.next().unwrap_or_default();
        let (mut renewal, mut now) = (Renewal::Missing, start());
        let (mut key, mut broken) = ("0".to_owned(), false);
        // Start of validity and signing key of the current certificate.
        let mut leaf: Option<(SystemTime, String)> = None;
        for step in steps {
            let until = match step {
                Step::Pass(seconds) => now + Duration::from_secs(seconds),
                Step::Rotate(other) => {
                    key = other.to_string();
                    signer(&mut renewal, &key, now, random());
                    now
                }
                Step::Broken(other) => {
                    broken = other;
                    now
                }
            };
            loop {
                match renewal.action(now) {
                    Action::Wait(wait) => {
                        prop_assert!(!wait.is_zero());
                        if let Some((since, signed_by)) = leaf.as_ref().filter(|_| !broken) {
                            let at = now + wait;
                            let age = at.duration_since(*since).unwrap();
                            let failing = matches!(renewal, Renewal::Failing { .. });
                            prop_assert!(failing || age <= LIFETIME.mul_f64(0.9));
                            prop_assert!(!failing || wait <= Duration::from_secs(90));
                            prop_assert!(failing || *signed_by == key || wait <= ROOT_SPREAD);
                        }
                        if now + wait > until { break }
                        now += wait;
                    }
                    Action::Issue if broken => {
                        renewal.handle(Event::Failed { now, random: random() });
                        prop_assert!(renewal.action(now) != Action::Issue);
                    }
                    Action::Issue => {
                        leaf = Some((now, key.clone()));
                        renewal.handle(Event::Issued {
                            valid_after: now,
                            valid_before: now + LIFETIME,
                            authority_key_id: &key,
                            random: random(),
                        });
                        prop_assert!(renewal.action(now) != Action::Issue);
                    }
                }
            }
            now = until;
        }
    }
}
