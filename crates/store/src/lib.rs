//! The control plane's tables: transactions over rows, recorded reads, and backends.
//!
//! Every change is a transaction ([`Store::write`]): a function of the current state, committed
//! with one index. Readers take an immutable [`State`]. The reads of a [`ReadTxn`] are recorded,
//! and [`Store::watch`] wakes its caller when a result of them may have changed.
//!
//! A backend stores the rows durably: [`Store::open`] starts the single task that writes to it, and
//! [`Store::save`] makes a backup.
//!
//! This crate reads no clock and makes no access decisions.

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
mod federation;
mod gateway_status;
mod gateways;
mod imports;
mod kept;
mod key;
mod key_file;
mod kv;
mod leadership;
mod mirror;
mod open;
mod open_error;
mod origin;
mod outcome;
mod peerings;
mod policies;
mod prepared_queries;
mod query;
mod read;
mod reader;
mod reads;
mod refusals;
mod registration;
mod rejected;
mod removals;
mod renewals;
mod replicas;
mod replication;
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
pub use ca_state::{CaState, RootLife, SecondaryCa};
pub use command::Command;
pub use gateway_status::{GatewayReport, GatewayStatus, Generations};
pub use gateways::{GatewayContent, GatewayProblem, GatewaySecret, MAX_LISTENERS};
pub use kept::{Follower, Kept};
pub use kv::{KvWrite, LockError};
pub use leadership::Leadership;
pub use mirror::{
    AWAY, MAX_RANGES, Mirror, Range, RangeKind, RangeStatus, RefusedRange, Remote, UNUSED,
};
pub use open::StoreConfig;
pub use open_error::OpenError;
pub use outcome::{Applied, Unavailable, WriteError};
pub use peerings::SecretRefused;
pub use read::ReadTxn;
pub use reader::{Answer, BlockingQuery, Reader};
pub use reads::Reads;
pub use registration::{Deregistration, Registration};
pub use rejected::{QueryConflict, Rejected, TenantConflict};
pub use renewals::{Renewals, SessionKey};
pub use replication::{NotFollowed, NotReplicated, Position, ReplicatedRow, Replication, Since};
pub use rows::Source;
pub use sessions::{Expiring, LockDelay, SessionConflict};
pub use snapshot::{Saving, Snapshot, SnapshotAbout, SnapshotError, survey_snapshot};
pub use state::State;
pub use store::{Store, Writer};
pub use stored_tables::stored_tables;
pub use tenants::Tenant;
pub use watch::Watch;
pub use write::WriteTxn;
