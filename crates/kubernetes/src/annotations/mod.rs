//! Parses the annotations that users write on pods under `consul.hashicorp.com/`. Pure: independent
//! of other objects and of the installation's defaults.
//!
//! Names and values are those of consul-k8s, so that its manifests work unchanged. An empty value
//! counts as absent.

mod keys;
mod reference;
mod upstreams;
mod values;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Volume, VolumeMount};
use legate_model::ExposePath;
use serde::Deserialize;
use serde_json::Value;

pub use self::keys::{KEYS, Key, PREFIX, Treatment};
pub use self::reference::reference;
pub use self::upstreams::Upstream;
pub use self::values::Port;
use self::values::Reason;
pub(crate) use self::values::service as service_name;

/// Annotation and label of pods that have a sidecar; the value is [`INJECTED`].
pub const STATUS: &str = "consul.hashicorp.com/connect-inject-status";
/// Namespace and name of the installation that registers the pod, if a cluster has several.
pub const INSTALLATION: &str = "consul.hashicorp.com/connect-inject-installation";
/// The value of [`STATUS`].
pub const INJECTED: &str = "injected";
/// Label that names the integration in charge of the pod's registration; ours is
/// [`MANAGED_BY_LEGATE`].
pub const MANAGED_BY: &str = "consul.hashicorp.com/connect-inject-managed-by";
/// The value of [`MANAGED_BY`] on pods that this operator has injected, and on gateways of the chart.
/// The operator leaves pods with another value alone, such as `consul-k8s-endpoints-controller` of
/// consul-k8s.
pub const MANAGED_BY_LEGATE: &str = "legate-k8s";
/// Annotation with the service's name, which the injector writes if the user has not.
pub const SERVICE: &str = "consul.hashicorp.com/connect-service";
/// Annotation with the service's port; the injector replaces a name by its number.
pub const SERVICE_PORT: &str = "consul.hashicorp.com/connect-service-port";
/// Annotation with the Service that represents the pod, if several select it.
pub const KUBERNETES_SERVICE: &str = "consul.hashicorp.com/kubernetes-service";
/// Annotation with the upstreams; the injector replaces names of ports by their numbers.
pub const UPSTREAMS: &str = "consul.hashicorp.com/connect-service-upstreams";
/// Annotation of pods whose traffic is redirected; the value is `enabled`.
pub const TRANSPARENT_PROXY_STATUS: &str = "consul.hashicorp.com/transparent-proxy-status";
/// Annotation with the probes that the proxy answers, a JSON list of [`ExposePath`].
pub const EXPOSE_PATHS: &str = "consul.hashicorp.com/expose-paths";
/// Annotation with the servers' CA certificates, as PEM.
pub const CA_CERTS: &str = "consul.hashicorp.com/ca-certs";
/// Annotation with the port that Prometheus scrapes, which the injector writes if metrics are
/// enabled.
pub const SCRAPE_PORT: &str = "consul.hashicorp.com/prometheus-scrape-port";
/// Annotation, and label of namespaces, that turns the redirection of traffic on or off.
pub const TRANSPARENT_PROXY: &str = "consul.hashicorp.com/transparent-proxy";
/// Annotation, and label of namespaces, that turns the mesh's DNS on or off.
pub const DNS: &str = "consul.hashicorp.com/consul-dns";
/// Annotation with the pod's namespace in the mesh.
pub const CONSUL_NAMESPACE: &str = "consul.hashicorp.com/consul-namespace";
/// The placeholder for the pod's name in tags and metadata.
pub const POD_NAME: &str = "$POD_NAME";

/// An annotation that cannot be used. The pod is refused with this message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key} {reason}")]
pub struct InvalidAnnotation {
    /// The full key.
    pub key: String,
    /// The reason.
    pub reason: String,
}

