//! The sidecar: configuration, session, bootstrap, Envoy, xDS relay, lifecycle, metrics.
