//! The listeners that the dataplane adds for metrics and readiness, and the clusters behind them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use serde_json::{Value, json};

use super::endpoint::{cluster, socket_address};
use super::inputs::BootstrapInputs;
use super::object::without_empty;

const SELF_ADMIN: &str = "self_admin";
const PROMETHEUS_BACKEND: &str = "prometheus_backend";
const PROMETHEUS: &str = "envoy_prometheus_metrics";
const STATS: &str = "envoy_metrics";
const READY: &str = "envoy_ready";
const PROMETHEUS_CERTIFICATE: &str = "prometheus_cert";
const PROMETHEUS_VALIDATION: &str = "prometheus_validation_context";

/// The configured ones of the Prometheus, stats and ready listeners, in this order.
pub(super) fn listeners(inputs: &BootstrapInputs, warnings: &mut Vec<String>) -> Vec<Value> {
    let keys = &inputs.proxy_config;
    let mut listeners = Vec::new();
    if let Some(bind) = keys.prometheus_bind_addr {
        let path = json!({ "path": scrape_path(&inputs.prometheus.scrape_path, warnings) });
        let tls = inputs.prometheus.tls.as_ref().map(|_| transport_socket());
        let to = (PROMETHEUS_BACKEND, "/stats/prometheus");
        listeners.push(listener(PROMETHEUS, bind, &path, to, tls));
    }
    if let Some(bind) = keys.stats_bind_addr {
        let prefix = json!({ "prefix": "/stats" });
        listeners.push(listener(STATS, bind, &prefix, (SELF_ADMIN, "/stats"), None));
    }
    if let Some(bind) = inputs.ready {
        let path = json!({ "path": "/ready" });
        listeners.push(listener(READY, bind, &path, (SELF_ADMIN, "/ready"), None));
    }
    listeners
}

/// The clusters behind these listeners. A user's cluster with the same name replaces ours.
pub(super) fn clusters(inputs: &BootstrapInputs) -> Vec<Value> {
    let keys = &inputs.proxy_config;
    let users = &keys.extra_static_clusters;
    let mut needed = Vec::new();
    if keys.prometheus_bind_addr.is_some() {
        needed.push((PROMETHEUS_BACKEND, inputs.prometheus.backend));
    }
    if keys.stats_bind_addr.is_some() || inputs.ready.is_some() {
        needed.push((SELF_ADMIN, inputs.admin));
    }
    needed.retain(|(name, _)| !users.iter().any(|own| own["name"] == *name));
    let clusters = needed.into_iter().map(|(name, address)| {
        let address = socket_address(reachable(address));
        cluster(name, "5s", "http_protocol_options", &address)
    });
    clusters.collect()
}

/// Address at which a local client reaches a listener on `address`: loopback for a wildcard address.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Whether `name` is one of these listeners, which carry no application traffic.
pub(crate) fn is_own(name: &str) -> bool {
    let own = name.strip_suffix("_listener");
    own.is_some_and(|own| [PROMETHEUS, STATS, READY].contains(&own))
}

/// A listener that forwards matching requests to a cluster, with the matched path replaced, and
/// responds to all others with 404.
fn listener(
    name: &str,
    bind: SocketAddr,
    matches: &Value,
    (cluster, rewrite): (&str, &str),
    tls: Option<Value>,
) -> Value {
    let route = json!({ "cluster": cluster, "prefix_rewrite": rewrite });
    let forward = json!({ "match": matches, "route": route });
    let otherwise = json!({ "match": { "prefix": "/" }, "direct_response": { "status": 404 } });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "codec_type": "HTTP1",
        "route_config": {
            "name": "self_admin_route",
            "virtual_hosts": [{
                "name": SELF_ADMIN,
                "domains": ["*"],
                "routes": [forward, otherwise],
            }],
        },
        "http_filters": [{
            "name": "envoy.filters.http.router",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            },
        }],
    });
    json!({
        "name": format!("{name}_listener"),
        "address": socket_address(bind),
        "filter_chains": [without_empty(json!({
            "filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": manager,
            }],
            "transport_socket": tls,
        }))],
    })
}

fn transport_socket() -> Value {
    json!({
        "name": "tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            // A scraper need not have a certificate, but if it sends one it must be trusted.
            "require_client_certificate": false,
            "common_tls_context": {
                "tls_certificate_sds_secret_configs": [{ "name": PROMETHEUS_CERTIFICATE }],
                "validation_context_sds_secret_config": { "name": PROMETHEUS_VALIDATION },
            },
        },
    })
}

/// Static secrets of the Prometheus listener. They refer to files; only the certificates of a CA
/// folder are inline. Keys never are.
pub(super) fn secrets(inputs: &BootstrapInputs) -> Vec<Value> {
    let bind = inputs.proxy_config.prometheus_bind_addr;
    let (Some(tls), Some(_)) = (&inputs.prometheus.tls, bind) else {
        return Vec::new();
    };
    let file = |path: &Path| json!({ "filename": path.to_string_lossy() });
    let trusted_ca = match &tls.ca_pem {
        None => file(&tls.ca),
        Some(pem) => json!({ "inline_string": pem }),
    };
    vec![
        json!({
            "name": PROMETHEUS_CERTIFICATE,
            "tls_certificate": {
                "certificate_chain": file(&tls.certificate),
                "private_key": file(&tls.key),
            },
        }),
        json!({
            "name": PROMETHEUS_VALIDATION,
            "validation_context": { "trusted_ca": trusted_ca },
        }),
    ]
}

fn scrape_path(path: &str, warnings: &mut Vec<String>) -> String {
    let mut path = path.to_owned();
    if !path.starts_with('/') {
        warnings.push(format!(
            "envoy_prometheus_metrics path {path} must begin with '/', adding for path match"
        ));
        path.insert(0, '/');
    }
    if let Some(query) = path.find('?') {
        warnings.push(format!(
            "envoy_prometheus_metrics path {path} must not contain a query, stripping for path match"
        ));
        path.truncate(query);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_are_reached_over_loopback() {
        for (bound, reached) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("127.0.0.9:1", "127.0.0.9:1"),
        ] {
            assert_eq!(reachable(bound.parse().unwrap()), reached.parse().unwrap());
        }
    }
}
