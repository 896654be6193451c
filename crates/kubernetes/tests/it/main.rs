//! Tests of the crate's public interface: admission and sync of objects, servers over real sockets,
//! and redirection with real packets.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests fails like the tests themselves: with a panic at the place"
)]

mod chart;
mod chart_gateways;
mod config;
mod inject;
mod redirect;
mod sync;
