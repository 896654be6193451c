//! Parts used by several kinds.

use std::collections::BTreeMap;

use super::declaration::spec;
use super::values::{FreeMap, PATH, Period, rules};

/// The modes of mesh gateways.
const GATEWAY_MODES: [&str; 4] = ["", "none", "local", "remote"];
pub(super) const MUTUAL_TLS_MODES: [&str; 3] = ["", "strict", "permissive"];
/// Validation rule against a proxy mode in a spec, because an annotation of pods sets it.
pub(super) const NO_MODE: (&str, &str) = (
    "!has(self.mode)",
    "mode cannot be set here: use the annotation consul.hashicorp.com/transparent-proxy of the pods",
);

spec! {
    /// How traffic reaches destinations in other datacenters.
    MeshGateway {
        /// `none`, `local` or `remote`.
        #[schemars(extend("enum" = GATEWAY_MODES))]
        mode: String,
    }

    /// Settings for captured traffic.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "!has(self.outboundListenerPort) || self.outboundListenerPort == 0",
        "outboundListenerPort cannot be set here: traffic of pods is redirected to port 15001",
    )])))]
    TransparentProxy {
        /// Port of the outbound listener. It is 15001 in pods.
        #[schemars(range(max = 65535))]
        outbound_listener_port: u32,
        /// Whether callers may dial instances by their own addresses.
        dialed_directly: bool,
    }

    /// Paths that are reached without mutual TLS.
    Expose {
        /// Expose the paths of HTTP and gRPC checks.
        checks: bool,
        /// The paths.
        #[schemars(length(max = 256))]
        paths: Vec<ExposePath>,
    }

    /// A path that is reached without mutual TLS.
    ExposePath {
        /// Port that the proxy listens on.
        #[schemars(range(max = 65535))]
        listener_port: u32,
        /// The path; it starts with `/`.
        #[schemars(regex(pattern = PATH))]
        path: String,
        /// Port of the application.
        #[schemars(range(max = 65535))]
        local_path_port: u32,
        /// `http` or `http2`.
        #[schemars(extend("enum" = ["", "http", "http2"]))]
        protocol: String,
    }

    /// An extension of Envoy.
    EnvoyExtension {
        /// The name of the extension.
        #[schemars(required)]
        name: String,
        /// Whether a failure of the extension withholds the configuration from the proxy.
        required: bool,
        /// Its settings.
        #[schemars(required)]
        arguments: FreeMap,
    }

    /// When failing instances are ejected from load balancing.
    PassiveHealthCheck {
        /// Interval between checks.
        interval: Period,
        /// Consecutive failures before an ejection.
        max_failures: u32,
        /// Probability of an ejection, in percent.
        #[schemars(range(max = 100))]
        enforcing_consecutive_5xx: u32,
        /// Maximum percentage of ejected instances.
        #[schemars(range(max = 100))]
        max_ejection_percent: u32,
        /// First ejection time, which grows with each ejection. Default 30 s.
        base_ejection_time: Period,
    }

    /// Changes to the headers of requests or responses.
    HeaderModifiers {
        /// Headers to append, also if the header exists.
        add: BTreeMap<String, String>,
        /// Headers to set, replacing existing values.
        set: BTreeMap<String, String>,
        /// Headers to remove.
        #[schemars(length(max = 256))]
        remove: Vec<String>,
    }

    /// The order in which failover targets are tried.
    FailoverPolicy {
        /// `sequential` (the default) or `order-by-locality`.
        #[schemars(extend("enum" = ["", "sequential", "order-by-locality"]))]
        mode: String,
        /// Regions in order of preference.
        #[schemars(length(max = 64))]
        regions: Vec<String>,
    }

    /// Whether instances of the same locality are preferred.
    PrioritizeByLocality {
        /// `none` (the default) or `failover`.
        #[schemars(extend("enum" = ["", "none", "failover"]))]
        mode: String,
    }
}
