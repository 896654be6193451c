//! Which services belong to which gateway, according to config entries. Pure: every read is recorded,
//! and results that many readers need are shared queries.
//!
//! - `services`: from a gateway to its services.
//! - `of_service`: from a service to the instances of its gateways.
//! - `every`: the services that `*` stands for.
//! - [`api`]: the routes that are bound to API gateways.
//! - `ingress`: the listeners of an ingress gateway, with their services.
//! - `mesh`: the services that a mesh gateway forwards to.
//! - `peered`: what a mesh gateway forwards between peers.

pub mod api;
mod every;
mod ingress;
mod mesh;
mod of_service;
mod peered;
mod services;

pub(crate) use ingress::exposed;
pub use ingress::{Exposed, ExposedPort, ExposedService};
pub use mesh::{MeshService, MeshServices};
pub(crate) use mesh::{mesh_names, mesh_service};
pub use of_service::{connect_to, ingress_to};
pub(crate) use of_service::{is_linked, terminating};
pub use peered::{PeerExport, PeerRoute, PeerRoutes};
pub(crate) use peered::{exported_names, peer_export, peer_routes};
pub use services::{GatewayService, Link, Origin, in_namespace, services};
