//! Discovery chains: what config entries make of a name that a caller asks for. Requests are routed,
//! split and resolved, in this order, to targets: instances of a service, or a part of them.
//!
//! Pure: entries in, a [`Chain`] out. It never reads a store, and knows no instance. The shape of a
//! chain and the texts of its errors are Consul's, whose users know them.

mod chain;
mod compile;
mod customisation;
mod error;
mod merge;
mod names;
#[cfg(test)]
mod tests;

pub use chain::{Chain, Failover, Node, NodeKind, Nodes, Resolver, RouteStep, SplitStep, Target};
pub use compile::{Entries, Overrides, Request, compile};
pub use error::ChainError;
