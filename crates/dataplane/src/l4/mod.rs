//! The built-in proxy: serves Envoy's resources in this process, as long as they need nothing but TCP and TLS.
//!
//! `legate-l4` decides; here are sockets, TLS, threads and timers. It is one more Envoy to the relay.

pub(crate) mod admin;
mod built_in;
mod burst;
mod connection;
mod control;
mod copy;
mod dial;
mod driver;
mod handshake;
mod io;
mod listen;
mod logs;
mod names;
mod registry;
mod serving;
mod shared;
mod splice;
mod stats;
mod steer;
#[cfg(test)]
mod tests;
mod tls;
mod tls_stream;

pub(crate) use self::admin::{Pages, Parts};
pub use self::built_in::BuiltIn;
pub(crate) use self::control::{Control, Fit, Part};
pub(crate) use self::registry::Times;
pub(crate) use self::shared::Options;
pub(crate) use self::steer::can_steer;
