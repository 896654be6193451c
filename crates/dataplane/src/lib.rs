//! The sidecar: configuration, session, bootstrap, Envoy, xDS relay, lifecycle, metrics.

pub mod dns;
pub mod probe;
pub mod relay;
pub mod settings;
pub mod signals;
