//! The chart's values that the operator needs, from a JSON file that the chart generates. Names are
//! those of consul-k8s' values; unknown names are refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};

use crate::annotations::ProxyKind;

/// The configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}: {source}; check the ConfigMap of --config", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not JSON, or has an unknown name or an invalid value.
    #[error("{} (--config) is not as expected: {source}", .path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The parser's error, with its position.
        source: serde_json::Error,
    },
}

/// Values under `connectInject`, and `dns`, `externalServers`, `global.federation` and `global.peering` of the chart.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// Whether pods without an annotation are injected. Default false.
    #[serde(deserialize_with = "or_default")]
    pub default: bool,
    /// Namespaces whose pods may be injected; `*` is all. Default `["*"]`.
    pub k8s_allow_namespaces: Vec<String>,
    /// Namespaces whose pods are never injected. Default none.
    pub k8s_deny_namespaces: Vec<String>,
    /// Whether traffic is redirected.
    pub transparent_proxy: TransparentProxy,
    /// The settings of the sidecar.
    pub sidecar_proxy: SidecarProxy,
    /// Settings of native sidecars.
    pub dataplane_as_sidecar_init_container: NativeSidecar,
    /// Metrics of pods.
    pub metrics: Metrics,
    /// The nodes that pods are registered on.
    pub consul_node: ConsulNode,
    /// DNS in pods.
    pub dns: Dns,
    /// Whether the servers belong to Consul or another installation.
    pub external_servers: ExternalServers,
    /// Several datacenters.
    pub federation: Federation,
    /// Peerings with other clusters.
    pub peering: Peering,
    /// The Gateway API.
    pub api_gateway: ApiGateway,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            default: false,
            k8s_allow_namespaces: vec!["*".to_owned()],
            k8s_deny_namespaces: Vec::new(),
            transparent_proxy: TransparentProxy::default(),
            sidecar_proxy: SidecarProxy::default(),
            dataplane_as_sidecar_init_container: NativeSidecar::default(),
            metrics: Metrics::default(),
            consul_node: ConsulNode::default(),
            dns: Dns::default(),
            external_servers: ExternalServers::default(),
            federation: Federation::default(),
            peering: Peering::default(),
            api_gateway: ApiGateway::default(),
        }
    }
}

impl Config {
    /// Loads the file. Without a file all values have their defaults.
    ///
    /// # Errors
    /// [`ConfigError`] names the file and the reason.
    pub fn load(path: Option<&Path>) -> Result<Config, ConfigError> {
        let Some(path) = path else {
            return Ok(Config::default());
        };
        let text = std::fs::read(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        serde_json::from_slice(&text).map_err(|source| ConfigError::Invalid {
            path: path.to_owned(),
            source,
        })
    }
}

/// `connectInject.apiGateway`
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiGateway {
    /// Whether Gateways of the Gateway API are served. Default false.
    pub enabled: bool,
}

/// `connectInject.transparentProxy`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct TransparentProxy {
    /// Whether traffic of pods without an annotation is redirected. Default true.
    pub default_enabled: bool,
    /// Whether probes reach the application if traffic is redirected. Default true.
    pub default_overwrite_probes: bool,
}

impl Default for TransparentProxy {
    fn default() -> TransparentProxy {
        TransparentProxy {
            default_enabled: true,
            default_overwrite_probes: true,
        }
    }
}

/// `connectInject.sidecarProxy`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct SidecarProxy {
    /// The proxy in the sidecar. Default Envoy.
    pub kind: ProxyKind,
    /// Envoy's worker threads. Default 2.
    pub concurrency: u32,
    /// The container's resources. Default none.
    pub resources: Resources,
    /// Startup and shutdown.
    pub lifecycle: Lifecycle,
}

impl Default for SidecarProxy {
    fn default() -> SidecarProxy {
        SidecarProxy {
            kind: ProxyKind::Envoy,
            concurrency: 2,
            resources: Resources::default(),
            lifecycle: Lifecycle::default(),
        }
    }
}

/// `connectInject.sidecarProxy.resources`
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// Resource requests.
    #[serde(deserialize_with = "or_default")]
    pub requests: Quantities,
    /// Resource limits.
    #[serde(deserialize_with = "or_default")]
    pub limits: Quantities,
}

/// CPU and memory, as Kubernetes quantities.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quantities {
    /// CPU, such as `100m`.
    #[serde(deserialize_with = "text")]
    pub cpu: Option<String>,
    /// Memory, such as `100Mi`.
    #[serde(deserialize_with = "text")]
    pub memory: Option<String>,
}

/// `connectInject.sidecarProxy.lifecycle`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Lifecycle {
    /// Start before the application and stop after it. Default true.
    pub default_enabled: bool,
    /// Drain inbound connections while stopping. Default true.
    pub default_enable_shutdown_drain_listeners: bool,
    /// The limit for a shutdown, in seconds. Default 20: less than the 30 s that Kubernetes gives a
    /// pod.
    #[serde(deserialize_with = "number")]
    pub default_shutdown_grace_period_seconds: u32,
    /// How long the startup path waits for the proxy, in seconds. Default 0.
    #[serde(deserialize_with = "number")]
    pub default_startup_grace_period_seconds: u32,
    /// Port of the lifecycle server. Default 20600.
    #[serde(deserialize_with = "number")]
    pub default_graceful_port: u16,
    /// Path that requests a shutdown. Default `/graceful_shutdown`.
    pub default_graceful_shutdown_path: String,
    /// Path that waits for the proxy. Default `/graceful_startup`.
    pub default_graceful_startup_path: String,
}

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        Lifecycle {
            default_enabled: true,
            default_enable_shutdown_drain_listeners: true,
            default_shutdown_grace_period_seconds: 20,
            default_startup_grace_period_seconds: 0,
            default_graceful_port: 20600,
            default_graceful_shutdown_path: "/graceful_shutdown".to_owned(),
            default_graceful_startup_path: "/graceful_startup".to_owned(),
        }
    }
}

