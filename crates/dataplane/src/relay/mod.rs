//! The xDS relay: terminates Envoy's delta stream and the server's, and caches the resources that
//! Envoy acknowledged last. `README.md` in this folder describes the algorithm and lists the files
//! in import order.
//!
//! Envoy does not notice the loss of a server, and a restarted Envoy is configured even if no server
//! is reachable. The relay uses names, versions and types of resources only; it never decodes their
//! bodies.

mod cache;
mod connections;
pub mod core;
mod downstream;
mod drive;
pub mod limits;
mod listen;
mod metrics;
mod pace;
mod request;
mod serve;
mod server_streams;
pub mod status;
mod types;
mod upstream;
pub mod wire;

pub use self::core::Role;
pub use self::drive::{FromProxy, RelayError};
pub use self::listen::{BindError, Listener};
pub use self::metrics::RelayMetrics;
pub use self::serve::Relay;
pub use self::status::{RelayStatus, UpstreamStatus};

#[cfg(test)]
mod tests;
