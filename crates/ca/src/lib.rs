//! The mesh CA: roots in the store, of which one is active, and leaf certificates that are renewed before
//! they expire.
//!
//! [`Ca`] signs; [`CaManager`] changes what it signs with; [`LeafStore`] keeps one certificate a service
//! for all its proxies. Whether a caller may have a certificate (ACLs) is not decided here, and nothing
//! is served here.
//!
//! - `provider` has a root and signs: the built-in one, or HashiCorp Vault.
//! - `rotation` says what becomes of the roots when another one becomes active: pure.
//! - `renewal` decides when a leaf is renewed: pure, with time and chance passed in.
//! - `leaves` is the driver: one task for each service that somebody watches.

mod authority;
mod config;
mod error;
mod first;
mod kept;
mod leaf;
mod leaves;
mod limit;
mod manager;
mod provider;
mod renewal;
mod rotation;
mod settings;

pub use authority::{Ca, CheckedRequest};
pub use config::{CaConfig, ProviderKeys};
pub use error::{CaError, LeafEnded};
pub use kept::ServiceLeaves;
pub use leaf::Leaf;
pub use leaves::{LeafStore, LeafWatch};
pub use manager::CaManager;
pub use renewal::renewal_time;

#[cfg(test)]
mod tests;
