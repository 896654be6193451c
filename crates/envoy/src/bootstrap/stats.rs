//! Statistics in the bootstrap document: tags cut out of metric names, and push sinks.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use super::document::Address;
use super::{BootstrapError, NodeInputs, ProxyConfig, fragments, object};

/// Tags that Consul's dashboards rely on, in the order in which Envoy tries them. Cluster names
/// read `[hash~][subset.]service.namespace.[partition.]dc-or-peer.internal|external.domain.consul`,
/// upstream listeners `upstream[_peered].service[.namespace][.partition].dc-or-peer`.
const TAGS: [(&str, &str); 16] = [
    (
        "consul.destination.custom_hash",
        r"^cluster\.(?:passthrough~)?((?:([^.]+)~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+\.[^.]+\.[^.]+\.consul\.)",
    ),
    (
        "consul.destination.service_subset",
        r"^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:([^.]+)\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+\.[^.]+\.[^.]+\.consul\.)",
    ),
    (
        "consul.destination.service",
        r"^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?([^.]+)\.[^.]+\.(?:[^.]+\.)?[^.]+\.[^.]+\.[^.]+\.consul\.)",
    ),
    (
        "consul.destination.namespace",
        r"^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.([^.]+)\.(?:[^.]+\.)?[^.]+\.[^.]+\.[^.]+\.consul\.)",
    ),
    (
        "consul.destination.partition",
        r"^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:([^.]+)\.)?[^.]+\.internal[^.]*\.[^.]+\.consul\.)",
    ),
    (
        "consul.destination.datacenter",
        r"^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?([^.]+)\.internal[^.]*\.[^.]+\.consul\.)",
    ),
    (
        "consul.destination.peer",
        r"^cluster\.([^.]+\.(?:[^.]+\.)?([^.]+)\.external\.[^.]+\.consul\.)",
    ),
    (
        "consul.destination.routing_type",
        r"^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+\.([^.]+)\.[^.]+\.consul\.)",
    ),
    (
        "consul.destination.trust_domain",
        r"^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+\.[^.]+\.([^.]+)\.consul\.)",
    ),
    (
        "consul.destination.target",
        r"^cluster\.(?:passthrough~)?(((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+)\.[^.]+\.[^.]+\.consul\.)",
    ),
    (
        "consul.destination.full_target",
        r"^cluster\.(?:passthrough~)?(((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+\.[^.]+\.[^.]+)\.consul\.)",
    ),
    (
        "consul.upstream.service",
        r"^(?:tcp|http)\.upstream(?:_peered)?\.(([^.]+)(?:\.[^.]+)?(?:\.[^.]+)?\.[^.]+\.)",
    ),
    (
        "consul.upstream.datacenter",
        r"^(?:tcp|http)\.upstream\.([^.]+(?:\.[^.]+)?(?:\.[^.]+)?\.([^.]+)\.)",
    ),
    (
        "consul.upstream.peer",
        r"^(?:tcp|http)\.upstream_peered\.([^.]+(?:\.[^.]+)?\.([^.]+)\.)",
    ),
    (
        "consul.upstream.namespace",
        r"^(?:tcp|http)\.upstream(?:_peered)?\.([^.]+(?:\.([^.]+))?(?:\.[^.]+)?\.[^.]+\.)",
    ),
    (
        "consul.upstream.partition",
        r"^(?:tcp|http)\.upstream\.([^.]+(?:\.[^.]+)?(?:\.([^.]+))?\.[^.]+\.)",
    ),
];

/// Name of the cluster that leads to the telemetry collector's listener in this Envoy.
pub(super) const COLLECTOR_CLUSTER: &str = "consul_telemetry_collector_loopback";

