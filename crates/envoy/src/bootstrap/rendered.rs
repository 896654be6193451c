//! Renders a user's bootstrap template. The fields have the names and the meaning that Consul
//! documents, and the result must be a JSON object. Values are inserted verbatim; the template is
//! responsible for quoting them.

use std::path::PathBuf;

use legate_go_template::{Output, Value};
use serde_json::{Map, Value as Json};

use super::endpoint::LOCAL_AGENT_CLUSTER;
use super::error::BootstrapError;
use super::inputs::{BootstrapInputs, XdsAddress};
use super::prometheus_tls::PrometheusTls;

/// The proxy configuration key of the template.
const KEY: &str = "envoy_bootstrap_json_tpl";

/// Maximum number of characters of the JSON parser's error in a message.
const ERROR: usize = 200;

/// Maximum number of characters of an invalid result in a message.
const EXCERPT: usize = 40;

/// Renders the template. `document` is the document without it, whose parts the template can use.
pub(super) fn render(
    text: &str,
    inputs: &BootstrapInputs,
    document: &Json,
) -> Result<Json, BootstrapError> {
    let output = legate_go_template::render("bootstrap", text, &fields(inputs, document))
        .map_err(|error| BootstrapError::key(KEY, error))?;
    serde_json::from_str::<Map<String, Json>>(output.text())
        .map(Json::Object)
        .map_err(|error| no_object(&output, &error))
}

fn no_object(output: &Output<'_>, error: &serde_json::Error) -> BootstrapError {
    let made = output.text();
    let lines = made
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1));
    let line_start: usize = lines.map(str::len).sum();
    // The parser counts columns from 1, and reports the end as the last byte.
    let offset = line_start + error.column().saturating_sub(1);
    let offset = made.floor_char_boundary(offset);
    let (line, column) = output.origin(offset);
    let (before, after) = made.split_at(offset);
    let mut start = before.char_indices().rev();
    let start = start.nth(EXCERPT / 2 - 1).map_or(0, |(start, _)| start);
    let after: String = after.chars().take(EXCERPT / 2).collect();
    let near = format!("{}{after}", &before[start..]);
    // The parser's error may quote text of any length.
    let error: String = error.to_string().chars().take(ERROR).collect();
    let reason = format!(
        "template: bootstrap:{line}:{column}: what the template makes here is no valid JSON: {error} of its output, \
         near {near:?}"
    );
    BootstrapError::key(KEY, reason)
}

/// All fields for the template. They are text, except for a boolean and a list.
fn fields(inputs: &BootstrapInputs, document: &Json) -> Value {
    let agent = agent(&inputs.xds);
    let (node, prometheus) = (&inputs.node, &inputs.prometheus);
    let text = |text: &str| Value::from(text);
    // The items of a list, without the brackets.
    let items = |list: &Json, from| {
        let items = list.as_array().into_iter().flatten().skip(from);
        text(&items.map(Json::to_string).collect::<Vec<_>>().join(",\n"))
    };
    let resources = &document["static_resources"];
    // The first one is the relay's, which every template defines itself.
    let clusters = items(&resources["clusters"], 1);
    let flush_interval = document["stats_flush_interval"].as_str();
    let tracing = document.get("tracing").map(Json::to_string);
    let path = |of: fn(&PrometheusTls) -> Option<&PathBuf>| {
        let path = prometheus.tls.as_ref().and_then(of);
        text(&path.cloned().unwrap_or_default().to_string_lossy())
    };
    let logs: Vec<Value> = inputs.access_logs.iter().map(|log| text(log)).collect();
    let mut fields = vec![
        ("GRPC", Value::structure("bootstrap.GRPC", agent.clone())),
        ("ProxyCluster", text(&node.cluster)),
        ("ProxyID", text(&node.id)),
        ("NodeName", text(&node.node_name)),
        ("ProxySourceService", text(&node.cluster)),
        // The relay is local, without TLS and without a token.
        ("AgentCAPEM", text("")),
        ("AdminAccessLogConfig", Value::List(logs.into())),
        ("AdminAccessLogPath", text("/dev/null")),
        ("AdminBindAddress", text(&inputs.admin.ip().to_string())),
        ("AdminBindPort", text(&inputs.admin.port().to_string())),
        ("LocalAgentClusterName", text(LOCAL_AGENT_CLUSTER)),
        ("Token", text("")),
        ("StaticClustersJSON", clusters),
        ("StaticListenersJSON", items(&resources["listeners"], 0)),
        ("StatsSinksJSON", items(&document["stats_sinks"], 0)),
        (
            "StatsConfigJSON",
            text(&document["stats_config"].to_string()),
        ),
        ("StaticSecretsJSON", items(&resources["secrets"], 0)),
        (
            "StatsFlushInterval",
            text(flush_interval.unwrap_or_default()),
        ),
        ("TracingConfigJSON", text(&tracing.unwrap_or_default())),
        ("Namespace", text(&node.namespace)),
        ("Partition", text(&node.partition)),
        ("Datacenter", text(&node.datacenter)),
        (
            "PrometheusBackendPort",
            text(&prometheus.backend.port().to_string()),
        ),
        ("PrometheusScrapePath", text(&prometheus.scrape_path)),
        (
            "PrometheusCAFile",
            path(|tls| Some(&tls.ca).filter(|_| tls.ca_pem.is_none())),
        ),
        (
            "PrometheusCAPath",
            path(|tls| Some(&tls.ca).filter(|_| tls.ca_pem.is_some())),
        ),
        ("PrometheusCertFile", path(|tls| Some(&tls.certificate))),
        ("PrometheusKeyFile", path(|tls| Some(&tls.key))),
    ];
    fields.extend(agent);
    Value::structure("*bootstrap.BootstrapTplArgs", fields)
}

/// The relay's address. These fields are in `.GRPC` and at the top level.
fn agent(xds: &XdsAddress) -> Vec<(&'static str, Value)> {
    let (address, port, socket) = match xds {
        XdsAddress::Tcp(address) => (address.ip().to_string(), address.port(), String::new()),
        XdsAddress::Unix(path) => (String::new(), 0, path.to_string_lossy().into_owned()),
    };
    vec![
        ("AgentAddress", Value::from(address)),
        ("AgentPort", Value::from(port.to_string())),
        ("AgentTLS", Value::Bool(false)),
        ("AgentSocket", Value::from(socket)),
    ]
}
