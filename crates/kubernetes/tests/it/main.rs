//! The crate from outside: what becomes of objects, servers over real sockets, and redirection with
//! real packets.

mod config;
#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests fails like the tests themselves: with a panic at the place"
)]

mod inject;
//! What the programs of this crate do, against real parts.

mod chart;
mod redirect;
