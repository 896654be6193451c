//! API gateways: which routes are bound to which listeners, what is said about it, and the routes
//! as proxies need them.
//!
//! Nothing of this is stored. Whoever reads a `bound-api-gateway` or the status of an entry computes
//! it from the state, so it is never behind the entries.
//!
//! ```text
//! api-gateway, routes, certificates ─► binding ─┬─► conditions ─► entries (HTTP API)
//!                                               └─► compile ─► legate_routes (proxies)
//! ```
//!
//! Gateways of Kubernetes clusters have rows instead of entries (`rows`).

mod attached;
mod binding;
mod certificates;
mod compile;
mod conditions;
mod entries;
mod listener;
mod route;
mod rows;
mod rules;
#[cfg(test)]
mod tests;

pub use certificates::{CertificateSource, GatewayCertificate};
pub use compile::{Compiled, compiled, jwt_providers};
pub use entries::{config_entries, config_entry};
