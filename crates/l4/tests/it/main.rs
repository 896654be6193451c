//! What the decoder makes of resources as servers send them.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail like the tests that call them"
)]

mod golden;
mod mutated;
mod rules;
mod support;
