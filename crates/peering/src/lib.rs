//! Cluster peering: what two clusters say to each other, without IO.
//!
//! The cluster that generated a token accepts streams, the other one dials. On a stream both do the same: each
//! subscribes to the types of resources that it wants, sends the state of what it exports, and answers each state that
//! it receives. The rules and texts are those of Consul.
//!
//! - [`opening`]: whether an accepting cluster takes a stream.
//! - [`Session`]: the state machine of an open stream.
//! - [`Retry`], [`AddressRing`]: when and where to dial again.
//! - [`export`], [`import`]: conversion between the model and messages. An import is validated as the words of a
//!   stranger.
//!
//! The crate opens no connections, starts no tasks, reads no clock and stores nothing. Its caller does, in the order
//! that the state machine asks for.

pub mod export;
pub mod import;
pub mod opening;

mod refusal;
mod resource;
mod retry;
mod session;

pub use refusal::{Refusal, code};
pub use resource::{Exports, Payload, ResourceType, ServiceList};
pub use retry::{AddressRing, Retry, RetryReason};
pub use session::{
    End, Event, IMPORT_BYTES, IMPORTS, ImportId, PendingImport, RESPONSES_IN_FLIGHT, Session,
};

#[cfg(test)]
mod tests;
