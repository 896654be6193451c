//! The mesh CA: roots in the store, one of which is active, and leaf certificates that are renewed
//! before they expire.
//!
//! [`Ca`] signs; [`CaManager`] changes the root and configuration; [`LeafStore`] has one certificate
//! per [`LeafId`] for all proxies that ask for it. This crate neither authorizes callers (ACLs) nor serves requests.
//!
//! - `provider` has a root and signs: built in, or HashiCorp Vault.
//! - `rotation` computes the trusted roots when another root becomes active. Pure.
//! - `secondary` computes the CA of a secondary datacenter from the roots of the primary. Pure.
//! - `follow` runs it: one task of the leader.
//! - `renewal` schedules the renewal of a leaf. Pure: time and randomness are passed in.
//! - `leaves` runs the schedule: one task per watched certificate.

mod authority;
mod config;
mod error;
mod first;
mod follow;
mod intermediate;
mod leaf;
mod leaves;
mod limit;
mod manager;
mod provider;
mod renewal;
mod rotation;
mod secondary;
mod service_leaves;
mod settings;

pub use authority::{Ca, CheckedRequest};
pub use config::{CaConfig, ProviderKeys};
pub use error::{CaError, LeafEnded};
pub use follow::{Primary, PrimaryRoots};
pub use leaf::{Leaf, LeafHolder, LeafId};
pub use leaves::{LeafStore, LeafWatch};
pub use manager::CaManager;
pub use renewal::renewal_time;
pub use service_leaves::ServiceLeaves;

#[cfg(test)]
mod tests;
