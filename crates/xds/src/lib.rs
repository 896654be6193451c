//! The delta xDS protocol: which resources a stream is sent, when, and in which order.
//!
//! ```text
//! Snapshot ─► Generator ─► ResourceSet ─┐
//!                                       ▼
//! Envoy ─► DeltaDiscoveryRequest ─► Session ─► DeltaDiscoveryResponse ─► Envoy
//! ```
//!
//! - [`Session`] is the protocol without any IO: events in, responses out.
//! - `configuration` generates the resources of a stream's proxy from each snapshot, reusing those
//!   of the previous one.
//! - [`Proxies`] is the status of connected proxies. `gateway` tells what those of gateways have
//!   acknowledged completely.
//! - [`XdsService`] is the only asynchronous module: it connects a gRPC stream, a watch of snapshots
//!   and a session. `grpc` is its gRPC layer.
//!
//! This crate uses snapshots only. It never reads the store, never builds a resource, and leaves
//! decisions about tokens to a [`StreamAuthorizer`].

mod certificates;
mod configuration;
mod gateway;
mod grpc;
mod node;
mod resource_type;
mod service;
mod session;
mod status;

pub use gateway::GatewayOutcome;
pub use grpc::XdsServer;
pub use resource_type::ResourceType;
pub use service::{StreamAuthorizer, XdsConfig, XdsService};
pub use session::{Asked, Nack, Progress, Received, Session};
pub use status::{Proxies, ProxyStatus, Refusal, TypeStatus};
