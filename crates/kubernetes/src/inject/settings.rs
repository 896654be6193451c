//! The settings of one pod: its annotations, its namespace's labels, and the installation's defaults.

use k8s_openapi::api::core::v1::PodSpec;
use kube::ResourceExt;
use legate_model::DEFAULT_TENANCY;

use super::installation::Installation;
use super::request::{Refusal, Request};
use super::service::{self, Instance};
use crate::annotations::{
    self, Annotations, CONSUL_NAMESPACE, DNS, PREFIX, ProxyKind, TRANSPARENT_PROXY,
};

/// The input for the sidecar and the rest of the patch.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// The pod's namespace in the mesh, if namespaces are used.
    pub(super) namespace: Option<String>,
    /// Whether the sidecar is a native one.
    pub(super) native: bool,
    /// Whether traffic is redirected.
    pub(super) transparent: bool,
    /// Whether probes are rewritten to reach the application.
    pub(super) overwrite_probes: bool,
    /// Whether names of the mesh are resolved through the sidecar.
    pub(super) dns: bool,
    /// Metrics settings; `None` if metrics are disabled.
    pub(super) metrics: Option<Metrics>,
    /// Path that Prometheus scrapes.
    pub(super) scrape_path: String,
    /// Startup and shutdown.
    pub(super) lifecycle: Lifecycle,
    /// Whether the readiness probe queries Envoy's `/ready`.
    pub(super) proxy_health_check: bool,
    /// The proxy in the sidecar.
    pub(super) kind: ProxyKind,
    /// Envoy's worker threads.
    pub(super) concurrency: u32,
    /// Envoy's log level, if it differs from the sidecar's.
    pub(super) envoy_log_level: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Metrics {
    pub(super) scrape_port: u16,
    /// Port between Envoy and the sidecar, and the URL of the application's metrics.
    pub(super) merging: Option<(u16, String)>,
    /// The sidecar's flags for TLS with Prometheus.
    pub(super) tls: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Lifecycle {
    pub(super) enabled: bool,
    pub(super) drain: bool,
    pub(super) shutdown_grace: u32,
    pub(super) startup_grace: u32,
    pub(super) port: u16,
    pub(super) shutdown_path: String,
    pub(super) startup_path: String,
}

impl Settings {
    /// # Errors
    /// If values contradict each other. Ignored values are named in `warnings`.
    pub(super) fn resolve(
        installation: &Installation,
        request: &Request<'_>,
        annotations: &Annotations,
        instance: &Instance,
        spec: &PodSpec,
        warnings: &mut Vec<String>,
    ) -> Result<Settings, Refusal> {
        let config = &installation.config;
        let namespace_labels = request.namespace_labels;
        let transparent = match annotations.transparent_proxy.enabled {
            Some(enabled) => enabled,
            None => annotations::namespace_label(namespace_labels, TRANSPARENT_PROXY)?
                .unwrap_or(config.transparent_proxy.default_enabled),
        };
        let dns = match annotations.dns {
            Some(true) if !transparent => {
                return Err(Refusal::new(format!(
                    "annotation {DNS} needs redirected traffic: set {TRANSPARENT_PROXY} to true, or \
                     remove {DNS}"
                )));
            }
            Some(dns) => dns,
            None => annotations::namespace_label(namespace_labels, DNS)?
                .or(config.dns.enable_redirection)
                .unwrap_or(config.transparent_proxy.default_enabled),
        };
        let extra = ExtraArgs::of(annotations.sidecar.envoy_extra_args.as_deref(), warnings)?;
        let native = &config.dataplane_as_sidecar_init_container;
        Ok(Settings {
            namespace: namespace(installation, request)?,
            native: annotations
                .sidecar
                .native
                .or(native.default_enabled)
                .unwrap_or(installation.cluster.native_sidecars),
            transparent,
            overwrite_probes: annotations
                .transparent_proxy
                .overwrite_probes
                .unwrap_or(config.transparent_proxy.default_overwrite_probes),
            dns: dns && transparent,
            metrics: metrics(installation, annotations, instance, spec, warnings)?,
            scrape_path: annotations
                .metrics
                .scrape_path
                .clone()
                .unwrap_or_else(|| config.metrics.default_prometheus_scrape_path.clone()),
            lifecycle: lifecycle(installation, annotations),
            proxy_health_check: annotations.sidecar.use_proxy_health_check == Some(true),
            kind: annotations
                .sidecar
                .kind
                .unwrap_or(config.sidecar_proxy.kind),
            concurrency: annotations
                .sidecar
                .concurrency
                .or(extra.concurrency)
                .unwrap_or(config.sidecar_proxy.concurrency),
            envoy_log_level: extra.log_level,
        })
    }
}

/// The pod's namespace in the mesh. An annotation with the same value is accepted, because pods are
/// copied from others.
fn namespace(
    installation: &Installation,
    request: &Request<'_>,
) -> Result<Option<String>, Refusal> {
    let namespace = installation.tenants().namespace(request.namespace);
    let asked = request.pod.annotations().get(CONSUL_NAMESPACE);
    let own = namespace.as_deref().unwrap_or(DEFAULT_TENANCY);
    match asked.filter(|asked| !asked.is_empty() && *asked != own) {
        None => Ok(namespace),
        Some(asked) => Err(Refusal::new(format!(
            "annotation {CONSUL_NAMESPACE} is {asked:?}, and pods of this namespace are in {own:?}: \
             remove the annotation, or see global.enableConsulNamespaces and \
             connectInject.consulNamespaces"
        ))),
    }
}

fn metrics(
    installation: &Installation,
    annotations: &Annotations,
    instance: &Instance,
    spec: &PodSpec,
    warnings: &mut Vec<String>,
) -> Result<Option<Metrics>, Refusal> {
    let (own, defaults) = (&annotations.metrics, &installation.config.metrics);
    let tls = prometheus_tls(own)?;
    if !own.enabled.unwrap_or(defaults.default_enabled) {
        if !tls.is_empty() {
            warnings.push(format!(
                "annotations {PREFIX}prometheus-*-file have no effect without metrics: see \
                 {PREFIX}enable-metrics"
            ));
        }
        return Ok(None);
    }
    let service_port = match &own.service_port {
        Some(port) => Some(service::number(Some(spec), "service-metrics-port", port)?),
        None => instance.port,
    };
    let merging = own.merging.unwrap_or(defaults.default_enable_merging);
    let path = own.service_path.as_deref().unwrap_or("/metrics");
    let merged_port = own
        .merged_port
        .unwrap_or(defaults.default_merged_metrics_port);
    Ok(Some(Metrics {
        scrape_port: own
            .scrape_port
            .unwrap_or(defaults.default_prometheus_scrape_port),
        merging: service_port
            .filter(|_| merging)
            .map(|port| (merged_port, format!("http://127.0.0.1:{port}{path}"))),
        tls,
    }))
}

/// The sidecar's flags for TLS with Prometheus, which needs a CA, a certificate and its key.
fn prometheus_tls(own: &annotations::Metrics) -> Result<Vec<String>, Refusal> {
    let files = [
        ("ca-certs-file", &own.ca_file),
        ("ca-certs-path", &own.ca_path),
        ("cert-file", &own.cert_file),
        ("key-file", &own.key_file),
    ];
    if files.iter().all(|(_, file)| file.is_none()) {
        return Ok(Vec::new());
    }
    let ca = own.ca_file.as_ref().or(own.ca_path.as_ref());
    for (name, file) in [
        ("ca-file", ca),
        ("cert-file", own.cert_file.as_ref()),
        ("key-file", own.key_file.as_ref()),
    ] {
        if file.is_none() {
            return Err(Refusal::new(format!(
                "TLS with Prometheus needs a CA, a certificate and its key: set annotation \
                 {PREFIX}prometheus-{name}"
            )));
        }
    }
    let flags = files.into_iter().filter_map(|(name, file)| {
        let file = file.as_ref()?;
        Some(format!("-telemetry-prom-{name}={file}"))
    });
    Ok(flags.collect())
}

fn lifecycle(installation: &Installation, annotations: &Annotations) -> Lifecycle {
    let own = &annotations.lifecycle;
    let defaults = &installation.config.sidecar_proxy.lifecycle;
    let path = |own: &Option<String>, default: &String| own.as_ref().unwrap_or(default).clone();
    Lifecycle {
        enabled: own.enabled.unwrap_or(defaults.default_enabled),
        drain: own
            .drain
            .unwrap_or(defaults.default_enable_shutdown_drain_listeners),
        shutdown_grace: own
            .shutdown_grace
            .unwrap_or(defaults.default_shutdown_grace_period_seconds),
        startup_grace: own
            .startup_grace
            .unwrap_or(defaults.default_startup_grace_period_seconds),
        port: own.port.unwrap_or(defaults.default_graceful_port),
        shutdown_path: path(&own.shutdown_path, &defaults.default_graceful_shutdown_path),
        startup_path: path(&own.startup_path, &defaults.default_graceful_startup_path),
    }
}

/// The supported flags of Envoy.
#[derive(Debug, Default)]
struct ExtraArgs {
    concurrency: Option<u32>,
    log_level: Option<String>,
}

impl ExtraArgs {
    fn of(text: Option<&str>, warnings: &mut Vec<String>) -> Result<ExtraArgs, Refusal> {
        const KEY: &str = "envoy-extra-args";
        let mut extra = ExtraArgs::default();
        let words = text.unwrap_or_default().replace('=', " ");
        let mut words = words.split_whitespace().peekable();
        let mut ignored = Vec::new();
        while let Some(word) = words.next() {
            let mut value = || words.next_if(|next| !next.starts_with('-'));
            let wrong = || {
                Refusal::new(format!(
                    "annotation {PREFIX}{KEY}: {word} has an invalid value"
                ))
            };
            match word {
                "--concurrency" => {
                    let number = value().and_then(|value| value.parse().ok());
                    extra.concurrency = Some(number.ok_or_else(wrong)?);
                }
                "--log-level" | "-l" => {
                    const LEVELS: [&str; 8] = [
                        "trace", "debug", "info", "warning", "warn", "error", "critical", "off",
                    ];
                    let level = value().filter(|level| LEVELS.contains(level));
                    extra.log_level = Some(level.ok_or_else(wrong)?.to_owned());
                }
                other => {
                    let other: String = other.chars().take(40).collect();
                    ignored.push(other);
                    value();
                }
            }
        }
        ignored.truncate(5);
        if !ignored.is_empty() {
            warnings.push(format!(
                "annotation {PREFIX}{KEY}: {} ignored; only --log-level and --concurrency are \
                 supported",
                ignored.join(" ")
            ));
        }
        Ok(extra)
    }
}
