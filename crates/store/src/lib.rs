//! The control plane's tables: transactions over rows, recorded reads, and where rows are kept.
//!
//! Everything that changes is a transaction ([`Store::write`]): a function of the state that it is
//! applied to, with one index. Readers take a [`State`] that never changes under them; what a
//! [`ReadTxn`] looks at is noted, and [`Store::watch`] wakes them when something of that has
//! changed.
//!
//! What survives the process is kept by a backend: [`Store::open`] starts the one task that writes
//! to it, [`Store::save`] makes a backup of it.
//!
//! This crate never reads a clock and never decides who may see what.

mod access;
mod agent_checks;
mod authority;
mod backend;
mod catalog;
mod codec;
mod command;
mod commit;
mod committer;
mod coordinates;
mod entries;
mod kept;
mod key;
mod key_file;
mod kv;
mod leadership;
mod open;
mod policies;
mod prepared_queries;
mod query;
mod read;
mod reader;
mod row;
mod rows;
mod servers;
mod sessions;
mod snapshot;
mod state;
mod store;
mod tenants;
mod upgrade;
mod virtual_ips;
mod watch;
mod write;

#[cfg(test)]
mod tests;

pub use agent_checks::{AgentCheck, Source};
pub use backend::etcd::EtcdConfig;
pub use command::{
    Applied, CaState, Command, Deregistration, Registration, Rejected, RootLife, TokenKey,
};
pub use commit::Unavailable;
pub use kept::{Follower, Kept};
pub use kv::{KvWrite, LockError};
pub use leadership::Leadership;
pub use open::{OpenError, StoreConfig};
pub use prepared_queries::QueryConflict;
pub use read::{ReadTxn, Reads};
pub use reader::{Answer, BlockingQuery, Reader};
pub use row::stored_tables;
pub use sessions::{Expiring, LockDelay, SessionConflict};
pub use snapshot::{Snapshot, SnapshotAbout, SnapshotError, survey_snapshot};
pub use state::State;
pub use store::{Store, WriteError, Writer};
pub use tenants::{Tenant, TenantConflict};
pub use watch::Watch;
pub use write::WriteTxn;
