//! One state per connected proxy: watches in, snapshots out.
//!
//! This crate is the only stage that joins the store, the CA and the intentions. What it hands on
//! is a [`Snapshot`]: everything that one proxy's Envoy configuration depends on, and nothing
//! else. It never builds Envoy resources and never decides who may open a stream.
//!
//! ```text
//! store ─┐                        ┌─► SnapshotWatch (xDS stream)
//! CA ────┼─► driver ─► State ─► schedule ─► latest Arc<Snapshot>
//! ```
//!
//! - [`Manager`] holds one source per [`ProxyId`], shared by all its watchers.
//! - `state` is the pure part: updates in, effects out, one rule that says when a snapshot is
//!   complete.
//! - `schedule` and `limiter` decide when a snapshot is published, also without doing any IO.
//! - `driver` is the one asynchronous file: it turns store topics and leaf renewals into updates.

mod driver;
mod error;
mod limiter;
mod manager;
mod merge;
pub mod opaque;
mod same;
mod schedule;
mod shared;
mod snapshot;
mod state;
mod watch;

pub use error::{Ended, WatchError};
/// Part of every snapshot; here so that later stages need not know the CA.
pub use legate_ca::Leaf;
pub use manager::{Manager, ManagerConfig};
pub use merge::merge_central_config;
pub use snapshot::{ProxyId, Snapshot, UpstreamSnapshot};
pub use watch::SnapshotWatch;
