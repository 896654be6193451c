//! The manager over a real store and a real CA, with time that moves only when nobody works.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail like the tests that call them"
)]

mod manager;
mod support;
