//! The manager with a real store and a real CA. Time is paused and advances only when all tasks are
//! idle.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail like the tests that call them"
)]

mod manager;
mod support;
