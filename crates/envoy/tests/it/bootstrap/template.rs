//! `envoy_bootstrap_json_tpl`: templates for the whole document.

use legate_envoy::bootstrap::{BootstrapInputs, XdsAddress, build};
use serde_json::{Value, json};

use super::{accepted, cases, document, inputs, prometheus_tls, with_keys};

/// A template that reproduces the generated document with one addition, which is a common use.
const CUSTOM: &str = r#"{
  "admin": { "address": { "socket_address": { "address": "{{ .AdminBindAddress }}", "port_value": {{ .AdminBindPort }} } } },
  "node": {
    "id": "{{ .ProxyID }}", "cluster": "{{ .ProxyCluster }}",
    "locality": { "zone": "{{ or .Datacenter "unknown" }}" }
  },
  "overload_manager": {
    "resource_monitors": [{
      "name": "envoy.resource_monitors.global_downstream_max_connections",
      "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        "max_active_downstream_connections": {{ if eq .ProxySourceService "web" }}50000{{ else }}1000{{ end }}
      }
    }]
  },
  "static_resources": {
    "clusters": [{
      "name": "{{ .LocalAgentClusterName }}", "type": "STATIC", "connect_timeout": "2s",
      "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": { "http2_protocol_options": { "initial_stream_window_size": 65536 } } } },
      "load_assignment": { "cluster_name": "{{ .LocalAgentClusterName }}", "endpoints": [{ "lb_endpoints": [{ "endpoint": {
        "address": { "socket_address": { "address": "{{ .AgentAddress }}", "port_value": {{ .AgentPort }} } } } }] }] }
    }{{ if .StaticClustersJSON }}, {{ .StaticClustersJSON }}{{ end }}]
    {{- if .StaticListenersJSON }}, "listeners": [{{ .StaticListenersJSON }}]{{ end }}
  },
  "stats_config": {{ .StatsConfigJSON }},
  "dynamic_resources": {
    "lds_config": { "ads": {}, "resource_api_version": "V3" },
    "cds_config": { "ads": {}, "resource_api_version": "V3" },
    "ads_config": {
      "api_type": "DELTA_GRPC", "transport_api_version": "V3",
      "grpc_services": { "envoy_grpc": { "cluster_name": "{{ .LocalAgentClusterName }}" } }
    }
  }
}
"#;

pub(super) fn custom() -> BootstrapInputs {
    let mut inputs = with_template(CUSTOM);
    inputs.ready = Some("0.0.0.0:21000".parse().unwrap());
    inputs
}

fn with_template(template: &str) -> BootstrapInputs {
    with_keys(json!({ "envoy_bootstrap_json_tpl": template }))
}

#[test]
fn a_template_can_make_the_document_that_is_used_without_one() {
    for (name, mut inputs) in cases() {
        if name == "custom_template" {
            continue;
        }
        let expected = document(&inputs);
        inputs.proxy_config.bootstrap_json_tpl = Some(include_str!("document.tpl").to_owned());
        let made = document(&inputs);
        assert_eq!(made.document, expected.document, "{name}");
        assert_eq!(made.warnings, expected.warnings, "{name}");
    }
}

#[test]
fn a_real_envoy_accepts_templates_of_the_older_style() {
    for (name, mut inputs) in cases() {
        // Plain quotes do not suit every id, and certificate files would have to exist.
        if name == "hostile_values" || inputs.prometheus.tls.is_some() {
            continue;
        }
        inputs.proxy_config.bootstrap_json_tpl = Some(include_str!("older_style.tpl").to_owned());
        accepted(name, &document(&inputs));
    }
}

#[test]
fn values_enter_a_template_as_they_are() {
    let mut inputs = with_template("{\"id\": \"{{ .ProxyID }}\"}");
    inputs.node.id = "a\"b".to_owned();
    let error = build(&inputs).unwrap_err().to_string();
    assert!(error.contains("bootstrap:1:11"), "{error}");
}

/// The output of a template that writes the field as text.
fn field(inputs: &BootstrapInputs, name: &str) -> Value {
    let mut inputs = inputs.clone();
    let template = format!("{{\"value\": {{{{ printf \"%q\" (print .{name}) }}}}}}");
    inputs.proxy_config.bootstrap_json_tpl = Some(template);
    document(&inputs).document["value"].take()
}

