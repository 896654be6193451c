//! Durations as Envoy's messages have them.

use std::time::Duration;

use envoy_types::pb::google::protobuf::Duration as ProtoDuration;

/// A duration as messages have it; what is longer than they can say becomes the longest.
pub(crate) fn proto_duration(duration: Duration) -> ProtoDuration {
    // The longest that protobuf allows: 10 000 years.
    const MAX_SECONDS: u64 = 315_576_000_000;
    let seconds = duration.as_secs().min(MAX_SECONDS);
    ProtoDuration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}
