//! Statistics in the bootstrap document: tags cut out of metric names, and push sinks.

use std::path::{Component, Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use super::{
    BootstrapError, BootstrapInputs, NodeInputs, ProxyConfig, cluster, fragments, object, pipe,
};

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
const COLLECTOR_CLUSTER: &str = "consul_telemetry_collector_loopback";

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
    warnings: &mut Vec<String>,
) -> Result<Vec<Value>, BootstrapError> {
    let mut sinks = Vec::new();
    let kinds = [("statsd", "StatsdSink"), ("dog_statsd", "DogStatsdSink")];
    let addresses = keys.sink_addresses(variable, warnings)?;
    for ((name, message), address) in kinds.into_iter().zip(addresses) {
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
    sinks.extend(fragments(
        "envoy_extra_stats_sinks_json",
        keys.extra_stats_sinks_json.as_deref(),
    )?);
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

/// The cluster of the telemetry collector, where there is one.
pub(super) fn collector_cluster(inputs: &BootstrapInputs) -> Option<Value> {
    let folder = (inputs.proxy_config.telemetry_collector_bind_socket_dir).as_deref()?;
    let socket = pipe(&collector_socket(folder, &inputs.node));
    let protocol = "http2_protocol_options";
    Some(cluster(COLLECTOR_CLUSTER, "1s", protocol, &socket))
}

/// The socket on which the collector's listener waits: the server computes the same name when it
/// writes that listener.
fn collector_socket(folder: &str, node: &NodeInputs) -> PathBuf {
    let name = format!("{}_{}", node.namespace(), node.id);
    let hash = URL_SAFE_NO_PAD.encode(Sha1::digest(name.as_bytes()));
    clean(Path::new(folder)).join(format!("{hash}.sock"))
}

/// The path without doubled separators, single dots, and folders that are left again.
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
