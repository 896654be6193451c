//! Synchronizes custom resources to config entries.
//!
//! A resource is converted to a config entry ([`entry`]), compared with that of the servers
//! ([`same`]), decided about ([`decision`]), written, and reported in the resource's condition
//! ([`status`]) by one controller for all kinds ([`start`]). It never writes the `spec` of a
//! resource, and never overwrites or deletes an entry that others have created.

mod attempts;
mod controller;
pub mod crds;
pub mod decision;
pub mod entry;
pub mod kinds;
mod metrics;
mod reconcile;
pub mod same;
pub(crate) mod schema;
pub mod status;

pub use controller::{Settings, start};
pub use metrics::ConfigMetrics;
pub use reconcile::{COMPARE_EVERY, FINALIZER};
