//! Synchronizes the catalog with the pods of the mesh.
//!
//! [`facts`] are the relevant parts of Kubernetes objects, [`wanted`] computes the catalog's wanted
//! state of a pod, [`difference`] the calls that establish it, and [`core`] the next jobs: all of
//! them pure. The driver watches, makes calls and writes events. Only the leader runs it.
//!
//! It never changes instances that it has not written, and never changes an object of the cluster.

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

pub(crate) use self::driver::cluster_uid;
pub use self::driver::{Options, run};
pub use self::metrics::SyncMetrics;
