//! The mesh on Kubernetes: injects sidecars, syncs pods to the catalog, and custom resources to
//! config entries.
//!
//! Decisions are pure functions of Kubernetes objects; the drivers around them hold caches and
//! communicate with the API server. Nothing here proxies traffic.

pub mod acl_init;
pub mod annotations;
pub mod certificates;
pub mod config;
pub mod connect_init;
pub mod context;
pub mod federation;
pub mod gateways;
pub mod inject;
pub mod leader;
pub mod operator;
pub mod peering;
pub mod redirect;
pub mod servers;
pub mod sync;
pub mod tenancy;
mod watch;