impl InvalidAnnotation {
    /// `value` is included in the message, shortened to fit into one line.
    fn value(key: &str, value: &str, reason: Reason) -> InvalidAnnotation {
        let (value, reason) = (shortened(value, 64), shortened(&reason, 300));
        InvalidAnnotation {
            key: format!("{PREFIX}{key}"),
            reason: format!("= {value:?} {reason}"),
        }
    }
}

/// Truncates a text to this many characters.
fn shortened(text: &str, most: usize) -> String {
    let mut shown: String = text.chars().take(most).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// A pod's annotations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Annotations {
    /// `connect-service`
    pub service: Option<String>,
    /// `kubernetes-service`
    pub kubernetes_service: Option<String>,
    /// `connect-service-port`; of several, one is registered.
    pub ports: Vec<Port>,
    /// `connect-service-default-port`
    pub default_port: Option<Port>,
    /// `connect-service-upstreams`
    pub upstreams: Vec<Upstream>,
    /// `proxy-config-map`
    pub proxy_config: serde_json::Map<String, Value>,
    /// `service-tags`, with [`POD_NAME`] not yet replaced.
    pub tags: Vec<String>,
    /// `service-meta-*`, with [`POD_NAME`] not yet replaced.
    pub meta: BTreeMap<String, String>,
    /// `connect-inject-mount-volume`
    pub mount_volume: Vec<String>,
    /// The sidecar's container.
    pub sidecar: Sidecar,
    /// Start and stop of the sidecar.
    pub lifecycle: Lifecycle,
    /// Metrics.
    pub metrics: Metrics,
    /// `consul-dns`
    pub dns: Option<bool>,
    /// Redirection of traffic.
    pub transparent_proxy: TransparentProxy,
    /// The annotations that the injector has written.
    pub written: Written,
}

/// The proxy in a sidecar, as in the flag `-proxy` of `legate-dataplane`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyKind {
    /// Envoy.
    #[default]
    Envoy,
    /// The one in the sidecar's process, for TCP.
    Builtin,
    /// That one as long as it can serve everything, otherwise Envoy.
    Auto,
}

impl ProxyKind {
    /// The value of the flag.
    pub fn as_str(self) -> &'static str {
        match self {
            ProxyKind::Envoy => "envoy",
            ProxyKind::Builtin => "builtin",
            ProxyKind::Auto => "auto",
        }
    }
}

/// The sidecar's container.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sidecar {
    /// `sidecar-proxy-cpu-limit`
    pub cpu_limit: Option<String>,
    /// `sidecar-proxy-cpu-request`
    pub cpu_request: Option<String>,
    /// `sidecar-proxy-memory-limit`
    pub memory_limit: Option<String>,
    /// `sidecar-proxy-memory-request`
    pub memory_request: Option<String>,
    /// `sidecar-proxy-kind`
    pub kind: Option<ProxyKind>,
    /// `consul-envoy-proxy-concurrency`
    pub concurrency: Option<u32>,
    /// `envoy-extra-args`
    pub envoy_extra_args: Option<String>,
    /// `use-proxy-health-check`
    pub use_proxy_health_check: Option<bool>,
    /// `sidecar-proxy-startup-failure-seconds`; `None` if it is 0.
    pub startup_failure: Option<i32>,
    /// `sidecar-proxy-liveness-failure-seconds`; `None` if it is 0.
    pub liveness_failure: Option<i32>,
    /// `consul-sidecar-user-volume`: objects of the pod's volumes.
    pub volumes: Vec<Value>,
    /// `consul-sidecar-user-volume-mount`: objects of the container's mounts.
    pub volume_mounts: Vec<Value>,
    /// `enable-consul-dataplane-as-sidecar`
    pub native: Option<bool>,
    /// `sidecar-initial-probe-check-delay-seconds`
    pub probe_delay: Option<i32>,
    /// `sidecar-probe-period-seconds`
    pub probe_period: Option<i32>,
    /// `sidecar-probe-failure-threshold`
    pub probe_failures: Option<i32>,
    /// `sidecar-probe-check-timeout-seconds`
    pub probe_timeout: Option<i32>,
}

