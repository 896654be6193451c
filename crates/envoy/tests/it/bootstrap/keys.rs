//! Every key of the proxy's configuration by itself: its effect on the basic document, and its
//! errors.

use legate_envoy::bootstrap::{BootstrapInputs, PrometheusTls, build};
use serde_json::{Map, Value, json};

use super::{
    access_logs, cluster, decode, document, inputs, listener, sink, tracing, validate, with_keys,
};

/// Cases with a golden file: addresses of metrics sinks and listeners.
fn addresses() -> Vec<(&'static str, Value)> {
    vec![
        (
            "prometheus",
            json!({ "envoy_prometheus_bind_addr": "0.0.0.0:9102" }),
        ),
        (
            "prometheus_ipv6",
            json!({ "envoy_prometheus_bind_addr": "[::]:9102" }),
        ),
        ("stats", json!({ "envoy_stats_bind_addr": "0.0.0.0:9103" })),
        (
            "statsd_udp",
            json!({ "envoy_statsd_url": "udp://127.0.0.1:8125" }),
        ),
        (
            "statsd_udp_ipv6",
            json!({ "envoy_statsd_url": "udp://[2001:db8::1]:8125" }),
        ),
        (
            "statsd_unix",
            json!({ "envoy_statsd_url": "unix:///run/statsd.sock" }),
        ),
        (
            "statsd_variable",
            json!({ "envoy_statsd_url": "$STATSD_URL" }),
        ),
        (
            "statsd_host_ip",
            json!({ "envoy_statsd_url": "udp://${HOST_IP}:8125" }),
        ),
        (
            "dogstatsd_udp",
            json!({ "envoy_dogstatsd_url": "udp://127.0.0.1:8125" }),
        ),
        (
            "dogstatsd_unix",
            json!({ "envoy_dogstatsd_url": "unix:///run/datadog/dsd.socket" }),
        ),
        (
            "dogstatsd_variable",
            json!({ "envoy_dogstatsd_url": "$DOGSTATSD_URL" }),
        ),
        (
            "dogstatsd_host_ip",
            json!({ "envoy_dogstatsd_url": "udp://$HOST_IP:8125" }),
        ),
    ]
}

/// Cases with a golden file: statistics.
fn statistics() -> Vec<(&'static str, Value)> {
    vec![
        (
            "stats_tags",
            json!({ "envoy_stats_tags": ["Canary", "zone=a=b", "empty=", "quote=\"\\", "canary=2"] }),
        ),
        (
            "stats_tags_replace_own",
            json!({ "envoy_stats_tags": ["Local_Cluster=mine", "consul.source.service=mine"] }),
        ),
        ("stats_tags_scalar", json!({ "envoy_stats_tags": "one=1" })),
        (
            "stats_sinks",
            json!({ "envoy_extra_stats_sinks_json": pair(&sink(10), &sink(5)) }),
        ),
        (
            "stats_config",
            json!({ "envoy_stats_config_json": "{\"stats_matcher\":{\"reject_all\":true}}" }),
        ),
        (
            "stats_flush_interval",
            json!({ "envoy_stats_flush_interval": "0.25s" }),
        ),
    ]
}

/// Cases with a golden file: users' own resources, and combinations of keys.
fn resources() -> Vec<(&'static str, Value)> {
    vec![
        (
            "tracing",
            json!({ "envoy_extra_static_clusters_json": cluster("zipkin", 9411), "envoy_tracing_json": tracing() }),
        ),
        (
            "static_clusters",
            json!({ "envoy_extra_static_clusters_json": pair(&cluster("one", 1), &cluster("two", 2)) }),
        ),
        (
            "static_listeners",
            json!({
                "envoy_extra_static_clusters_json": cluster("zipkin", 9411),
                "envoy_extra_static_listeners_json": pair(&listener("one", 1), &listener("two", 2)),
            }),
        ),
        (
            "static_clusters_replace_backends",
            json!({
                "envoy_prometheus_bind_addr": "0.0.0.0:9102",
                "envoy_stats_bind_addr": "0.0.0.0:9103",
                "envoy_extra_static_clusters_json": cluster("prometheus_backend", 1),
            }),
        ),
        (
            "telemetry_collector",
            json!({ "envoy_telemetry_collector_bind_socket_dir": "/tmp/../run/collector" }),
        ),
        (
            "order_of_sinks_and_clusters",
            json!({
                "envoy_telemetry_collector_bind_socket_dir": "/run/collector",
                "envoy_extra_stats_sinks_json": sink(10),
                "envoy_dogstatsd_url": "udp://127.0.0.1:2",
                "envoy_statsd_url": "udp://127.0.0.1:1",
                "envoy_stats_bind_addr": "127.0.0.1:3",
                "envoy_prometheus_bind_addr": "127.0.0.1:4",
                "envoy_extra_static_clusters_json": cluster("zipkin", 9411),
                "envoy_extra_static_listeners_json": listener("own", 7000),
            }),
        ),
        (
            "weakly_typed",
            json!({
                "ENVOY_STATS_TAGS": [true, 7, 60.5, null, "x"],
                "Envoy_Stats_Bind_Addr": "0.0.0.0:9103",
                "envoy_statsd_url": null,
                "envoy_tracing_json": "",
                "logger": { "ignored": true },
            }),
        ),
    ]
}

