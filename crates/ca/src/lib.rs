//! The mesh CA: one root in the store, and leaf certificates that are renewed before they expire.
//!
//! [`Ca`] signs; [`LeafStore`] keeps one certificate a service for all its proxies. Whether a
//! caller may have a certificate (ACLs) is not decided here, and nothing is served here.
//!
//! - `renewal` decides when a leaf is renewed: pure, with time and chance passed in.
//! - `leaves` is the driver: one task for each service that somebody watches.

mod authority;
mod config;
mod error;
mod leaves;
mod renewal;

pub use authority::Ca;
pub use config::CaConfig;
pub use error::{CaError, LeafEnded};
pub use leaves::{Leaf, LeafStore, LeafWatch};
pub use renewal::renewal_time;

#[cfg(test)]
mod tests;
