//! Conversion of durations to Envoy's messages.

use std::time::Duration;

use envoy_types::pb::google::protobuf::Duration as ProtoDuration;

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
