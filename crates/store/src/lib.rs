//! The control plane's tables: transactions over rows, recorded reads, and where rows are kept.
//!
//! Everything that changes is a transaction ([`Store::write`]): a function of the state that it is
//! applied to, with one index. Readers take a [`State`] that never changes under them; what a
//! [`ReadTxn`] looks at is noted, and [`Store::watch`] wakes them when something of that has
//! changed.
//!
//! This crate never reads a clock and never decides who may see what.

mod access;
mod authority;
mod backend;
mod catalog;
mod command;
mod commit;
mod entries;
mod key;
mod query;
mod read;
mod row;
mod rows;
mod state;
mod store;
mod watch;
mod write;

#[cfg(test)]
mod tests;

pub use command::{Applied, CaState, Command, Deregistration, Registration, Rejected, TokenKey};
pub use commit::Unavailable;
pub use read::{ReadTxn, Reads};
pub use state::State;
pub use store::{Answer, BlockingQuery, Store, WriteError};
pub use watch::Watch;
pub use write::WriteTxn;