fn pair(one: &str, other: &str) -> String {
    format!("{one},\n{other}")
}

#[test]
fn each_key_adds_what_is_recorded_and_a_real_envoy_takes_it() {
    let basic = document(&inputs()).document;
    let cases = addresses().into_iter().chain(statistics());
    for (name, keys) in cases.chain(resources()) {
        let document = document(&with_keys(keys));
        let added = added(&basic, &document.document);
        insta::assert_snapshot!(
            name,
            serde_json::to_string_pretty(&added.unwrap_or_default()).unwrap()
        );
        assert_eq!(document.warnings, [] as [&str; 0], "{name}");
        validate(name, &document);
    }
}

#[test]
fn access_logs_are_taken_over_in_order() {
    let second = r#"{"name":"second","typed_config":{"@type":"type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StderrAccessLog"}}"#;
    let mut logs = access_logs();
    logs.push(second.to_owned());
    let inputs = BootstrapInputs {
        access_logs: logs,
        ..inputs()
    };
    let document = document(&inputs);
    let logs = document.document["admin"]["access_log"].as_array().unwrap();
    let names: Vec<&Value> = logs.iter().map(|log| &log["name"]).collect();
    assert_eq!(names, ["Consul Listener Filter Log", "second"]);
    validate("access_logs", &document);
}

/// The parts of `other` that are not in `basic`. For lists, the additional items.
fn added(basic: &Value, other: &Value) -> Option<Value> {
    match (basic, other) {
        (one, other) if one == other => None,
        (Value::Object(one), Value::Object(other)) => {
            let fields = other.iter().filter_map(|(name, value)| {
                let value = match one.get(name) {
                    Some(known) => added(known, value)?,
                    None => value.clone(),
                };
                Some((name.clone(), value))
            });
            let fields: Map<String, Value> = fields.collect();
            Some(Value::Object(fields))
        }
        (Value::Array(one), Value::Array(other)) => {
            let items = other.iter().filter(|item| !one.contains(item));
            Some(Value::Array(items.cloned().collect()))
        }
        (_, other) => Some(other.clone()),
    }
}

#[test]
fn unusable_keys_are_named() {
    for (key, values) in [
        (
            "envoy_prometheus_bind_addr",
            &["9102", ":9102", "localhost:9102", "0.0.0.0:65536"][..],
        ),
        ("envoy_stats_bind_addr", &["::1:9103", "0.0.0.0"]),
        (
            "envoy_stats_flush_interval",
            &[
                "5",
                "1m",
                "s",
                ".5s",
                "1.s",
                "-1s",
                "0s",
                "0.0009s",
                "300s",
                "0.0000000001s",
            ],
        ),
        ("envoy_tracing_json", &["[]", "{} {}"]),
        ("envoy_stats_config_json", &["{", "1"]),
        ("envoy_extra_static_clusters_json", &["{},1", "{},", "[{}]"]),
        ("envoy_extra_static_listeners_json", &["x"]),
        ("envoy_extra_stats_sinks_json", &["{}}"]),
        ("envoy_statsd_url", &["tcp://1.2.3.4:5", "$UNSET_VARIABLE"]),
        ("envoy_dogstatsd_url", &["udp://1.2.3.4", "unix://x"]),
        ("envoy_bootstrap_json_tpl", &["{{", "{{ .Nope }}", "[]"]),
    ] {
        for value in values {
            let made = decode(json!({ key: value })).and_then(|proxy_config| {
                build(&BootstrapInputs {
                    proxy_config,
                    ..inputs()
                })
            });
            let error = made.unwrap_err();
            assert!(error.to_string().contains(key), "{value}: {error}");
        }
    }
    let logs = BootstrapInputs {
        access_logs: vec!["{}".to_owned(), "no".to_owned()],
        ..inputs()
    };
    let error = build(&logs).unwrap_err().to_string();
    assert!(
        error.starts_with("access log 2 of the bootstrap parameters is not a JSON object: "),
        "{error}"
    );
    assert!(PrometheusTls::load("/nope".as_ref(), "c".into(), "k".into()).is_err());
}
