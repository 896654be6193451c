//! One state per connected proxy: watches in, snapshots out.
//!
//! This crate is the only stage that joins the store, the CA and the intentions. What it hands on
//! is a [`Snapshot`]: everything that one proxy's Envoy configuration depends on, and nothing
//! else. It never builds Envoy resources and never decides who may open a stream.
//!
//! ```text
//! store ─┐                         ┌─► SnapshotWatch (xDS stream)
//! CA ────┴─► driver ─► kinds ─► schedule ─► latest Arc<Snapshot>
//! ```
//!
//! - [`Manager`] holds one source per [`ProxyId`], shared by all its watchers.
//! - `kinds` is the pure part: a look at the store in, a snapshot out, all of it from one index.
//! - `queries` is what many proxies read alike; `chain` and `transparent` are such reads, too.
//! - `schedule` and `limiter` decide when a snapshot is published, also without doing any IO.
//! - `driver` is the one asynchronous file: it computes again what has changed.

mod chain;
mod config;
mod driver;
mod egress;
mod error;
mod kinds;
mod lease;
mod limiter;
mod manager;
mod merge;
pub mod opaque;
mod prepared_query;
mod queries;
mod same;
mod schedule;
mod snapshot;
mod transparent;
mod upstream;
mod watch;

pub use chain::{Instances, ResolvedChain, StoredEntries};
pub use config::ManagerConfig;
pub use egress::{Destination, Destinations};
pub use error::{Ended, WatchError};
pub use kinds::snapshot_of;
/// Part of every snapshot; here so that later stages need not know the CA.
pub use legate_ca::Leaf;
pub use manager::{Manager, Preview};
pub use merge::merge_central_config;
pub use queries::JwtProviders;
pub use snapshot::{ProxyId, Snapshot};
pub use transparent::{Dialled, DialledKind, ImplicitUpstream, ImplicitUpstreams};
pub use upstream::UpstreamSnapshot;
pub use watch::SnapshotWatch;
