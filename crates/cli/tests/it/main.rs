//! Tests of the `legate` program as users start it, with real sockets.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests fails like the tests themselves: with a panic at the place"
)]

mod agent;
mod commands;
mod config;
mod corpus;
mod datacenters;
mod gateways;
mod proxies;
