//! Inputs of a bootstrap document.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::prometheus_tls::PrometheusTls;
use super::proxy_config::ProxyConfig;

/// All inputs of a bootstrap document.
#[derive(Debug, Clone, PartialEq)]
pub struct BootstrapInputs {
    /// Identity of the proxy.
    pub node: NodeInputs,
    /// Address that Envoy's admin interface binds to.
    pub admin: SocketAddr,
    /// Access logs of the admin interface: one JSON object each, verbatim from the server. Empty
    /// disables logging.
    pub access_logs: Vec<String>,
    /// Address of the xDS relay.
    pub xds: XdsAddress,
    /// Address that the ready listener binds to; `None` disables it.
    pub ready: Option<SocketAddr>,
    /// The Prometheus listener. It exists only if `envoy_prometheus_bind_addr` is set.
    pub prometheus: PrometheusInputs,
    /// Whether metrics also have the tags that Consul 1.9 renamed, such as `consul.service`. Consul's command
    /// adds them by default; consul-dataplane never does.
    pub deprecated_tags: bool,
    /// The proxy's telemetry keys; default if central configuration is disabled.
    pub proxy_config: ProxyConfig,
}

/// Identity of the proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeInputs {
    /// The proxy's service id.
    pub id: String,
    /// The identity, or else the service, that the proxy represents.
    pub cluster: String,
    /// The name of its node; empty when unknown.
    pub node_name: String,
    /// Empty means `default`.
    pub namespace: String,
    /// Empty means `default`.
    pub partition: String,
    /// The datacenter; empty when unknown.
    pub datacenter: String,
}

impl NodeInputs {
    pub(super) fn namespace(&self) -> &str {
        or_default(&self.namespace)
    }

    pub(super) fn partition(&self) -> &str {
        or_default(&self.partition)
    }
}

fn or_default(name: &str) -> &str {
    if name.is_empty() { "default" } else { name }
}

/// Address of the xDS relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XdsAddress {
    /// A loopback address. In settings, port 0 selects a free one; in a bootstrap it is the actual
    /// port.
    Tcp(SocketAddr),
    /// A unix socket (`unix://PATH` in settings).
    Unix(PathBuf),
}

/// The Prometheus listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusInputs {
    /// The path that Prometheus scrapes.
    pub scrape_path: String,
    /// Address at which the dataplane serves merged metrics.
    pub backend: SocketAddr,
    /// TLS of the listener.
    pub tls: Option<PrometheusTls>,
}
