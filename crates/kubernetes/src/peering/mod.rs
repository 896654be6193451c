//! Peers this cluster with others, as PeeringAcceptors and PeeringDialers describe it.
//!
//! ```text
//! watches ─► objects ─┐                  ┌─► the servers' API: token, establish, delete
//!                     ├─► decision ─► call ─► Secrets with tokens
//! what was read ──────┘                  └─► finalizers, conditions and events of objects
//! ```
//!
//! An acceptor makes a token and stores it in a Secret; a dialer in another cluster gives a copy of the token to its
//! servers. What to do next for an object is a pure function of what is known (`decision`); the core keeps what is
//! known, and the driver makes the calls. Only the leader runs it.
//!
//! It never changes a peering of the other role, or a Secret of others, and no token is kept here or printed.

mod core;
pub mod crds;
mod decision;
mod driver;
pub mod kinds;
mod object;
mod secret;
mod servers;
mod status;

pub use self::driver::{Options, PeeringMetrics, run};

/// Annotation of an object: a whole number that is increased to generate or use a token once more.
pub const VERSION_ANNOTATION: &str = "consul.hashicorp.com/peering-version";
/// Label of Secrets with tokens; its value is `true`.
pub const TOKEN_LABEL: &str = "consul.hashicorp.com/peering-token";
