//! `ProxyDefaults`: settings of every proxy.

use super::declaration::spec;
use super::parts::{
    EnvoyExtension, Expose, FailoverPolicy, MUTUAL_TLS_MODES, MeshGateway, NO_MODE,
    PrioritizeByLocality, TransparentProxy,
};
use super::values::{FreeMap, rules};

spec! {
    /// Settings of every proxy.
    #[schemars(extend("x-kubernetes-validations" = rules(&[NO_MODE])))]
    ProxyDefaultsSpec {
        /// Proxy mode. On Kubernetes an annotation of pods sets it.
        mode: String,
        /// Settings for captured traffic.
        transparent_proxy: TransparentProxy,
        /// `strict` or `permissive`: whether connections without mutual TLS are accepted.
        #[schemars(extend("enum" = MUTUAL_TLS_MODES))]
        mutual_tls_mode("mutualTLSMode" => "MutualTLSMode"): String,
        /// Opaque settings such as `protocol` or `envoy_prometheus_bind_addr`.
        config: FreeMap,
        /// How other datacenters are reached.
        mesh_gateway: MeshGateway,
        /// Paths that are reached without mutual TLS.
        expose: Expose,
        /// Envoy's access logs.
        access_logs: AccessLogs,
        /// Extensions of every proxy.
        #[schemars(length(max = 64))]
        envoy_extensions: Vec<EnvoyExtension>,
        /// The order in which failover targets are tried.
        failover_policy: FailoverPolicy,
        /// Whether instances of the same locality are preferred.
        prioritize_by_locality: PrioritizeByLocality,
    }

    /// Envoy's access logs.
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        (
            "(has(self.path) && size(self.path) > 0) == (has(self.type) && self.type == 'file')",
            "path is required for type file, and not allowed for other types",
        ),
        (
            "!(has(self.jsonFormat) && size(self.jsonFormat) > 0 && has(self.textFormat) && \
             size(self.textFormat) > 0)",
            "only one of jsonFormat and textFormat can be given",
        ),
    ])))]
    AccessLogs {
        /// Whether access logs are written.
        enabled: bool,
        /// Omit connections that match no listener.
        disable_listener_logs: bool,
        /// Destination: `stdout` (the default), `stderr` or `file`.
        #[schemars(extend("enum" = ["", "stdout", "stderr", "file"]))]
        r#type("type" => "Type"): String,
        /// The path of the file.
        path: String,
        /// JSON format of a line.
        json_format("jsonFormat" => "JSONFormat"): String,
        /// Text format of a line.
        text_format: String,
    }
}
