//! One state per connected proxy: watches in, snapshots out.
//!
//! This crate is the only stage that joins the store, the CA and the intentions. Its output is a
//! [`Snapshot`]: exactly the data that one proxy's Envoy configuration depends on. It never builds
//! Envoy resources and never authorizes streams.
//!
//! ```text
//! store ─┐                         ┌─► SnapshotWatch (xDS stream)
//! CA ────┴─► driver ─► kinds ─► schedule ─► latest Arc<Snapshot>
//! ```
//!
//! - [`Manager`] holds one source per [`ProxyId`], shared by all watchers of that proxy.
//! - `kinds` is the pure part: it computes a snapshot from one state of the store.
//! - [`gateways`] tells which services belong to which gateway.
//! - `queries` has the reads that many proxies share. `chain` and `transparent` are such reads,
//!   too.
//! - [`exports`] tells what is exported to peers, and `trust` how their services are recognized.
//! - `remote` reads services and gateways of other datacenters, and `peers` services of other clusters.
//! - `schedule` and `limiter` decide when a snapshot is published. They do no IO.
//! - `driver` is the only asynchronous file. It recomputes the snapshot when its inputs have
//!   changed.

mod chain;
mod config;
mod driver;
mod egress;
mod error;
pub mod exports;
mod external;
mod frontends;
pub mod gateways;
mod kinds;
mod lease;
mod limiter;
mod manager;
mod merge;
pub mod opaque;
mod peers;
pub mod prepared_query;
pub mod protocol;
mod queries;
mod remote;
mod same;
mod schedule;
mod snapshot;
mod transparent;
mod trust;
mod upstream;
mod value;
mod watch;

pub use chain::{Instances, ResolvedChain, StoredEntries};
pub use config::ManagerConfig;
pub use egress::{Destination, Destinations};
pub use error::{Ended, WatchError};
pub use external::{External, ExternalAddresses};
pub use frontends::{Frontends, ServiceFrontend};
pub use gateways::{
    Exposed, ExposedPort, ExposedService, MeshService, MeshServices, PeerExport, PeerRoute,
    PeerRoutes,
};
pub use kinds::{
    ApiGateway, BackendSnapshot, IngressGateway, Kind, MeshGateway, PeerExports, Represented,
    Sidecar, TerminatingGateway, snapshot_of,
};
/// Part of snapshots; exported here so that later stages need not depend on the CA.
pub use legate_ca::{Leaf, LeafHolder, LeafId};
/// Part of snapshots, as above.
pub use legate_store::Generations;
pub use manager::{Manager, Preview};
pub use merge::merge_central_config;
pub use queries::JwtProviders;
pub use remote::{GatewaysElsewhere, GatewaysOf, Servers};
pub use snapshot::{Proxy, ProxyId, Snapshot};
pub use transparent::{Dialled, DialledKind, ImplicitUpstream, ImplicitUpstreams};
pub use trust::{PeerCallers, PeerTrust, Peers};
pub use upstream::UpstreamSnapshot;
pub use watch::SnapshotWatch;
