//! What a bootstrap document is made of.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::prometheus_tls::PrometheusTls;
use super::proxy_config::ProxyConfig;

/// Everything a bootstrap document is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct BootstrapInputs {
    /// Who the proxy is.
    pub node: NodeInputs,
    /// Where Envoy's admin interface binds.
    pub admin: SocketAddr,
    /// Admin access logs: one JSON object each, as the server sent them. None means no log.
    pub access_logs: Vec<String>,
    /// Where the xDS relay listens.
    pub xds: XdsAddress,
    /// Where the ready listener binds, when one is wanted.
    pub ready: Option<SocketAddr>,
    /// The Prometheus listener, which exists when `envoy_prometheus_bind_addr` is set.
    pub prometheus: PrometheusInputs,
    /// The proxy's telemetry keys; default when central configuration is off.
    pub proxy_config: ProxyConfig,
}

/// Who the proxy is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeInputs {
    /// The proxy's service id.
    pub id: String,
    /// The identity, or else the service, that the proxy stands for.
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

/// Where the xDS relay listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XdsAddress {
    /// A loopback address. In settings port 0 asks for a free one; in a bootstrap it is the real one.
    Tcp(SocketAddr),
    /// A unix socket (`unix://PATH` in settings).
    Unix(PathBuf),
}

/// The Prometheus listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusInputs {
    /// The path that Prometheus asks for.
    pub scrape_path: String,
    /// Where the dataplane serves merged metrics.
    pub backend: SocketAddr,
    /// TLS of the listener.
    pub tls: Option<PrometheusTls>,
}
