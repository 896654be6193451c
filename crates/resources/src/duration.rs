//! Conversion of durations to Envoy's messages.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::BackoffStrategy;
use envoy_types::pb::google::protobuf::Duration as ProtoDuration;

/// The pauses between attempts: `base` at first, at most `max`. Envoy's default of `max` is ten times `base`.
pub(crate) fn back_off(base: Duration, max: Option<Duration>) -> BackoffStrategy {
    // Envoy counts nanoseconds in 63 bits, and refuses the whole resource if its default does not fit.
    const LONGEST: Duration = Duration::from_secs(9_223_372_036);
    let max = max.or_else(|| (base > LONGEST / 10).then_some(base));
    BackoffStrategy {
        base_interval: Some(proto_duration(base)),
        max_interval: max.map(proto_duration),
    }
}

/// A duration as a protobuf message, capped at the maximum that protobuf allows.
pub(crate) fn proto_duration(duration: Duration) -> ProtoDuration {
    // The maximum of protobuf: 10 000 years.
    const MAX_SECONDS: u64 = 315_576_000_000;
    let seconds = duration.as_secs().min(MAX_SECONDS);
    ProtoDuration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_fits_into_what_envoy_counts() {
        let max = |base| back_off(Duration::from_secs(base), None).max_interval;
        assert_eq!(max(1), None);
        assert_eq!(max(922_337_203), None);
        // The longest duration that Go's notation has.
        let longest = 2_562_047 * 3600;
        assert_eq!(max(longest).map(|max| max.seconds), Some(9_223_369_200));
    }
}
