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
mod ca_state;
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
mod open_error;
mod origin;
mod outcome;
mod policies;
mod prepared_queries;
mod query;
mod read;
mod reader;
mod reads;
mod registration;
mod rejected;
mod row;
mod rows;
mod servers;
mod sessions;
mod snapshot;
mod state;
mod store;
mod stored_tables;
mod tenants;
mod upgrade;
mod virtual_ips;
mod watch;
mod write;

#[cfg(test)]
mod tests;

pub use access::TokenKey;
pub use agent_checks::AgentCheck;
pub use backend::etcd::EtcdConfig;
pub use ca_state::{CaState, RootLife};
pub use command::Command;
pub use kept::{Follower, Kept};
pub use kv::{KvWrite, LockError};
pub use leadership::Leadership;
pub use open::StoreConfig;
pub use open_error::OpenError;
pub use outcome::{Applied, Unavailable, WriteError};
pub use read::ReadTxn;
pub use reader::{Answer, BlockingQuery, Reader};
pub use reads::Reads;
pub use registration::{Deregistration, Registration};
pub use rejected::{QueryConflict, Rejected, TenantConflict};
pub use rows::Source;
pub use sessions::{Expiring, LockDelay, SessionConflict};
pub use snapshot::{Snapshot, SnapshotAbout, SnapshotError, survey_snapshot};
pub use state::State;
pub use store::{Store, Writer};
pub use stored_tables::stored_tables;
pub use tenants::Tenant;
pub use watch::Watch;
pub use write::WriteTxn;
