//! Settings of gateways, from `Proxy.Config` of their registration.

use std::collections::BTreeMap;
use std::time::Duration;

use legate_model::{Opaque, ServiceInstance};
use legate_proxycfg::opaque;
use serde_json::Value;

use crate::settings::Reader;

/// The default connect timeout, as in Consul.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The key of [`GatewaySettings::proxy_protocol`].
const SEND_PROXY_PROTOCOL: &str = "envoy_gateway_send_proxy_protocol";

/// Settings of the connections that a gateway opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatewaySettings {
    pub(crate) connect_timeout: Duration,
    /// Whether all addresses of all host names of a service are used, instead of one.
    pub(crate) strict_dns: bool,
    /// Keep-alive probes on connections that leave the mesh or the datacenter.
    pub(crate) keepalive: Option<Keepalive>,
    /// The services whose connections begin with a header of the PROXY protocol, by name.
    pub(crate) proxy_protocol: BTreeMap<String, ProxyProtocol>,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProxyProtocol {
    /// A line of text.
    V1,
    /// Binary.
    V2,
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
        let proxy_protocol = sent_headers(config).unwrap_or_else(|| {
            let wanted = "a map from names of services to \"v1\" or \"v2\"";
            read.unusable(config, SEND_PROXY_PROTOCOL, wanted)
        });
        Self {
            connect_timeout: timeout
                .filter(|timeout| !timeout.is_zero())
                .unwrap_or(CONNECT_TIMEOUT),
            strict_dns,
            keepalive: enabled.then_some(probed),
            proxy_protocol,
        }
    }
}

/// The versions of headers to send, by service; `None` if the value cannot be used.
fn sent_headers(config: &Opaque) -> Option<BTreeMap<String, ProxyProtocol>> {
    let named = match opaque::lookup(config, SEND_PROXY_PROTOCOL) {
        None => return Some(BTreeMap::new()),
        Some(value) => value.as_object()?,
    };
    let version = |value: &Value| match value.as_str()?.to_ascii_lowercase().as_str() {
        "v1" => Some(ProxyProtocol::V1),
        "v2" => Some(ProxyProtocol::V2),
        _ => None,
    };
    let all = named.iter();
    all.map(|(name, value)| Some((name.clone(), version(value)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn versions_of_the_proxy_protocol_are_by_service() {
        let read = |value: Value| {
            let mut instance = ServiceInstance::default();
            let config = &mut instance.proxy.config;
            config.insert(SEND_PROXY_PROTOCOL.to_owned(), value);
            let mut warnings = Vec::new();
            let settings = GatewaySettings::read(&instance, &mut warnings);
            (settings.proxy_protocol, warnings)
        };
        let (versions, warnings) = read(json!({"db": "v1", "cache": "V2"}));
        assert_eq!(warnings, Vec::<String>::new());
        assert_eq!(versions["db"], ProxyProtocol::V1);
        assert_eq!(versions["cache"], ProxyProtocol::V2);
        for wrong in [json!(true), json!({"db": "v3"}), json!({"db": 1})] {
            let (versions, warnings) = read(wrong);
            assert!(versions.is_empty());
            assert!(warnings[0].contains(SEND_PROXY_PROTOCOL), "{warnings:?}");
        }
    }
}
