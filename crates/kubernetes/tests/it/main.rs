//! The crate from outside: what becomes of objects, servers over real sockets, and redirection with
//! real packets.

mod config;
mod inject;
mod redirect;
