//! Documents and patches against Envoy's real messages.
#![expect(clippy::unwrap_used, reason = "a test may stop at once")]

mod json;
mod patch;
mod source;
