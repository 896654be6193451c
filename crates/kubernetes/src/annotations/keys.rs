//! The table of all annotations under the prefix: values, defaults, effects, and which are ignored.

/// The prefix of all keys.
pub const PREFIX: &str = "consul.hashicorp.com/";

/// How an annotation on a pod is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// It has the documented effect.
    Served,
    /// The operator writes it; a user's value is replaced.
    Written,
    /// Has an effect on pods of gateways only.
    Gateway,
    /// Ignored, with a warning that gives this reason.
    Ignored(&'static str),
}

/// An annotation, without the prefix.
#[derive(Debug)]
pub struct Key {
    /// The name; a trailing `*` matches any suffix.
    pub name: &'static str,
    /// How it is treated.
    pub treatment: Treatment,
    /// The values that are accepted.
    pub values: &'static str,
    /// The value used if it is absent.
    pub default: &'static str,
    /// The effect.
    pub effect: &'static str,
}

const fn key(
    name: &'static str,
    values: &'static str,
    default: &'static str,
    effect: &'static str,
) -> Key {
    Key {
        name,
        treatment: Treatment::Served,
        values,
        default,
        effect,
    }
}

const fn written(name: &'static str, effect: &'static str) -> Key {
    Key {
        name,
        treatment: Treatment::Written,
        values: "",
        default: "",
        effect,
    }
}

const fn gateway(name: &'static str, effect: &'static str) -> Key {
    Key {
        name,
        treatment: Treatment::Gateway,
        values: "",
        default: "",
        effect,
    }
}

const fn ignored(name: &'static str, why: &'static str) -> Key {
    Key {
        name,
        treatment: Treatment::Ignored(why),
        values: "",
        default: "",
        effect: why,
    }
}

const BOOLEAN: &str = "`true`, `false`";
const PORT: &str = "port name or number";
const NUMBER: &str = "number";
const FILE: &str = "path of a file in the sidecar";
const OF_OTHERS: &str = "it belongs to consul-k8s";

