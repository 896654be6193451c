//! Changes of messages by path.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{DnsLookupFamily, LbConfig};
use legate_envoy_json::{Change, Patch};
use prost::Message;
use serde_json::{Value, json};

const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";
const LISTENER: &str = "envoy.config.listener.v3.Listener";

fn set(path: &str, value: Value) -> Patch {
    Patch {
        path: path.to_owned(),
        change: Change::Set(value),
        name_all_fields: false,
    }
}

fn remove(path: &str) -> Patch {
    Patch {
        change: Change::Remove,
        ..set(path, Value::Null)
    }
}

fn cluster(patches: &[Patch]) -> Cluster {
    let mut bytes = Cluster {
        name: "web".to_owned(),
        alt_stat_name: "stats".to_owned(),
        ..Cluster::default()
    }
    .encode_to_vec();
    for patch in patches {
        bytes = patch.apply(CLUSTER, &bytes).unwrap();
    }
    Cluster::decode(bytes.as_slice()).unwrap()
}

#[test]
fn fields_of_every_kind_are_set() {
    let changed = cluster(&[
        set("/ignore_health_on_host_removal", json!(true)),
        set("alt_stat_name", json!("other")),
        set(
            "/upstream_connection_options/tcp_keepalive/keepalive_probes",
            json!(5),
        ),
        set(
            "/outlier_detection",
            json!({"max_ejection_time": {"seconds": 120}, "interval": "3s"}),
        ),
        set("/dns_lookup_family", json!("V4_ONLY")),
        set("/round_robin_lb_config", json!({})),
        set("/connect_timeout", json!("1.5s")),
        set(
            "/metadata",
            json!({"filter_metadata": {"b": {"x": 1}, "a": {"y": [true]}}}),
        ),
    ]);
    assert!(changed.ignore_health_on_host_removal);
    assert_eq!(
        (changed.name.as_str(), changed.alt_stat_name.as_str()),
        ("web", "other")
    );
    let keepalive = changed.upstream_connection_options.unwrap().tcp_keepalive;
    assert_eq!(keepalive.unwrap().keepalive_probes.unwrap().value, 5);
    let outliers = changed.outlier_detection.unwrap();
    assert_eq!(outliers.max_ejection_time.unwrap().seconds, 120);
    assert_eq!(outliers.interval.unwrap().seconds, 3);
    assert_eq!(changed.dns_lookup_family, DnsLookupFamily::V4Only as i32);
    assert!(matches!(
        changed.lb_config,
        Some(LbConfig::RoundRobinLbConfig(_))
    ));
    assert_eq!(changed.connect_timeout.unwrap().nanos, 500_000_000);
    assert_eq!(changed.metadata.unwrap().filter_metadata.len(), 2);
}

#[test]
fn a_value_replaces_the_whole_field() {
    let changed = cluster(&[
        set("/outlier_detection/interval", json!({"seconds": 3})),
        set("/outlier_detection", json!({"consecutive_5xx": 4})),
    ]);
    let outliers = changed.outlier_detection.unwrap();
    assert_eq!(outliers.consecutive_5xx.unwrap().value, 4);
    assert!(outliers.interval.is_none());
}

#[test]
fn fields_are_removed_without_creating_parents() {
    assert_eq!(cluster(&[remove("/alt_stat_name")]).alt_stat_name, "");
    assert!(
        cluster(&[remove("/outlier_detection/interval")])
            .outlier_detection
            .is_none()
    );
    let both = cluster(&[
        set("/outlier_detection/interval", json!({"seconds": 3})),
        remove("/outlier_detection/interval"),
    ]);
    assert!(both.outlier_detection.unwrap().interval.is_none());
}

fn error(patch: &Patch, message: &str) -> String {
    patch.check(message).unwrap_err().to_string()
}

#[test]
fn unknown_paths_are_refused_with_the_existing_fields() {
    let refused = error(&set("/outlier_detection/intervall", json!(1)), CLUSTER);
    assert!(refused.starts_with(
        "no match for field 'intervall'!\navailable envoy.config.cluster.v3.OutlierDetection fields:\n"
    ));
    assert!(refused.contains("\ninterval\n"), "{refused}");
    assert!(refused.contains("First 10 fields"), "{refused}");
    let all = Patch {
        name_all_fields: true,
        ..remove("/nothing")
    };
    let all = error(&all, CLUSTER);
    assert!(
        all.contains("\nload_assignment\n") && !all.contains("First 10"),
        "{all}"
    );
    let cases = [
        ("/", "non-empty, non-root Path is required"),
        ("/outlier_detection//interval", "empty field name in path"),
        ("/outlier_detection/", "empty field name in path"),
        (
            "/health_checks/timeout",
            "path contains member of repeated field 'health_checks'",
        ),
        (
            "/typed_extension_protocol_options/x",
            "path contains member of map field",
        ),
        ("/name/x", "non-message field 'name' (type 'string')"),
        (
            "/cluster_type/typed_config/x",
            "variant-type message fields",
        ),
    ];
    for (path, expected) in cases {
        let refused = error(&remove(path), CLUSTER);
        assert!(refused.contains(expected), "{path}: {refused}");
    }
}

#[test]
fn mismatched_values_are_refused() {
    let cases = [
        ("/name", json!(1)),
        ("/name", json!({"a": 1})),
        ("/ignore_health_on_host_removal", json!("yes")),
        ("/dns_lookup_family", json!("V5")),
        ("/dns_lookup_family", json!(77)),
        ("/per_connection_buffer_limit_bytes", json!(-1)),
        ("/per_connection_buffer_limit_bytes", json!(1.5)),
        ("/outlier_detection", json!("x")),
        ("/outlier_detection", json!({"intervall": 1})),
        ("/health_checks", json!(["x"])),
        ("/connect_timeout", json!(3)),
    ];
    for (path, value) in cases {
        let refused = error(&set(path, value.clone()), CLUSTER);
        let expected = refused.contains("could not be applied to target field")
            || refused.contains("no match for field");
        assert!(expected, "{path} {value}: {refused}");
    }
    let nothing = error(&set("/name", Value::Null), CLUSTER);
    assert!(nothing.contains("non-nil Value is required"), "{nothing}");
}

#[test]
fn lists_are_set_as_a_whole() {
    let patch = set(
        "/listener_filters",
        json!([{"name": "a"}, {"name": "b", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
        }}]),
    );
    patch.check(LISTENER).unwrap();
    let codes = set("/stat_prefix", json!("x"));
    codes.check(LISTENER).unwrap();
}