/// `connectInject.dataplaneAsSidecarInitContainer`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct NativeSidecar {
    /// Run the sidecar as an init container with `restartPolicy: Always`. Default: if the API server
    /// is 1.29 or later.
    pub default_enabled: Option<bool>,
    /// Seconds before the first startup probe. Default 0.
    #[serde(deserialize_with = "number")]
    pub initial_probe_check_delay_seconds: u32,
    /// Seconds between startup probes. Default 1.
    #[serde(deserialize_with = "number")]
    pub probe_check_period_seconds: u32,
    /// Failed startup probes that are tolerated. Default 120.
    #[serde(deserialize_with = "number")]
    pub probe_check_failure_threshold: u32,
    /// Timeout of a startup probe, in seconds. Default 5.
    #[serde(deserialize_with = "number")]
    pub probe_check_timeout_seconds: u32,
}

impl Default for NativeSidecar {
    fn default() -> NativeSidecar {
        NativeSidecar {
            default_enabled: None,
            initial_probe_check_delay_seconds: 0,
            probe_check_period_seconds: 1,
            probe_check_failure_threshold: 120,
            probe_check_timeout_seconds: 5,
        }
    }
}

/// `connectInject.metrics`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Metrics {
    /// Whether pods without an annotation serve metrics. Default false.
    #[serde(deserialize_with = "or_default")]
    pub default_enabled: bool,
    /// Add the application's metrics to the proxy's. Default false.
    pub default_enable_merging: bool,
    /// Port between Envoy and the sidecar. Default 20100.
    #[serde(deserialize_with = "number")]
    pub default_merged_metrics_port: u16,
    /// Port that Prometheus scrapes. Default 20200.
    #[serde(deserialize_with = "number")]
    pub default_prometheus_scrape_port: u16,
    /// Path that Prometheus scrapes. Default `/metrics`.
    pub default_prometheus_scrape_path: String,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            default_enabled: false,
            default_enable_merging: false,
            default_merged_metrics_port: 20100,
            default_prometheus_scrape_port: 20200,
            default_prometheus_scrape_path: "/metrics".to_owned(),
        }
    }
}

/// `connectInject.consulNode`
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsulNode {
    /// Metadata of the nodes that pods are registered on.
    #[serde(deserialize_with = "or_default")]
    pub meta: BTreeMap<String, String>,
}

/// `dns`
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Dns {
    /// Whether pods resolve the mesh's names. Default: if traffic is redirected.
    pub enable_redirection: Option<bool>,
}

/// `externalServers`
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExternalServers {
    /// Whether the servers are not the chart's own; they may be Consul's. Default false.
    pub enabled: bool,
}

/// `global.federation`
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Federation {
    /// Whether there are other datacenters. Default false.
    pub enabled: bool,
    /// Whether to write the Secret for secondary datacenters. Default false.
    pub create_federation_secret: bool,
    /// Whether `acl-init` makes a replication token, which that Secret then has. Default false.
    pub create_replication_token: bool,
}

/// `global.peering`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Peering {
    /// Whether PeeringAcceptors and PeeringDialers are served, and pods may call services of peers. Default false.
    pub enabled: bool,
    /// Namespaces whose PeeringAcceptors and PeeringDialers are served; `*` is all. Default `["*"]`.
    pub k8s_allow_namespaces: Vec<String>,
}

impl Default for Peering {
    fn default() -> Peering {
        Peering {
            enabled: false,
            k8s_allow_namespaces: vec!["*".to_owned()],
        }
    }
}

/// Deserializes `null` as the default.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Deserializes a number, or a string with a number: chart values are often quoted.
fn number<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let value = serde_json::Value::deserialize(deserializer)?;
    let number = match &value {
        serde_json::Value::Number(number) => number.as_u64(),
        serde_json::Value::String(text) => text.parse().ok(),
        _ => None,
    };
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| {
            serde::de::Error::custom(format!("{value} is not a number in the valid range"))
        })
}

/// Deserializes a string, a number, or `null` for none.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::Null => Ok(None),
        serde_json::Value::String(text) => Ok(Some(text)),
        serde_json::Value::Number(number) => Ok(Some(number.to_string())),
        other => Err(serde::de::Error::custom(format!(
            "{other} is not a quantity such as \"100m\""
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn absent_or_null_values_have_their_defaults() {
        let config = read(r#"{"default": null, "sidecarProxy": {"resources": {"limits": null}}}"#);
        assert_eq!(config.unwrap(), Config::default());
    }

    #[test]
    fn numbers_may_be_quoted() {
        let config = read(
            r#"{"metrics": {"defaultPrometheusScrapePort": "21200"},
                "sidecarProxy": {"resources": {"requests": {"cpu": 1}}}}"#,
        )
        .unwrap();
        assert_eq!(config.metrics.default_prometheus_scrape_port, 21200);
        assert_eq!(config.sidecar_proxy.resources.requests.cpu.unwrap(), "1");
        let error = read(r#"{"metrics": {"defaultPrometheusScrapePort": 70000}}"#).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("70000 is not a number in the valid range")
        );
    }

    #[test]
    fn unknown_names_are_refused() {
        let error = read(r#"{"transparentProxy": {"defaultEnable": true}}"#).unwrap_err();
        assert!(error.to_string().contains("defaultEnable"), "{error}");
    }
}
