//! The crate from outside: what becomes of objects, servers over real sockets, and redirection with
//! real packets.

mod chart;
mod config;
#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests fails like the tests themselves: with a panic at the place"
)]

mod inject;
mod redirect;
