//! The operator between a fake Kubernetes API server with failures and a real control plane.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests fails like the tests themselves: with a panic at the place"
)]

mod cluster;
mod federation;
mod leader;
mod metrics;
mod peering;
mod secondary;
mod sync;
mod tenants;
mod tokens;
