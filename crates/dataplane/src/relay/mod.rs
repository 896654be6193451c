//! The xDS relay: ends Envoy's delta stream here and the server's stream here, and keeps the last
//! resources that Envoy acknowledged in between. `README.md` in this folder is the algorithm on
//! one page, with the files in the order of their imports.
//!
//! Envoy never notices that a server went away, and a restarted Envoy gets its configuration while
//! no server is reachable. The relay never looks into a resource: it knows names, versions and types
//! only.

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

pub use self::drive::RelayError;
pub use self::listen::{BindError, Listener};
pub use self::metrics::RelayMetrics;
pub use self::serve::Relay;
pub use self::status::{RelayStatus, UpstreamStatus};

#[cfg(test)]
mod tests;
