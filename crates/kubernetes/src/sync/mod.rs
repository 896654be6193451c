//! Keeps the catalog in step with the pods of the mesh.
//!
//! [`facts`] are the parts of objects that matter, [`wanted`] what the catalog should say of a pod,
//! [`difference`] the calls that make it say so, [`core`] what is done next: all of them pure. The
//! driver watches, calls, and writes events. Only the leader runs it.
//!
//! It never touches what it has not written, and never changes an object of the cluster.

pub mod catalog;
pub mod core;
pub mod difference;
mod driver;
mod events;
pub mod facts;
mod gateway;
mod metrics;
pub mod objects;
pub mod registration;
mod tokens;
pub mod wanted;

pub use self::driver::{Options, run};
pub use self::metrics::SyncMetrics;
