//! Golden bootstrap documents, all of which a real Envoy accepts.

mod keys;
mod template;

use std::process::Command;

use legate_envoy::bootstrap::{
    Bootstrap, BootstrapError, BootstrapInputs, NodeInputs, PrometheusInputs, PrometheusTls,
    ProxyConfig, XdsAddress, build,
};
use serde_json::{Value, json};

fn inputs() -> BootstrapInputs {
    BootstrapInputs {
        node: NodeInputs {
            id: "web-proxy".to_owned(),
            cluster: "web".to_owned(),
            node_name: "agentless-node".to_owned(),
            datacenter: "dc1".to_owned(),
            ..NodeInputs::default()
        },
        admin: "127.0.0.1:19000".parse().unwrap(),
        access_logs: Vec::new(),
        xds: XdsAddress::Tcp("127.0.0.1:1234".parse().unwrap()),
        ready: None,
        prometheus: PrometheusInputs {
            scrape_path: "/metrics".to_owned(),
            backend: "127.0.0.1:20100".parse().unwrap(),
            tls: None,
        },
        deprecated_tags: false,
        proxy_config: ProxyConfig::default(),
    }
}

fn decode(keys: Value) -> Result<ProxyConfig, BootstrapError> {
    ProxyConfig::decode(keys.as_object().unwrap(), &variable)
}

fn with_keys(keys: Value) -> BootstrapInputs {
    let proxy_config = decode(keys).unwrap();
    BootstrapInputs {
        proxy_config,
        ..inputs()
    }
}

fn variable(name: &str) -> Option<String> {
    match name {
        "HOST_IP" => Some("10.0.0.7".to_owned()),
        "STATSD_URL" => Some("udp://10.0.0.9:9125".to_owned()),
        "DOGSTATSD_URL" => Some("unix:///run/datadog/dsd.socket".to_owned()),
        _ => None,
    }
}

/// All cases with a golden file.
fn cases() -> Vec<(&'static str, BootstrapInputs)> {
    let mut scrape_path = with_keys(json!({ "envoy_prometheus_bind_addr": "0.0.0.0:9102" }));
    scrape_path.prometheus.scrape_path = "scrape?usedonly".to_owned();
    vec![
        ("basic", inputs()),
        (
            "access_logs",
            BootstrapInputs {
                access_logs: access_logs(),
                ..inputs()
            },
        ),
        (
            "unix_socket",
            BootstrapInputs {
                xds: XdsAddress::Unix("/run/legate/xds.sock".into()),
                ..inputs()
            },
        ),
        (
            "ready_listener",
            BootstrapInputs {
                ready: Some("[::]:21000".parse().unwrap()),
                ..inputs()
            },
        ),
        (
            "wildcard_admin",
            BootstrapInputs {
                admin: "[::]:19000".parse().unwrap(),
                ready: Some("127.0.0.1:21000".parse().unwrap()),
                ..inputs()
            },
        ),
        (
            "tenancy",
            BootstrapInputs {
                node: NodeInputs {
                    namespace: "team".to_owned(),
                    partition: "east".to_owned(),
                    ..inputs().node
                },
                ..inputs()
            },
        ),
        (
            "deprecated_tags",
            BootstrapInputs {
                deprecated_tags: true,
                ..inputs()
            },
        ),
        (
            "hostile_values",
            BootstrapInputs {
                node: hostile(),
                ..inputs()
            },
        ),
        ("prometheus_tls", prometheus_tls("/certs/ca.pem", None)),
        (
            "prometheus_tls_ca_folder",
            prometheus_tls(
                "/certs/ca",
                Some("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"),
            ),
        ),
        ("scrape_path", scrape_path),
        ("telemetry", with_keys(telemetry())),
        (
            "own_stats_config",
            with_keys(json!({ "envoy_stats_config_json": "{\"use_all_default_tags\":false}" })),
        ),
        (
            "collector",
            with_keys(json!({ "envoy_telemetry_collector_bind_socket_dir": "/tmp/collector/" })),
        ),
        ("custom_template", template::custom()),
    ]
}

/// Names that would break a document generated as text.
fn hostile() -> NodeInputs {
    NodeInputs {
        id: "web\"proxy\n\\ äöü \u{1F600} \t{{end}}".to_owned(),
        cluster: "': # web".to_owned(),
        node_name: "yes".to_owned(),
        ..inputs().node
    }
}