/// `stats_config`: the user's own when given, else tags of the user, of metric names, and of
/// this proxy, in that order.
pub(super) fn config(node: &NodeInputs, keys: &ProxyConfig) -> Result<Value, BootstrapError> {
    if let Some(own) = &keys.stats_config_json {
        return object("envoy_stats_config_json", own);
    }
    let mut tags = Vec::new();
    let mut named = Vec::new();
    for tag in &keys.stats_tags {
        let (name, value) = tag.split_once('=').unwrap_or((tag, "1"));
        let name = name.to_lowercase();
        tags.push(json!({ "tag_name": name, "fixed_value": value }));
        named.push(name);
    }
    tags.extend(
        TAGS.iter()
            .map(|(name, regex)| json!({ "tag_name": name, "regex": regex })),
    );
    let own = [
        ("local_cluster", node.cluster.as_str()),
        ("consul.source.service", node.cluster.as_str()),
        ("consul.source.namespace", node.namespace()),
        ("consul.source.partition", node.partition()),
        ("consul.source.datacenter", node.datacenter.as_str()),
    ];
    for (name, value) in own {
        if !value.is_empty() && !named.iter().any(|taken| taken == name) {
            tags.push(json!({ "tag_name": name, "fixed_value": value }));
        }
    }
    Ok(json!({ "stats_tags": tags, "use_all_default_tags": true }))
}

/// `stats_sinks`: statsd, dogstatsd, the user's own, the telemetry collector.
pub(super) fn sinks(
    keys: &ProxyConfig,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Value>, BootstrapError> {
    let mut sinks = Vec::new();
    let known = [
        ("envoy_statsd_url", &keys.statsd_url, "statsd", "StatsdSink"),
        (
            "envoy_dogstatsd_url",
            &keys.dogstatsd_url,
            "dog_statsd",
            "DogStatsdSink",
        ),
    ];
    for (key, url, name, message) in known {
        if let Some(url) = url {
            let address = sink_address(key, url, variable)?;
            sinks.push(json!({
                "name": format!("envoy.stat_sinks.{name}"),
                "typed_config": {
                    "@type": format!("type.googleapis.com/envoy.config.metrics.v3.{message}"),
                    "address": address,
                },
            }));
        }
    }
    if let Some(own) = &keys.extra_stats_sinks_json {
        sinks.extend(fragments("envoy_extra_stats_sinks_json", own)?);
    }
    if keys.telemetry_collector_bind_socket_dir.is_some() {
        sinks.push(json!({
            "name": "envoy.stat_sinks.metrics_service",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig",
                "transport_api_version": "V3",
                "grpc_service": { "envoy_grpc": { "cluster_name": COLLECTOR_CLUSTER } },
                "emit_tags_as_labels": true,
            },
        }));
    }
    Ok(sinks)
}

/// The socket on which the collector's listener waits: the server computes the same name when it
/// writes that listener.
pub(super) fn collector_socket(folder: &str, node: &NodeInputs) -> PathBuf {
    let name = format!("{}_{}", node.namespace(), node.id);
    let hash = URL_SAFE_NO_PAD.encode(Sha1::digest(name.as_bytes()));
    // Collecting components drops doubled and trailing separators and single dots.
    Path::new(folder)
        .join(format!("{hash}.sock"))
        .components()
        .collect()
}

