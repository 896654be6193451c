//! `IngressGateway`: which services an ingress gateway takes connections for.

use super::declaration::spec;
use super::parts::{HeaderModifiers, PassiveHealthCheck};
use super::values::{PROTOCOLS, TLS_VERSIONS, rules};

spec! {
    /// Which services an ingress gateway takes connections for.
    IngressGatewaySpec {
        /// TLS of every listener.
        tls("tls" => "TLS"): GatewayTls,
        /// The listeners.
        #[schemars(length(max = 128))]
        listeners: Vec<Listener>,
        /// Limits for every service.
        defaults: ServiceLimits,
    }

    /// Limits for connections to services.
    ServiceLimits {
        /// Connections at a time.
        #[schemars(range(min = 1))]
        max_connections: u32,
        /// Requests that wait for a connection.
        #[schemars(range(min = 1))]
        max_pending_requests: u32,
        /// Requests at a time.
        #[schemars(range(min = 1))]
        max_concurrent_requests: u32,
        /// When an instance that fails requests is left out.
        passive_health_check: PassiveHealthCheck,
    }

    /// TLS of a listener.
    GatewayTls {
        /// Use a certificate of the mesh.
        enabled: bool,
        /// Use a certificate from another source.
        sds("sds" => "SDS"): Sds,
        /// Lowest version.
        #[schemars(extend("enum" = TLS_VERSIONS))]
        tls_min_version("tlsMinVersion" => "TLSMinVersion"): String,
        /// Highest version.
        #[schemars(extend("enum" = TLS_VERSIONS))]
        tls_max_version("tlsMaxVersion" => "TLSMaxVersion"): String,
        /// Suites of TLS 1.2 and below.
        #[schemars(length(max = 64))]
        cipher_suites: Vec<String>,
    }

    /// A certificate from another source.
    Sds {
        /// The cluster of the source, which Envoy's bootstrap has.
        cluster_name: String,
        /// The certificate.
        cert_resource: String,
    }

    /// A listener.
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        (
            "!(has(self.protocol) && self.protocol == 'tcp' && has(self.services)) || \
             (size(self.services) <= 1 && \
             self.services.all(s, !has(s.hosts) || size(s.hosts) == 0))",
            "a listener for tcp has one service, without hosts",
        ),
        (
            "!has(self.services) || self.services.all(s, !(has(s.name) && s.name == '*') || \
             (has(self.protocol) && self.protocol == 'http' && \
             (!has(s.hosts) || size(s.hosts) == 0)))",
            "the service * needs protocol http, and has no hosts",
        ),
    ])))]
    Listener {
        /// Its port.
        #[schemars(required, range(min = 1, max = 65535))]
        port: u32,
        /// `tcp`, `http`, `http2` or `grpc`; `tcp` where it is left out.
        #[schemars(extend("enum" = PROTOCOLS))]
        protocol: String,
        /// TLS of this listener.
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
        /// Host names that lead to it.
        #[schemars(length(max = 256))]
        hosts: Vec<String>,
        /// Its namespace.
        namespace: String,
        /// Its partition.
        partition: String,
        /// TLS of its host names.
        tls("tls" => "TLS"): ServiceTls,
        /// Changes to requests.
        request_headers: HeaderModifiers,
        /// Changes to responses.
        response_headers: HeaderModifiers,
        /// Connections at a time.
        #[schemars(range(min = 1))]
        max_connections: u32,
        /// Requests that wait for a connection.
        #[schemars(range(min = 1))]
        max_pending_requests: u32,
        /// Requests at a time.
        #[schemars(range(min = 1))]
        max_concurrent_requests: u32,
        /// When an instance that fails requests is left out.
        passive_health_check: PassiveHealthCheck,
    }

    /// TLS of a service's host names.
    ServiceTls {
        /// A certificate from another source.
        sds("sds" => "SDS"): Sds,
    }
}