/// Start and stop of the sidecar: the lifecycle group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lifecycle {
    /// `enable-sidecar-proxy-lifecycle`
    pub enabled: Option<bool>,
    /// `enable-sidecar-proxy-lifecycle-shutdown-drain-listeners`
    pub drain: Option<bool>,
    /// `sidecar-proxy-lifecycle-shutdown-grace-period-seconds`
    pub shutdown_grace: Option<u32>,
    /// `sidecar-proxy-lifecycle-startup-grace-period-seconds`
    pub startup_grace: Option<u32>,
    /// `sidecar-proxy-lifecycle-graceful-port`
    pub port: Option<u16>,
    /// `sidecar-proxy-lifecycle-graceful-shutdown-path`
    pub shutdown_path: Option<String>,
    /// `sidecar-proxy-lifecycle-graceful-startup-path`
    pub startup_path: Option<String>,
}

/// Metrics of the pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics {
    /// `enable-metrics`
    pub enabled: Option<bool>,
    /// `enable-metrics-merging`
    pub merging: Option<bool>,
    /// `merged-metrics-port`
    pub merged_port: Option<u16>,
    /// `prometheus-scrape-port`
    pub scrape_port: Option<u16>,
    /// `prometheus-scrape-path`
    pub scrape_path: Option<String>,
    /// `service-metrics-port`
    pub service_port: Option<Port>,
    /// `service-metrics-path`
    pub service_path: Option<String>,
    /// `prometheus-ca-file`
    pub ca_file: Option<String>,
    /// `prometheus-ca-path`
    pub ca_path: Option<String>,
    /// `prometheus-cert-file`
    pub cert_file: Option<String>,
    /// `prometheus-key-file`
    pub key_file: Option<String>,
}

/// Redirection of the pod's traffic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TransparentProxy {
    /// `transparent-proxy`
    pub enabled: Option<bool>,
    /// `transparent-proxy-overwrite-probes`
    pub overwrite_probes: Option<bool>,
    /// `transparent-proxy-exclude-inbound-ports`
    pub exclude_inbound_ports: Vec<u16>,
    /// `transparent-proxy-exclude-outbound-ports`
    pub exclude_outbound_ports: Vec<u16>,
    /// `transparent-proxy-exclude-outbound-cidrs`, each with its prefix length.
    pub exclude_outbound_cidrs: Vec<String>,
    /// `transparent-proxy-exclude-uids`
    pub exclude_uids: Vec<u32>,
}

/// The annotations that the injector has written on an injected pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Written {
    /// The pod has a sidecar.
    pub injected: bool,
    /// The pod's traffic is redirected.
    pub transparent_proxy: bool,
    /// HTTP probes that the proxy answers.
    pub expose_paths: Vec<ExposePath>,
}

impl Annotations {
    /// Parses a pod's annotations; annotations without the prefix are ignored.
    ///
    /// # Errors
    /// The first annotation that cannot be used, in the order of the reference.
    pub fn parse(all: &BTreeMap<String, String>) -> Result<Annotations, InvalidAnnotation> {
        let reader = Reader { all };
        Ok(Annotations {
            service: reader.read("connect-service", values::service)?,
            kubernetes_service: reader.read("kubernetes-service", values::text)?,
            ports: reader.list("connect-service-port", values::ports)?,
            default_port: reader.read("connect-service-default-port", values::port)?,
            upstreams: reader.list("connect-service-upstreams", upstreams::upstreams)?,
            proxy_config: reader
                .read("proxy-config-map", values::object)?
                .unwrap_or_default(),
            tags: reader.list("service-tags", values::tags)?,
            meta: reader.meta(),
            mount_volume: reader.list("connect-inject-mount-volume", values::containers)?,
            sidecar: reader.sidecar()?,
            lifecycle: reader.lifecycle()?,
            metrics: reader.metrics()?,
            dns: reader.read("consul-dns", values::boolean)?,
            transparent_proxy: reader.transparent_proxy()?,
            written: reader.written()?,
        })
    }

