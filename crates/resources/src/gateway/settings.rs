//! Settings of gateways, from `Proxy.Config` of their registration.

use std::time::Duration;

use legate_model::ServiceInstance;

use crate::settings::Reader;

/// The default connect timeout, as in Consul.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of the connections that a gateway opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatewaySettings {
    pub(crate) connect_timeout: Duration,
    /// Whether all addresses of all host names of a service are used, instead of one.
    pub(crate) strict_dns: bool,
    /// Keep-alive probes on connections that leave the mesh or the datacenter.
    pub(crate) keepalive: Option<Keepalive>,
}

/// Keep-alive probes of TCP, times in seconds. Zero means the default of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Keepalive {
    /// Idle time before the first probe.
    pub(crate) time: u32,
    /// Time between probes.
    pub(crate) interval: u32,
    /// Unanswered probes after which the connection is closed.
    pub(crate) probes: u32,
}

impl GatewaySettings {
    pub(crate) fn read(instance: &ServiceInstance, warnings: &mut Vec<String>) -> Self {
        const DISCOVERY: &str = "envoy_dns_discovery_type";
        let config = &instance.proxy.config;
        let mut read = Reader::new("Proxy.Config", warnings);
        let timeout = read.millis(config, "connect_timeout_ms");
        let discovery = read.text(config, DISCOVERY).unwrap_or_default();
        let strict_dns = match discovery.to_ascii_lowercase().as_str() {
            "strict_dns" => true,
            "" | "logical_dns" => false,
            _ => read.unusable(config, DISCOVERY, "\"logical_dns\" or \"strict_dns\""),
        };
        let mut count = |name: &str| {
            let key = format!("envoy_gateway_remote_tcp_{name}");
            read.count(config, &key).unwrap_or(0)
        };
        let probed = Keepalive {
            time: count("keepalive_time"),
            interval: count("keepalive_interval"),
            probes: count("keepalive_probes"),
        };
        let enabled = read.flag(config, "envoy_gateway_remote_tcp_enable_keepalive");
        Self {
            connect_timeout: timeout
                .filter(|timeout| !timeout.is_zero())
                .unwrap_or(CONNECT_TIMEOUT),
            strict_dns,
            keepalive: enabled.then_some(probed),
        }
    }
}
