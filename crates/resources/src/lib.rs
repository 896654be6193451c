//! Turns a proxy's snapshot into Envoy resources.
//!
//! Pure: the input is a snapshot, the output encoded resources, and the same snapshot always gives
//! the same bytes. Resources are memoised by their inputs, so that a resource that a thousand
//! proxies share is encoded and held once. This crate does not read the store, and does not track
//! which proxy has received which resource.
//!
//! Certificates are resources of their own (`leaf` and `roots`): a renewed certificate changes one
//! small secret, and neither the listeners nor the clusters that refer to it by name.
//!
//! So are the routes of an HTTP service, which contain its intentions. A changed intention changes
//! only the routes, which apply from the next request on. A changed listener would have to drain
//! its connections. The listener alone allows nothing. A listener that a user wrote contains the
//! intentions itself.
//!
//! Each resource is a separate part: it is made again when one of its inputs has changed, and keeps
//! its last good version when it cannot be made. A listener or cluster is never made without its
//! TLS or its access rules.

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
mod gateway;
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
mod section;
mod set;
mod settings;
mod telemetry;
mod tls;
mod upstream;

pub use encode::EncodedResource;
pub use error::{Failure, GenerateError};
pub use extension::check as check_extension;
pub use generate::{Generator, Work};
pub use names::{LEAF, ROOTS, gateway_port};
pub use set::{ByName, ResourceSet};