    /// The port to register, if the annotations name one.
    #[must_use]
    pub fn port(&self) -> Option<&Port> {
        self.default_port.as_ref().or(self.ports.first())
    }
}

/// The value of `connect-inject`, which is read before all others.
///
/// # Errors
/// If it is neither true nor false.
pub fn wants_injection(all: &BTreeMap<String, String>) -> Result<Option<bool>, InvalidAnnotation> {
    Reader { all }.read("connect-inject", values::boolean)
}

/// A boolean from a namespace's label, such as [`TRANSPARENT_PROXY`].
///
/// # Errors
/// If it is neither true nor false.
pub fn namespace_label(
    labels: &BTreeMap<String, String>,
    key: &str,
) -> Result<Option<bool>, InvalidAnnotation> {
    let Some(value) = labels.get(key).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    values::boolean(value)
        .map(Some)
        .map_err(|reason| InvalidAnnotation {
            key: format!("(label of the namespace) {key}"),
            reason: format!("= {value:?} {reason}"),
        })
}

/// Warnings about usable annotations: unknown and ignored keys. Limited to a few.
#[must_use]
pub fn warnings(all: &BTreeMap<String, String>) -> Vec<String> {
    const MOST: usize = 10;
    let names = all.keys().filter_map(|key| key.strip_prefix(PREFIX));
    let warnings = names.filter_map(|name| match keys::find(name) {
        None => Some(keys::unknown(name)),
        Some(key) => match key.treatment {
            Treatment::Ignored(why) => Some(format!("annotation {PREFIX}{name} is ignored: {why}")),
            _ => None,
        },
    });
    warnings.take(MOST).collect()
}

struct Reader<'a> {
    all: &'a BTreeMap<String, String>,
}