/// TLS on one of three listeners.
fn prometheus_tls(ca: &str, ca_pem: Option<&str>) -> BootstrapInputs {
    let mut inputs = with_keys(json!({
        "envoy_prometheus_bind_addr": "0.0.0.0:9102",
        "envoy_stats_bind_addr": "0.0.0.0:9103",
    }));
    inputs.ready = Some("0.0.0.0:21000".parse().unwrap());
    inputs.prometheus.tls = Some(PrometheusTls {
        ca: ca.into(),
        ca_pem: ca_pem.map(str::to_owned),
        certificate: "/certs/server.pem".into(),
        key: "/certs/server-key.pem".into(),
    });
    inputs
}

fn access_logs() -> Vec<String> {
    let log = json!({
        "name": "Consul Listener Filter Log",
        "typedConfig": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "logFormat": { "jsonFormat": { "custom_field_path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%" } },
        },
    });
    vec![log.to_string()]
}

fn cluster(name: &str, port: u16) -> String {
    json!({
        "name": name, "type": "STATIC", "connect_timeout": "5s",
        "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": [{ "endpoint": {
            "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } } } }] }] },
    })
    .to_string()
}

/// Forwards to the cluster `zipkin`.
fn listener(name: &str, port: u16) -> String {
    json!({
        "name": name, "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } },
        "filter_chains": [{ "filters": [{ "name": "envoy.filters.network.tcp_proxy", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": name, "cluster": "zipkin" } }] }],
    })
    .to_string()
}

fn sink(buckets: u8) -> String {
    json!({
        "name": "envoy.stat_sinks.hystrix",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.config.metrics.v3.HystrixSink", "num_buckets": buckets },
    })
    .to_string()
}

/// Sends to the cluster `zipkin`.
fn tracing() -> String {
    json!({ "http": {
        "name": "envoy.tracers.zipkin",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
            "collector_cluster": "zipkin", "collector_endpoint": "/api/v2/spans",
            "collector_endpoint_version": "HTTP_JSON" },
    } })
    .to_string()
}

fn telemetry() -> Value {
    json!({
        "envoy_prometheus_bind_addr": "0.0.0.0:9102",
        "envoy_stats_bind_addr": "[::1]:9103",
        "envoy_statsd_url": "udp://${HOST_IP}:8125",
        "envoy_dogstatsd_url": "unix:///run/datadog/dsd.socket",
        "envoy_stats_tags": ["Canary", "zone=a=b", "local_cluster=mine"],
        "envoy_extra_stats_sinks_json": sink(10),
        "envoy_stats_flush_interval": "2.5s",
        "envoy_tracing_json": tracing(),
        // A user's own `self_admin` replaces ours and hides no other cluster.
        "envoy_extra_static_clusters_json": format!("{},\n {}", cluster("zipkin", 9411), cluster("self_admin", 19000)),
        "envoy_extra_static_listeners_json": listener("own", 7000),
    })
}

fn document(inputs: &BootstrapInputs) -> Bootstrap {
    build(inputs).unwrap()
}

#[test]
fn documents_are_as_recorded() {
    for (name, inputs) in cases() {
        let document = document(&inputs);
        insta::assert_snapshot!(name, format!("{:#}", document.document));
        assert_eq!(
            document.warnings.len(),
            if name == "scrape_path" { 2 } else { 0 },
            "{name}"
        );
    }
}

#[test]
fn a_real_envoy_accepts_every_document() {
    let authority = legate_testkit::certs::TestCa::new();
    let server = authority.server(&["localhost"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.crt"), authority.ca_pem()).unwrap();
    for (name, mut inputs) in cases() {
        // Envoy reads the files of a document even if it only validates.
        if inputs.prometheus.tls.is_some() {
            for ca in [authority.ca_file().as_path(), folder.path()] {
                let tls = PrometheusTls::load(ca, server.cert.clone(), server.key.clone()).unwrap();
                inputs.prometheus.tls = Some(tls);
                validate(name, &document(&inputs));
            }
        } else {
            validate(name, &document(&inputs));
        }
    }
}

/// Checks that Envoy accepts the document and reports nothing deprecated.
fn validate(name: &str, document: &Bootstrap) {
    let log = accepted(name, document);
    // The tracing key is Consul's and has no other place in the document.
    let outdated = |line: &&str| line.contains("deprecated") && !line.contains("Bootstrap.tracing");
    assert_eq!(log.lines().find(outdated), None, "{name}");
}

/// Checks that Envoy accepts the document. Returns its output.
fn accepted(name: &str, document: &Bootstrap) -> String {
    let output = Command::new(legate_testkit::envoy::binary())
        .args(["--mode", "validate", "--config-yaml"])
        .arg(document.document.to_string())
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{name}: {log}");
    log
}
