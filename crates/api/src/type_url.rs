//! Type URLs of the xDS resources that the mesh uses.

/// Clusters (CDS).
pub const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// Endpoints of a cluster (EDS).
pub const ENDPOINT: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";

/// Listeners (LDS).
pub const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";

/// Routes of an HTTP listener (RDS).
pub const ROUTE: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";

/// Certificates and trust bundles (SDS).
pub const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";

/// All types in the order of updates: clusters and endpoints before listeners and routes, so that no
/// resource refers to a missing cluster. Secrets are subscribed to by name when needed.
pub const ORDERED: [&str; 5] = [CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET];
