//! Statistics in the bootstrap document: tags extracted from metric names, and push sinks.

use std::path::{Component, Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use super::endpoint::{cluster, pipe};
use super::inputs::{BootstrapInputs, NodeInputs};
use super::proxy_config::ProxyConfig;

/// Tags that Consul's dashboards rely on, with their patterns, in the order in which Envoy tries them.
/// Cluster names have the form
/// `[hash~][subset.]service.namespace.[partition.]dc-or-peer.internal|external.domain.consul`,
/// upstream listeners `upstream[_peered].service[.namespace][.partition].dc-or-peer`.
const TAGS: &str = r"
consul.destination.custom_hash    ^cluster\.(?:passthrough~)?((?:([^.]+)~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+\.[^.]+\.[^.]+\.consul\.)
consul.destination.service_subset ^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:([^.]+)\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+\.[^.]+\.[^.]+\.consul\.)
consul.destination.service        ^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?([^.]+)\.[^.]+\.(?:[^.]+\.)?[^.]+\.[^.]+\.[^.]+\.consul\.)
consul.destination.namespace      ^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.([^.]+)\.(?:[^.]+\.)?[^.]+\.[^.]+\.[^.]+\.consul\.)
consul.destination.partition      ^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:([^.]+)\.)?[^.]+\.internal[^.]*\.[^.]+\.consul\.)
consul.destination.datacenter     ^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?([^.]+)\.internal[^.]*\.[^.]+\.consul\.)
consul.destination.peer           ^cluster\.([^.]+\.(?:[^.]+\.)?([^.]+)\.external\.[^.]+\.consul\.)
consul.destination.routing_type   ^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+\.([^.]+)\.[^.]+\.consul\.)
consul.destination.trust_domain   ^cluster\.(?:passthrough~)?((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+\.[^.]+\.([^.]+)\.consul\.)
consul.destination.target         ^cluster\.(?:passthrough~)?(((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+)\.[^.]+\.[^.]+\.consul\.)
consul.destination.full_target    ^cluster\.(?:passthrough~)?(((?:[^.]+~)?(?:[^.]+\.)?[^.]+\.[^.]+\.(?:[^.]+\.)?[^.]+\.[^.]+\.[^.]+)\.consul\.)
consul.upstream.service           ^(?:tcp|http)\.upstream(?:_peered)?\.(([^.]+)(?:\.[^.]+)?(?:\.[^.]+)?\.[^.]+\.)
consul.upstream.datacenter        ^(?:tcp|http)\.upstream\.([^.]+(?:\.[^.]+)?(?:\.[^.]+)?\.([^.]+)\.)
consul.upstream.peer              ^(?:tcp|http)\.upstream_peered\.([^.]+(?:\.[^.]+)?\.([^.]+)\.)
consul.upstream.namespace         ^(?:tcp|http)\.upstream(?:_peered)?\.([^.]+(?:\.([^.]+))?(?:\.[^.]+)?\.[^.]+\.)
consul.upstream.partition         ^(?:tcp|http)\.upstream\.([^.]+(?:\.[^.]+)?(?:\.([^.]+))?\.[^.]+\.)
";

/// Name of the cluster for the telemetry collector's listener in this Envoy.
const COLLECTOR_CLUSTER: &str = "consul_telemetry_collector_loopback";

/// The tags of metric names, with their patterns.
fn tags_of_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = TAGS.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(name, regex)| (name, regex.trim_start()))
}

/// The names of these tags before Consul 1.9. They do not cover what is newer: clusters of transparent
/// proxies, partitions and peers.
fn deprecated_tags() -> impl Iterator<Item = (String, String)> {
    tags_of_names().filter_map(|(name, regex)| {
        let short = name.strip_prefix("consul.destination.")?;
        let is_newer = ["partition", "peer"].contains(&short);
        let regex = regex.replacen("(?:passthrough~)?", "", 1);
        (!is_newer).then(|| (format!("consul.{short}"), regex))
    })
}

