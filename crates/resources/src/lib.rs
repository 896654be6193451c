//! Turns a proxy's snapshot into Envoy resources.
