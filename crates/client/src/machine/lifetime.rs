//! How long tokens of logins live, which servers do not tell.
//!
//! It is known from the settings, or assumed once two tokens in a row have ended at the same age.
//! A token that somebody deletes ends at any age, and teaches nothing.

use std::time::Duration;

/// Shortest lifetime that an auth method can be given.
const SHORTEST: Duration = Duration::from_secs(60);
/// How long servers may go on accepting a token that has ended.
const CACHE: Duration = Duration::from_secs(30);
/// An end that is known less precisely teaches nothing.
const PRECISION: Duration = Duration::from_secs(180);

/// What is known of the lifetime.
#[derive(Debug)]
pub(super) struct Lifetime {
    configured: Option<Duration>,
    /// Between which ages the last tokens ended.
    sample: Option<(Duration, Duration)>,
    learned: Option<Duration>,
}

impl Lifetime {
    pub(super) fn new(configured: Option<Duration>) -> Self {
        Self {
            configured,
            sample: None,
            learned: None,
        }
    }

    /// A token was last accepted at one age, and rejected at another.
    pub(super) fn ended(&mut self, accepted: Duration, rejected: Duration) {
        let earliest = accepted.saturating_sub(CACHE);
        if rejected < SHORTEST || rejected.saturating_sub(earliest) > PRECISION {
            return;
        }
        let both = self.sample.and_then(|(low, high)| {
            let both = (low.max(earliest), high.min(rejected));
            (both.0 <= both.1).then_some(both)
        });
        self.learned = both.map(|(low, _)| low.max(SHORTEST));
        self.sample = Some(both.unwrap_or((earliest, rejected)));
    }

    /// At which age to replace a token: a random point between 60 % and 90 % of its life, so that
    /// not everybody does it at once.
    pub(super) fn renewal(&self, random: f64) -> Option<Duration> {
        let lifetime = self.configured.or(self.learned)?;
        Some(lifetime.mul_f64(0.6 + 0.3 * random.clamp(0.0, 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn two_ends_at_the_same_age_are_a_lifetime() {
        let mut lifetime = Lifetime::new(None);
        assert_eq!(lifetime.renewal(0.5), None);
        lifetime.ended(seconds(3_550), seconds(3_620));
        assert_eq!(
            lifetime.renewal(0.5),
            None,
            "one token may have been deleted"
        );
        lifetime.ended(seconds(3_590), seconds(3_660));
        assert_eq!(lifetime.renewal(0.0), Some(seconds(3_560).mul_f64(0.6)));
        assert_eq!(lifetime.renewal(1.0), Some(seconds(3_560).mul_f64(0.9)));
        lifetime.ended(seconds(600), seconds(640));
        assert_eq!(
            lifetime.renewal(0.5),
            None,
            "that was wrong, or has changed"
        );
    }

    #[test]
    fn deletions_and_vague_ends_teach_nothing() {
        let mut lifetime = Lifetime::new(None);
        for _ in 0..3 {
            lifetime.ended(seconds(20), seconds(40));
            lifetime.ended(seconds(60), seconds(7_200));
        }
        assert_eq!(lifetime.renewal(0.5), None);
        lifetime.ended(seconds(300), seconds(360));
        lifetime.ended(seconds(900), seconds(960));
        assert_eq!(lifetime.renewal(0.5), None);
    }

    #[test]
    fn a_configured_lifetime_counts() {
        let lifetime = Lifetime::new(Some(seconds(100)));
        assert_eq!(lifetime.renewal(0.5), Some(seconds(75)));
    }

    proptest! {
        #[test]
        fn tokens_of_one_lifetime_are_replaced_in_time(
            life in 60_u64..86_400,
            ends in prop::collection::vec((0_u64..90, 0_u64..30, 0_u64..80), 2..6),
            random in 0.0..=1.0,
        ) {
            let mut lifetime = Lifetime::new(None);
            for (before, cached, after) in ends {
                let accepted = (life + cached).saturating_sub(before);
                lifetime.ended(seconds(accepted), seconds(life + cached + after));
            }
            let renewal = lifetime.renewal(random);
            if let Some(renewal) = renewal {
                prop_assert!(renewal < seconds(life), "{renewal:?} of {life} s");
                prop_assert!(renewal >= seconds(36));
            }
        }
    }
}
