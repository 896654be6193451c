//! The crate from outside: what becomes of objects, servers over real sockets, and redirection with
//! real packets.
//! The crate from outside: what becomes of objects, and servers over real sockets.

mod inject;
//! Tests of `legate-k8s` from outside.
//! `legate-k8s` from outside.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests fails like the tests themselves: with a panic at the place"
)]

mod config;
#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests fails like the tests themselves: with a panic at the place"
)]

mod inject;
mod redirect;