impl Reader<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        let value = self.all.get(&format!("{PREFIX}{key}"))?;
        let value = value.trim();
        (!value.is_empty()).then_some(value)
    }

    fn read<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, Reason>,
    ) -> Result<Option<T>, InvalidAnnotation> {
        let Some(value) = self.text(key) else {
            return Ok(None);
        };
        parse(value)
            .map(Some)
            .map_err(|reason| InvalidAnnotation::value(key, value, reason))
    }

    fn list<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<Vec<T>, Reason>,
    ) -> Result<Vec<T>, InvalidAnnotation> {
        Ok(self.read(key, parse)?.unwrap_or_default())
    }

    fn meta(&self) -> BTreeMap<String, String> {
        let meta = self.all.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(PREFIX)?.strip_prefix("service-meta-")?;
            (!name.is_empty() && !value.is_empty()).then(|| (name.to_owned(), value.clone()))
        });
        meta.collect()
    }

    fn sidecar(&self) -> Result<Sidecar, InvalidAnnotation> {
        let seconds = |what: &str| {
            let key = format!("sidecar-proxy-{what}-failure-seconds");
            let seconds = self.read(&key, values::count)?;
            Ok(seconds.filter(|seconds| *seconds > 0))
        };
        Ok(Sidecar {
            cpu_limit: self.read("sidecar-proxy-cpu-limit", values::quantity)?,
            cpu_request: self.read("sidecar-proxy-cpu-request", values::quantity)?,
            memory_limit: self.read("sidecar-proxy-memory-limit", values::quantity)?,
            memory_request: self.read("sidecar-proxy-memory-request", values::quantity)?,
            kind: self.read("sidecar-proxy-kind", values::proxy_kind)?,
            concurrency: self.read("consul-envoy-proxy-concurrency", values::number)?,
            envoy_extra_args: self.read("envoy-extra-args", values::text)?,
            use_proxy_health_check: self.read("use-proxy-health-check", values::boolean)?,
            startup_failure: seconds("startup")?,
            liveness_failure: seconds("liveness")?,
            volumes: self.list("consul-sidecar-user-volume", |text| {
                values::objects::<Volume>(text, &["name"])
            })?,
            volume_mounts: self.list("consul-sidecar-user-volume-mount", |text| {
                values::objects::<VolumeMount>(text, &["name", "mountPath"])
            })?,
            native: self.read("enable-consul-dataplane-as-sidecar", values::boolean)?,
            probe_delay: self.read("sidecar-initial-probe-check-delay-seconds", values::count)?,
            probe_period: self.read("sidecar-probe-period-seconds", values::positive)?,
            probe_failures: self.read("sidecar-probe-failure-threshold", values::positive)?,
            probe_timeout: self.read("sidecar-probe-check-timeout-seconds", values::positive)?,
        })
    }

    fn lifecycle(&self) -> Result<Lifecycle, InvalidAnnotation> {
        const GROUP: &str = "sidecar-proxy-lifecycle";
        let key = |end: &str| format!("{GROUP}-{end}");
        Ok(Lifecycle {
            enabled: self.read("enable-sidecar-proxy-lifecycle", values::boolean)?,
            drain: self.read(
                "enable-sidecar-proxy-lifecycle-shutdown-drain-listeners",
                values::boolean,
            )?,
            shutdown_grace: self.read(&key("shutdown-grace-period-seconds"), values::number)?,
            startup_grace: self.read(&key("startup-grace-period-seconds"), values::number)?,
            port: self.read(&key("graceful-port"), values::unprivileged_port)?,
            shutdown_path: self.read(&key("graceful-shutdown-path"), values::path)?,
            startup_path: self.read(&key("graceful-startup-path"), values::path)?,
        })
    }

    fn metrics(&self) -> Result<Metrics, InvalidAnnotation> {
        Ok(Metrics {
            enabled: self.read("enable-metrics", values::boolean)?,
            merging: self.read("enable-metrics-merging", values::boolean)?,
            merged_port: self.read("merged-metrics-port", values::unprivileged_port)?,
            scrape_port: self.read("prometheus-scrape-port", values::unprivileged_port)?,
            scrape_path: self.read("prometheus-scrape-path", values::path)?,
            service_port: self.read("service-metrics-port", values::port)?,
            service_path: self.read("service-metrics-path", values::path)?,
            ca_file: self.read("prometheus-ca-file", values::path)?,
            ca_path: self.read("prometheus-ca-path", values::path)?,
            cert_file: self.read("prometheus-cert-file", values::path)?,
            key_file: self.read("prometheus-key-file", values::path)?,
        })
    }

    fn transparent_proxy(&self) -> Result<TransparentProxy, InvalidAnnotation> {
        const GROUP: &str = "transparent-proxy";
        let key = |end: &str| format!("{GROUP}-{end}");
        Ok(TransparentProxy {
            enabled: self.read(GROUP, values::boolean)?,
            overwrite_probes: self.read(&key("overwrite-probes"), values::boolean)?,
            exclude_inbound_ports: self
                .list(&key("exclude-inbound-ports"), values::port_numbers)?,
            exclude_outbound_ports: self
                .list(&key("exclude-outbound-ports"), values::port_numbers)?,
            exclude_outbound_cidrs: self.list(&key("exclude-outbound-cidrs"), values::cidrs)?,
            exclude_uids: self.list(&key("exclude-uids"), values::user_ids)?,
        })
    }

    fn written(&self) -> Result<Written, InvalidAnnotation> {
        let expose_paths = self.read("expose-paths", |text| {
            serde_json::from_str(text).map_err(|error| format!("is not a list of paths: {error}"))
        })?;
        Ok(Written {
            injected: self.text("connect-inject-status") == Some(INJECTED),
            transparent_proxy: self.text("transparent-proxy-status").is_some(),
            expose_paths: expose_paths.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests;
