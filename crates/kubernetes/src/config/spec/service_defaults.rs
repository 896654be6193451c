//! `ServiceDefaults`: settings of one service, for every instance and caller.

use super::declaration::spec;
use super::parts::{
    EnvoyExtension, Expose, MUTUAL_TLS_MODES, MeshGateway, NO_MODE, PassiveHealthCheck,
    TransparentProxy,
};
use super::values::{PATH, PROTOCOLS, rules};

spec! {
    /// Settings of one service, for every instance and caller.
    #[schemars(extend("x-kubernetes-validations" = rules(&[NO_MODE])))]
    ServiceDefaultsSpec {
        /// `tcp`, `http`, `http2` or `grpc`; what the ProxyDefaults say, else `tcp`, where it is left out.
        #[schemars(extend("enum" = PROTOCOLS))]
        protocol: String,
        /// How traffic reaches the proxies. Pods say it with an annotation.
        mode: String,
        /// Settings for captured traffic.
        transparent_proxy: TransparentProxy,
        /// `strict` or `permissive`: whether connections without mutual TLS are taken.
        #[schemars(extend("enum" = MUTUAL_TLS_MODES))]
        mutual_tls_mode("mutualTLSMode" => "MutualTLSMode"): String,
        /// How the service is reached from other datacenters.
        mesh_gateway: MeshGateway,
        /// Paths that are reached without mutual TLS.
        expose: Expose,
        /// Server name for a service outside the mesh.
        external_sni("externalSNI" => "ExternalSNI"): String,
        /// Settings for the services that it calls.
        upstream_config: Upstreams,
        /// Makes it a service outside the mesh, reached through a terminating gateway.
        destination: Destination,
        /// Inbound connections of a proxy at a time; 0 means no limit.
        max_inbound_connections: u32,
        /// Longest time to connect to the application, in milliseconds; 0 means 5000.
        local_connect_timeout_ms: u32,
        /// Longest request to the application, in milliseconds; 0 means Envoy's default.
        local_request_timeout_ms: u32,
        /// `exact_balance`: spread inbound connections evenly over Envoy's threads.
        #[schemars(extend("enum" = ["", "exact_balance"]))]
        balance_inbound_connections: String,
        /// Limits on request rates.
        rate_limits: RateLimits,
        /// Extensions, after those of the ProxyDefaults.
        #[schemars(length(max = 64))]
        envoy_extensions: Vec<EnvoyExtension>,
    }

    /// Settings of a caller for all and for single upstreams.
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        (
            "!has(self.defaults) || !((has(self.defaults.name) && size(self.defaults.name) > 0) || \
             (has(self.defaults.__namespace__) && \
             size(self.defaults.__namespace__) > 0) || \
             (has(self.defaults.partition) && size(self.defaults.partition) > 0) || \
             (has(self.defaults.peer) && size(self.defaults.peer) > 0))",
            "defaults are for every upstream and name none",
        ),
        (
            "!has(self.overrides) || self.overrides.all(o, has(o.name) && size(o.name) > 0)",
            "each of the overrides names its upstream",
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
        /// Longest time to connect, in milliseconds; 0 means 5000.
        connect_timeout_ms: u32,
        /// Limits.
        limits: UpstreamLimits,
        /// When an instance that fails requests is left out.
        passive_health_check: PassiveHealthCheck,
        /// How it is reached in other datacenters.
        mesh_gateway: MeshGateway,
    }

    /// Limits of one caller towards one upstream; Envoy's default where one is left out.
    UpstreamLimits {
        /// Connections at a time.
        max_connections: u32,
        /// Requests that wait for a connection.
        max_pending_requests: u32,
        /// Requests at a time.
        max_concurrent_requests: u32,
    }

    /// Where a service outside the mesh is.
    Destination {
        /// Host names or IP addresses.
        #[schemars(required, length(min = 1, max = 256))]
        #[schemars(extend("x-kubernetes-list-type" = "set"))]
        addresses: Vec<String>,
        /// Its port.
        #[schemars(required, range(min = 1, max = 65535))]
        port: u32,
    }

    /// Limits on request rates.
    RateLimits {
        /// Limits of each instance.
        instance_level: InstanceRateLimits,
    }

    /// Limits on the request rate of each instance.
    InstanceRateLimits {
        /// Requests per second on average.
        requests_per_second: u32,
        /// Requests at once; as many as per second where it is left out.
        requests_max_burst: u32,
        /// Limits by path.
        #[schemars(length(max = 256))]
        routes: Vec<RouteRateLimits>,
    }

    /// A limit for one path.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.pathExact) && size(self.pathExact) > 0 ? 1 : 0) + \
         (has(self.pathPrefix) && size(self.pathPrefix) > 0 ? 1 : 0) + \
         (has(self.pathRegex) && size(self.pathRegex) > 0 ? 1 : 0) == 1",
        "exactly one of pathExact, pathPrefix and pathRegex is needed",
    )])))]
    RouteRateLimits {
        /// The path.
        #[schemars(regex(pattern = PATH))]
        path_exact: String,
        /// What paths start with.
        #[schemars(regex(pattern = PATH))]
        path_prefix: String,
        /// What paths match, in RE2's notation.
        path_regex: String,
        /// Requests per second on average.
        requests_per_second: u32,
        /// Requests at once; as many as per second where it is left out.
        requests_max_burst: u32,
    }
}