/// All keys, in the order of the reference.
#[rustfmt::skip] // One row a line.
pub const KEYS: &[Key] = &[
    key("connect-inject", BOOLEAN, "`connectInject.default`", "Whether the pod gets a sidecar."),
    key("connect-service", "name", "name of the one Service that selects the pod", "Name of the service in the mesh. With ACLs it must be the name of the pod's service account."),
    key("kubernetes-service", "name of a Service", "–", "The Service that represents the pod, if several select it."),
    key("connect-service-port", PORT, "first port of the first container", "Port at which the application listens. If it is a list, the first port or `connect-service-default-port` is registered."),
    key("connect-service-default-port", PORT, "first of `connect-service-port`", "The port of the list that is registered."),
    key("connect-service-upstreams", "list, see below", "–", "Upstreams that the pod calls on local ports."),
    key("proxy-config-map", "JSON object", "–", "Opaque configuration of the proxy."),
    key("service-tags", "list; `\\,` is a comma in a tag", "–", "Tags in the catalog; `$POD_NAME` is replaced."),
    key("service-meta-*", "text", "–", "Metadata in the catalog; the value `$POD_NAME` is replaced."),
    key("use-proxy-health-check", BOOLEAN, "`false`", "The readiness probe queries the proxy's `/ready` (port 21000) instead of opening a TCP connection to port 20000."),
    key("sidecar-proxy-startup-failure-seconds", NUMBER, "`0`: no startup probe, except for a native sidecar", "The sidecar is restarted if it is not ready after this time. For a native sidecar, `sidecar-probe-period-seconds` and `sidecar-probe-failure-threshold` take precedence."),
    key("sidecar-proxy-liveness-failure-seconds", NUMBER, "`0`: no liveness probe", "The sidecar is restarted if it has not been ready for this time."),
    key("sidecar-proxy-cpu-limit", "quantity", "`sidecarProxy.resources.limits.cpu`", "The sidecar's resources."),
    key("sidecar-proxy-cpu-request", "quantity", "`sidecarProxy.resources.requests.cpu`", "The sidecar's resources."),
    key("sidecar-proxy-memory-limit", "quantity", "`sidecarProxy.resources.limits.memory`", "The sidecar's resources."),
    key("sidecar-proxy-memory-request", "quantity", "`sidecarProxy.resources.requests.memory`", "The sidecar's resources."),
    key("sidecar-proxy-kind", "`envoy`, `builtin`, `auto`", "`sidecarProxy.kind`", "The proxy in the sidecar, [see this page](builtin-proxy.md)."),
    key("consul-envoy-proxy-concurrency", NUMBER, "`sidecarProxy.concurrency`", "Envoy's worker threads."),
    key("enable-sidecar-proxy-lifecycle", BOOLEAN, "`sidecarProxy.lifecycle.defaultEnabled`", "The sidecar starts before the application and stops after it."),
    key("enable-sidecar-proxy-lifecycle-shutdown-drain-listeners", BOOLEAN, "`sidecarProxy.lifecycle.defaultEnableShutdownDrainListeners`", "Drain inbound connections while stopping."),
    key("sidecar-proxy-lifecycle-shutdown-grace-period-seconds", NUMBER, "`sidecarProxy.lifecycle.defaultShutdownGracePeriodSeconds`", "How long the sidecar continues to serve after a stop request."),
    key("sidecar-proxy-lifecycle-startup-grace-period-seconds", NUMBER, "`sidecarProxy.lifecycle.defaultStartupGracePeriodSeconds`", "How long the startup path waits for the proxy to become ready."),
    key("sidecar-proxy-lifecycle-graceful-port", "1024 to 65535", "`sidecarProxy.lifecycle.defaultGracefulPort`", "Port of the sidecar's lifecycle server."),
    key("sidecar-proxy-lifecycle-graceful-shutdown-path", "path", "`sidecarProxy.lifecycle.defaultGracefulShutdownPath`", "Path that requests the sidecar to stop."),
    key("sidecar-proxy-lifecycle-graceful-startup-path", "path", "`sidecarProxy.lifecycle.defaultGracefulStartupPath`", "Path that responds when the proxy is ready."),
    key("enable-consul-dataplane-as-sidecar", BOOLEAN, "`dataplaneAsSidecarInitContainer.defaultEnabled`, else whether the API server is 1.29 or later", "The sidecar is a native one: an init container that keeps running."),
    key("sidecar-initial-probe-check-delay-seconds", NUMBER, "`dataplaneAsSidecarInitContainer.initialProbeCheckDelaySeconds`", "Startup probe of a native sidecar."),
    key("sidecar-probe-period-seconds", NUMBER, "`dataplaneAsSidecarInitContainer.probeCheckPeriodSeconds`", "Startup probe of a native sidecar."),
    key("sidecar-probe-failure-threshold", NUMBER, "`dataplaneAsSidecarInitContainer.probeCheckFailureThreshold`", "Startup probe of a native sidecar."),
    key("sidecar-probe-check-timeout-seconds", NUMBER, "`dataplaneAsSidecarInitContainer.probeCheckTimeoutSeconds`", "Startup probe of a native sidecar."),
    key("enable-metrics", BOOLEAN, "`metrics.defaultEnabled`", "Serves metrics to Prometheus and adds its annotations."),
    key("enable-metrics-merging", BOOLEAN, "`metrics.defaultEnableMerging`", "Adds the application's metrics to the proxy's."),
    key("merged-metrics-port", "1024 to 65535", "`metrics.defaultMergedMetricsPort`", "Port between Envoy and the sidecar."),
    key("prometheus-scrape-port", "1024 to 65535", "`metrics.defaultPrometheusScrapePort`", "Port that Prometheus scrapes."),
    key("prometheus-scrape-path", "path", "`metrics.defaultPrometheusScrapePath`", "Path that Prometheus scrapes."),
    key("service-metrics-port", PORT, "the service's port", "Port of the application's metrics."),
    key("service-metrics-path", "path", "`/metrics`", "Path of the application's metrics."),
    key("prometheus-ca-file", FILE, "–", "CA that Prometheus' client certificate is verified with. With a certificate and a key, Prometheus scrapes with mutual TLS."),
    key("prometheus-ca-path", "path of a directory in the sidecar", "–", "The same with a directory of CA files; takes precedence."),
    key("prometheus-cert-file", FILE, "–", "Certificate for Prometheus, see `prometheus-ca-file`."),
    key("prometheus-key-file", FILE, "–", "Key of the certificate, see `prometheus-ca-file`."),
    key("consul-sidecar-user-volume", "JSON list of volumes", "–", "Volumes that are added to the pod."),
    key("consul-sidecar-user-volume-mount", "JSON list of volume mounts", "–", "Volumes of the pod that are mounted in the sidecar."),
    key("connect-inject-mount-volume", "list of containers", "–", "Application containers that get a volume with files of the mesh, [see below](#files-of-the-mesh)."),
    key("envoy-extra-args", "`--log-level LEVEL`, `--concurrency NUMBER`", "–", "Flags of Envoy; unsupported ones are ignored with a warning."),
    key("consul-dns", BOOLEAN, "label of the same name on the namespace, else `dns.enableRedirection`", "Names of the mesh are resolved through the sidecar. Needs the transparent proxy."),
    key("transparent-proxy", BOOLEAN, "label of the same name on the namespace, else `transparentProxy.defaultEnabled`", "The pod's traffic is redirected to the sidecar."),
    key("transparent-proxy-exclude-inbound-ports", "list of ports", "–", "Inbound ports that are not redirected."),
    key("transparent-proxy-exclude-outbound-ports", "list of ports", "–", "Outbound ports that are not redirected."),
    key("transparent-proxy-exclude-outbound-cidrs", "list of CIDRs", "–", "Outbound destinations that are not redirected."),
    key("transparent-proxy-exclude-uids", "list of user ids", "–", "Users whose processes are not redirected."),
    key("transparent-proxy-overwrite-probes", BOOLEAN, "`transparentProxy.defaultOverwriteProbes`", "The kubelet's probes still reach the application when traffic is redirected."),
    written("connect-inject-status", "`injected`; a pod that has it is not changed. Also a label."),
    written("connect-inject-installation", "Namespace and name of the installation that registers the pod. Others in the cluster leave it alone."),
    written("transparent-proxy-status", "`enabled` if traffic is redirected."),
    written("expose-paths", "HTTP probes that the proxy answers for the kubelet, as JSON."),
    written("ca-certs", "The CA certificates that servers are verified with, as PEM."),
    written("redirect-traffic-config", "Written by consul-k8s for its CNI plugin."),
    written("consul-namespace", "The pod's namespace in the mesh, if namespaces are used. The chart determines it; a pod that requests another one is refused."),
    written("dual-stack", "Written by consul-k8s."),
    written("original-pod", "Written by consul-k8s."),
    written("connect-k8s-version", "Written by consul-k8s."),
    written("consul-k8s-version", "Written by consul-k8s."),
    written("consul-sidecar-access-log-enabled", "Written by consul-k8s."),
    written("consul-sidecar-access-log-path", "Written by consul-k8s."),
    written("config-checksum", "Written by charts to replace pods."),
    gateway("gateway-kind", "Kind of the gateway."),
    gateway("gateway-consul-service-name", "Service name of the gateway."),
    gateway("mesh-gateway-container-port", "Port of a mesh gateway."),
    gateway("gateway-wan-address-source", "Where the WAN address comes from."),
    gateway("gateway-wan-address-static", "The WAN address."),
    gateway("gateway-wan-port", "The WAN port."),
    gateway("gateway-namespace", "Namespace of the gateway."),
    gateway("consul-wan-federation", "`1`: the gateway leads to the servers of its datacenter and of others."),
    ignored("telemetry-collector", OF_OTHERS),
    ignored("mesh-inject", OF_OTHERS),
    ignored("mesh-inject-status", OF_OTHERS),
];

/// The entry of a key without its prefix.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| match key.name.strip_suffix('*') {
        Some(start) => name
            .strip_prefix(start)
            .is_some_and(|rest| !rest.is_empty()),
        None => key.name == name,
    })
}

/// The warning for an unknown key, with the closest known key.
pub(super) fn unknown(name: &str) -> String {
    let shown: String = name.chars().take(80).collect();
    let nearest = KEYS
        .iter()
        .filter(|key| key.treatment == Treatment::Served)
        .map(|key| {
            (
                strsim::normalized_damerau_levenshtein(&shown, key.name),
                key,
            )
        })
        .max_by(|one, other| one.0.total_cmp(&other.0));
    match nearest {
        Some((likeness, key)) if likeness >= 0.7 => format!(
            "annotation {PREFIX}{shown} is unknown and has no effect; did you mean {PREFIX}{}?",
            key.name
        ),
        _ => format!("annotation {PREFIX}{shown} is unknown and has no effect"),
    }
}
