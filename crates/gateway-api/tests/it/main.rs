//! Verdicts on objects of the Gateway API, and what gateways serve.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail like the tests that call them"
)]

mod clusters;
mod consul;
mod fields;
mod frontends;
mod gateways;
mod http_routes;
mod listener_sets;
mod other_routes;
mod policies;
mod properties;
mod rules;
mod support;
