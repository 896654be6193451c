//! Turns a proxy's snapshot into Envoy resources.
//!
//! Pure: a snapshot goes in, encoded resources come out, and the same snapshot always gives the
//! same bytes. Resources are memoised by exactly what they are made from, so that what a thousand
//! proxies have in common is encoded once and held once. Nothing here reads the store, and nothing
//! knows which proxy has received what.
//!
//! Certificates are resources of their own (`leaf` and `roots`): a renewed certificate changes one
//! small secret, and neither the listeners nor the clusters that refer to it by name.
//!
//! So are the routes of an HTTP service with its intentions in them: a changed intention changes the
//! routes, which hold for the next request, and not the listener, whose connections would have to
//! be drained. The listener on its own allows nothing. A listener that a user wrote has the intentions
//! in it.
//!
//! Each resource is a part of its own: made again when something that it is made from has changed,
//! and kept in its last good version when it cannot be made. A listener or cluster that cannot be
//! given its TLS or its access rules is never made without them.

mod balancing;
mod chain_route;
mod cluster;
mod composer;
mod custom;
mod duration;
mod encode;
mod endpoint;
mod error;
mod extension;
mod generate;
mod jwt;
mod kinds;
mod listener;
mod memo;
mod names;
mod part;
mod rate_limit;
mod rbac;
mod resource_type;
mod retry;
mod route;
mod secret;
mod set;
mod settings;
mod telemetry;
mod tls;
mod upstream;

pub use encode::EncodedResource;
pub use error::{Failure, GenerateError};
pub use extension::check as check_extension;
pub use generate::{Generator, Work};
pub use names::{LEAF, ROOTS};
pub use set::{ByName, ResourceSet};
