//! The built-in proxy: serves Envoy's resources in this process, as long as they need nothing but TCP and TLS.
//!
//! `legate-l4` decides; here are sockets, TLS, threads and timers. It is one more Envoy to the relay.

pub(crate) mod admin;
mod connection;
mod copy;
mod dial;
mod handshake;
mod io;
mod listen;
mod logs;
mod proxy;
mod registry;
mod serving;
mod stats;
mod tls;
mod tls_stream;

pub(crate) use self::admin::{Pages, Parts};
pub use self::proxy::BuiltIn;
pub(crate) use self::proxy::Options;
pub(crate) use self::registry::Times;