fn sink_address(
    key: &'static str,
    url: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Address, BootstrapError> {
    let value = expand(url, variable);
    let wrong = |reason: String| BootstrapError::Sink {
        key,
        value: value.clone(),
        reason,
    };
    if let Some(path) = value.strip_prefix("unix://") {
        if path.is_empty() {
            return Err(wrong(
                "names no socket: write unix:///path/to/socket".to_owned(),
            ));
        }
        return Ok(Address::Pipe {
            path: path.to_owned(),
        });
    }
    let Some(authority) = value.strip_prefix("udp://") else {
        let reason = match value.split_once("://") {
            Some((scheme, _)) => format!("has the unsupported protocol {scheme:?}"),
            None => "has no protocol".to_owned(),
        };
        return Err(wrong(format!(
            "{reason}: write udp://IP:PORT or unix:///PATH"
        )));
    };
    let authority = authority.split('/').next().unwrap_or_default();
    let Some((host, port)) = authority.rsplit_once(':') else {
        return Err(wrong("has no port: write udp://IP:PORT".to_owned()));
    };
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let port = port
        .parse()
        .map_err(|_| wrong(format!("has the invalid port {port:?}")))?;
    let ip: IpAddr = host.parse().map_err(|_| {
        wrong(format!(
            "needs an IP address where it says {host:?}, because Envoy looks up no names here"
        ))
    })?;
    Ok(Address::SocketAddress {
        address: ip.to_string(),
        port_value: port,
    })
}

/// A leading `$NAME` stands for a whole variable; within the text only `HOST_IP` is replaced.
fn expand(url: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
    if url.len() > 2
        && let Some(name) = url.strip_prefix('$')
        && !name.starts_with('{')
    {
        return variable(name).unwrap_or_default();
    }
    let host = || variable("HOST_IP").unwrap_or_default();
    if url.contains("${HOST_IP}") {
        return url.replace("${HOST_IP}", &host());
    }
    match url.split_once("$HOST_IP") {
        // `$HOST_IPS` would be another variable.
        Some((before, after))
            if !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') =>
        {
            format!("{before}{}{after}", host())
        }
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<String> {
        match name {
            "STATSD_URL" => Some("udp://10.0.0.9:9125".to_owned()),
            "HOST_IP" => Some("10.0.0.7".to_owned()),
            _ => None,
        }
    }

    fn address(url: &str) -> Result<String, String> {
        sink_address("envoy_statsd_url", url, &variable)
            .map(|address| serde_json::to_string(&address).unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn sink_addresses_take_udp_unix_and_variables() {
        let socket = |ip: &str, port: u16| {
            Ok(format!(
                r#"{{"socket_address":{{"address":"{ip}","port_value":{port}}}}}"#
            ))
        };
        assert_eq!(address("udp://127.0.0.1:8125"), socket("127.0.0.1", 8125));
        assert_eq!(address("udp://[::1]:8125"), socket("::1", 8125));
        assert_eq!(address("$STATSD_URL"), socket("10.0.0.9", 9125));
        assert_eq!(address("udp://$HOST_IP:8125"), socket("10.0.0.7", 8125));
        assert_eq!(address("udp://${HOST_IP}:8125"), socket("10.0.0.7", 8125));
        assert_eq!(
            address("unix:///run/statsd"),
            Ok(r#"{"pipe":{"path":"/run/statsd"}}"#.to_owned())
        );
    }

    #[test]
    fn unusable_sink_addresses_name_the_key_and_the_reason() {
        for (url, reason) in [
            ("tcp://127.0.0.1:1", "unsupported protocol \"tcp\""),
            ("127.0.0.1:1", "has no protocol"),
            ("udp://127.0.0.1", "has no port"),
            ("udp://127.0.0.1:x", "invalid port"),
            ("udp://statsd.local:8125", "looks up no names"),
            ("udp://${OTHER}:8125", "looks up no names"),
            ("udp://$HOST_IPS:8125", "looks up no names"),
            ("$NOT_SET", "has no protocol"),
            ("unix://", "names no socket"),
        ] {
            let error = address(url).unwrap_err();
            assert!(
                error.contains("envoy_statsd_url") && error.contains(reason),
                "{url}: {error}"
            );
        }
    }

    #[test]
    fn the_collector_socket_has_the_name_that_servers_compute() {
        let node = |namespace: &str| NodeInputs {
            id: "web-proxy".to_owned(),
            namespace: namespace.to_owned(),
            ..NodeInputs::default()
        };
        assert_eq!(
            collector_socket("/tmp//x/", &node("")),
            Path::new("/tmp/x/0UZwF69tP4X7LqMgNbB_v_R6Sjk.sock")
        );
        assert_eq!(
            collector_socket("/tmp", &node("ns1")),
            Path::new("/tmp/PLTNCL19vLKa1wnpQ16yeG9R5Xk.sock")
        );
    }
}
