//! The crate from outside: what becomes of objects, and servers over real sockets.

mod inject;
