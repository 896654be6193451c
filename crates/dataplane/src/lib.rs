//! The sidecar: configuration, session, bootstrap, Envoy, xDS relay, lifecycle, metrics.

pub mod settings;
pub mod signals;
