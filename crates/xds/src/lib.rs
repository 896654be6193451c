//! The delta xDS protocol: which resources a stream is sent, when, and in which order.
//!
//! ```text
//! Snapshot ─► Generator ─► ResourceSet ─┐
//!                                       ▼
//! Envoy ─► DeltaDiscoveryRequest ─► Session ─► DeltaDiscoveryResponse ─► Envoy
//! ```
//!
//! - [`Session`] is the protocol without any IO: events in, responses out.
//! - `configuration` is what a stream's proxy has: made part by part from each snapshot and what was
//!   made of the one before.
//! - [`Proxies`] is what people see of connected proxies.
//! - [`XdsService`] is the one asynchronous file: it joins a gRPC stream, a watch of snapshots and
//!   a session. `grpc` is how gRPC requests reach it.
//!
//! This crate sees snapshots only. It never reads the store, never builds a resource and never
//! decides what a token may do: that is asked of a [`StreamAuthorizer`].

mod configuration;
mod grpc;
mod node;
mod resource_type;
mod service;
mod session;
mod status;

pub use grpc::XdsServer;
pub use resource_type::ResourceType;
pub use service::{StreamAuthorizer, XdsConfig, XdsService};
pub use session::{Asked, Nack, Progress, Received, Session};
pub use status::{Proxies, ProxyStatus, Refusal, TypeStatus};
