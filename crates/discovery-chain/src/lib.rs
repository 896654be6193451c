//! Compiles discovery chains: config entries determine how requests for a service are routed, split and resolved, in
//! this order, to targets. A target is all instances of a service or a subset of them.
//!
//! Pure: config entries in, a [`Chain`] out. The crate never reads a store and has no access to instances. The shape of
//! a chain and the error texts are Consul's.

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
