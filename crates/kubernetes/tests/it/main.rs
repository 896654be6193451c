//! The crate from outside: what becomes of objects, and servers over real sockets.

mod inject;
//! Tests of `legate-k8s` from outside.

mod config;
//! What the programs of this crate do, against real parts.

mod redirect;
