//! The control plane's tables: one writer, immutable snapshots, indexes and a change feed.
//!
//! Everything that changes is a [`Command`], applied by one function. Readers take a [`State`] that
//! never changes under them, and [`Topic`]s tell them when to take the next one: a change wakes
//! only those who watch what it touched.
//!
//! This crate never reads a clock, never draws a random number and never talks to a network, so
//! that applying the same commands gives the same state wherever that happens.

mod access;
mod apply;
mod catalog;
mod command;
mod entries;
mod state;
mod store;
mod topic;
mod watch;

#[cfg(test)]
mod tests;

pub use command::{Applied, CaState, Command, Deregistration, Registration, Rejected, TokenKey};
pub use state::State;
pub use store::{Answer, BlockingQuery, Store};
pub use topic::Topic;
pub use watch::TopicWatch;
