//! `IngressGateway`: listeners of an ingress gateway and the services behind them.

use super::declaration::spec;
use super::parts::{HeaderModifiers, PassiveHealthCheck};
use super::values::{PROTOCOLS, TLS_VERSIONS, rules};

spec! {
    /// Listeners of an ingress gateway and the services behind them.
    IngressGatewaySpec {
        /// TLS settings of every listener.
        tls("tls" => "TLS"): GatewayTls,
        /// The listeners.
        #[schemars(length(max = 128))]
        listeners: Vec<Listener>,
        /// Limits that apply to every service.
        defaults: ServiceLimits,
    }

    /// Limits for connections to services.
    ServiceLimits {
        /// Maximum number of concurrent connections.
        #[schemars(range(min = 1))]
        max_connections: u32,
        /// Maximum number of requests that wait for a connection.
        #[schemars(range(min = 1))]
        max_pending_requests: u32,
        /// Maximum number of concurrent requests.
        #[schemars(range(min = 1))]
        max_concurrent_requests: u32,
        /// When failing instances are ejected from load balancing.
        passive_health_check: PassiveHealthCheck,
    }

    /// TLS settings of a listener.
    GatewayTls {
        /// Use a certificate of the mesh.
        enabled: bool,
        /// Use a certificate from another source.
        sds("sds" => "SDS"): Sds,
        /// Minimum TLS version.
        #[schemars(extend("enum" = TLS_VERSIONS))]
        tls_min_version("tlsMinVersion" => "TLSMinVersion"): String,
        /// Maximum TLS version.
        #[schemars(extend("enum" = TLS_VERSIONS))]
        tls_max_version("tlsMaxVersion" => "TLSMaxVersion"): String,
        /// Cipher suites for TLS 1.2 and below.
        #[schemars(length(max = 64))]
        cipher_suites: Vec<String>,
    }

    /// A certificate from another source.
    Sds {
        /// Name of the SDS cluster in Envoy's bootstrap.
        cluster_name: String,
        /// Name of the certificate.
        cert_resource: String,
    }

    /// A listener.
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        (
            "!(has(self.protocol) && self.protocol == 'tcp' && has(self.services)) || \
             (size(self.services) <= 1 && \
             self.services.all(s, !has(s.hosts) || size(s.hosts) == 0))",
            "a tcp listener has at most one service, and no hosts",
        ),
        (
            "!has(self.services) || self.services.all(s, !(has(s.name) && s.name == '*') || \
             (has(self.protocol) && self.protocol == 'http' && \
             (!has(s.hosts) || size(s.hosts) == 0)))",
            "the service * requires protocol http and no hosts",
        ),
    ])))]
    Listener {
        /// Its port.
        #[schemars(required, range(min = 1, max = 65535))]
        port: u32,
        /// `tcp` (the default), `http`, `http2` or `grpc`.
        #[schemars(extend("enum" = PROTOCOLS))]
        protocol: String,
        /// TLS settings of this listener.
        tls("tls" => "TLS"): GatewayTls,
        /// The services behind it.
        #[schemars(length(max = 256))]
        services: Vec<Service>,
    }

    /// A service behind a listener.
    Service {
        /// Its name, or `*`.
        #[schemars(length(max = 253))]
        name: String,
        /// Host names that are routed to it.
        #[schemars(length(max = 256))]
        hosts: Vec<String>,
        /// Its namespace.
        namespace: String,
        /// Its partition.
        partition: String,
        /// TLS settings of its host names.
        tls("tls" => "TLS"): ServiceTls,
        /// Changes to requests.
        request_headers: HeaderModifiers,
        /// Changes to responses.
        response_headers: HeaderModifiers,
        /// Maximum number of concurrent connections.
        #[schemars(range(min = 1))]
        max_connections: u32,
        /// Maximum number of requests that wait for a connection.
        #[schemars(range(min = 1))]
        max_pending_requests: u32,
        /// Maximum number of concurrent requests.
        #[schemars(range(min = 1))]
        max_concurrent_requests: u32,
        /// When failing instances are ejected from load balancing.
        passive_health_check: PassiveHealthCheck,
    }

    /// TLS settings of a service's host names.
    ServiceTls {
        /// A certificate from another source.
        sds("sds" => "SDS"): Sds,
    }
}
