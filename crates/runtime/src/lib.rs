//! Task scopes, backoff, readiness, clock, logs and the metrics registry.