/// `stats_config`: the user's own if set, else the user's tags, tags from metric names, and tags of
/// this proxy, in that order.
pub(super) fn config(inputs: &BootstrapInputs) -> Value {
    let (node, keys) = (&inputs.node, &inputs.proxy_config);
    if let Some(own) = &keys.stats_config {
        return own.clone();
    }
    let mut tags = Vec::new();
    for tag in &keys.stats_tags {
        let (name, value) = tag.split_once('=').unwrap_or((tag, "1"));
        let name = name.to_lowercase();
        tags.push(json!({ "tag_name": name, "fixed_value": value }));
    }
    tags.extend(tags_of_names().map(|(name, regex)| json!({ "tag_name": name, "regex": regex })));
    if inputs.deprecated_tags {
        let deprecated = deprecated_tags();
        tags.extend(deprecated.map(|(name, regex)| json!({ "tag_name": name, "regex": regex })));
    }
    let own = [
        ("local_cluster", node.cluster.as_str()),
        ("consul.source.service", node.cluster.as_str()),
        ("consul.source.namespace", node.namespace()),
        ("consul.source.partition", node.partition()),
        ("consul.source.datacenter", node.datacenter.as_str()),
    ];
    for (name, value) in own {
        if !value.is_empty() && !tags.iter().any(|tag| tag["tag_name"] == name) {
            tags.push(json!({ "tag_name": name, "fixed_value": value }));
        }
    }
    json!({ "stats_tags": tags, "use_all_default_tags": true })
}

/// `stats_sinks`: statsd, dogstatsd, the user's own, and the telemetry collector.
pub(super) fn sinks(keys: &ProxyConfig) -> Vec<Value> {
    let mut sinks = Vec::new();
    let known = [
        (&keys.statsd, "statsd", "StatsdSink"),
        (&keys.dogstatsd, "dog_statsd", "DogStatsdSink"),
    ];
    for (address, name, message) in known {
        if let Some(address) = address {
            sinks.push(json!({
                "name": format!("envoy.stat_sinks.{name}"),
                "typed_config": {
                    "@type": format!("type.googleapis.com/envoy.config.metrics.v3.{message}"),
                    "address": address.to_value(),
                },
            }));
        }
    }
    sinks.extend(keys.extra_stats_sinks.iter().cloned());
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
    sinks
}

/// The cluster of the telemetry collector, if it is configured.
pub(super) fn collector_cluster(inputs: &BootstrapInputs) -> Option<Value> {
    let folder = (inputs.proxy_config.telemetry_collector_bind_socket_dir).as_deref()?;
    let socket = pipe(&collector_socket(folder, &inputs.node));
    let protocol = "http2_protocol_options";
    Some(cluster(COLLECTOR_CLUSTER, "1s", protocol, &socket))
}

/// The socket of the collector's listener. The server derives the same name when it creates that
/// listener.
fn collector_socket(folder: &str, node: &NodeInputs) -> PathBuf {
    let name = format!("{}_{}", node.namespace(), node.id);
    let hash = URL_SAFE_NO_PAD.encode(Sha1::digest(name.as_bytes()));
    clean(Path::new(folder)).join(format!("{hash}.sock"))
}

/// Normalises a path: removes repeated separators, `.` and `..`.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match (component, clean.components().next_back()) {
            (Component::CurDir, _) => {}
            (Component::ParentDir, Some(Component::Normal(_))) => {
                clean.pop();
            }
            (Component::ParentDir, Some(Component::RootDir)) => {}
            (component, _) => clean.push(component),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (folder, cleaned) in [
            ("/a/../b/./c//", "/b/c"),
            ("/../x", "/x"),
            ("a/b/..", "a"),
            ("../a", "../a"),
            ("../../a", "../../a"),
        ] {
            let socket = collector_socket(folder, &node(""));
            assert_eq!(socket.parent(), Some(Path::new(cleaned)), "{folder}");
        }
    }
}