#[test]
fn every_field_is_there() {
    let mut filled = prometheus_tls("/certs/ca.pem", None);
    filled.proxy_config.stats_flush_interval = Some("5s".to_owned());
    filled.proxy_config.tracing = Some(json!({}));
    filled.access_logs = vec!["{}".to_owned()];
    for (name, expected) in [
        ("GRPC.AgentAddress", "127.0.0.1"),
        ("GRPC.AgentPort", "1234"),
        ("GRPC.AgentTLS", "false"),
        ("GRPC.AgentSocket", ""),
        ("AgentAddress", "127.0.0.1"),
        ("AgentPort", "1234"),
        ("AgentTLS", "false"),
        ("AgentSocket", ""),
        ("ProxyCluster", "web"),
        ("ProxyID", "web-proxy"),
        ("NodeName", "agentless-node"),
        ("ProxySourceService", "web"),
        ("AgentCAPEM", ""),
        ("AdminAccessLogConfig", "[{}]"),
        ("AdminAccessLogPath", "/dev/null"),
        ("AdminBindAddress", "127.0.0.1"),
        ("AdminBindPort", "19000"),
        ("LocalAgentClusterName", "consul-dataplane"),
        ("Token", ""),
        ("StatsSinksJSON", ""),
        ("StatsFlushInterval", "5s"),
        ("TracingConfigJSON", "{}"),
        ("Namespace", ""),
        ("Partition", ""),
        ("Datacenter", "dc1"),
        ("PrometheusBackendPort", "20100"),
        ("PrometheusScrapePath", "/metrics"),
        ("PrometheusCAFile", "/certs/ca.pem"),
        ("PrometheusCAPath", ""),
        ("PrometheusCertFile", "/certs/server.pem"),
        ("PrometheusKeyFile", "/certs/server-key.pem"),
    ] {
        assert_eq!(field(&filled, name), expected, "{name}");
    }
    for (name, first) in [
        ("StaticClustersJSON", "prometheus_backend"),
        ("StaticListenersJSON", "envoy_prometheus_metrics_listener"),
        ("StaticSecretsJSON", "prometheus_cert"),
    ] {
        let value = field(&filled, name);
        let items = format!("[{}]", value.as_str().unwrap());
        let items: Vec<Value> = serde_json::from_str(&items).unwrap();
        assert_eq!(items[0]["name"], first, "{name}");
    }
    let stats = field(&filled, "StatsConfigJSON");
    let stats: Value = serde_json::from_str(stats.as_str().unwrap()).unwrap();
    assert!(stats["stats_tags"].is_array(), "{stats}");
    let folder = prometheus_tls("/certs/ca", Some(""));
    assert_eq!(field(&folder, "PrometheusCAPath"), "/certs/ca");
    assert_eq!(field(&folder, "PrometheusCAFile"), "");
    let unix = BootstrapInputs {
        xds: XdsAddress::Unix("/run/xds.sock".into()),
        ..inputs()
    };
    assert_eq!(field(&unix, "AgentSocket"), "/run/xds.sock");
    assert_eq!(field(&unix, "GRPC.AgentSocket"), "/run/xds.sock");
    assert_eq!(field(&unix, "AgentAddress"), "");
}

#[test]
fn wrong_templates_are_refused_with_key_and_position() {
    for (template, expected) in [
        (
            "{{ .Nope }}",
            "template: bootstrap:1:3: executing \"bootstrap\" at <.Nope>: can't evaluate field Nope in type *bootstrap.BootstrapTplArgs (which has GRPC,",
        ),
        (
            "{\n  \"a\": {{ .GRPC.Nope }}\n}",
            "template: bootstrap:2:15: executing \"bootstrap\" at <.GRPC.Nope>: can't evaluate field Nope in type bootstrap.GRPC",
        ),
        (
            "{}\n{{ define \"x\" }}{{ end }}",
            "template: bootstrap:2:0: {{define}} is not supported; supported are",
        ),
        (
            "{ {{ if .ProxyID }}",
            "template: bootstrap:1:19: unexpected EOF; the {{if}} in line 1 has no {{end}}",
        ),
    ] {
        let error = build(&with_template(template)).unwrap_err().to_string();
        assert!(
            error.starts_with("proxy config key envoy_bootstrap_json_tpl: ")
                && error.contains(expected),
            "{error}"
        );
    }
}

#[test]
fn a_message_is_short_however_long_the_output_is() {
    let text = format!("\"{}\"", "x".repeat(100_000));
    let error = build(&with_template(&text)).unwrap_err();
    assert!(error.to_string().len() < 1000, "{error}");
}

#[test]
fn output_that_is_not_a_json_object_is_traced_to_the_template() {
    for (template, position, expected) in [
        (
            "{{/**/}}",
            "1:0",
            "EOF while parsing a value at line 1 column 0",
        ),
        ("[]", "1:0", "invalid type: sequence"),
        // An error in the template's own text.
        (
            "{\n  \"ä\": 1,,\n}",
            "2:10",
            "key must be a string at line 2 column",
        ),
        // An error in the value of an action.
        (
            "{\n\n  {{- if true }}\n  \"id\": {{ .ProxyID }}\n{{ end }}}",
            "4:11",
            "expected value at line 2 column 9 of its output, near",
        ),
        (
            "{{/* two lines\n */}}{\"a\": \"b}",
            "2:13",
            "EOF while parsing a string",
        ),
    ] {
        let error = build(&with_template(template)).unwrap_err().to_string();
        let start =
            format!("proxy config key envoy_bootstrap_json_tpl: template: bootstrap:{position}: ");
        assert!(
            error.starts_with(&start) && error.contains(expected),
            "{error}"
        );
    }
}
