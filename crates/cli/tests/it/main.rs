//! `legate` as people start it: the real program, real sockets.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests fails like the tests themselves: with a panic at the place"
)]

mod agent;
mod commands;
mod config;
mod proxies;
