//! `ServiceDefaults`: settings of one service, for all its instances and callers.

use super::declaration::spec;
use super::parts::{
    EnvoyExtension, Expose, MUTUAL_TLS_MODES, MeshGateway, NO_MODE, PassiveHealthCheck,
    TransparentProxy,
};
use super::values::{PATH, PROTOCOLS, rules};

spec! {
    /// Settings of one service, for all its instances and callers.
    #[schemars(extend("x-kubernetes-validations" = rules(&[NO_MODE])))]
    ServiceDefaultsSpec {
        /// `tcp`, `http`, `http2` or `grpc`. Default: that of ProxyDefaults, else `tcp`.
        #[schemars(extend("enum" = PROTOCOLS))]
        protocol: String,
        /// Proxy mode. On Kubernetes an annotation of pods sets it.
        mode: String,
        /// Settings for captured traffic.
        transparent_proxy: TransparentProxy,
        /// `strict` or `permissive`: whether connections without mutual TLS are accepted.
        #[schemars(extend("enum" = MUTUAL_TLS_MODES))]
        mutual_tls_mode("mutualTLSMode" => "MutualTLSMode"): String,
        /// How other datacenters reach the service.
        mesh_gateway: MeshGateway,
        /// Paths that are reached without mutual TLS.
        expose: Expose,
        /// SNI of a service outside the mesh.
        external_sni("externalSNI" => "ExternalSNI"): String,
        /// Settings for the services that it calls.
        upstream_config: Upstreams,
        /// Defines a service outside the mesh, reached through a terminating gateway.
        destination: Destination,
        /// Maximum number of inbound connections of a proxy; 0 means no limit.
        max_inbound_connections: u32,
        /// Timeout of connections to the application, in milliseconds; 0 means 5000.
        local_connect_timeout_ms: u32,
        /// Timeout of requests to the application, in milliseconds; 0 means Envoy's default.
        local_request_timeout_ms: u32,
        /// `exact_balance`: distribute inbound connections evenly over Envoy's threads.
        #[schemars(extend("enum" = ["", "exact_balance"]))]
        balance_inbound_connections: String,
        /// Request rate limits.
        rate_limits: RateLimits,
        /// Extensions, applied after those of ProxyDefaults.
        #[schemars(length(max = 64))]
        envoy_extensions: Vec<EnvoyExtension>,
    }

    /// Settings of a caller for all upstreams and for single ones.
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        (
            "!has(self.defaults) || !((has(self.defaults.name) && size(self.defaults.name) > 0) || \
             (has(self.defaults.__namespace__) && \
             size(self.defaults.__namespace__) > 0) || \
             (has(self.defaults.partition) && size(self.defaults.partition) > 0) || \
             (has(self.defaults.peer) && size(self.defaults.peer) > 0))",
            "defaults apply to every upstream and must not name one",
        ),
        (
            "!has(self.overrides) || self.overrides.all(o, has(o.name) && size(o.name) > 0)",
            "each override must name its upstream",
        ),
    ])))]
    Upstreams {
        /// For all upstreams.
        defaults: Upstream,
        /// For single upstreams, by name.
        #[schemars(length(max = 512))]
        overrides: Vec<Upstream>,
    }

    /// Settings of a caller for its upstreams.
    Upstream {
        /// The upstream, in overrides only.
        name: String,
        /// Its namespace, in overrides only.
        namespace: String,
        /// Its partition, in overrides only.
        partition: String,
        /// Its cluster peer, in overrides only.
        peer: String,
        /// Replaces the generated listener.
        envoy_listener_json("envoyListenerJSON" => "EnvoyListenerJSON"): String,
        /// Replaces the generated cluster.
        envoy_cluster_json("envoyClusterJSON" => "EnvoyClusterJSON"): String,
        /// Protocol of the upstream.
        protocol: String,
        /// Connect timeout in milliseconds; 0 means 5000.
        connect_timeout_ms: u32,
        /// Limits.
        limits: UpstreamLimits,
        /// When failing instances are ejected from load balancing.
        passive_health_check: PassiveHealthCheck,
        /// How other datacenters are reached.
        mesh_gateway: MeshGateway,
    }

    /// Limits of one caller for one upstream. Default: Envoy's.
    UpstreamLimits {
        /// Maximum number of concurrent connections.
        max_connections: u32,
        /// Maximum number of requests that wait for a connection.
        max_pending_requests: u32,
        /// Maximum number of concurrent requests.
        max_concurrent_requests: u32,
    }

    /// The location of a service outside the mesh.
    Destination {
        /// Host names or IP addresses.
        #[schemars(required, length(min = 1, max = 256))]
        #[schemars(extend("x-kubernetes-list-type" = "set"))]
        addresses: Vec<String>,
        /// Its port.
        #[schemars(required, range(min = 1, max = 65535))]
        port: u32,
    }

    /// Request rate limits.
    RateLimits {
        /// Limits of each instance.
        instance_level: InstanceRateLimits,
    }

    /// Request rate limits of each instance.
    InstanceRateLimits {
        /// Average number of requests per second.
        requests_per_second: u32,
        /// Maximum burst of requests. Default: `requestsPerSecond`.
        requests_max_burst: u32,
        /// Limits by path.
        #[schemars(length(max = 256))]
        routes: Vec<RouteRateLimits>,
    }

    /// The limit of one path.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.pathExact) && size(self.pathExact) > 0 ? 1 : 0) + \
         (has(self.pathPrefix) && size(self.pathPrefix) > 0 ? 1 : 0) + \
         (has(self.pathRegex) && size(self.pathRegex) > 0 ? 1 : 0) == 1",
        "exactly one of pathExact, pathPrefix and pathRegex is needed",
    )])))]
    RouteRateLimits {
        /// The exact path.
        #[schemars(regex(pattern = PATH))]
        path_exact: String,
        /// The prefix of paths.
        #[schemars(regex(pattern = PATH))]
        path_prefix: String,
        /// A regular expression for paths, in RE2's syntax.
        path_regex: String,
        /// Average number of requests per second.
        requests_per_second: u32,
        /// Maximum burst of requests. Default: `requestsPerSecond`.
        requests_max_burst: u32,
    }
}
