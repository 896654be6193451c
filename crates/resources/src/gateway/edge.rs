//! Settings of gateways for clients outside the mesh, from `Proxy.Config` of their registration:
//! what is in front of them, and HTTP/3. Consul has none of them.

use std::collections::BTreeSet;

use legate_model::{Opaque, ServiceInstance};
use legate_proxycfg::opaque;
use serde_json::Value;

use super::listener::{self, Chain};
use crate::settings::Reader;

/// The key of [`Edge::proxy_protocol`].
const PROXY_PROTOCOL: &str = "envoy_gateway_proxy_protocol";
/// The key of [`Edge::trusted_hops`].
const TRUSTED_HOPS: &str = "envoy_gateway_xff_num_trusted_hops";
/// The key of [`Edge::http3_ports`].
const HTTP3_PORTS: &str = "envoy_gateway_http3_ports";

/// How a gateway meets its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edge {
    /// Whether each TCP connection has to begin with a header of the PROXY protocol.
    pub(crate) proxy_protocol: bool,
    /// The number of proxies in front of the gateway whose `X-Forwarded-For` is trusted. `None`: the
    /// header of every client is, as in Consul.
    pub(crate) trusted_hops: Option<u32>,
    /// The ports that also accept HTTP/3.
    pub(crate) http3_ports: BTreeSet<u16>,
}

impl Edge {
    pub(crate) fn read(instance: &ServiceInstance, warnings: &mut Vec<String>) -> Self {
        let config = &instance.proxy.config;
        let mut read = Reader::new("Proxy.Config", warnings);
        Self {
            proxy_protocol: read.flag(config, PROXY_PROTOCOL),
            trusted_hops: read.count(config, TRUSTED_HOPS),
            http3_ports: ports(config).unwrap_or_else(|| {
                read.unusable(config, HTTP3_PORTS, "a list of ports, such as [8443]")
            }),
        }
    }

    /// The port with these filter chains, if it accepts HTTP/3.
    pub(crate) fn http3<'c>(&self, port: u16, chains: impl FnOnce() -> &'c [Chain]) -> Option<u16> {
        (self.http3_ports.contains(&port) && listener::can_http3(chains())).then_some(port)
    }

    /// Warnings about the ports of HTTP/3 that are not among those of the listeners.
    pub(crate) fn http3_without_listener(&self, ports: &BTreeSet<u16>) -> Vec<String> {
        let absent = self.http3_ports.difference(ports);
        let warning = |port: &u16| {
            format!(
                "Proxy.Config: port {port} of {HTTP3_PORTS} has no HTTP/3: the gateway serves nothing there"
            )
        };
        absent.map(warning).collect()
    }
}

/// A warning about a port that cannot accept HTTP/3.
pub(crate) fn without_http3(port: u16) -> String {
    format!(
        "Proxy.Config: port {port} of {HTTP3_PORTS} has no HTTP/3: its listener needs TLS 1.3 and the \
         protocol http, http2 or grpc"
    )
}

/// The ports of HTTP/3; `None` if the value cannot be used.
fn ports(config: &Opaque) -> Option<BTreeSet<u16>> {
    let port = |value: &Value| {
        let number = match value {
            Value::Number(number) => number.as_u64()?,
            Value::String(text) => text.trim().parse().ok()?,
            _ => return None,
        };
        u16::try_from(number).ok().filter(|port| *port != 0)
    };
    match opaque::lookup(config, HTTP3_PORTS) {
        None => Some(BTreeSet::new()),
        Some(Value::Array(all)) => all.iter().map(port).collect(),
        Some(one) => port(one).map(|port| BTreeSet::from([port])),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: Value) -> (Edge, Vec<String>) {
        let mut instance = ServiceInstance::default();
        instance.proxy.config = config.as_object().cloned().unwrap();
        let mut warnings = Vec::new();
        (Edge::read(&instance, &mut warnings), warnings)
    }

    #[test]
    fn all_settings() {
        let (edge, warnings) = read(json!({
            "envoy_gateway_proxy_protocol": true, "EnvoyGatewayXffNumTrustedHops": "2",
            "envoy_gateway_http3_ports": [8443, "9443"],
        }));
        let expected = Edge {
            proxy_protocol: true,
            trusted_hops: Some(2),
            http3_ports: BTreeSet::from([8443, 9443]),
        };
        assert_eq!((edge, warnings), (expected, Vec::new()));
        assert_eq!(read(json!({})), (Edge::default(), Vec::new()));
        let (one, _) = read(json!({"envoy_gateway_http3_ports": 8443}));
        assert_eq!(one.http3_ports, BTreeSet::from([8443]));
    }

    #[test]
    fn unusable_values_are_named() {
        let wrong = json!({
            "envoy_gateway_proxy_protocol": "v2", "envoy_gateway_xff_num_trusted_hops": -1,
            "envoy_gateway_http3_ports": [0],
        });
        let names = wrong.as_object().unwrap().clone();
        let (edge, warnings) = read(wrong.clone());
        assert_eq!(edge, Edge::default());
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        for name in names.keys() {
            assert!(
                warnings.iter().any(|one| one.contains(name)),
                "{name}: {warnings:?}"
            );
        }
    }
}
