//! Parts that several kinds have.

use std::collections::BTreeMap;

use super::declaration::spec;
use super::values::{FreeMap, PATH, Period, rules};

/// How proxies reach each other across datacenters.
const GATEWAY_MODES: [&str; 4] = ["", "none", "local", "remote"];
pub(super) const MUTUAL_TLS_MODES: [&str; 3] = ["", "strict", "permissive"];
/// Rule of a spec with a proxy mode: pods say that with an annotation.
pub(super) const NO_MODE: (&str, &str) = (
    "!has(self.mode)",
    "mode is not set here: use the annotation consul.hashicorp.com/transparent-proxy of the pods",
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
        "outboundListenerPort is not set here: traffic of pods is redirected to port 15001",
    )])))]
    TransparentProxy {
        /// Port of the outbound listener. It is 15001 in pods.
        #[schemars(range(max = 65535))]
        outbound_listener_port: u32,
        /// Whether instances can be called by their own address.
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

    /// An extension of Envoy's configuration.
    EnvoyExtension {
        /// Which one.
        #[schemars(required)]
        name: String,
        /// Whether a proxy is refused its configuration when the extension fails.
        required: bool,
        /// Its settings.
        #[schemars(required)]
        arguments: FreeMap,
    }

    /// When an instance that fails requests is left out for a while.
    PassiveHealthCheck {
        /// Time between looks.
        interval: Period,
        /// Failures in a row that count.
        max_failures: u32,
        /// Percentage of cases in which they count.
        #[schemars(range(max = 100))]
        enforcing_consecutive_5xx: u32,
        /// Largest share of instances left out at a time, in percent.
        #[schemars(range(max = 100))]
        max_ejection_percent: u32,
        /// First time out; each further one is longer. 30 s where it is left out.
        base_ejection_time: Period,
    }

    /// Changes to the headers of requests or responses.
    HeaderModifiers {
        /// Appended, also where the header exists already.
        add: BTreeMap<String, String>,
        /// Written in place of what the header said.
        set: BTreeMap<String, String>,
        /// Removed.
        #[schemars(length(max = 256))]
        remove: Vec<String>,
    }

    /// In which order failover targets are tried.
    FailoverPolicy {
        /// `sequential` (the default) or `order-by-locality`.
        #[schemars(extend("enum" = ["", "sequential", "order-by-locality"]))]
        mode: String,
        /// Regions in order of preference.
        #[schemars(length(max = 64))]
        regions: Vec<String>,
    }

    /// Whether instances near by are preferred.
    PrioritizeByLocality {
        /// `none` (the default) or `failover`.
        #[schemars(extend("enum" = ["", "none", "failover"]))]
        mode: String,
    }
}
