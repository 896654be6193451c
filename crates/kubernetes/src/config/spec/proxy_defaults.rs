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
        /// How traffic reaches the proxies. Pods say it with an annotation.
        mode: String,
        /// Settings for captured traffic.
        transparent_proxy: TransparentProxy,
        /// `strict` or `permissive`: whether connections without mutual TLS are taken.
        #[schemars(extend("enum" = MUTUAL_TLS_MODES))]
        mutual_tls_mode("mutualTLSMode" => "MutualTLSMode"): String,
        /// Settings by their own names, such as `protocol` or `envoy_prometheus_bind_addr`.
        config: FreeMap,
        /// How services are reached from other datacenters.
        mesh_gateway: MeshGateway,
        /// Paths that are reached without mutual TLS.
        expose: Expose,
        /// Envoy's access logs.
        access_logs: AccessLogs,
        /// Extensions of every proxy.
        #[schemars(length(max = 64))]
        envoy_extensions: Vec<EnvoyExtension>,
        /// In which order failover targets are tried.
        failover_policy: FailoverPolicy,
        /// Whether instances near by are preferred.
        prioritize_by_locality: PrioritizeByLocality,
    }

    /// Envoy's access logs.
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        (
            "(has(self.path) && size(self.path) > 0) == (has(self.type) && self.type == 'file')",
            "path is needed for logs of type file, and only for these",
        ),
        (
            "!(has(self.jsonFormat) && size(self.jsonFormat) > 0 && has(self.textFormat) && \
             size(self.textFormat) > 0)",
            "only one of jsonFormat and textFormat can be given",
        ),
    ])))]
    AccessLogs {
        /// Whether they are written.
        enabled: bool,
        /// Leave out connections that no listener took.
        disable_listener_logs: bool,
        /// Where to: `stdout` (the default), `stderr` or `file`.
        #[schemars(extend("enum" = ["", "stdout", "stderr", "file"]))]
        r#type("type" => "Type"): String,
        /// The file.
        path: String,
        /// A line as JSON.
        json_format("jsonFormat" => "JSONFormat"): String,
        /// A line as text.
        text_format: String,
    }
}
