//! Several servers that share one backend: one of them commits, for all.
//!
//! Transactions are functions, so they run on the server that received them. The **leader**, elected
//! by the backend, is the only server that commits. It lets other servers run theirs in **turns**:
//!
//! ```text
//! follower                         leader
//!   Wants            ------------>
//!                    <------------ Turn: the parts that the follower lacks, and room for rows
//!   runs its queue on their result
//!   Ran: its part    ------------> appends the part, commits all parts at once
//! ```
//!
//! A **part** is the changed rows of some transactions, in stored form. The parts on top of the last
//! commit form the **chain**; each is based on the one before. So transactions of all servers run
//! one after the other, as on a single server: none runs on an outdated state, and conflicts do not
//! exist. While the backend stores one commit, the next is collected.
//!
//! A follower publishes and acknowledges only what the backend's watch returns, never what the
//! leader says. A commit contains its base, and the ids of the turns in it, and it is refused if
//! the backend has another commit on that base. So exactly one commit on a base is ever made, and
//! when it is seen, each part of the chain is either in it or will never be stored; then its
//! transactions run again. A commit without rows (a **fence**) settles this for the parts of a
//! leader that is gone: a new leader makes one first. This is why a leader that was paused or
//! cut off, or that is killed at any point, causes neither lost nor doubled transactions.
//!
//! Renewals of sessions are not stored: followers send them to the leader, which keeps them and
//! confirms them ([`renewing`]).
//!
//! [`machine`] is the protocol without IO, [`links`] the connections, [`message`] their encoding.
//! [`crate::committer`] drives all of it. A backend for one server has a leader without followers.

pub(crate) mod links;
pub(crate) mod machine;
pub(crate) mod message;
mod renewing;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::backend::etcd::{Health, Lead};
use links::Links;

/// The longest time that a transaction waits for a leader, or for the outcome of its turn.
pub(crate) const WRITE: Duration = Duration::from_secs(7);

/// What a server with a shared backend needs in addition to it.
pub(crate) struct Shared {
    /// Who leads.
    pub(crate) lead: watch::Receiver<Lead>,
    /// Whether the backend answers.
    pub(crate) health: watch::Receiver<Health>,
    pub(crate) links: Links,
    /// The names of the backend's members, for errors.
    pub(crate) members: Arc<str>,
}
