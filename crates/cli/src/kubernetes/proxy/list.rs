//! `legate proxy list`: lists proxies with their state.

use std::time::Duration;

use clap::Args;
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use legate_kubernetes::annotations;
use serde::Serialize;
use serde_json::Value;

use super::server;
use crate::kubernetes::check::mesh_pods::is_ours;
use crate::kubernetes::sidecar::{self, Sidecar};
use crate::kubernetes::table::{duration, table};
use crate::kubernetes::{Cluster, Output, PODS_AT_A_TIME, pages};
use crate::server_api::ServerApi;

/// Options of `legate proxy list`.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Namespace of the pods; default: that of the kubeconfig's context. With --http-addr: namespace of the
    /// proxies in the mesh
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// List pods of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    #[command(flatten)]
    server: ServerApi,
    /// Admin partition of the proxies, with --http-addr
    #[arg(long, requires = "http_addr", value_name = "NAME")]
    partition: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,
}

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Row {
    namespace: String,
    name: String,
    /// Its service in the mesh.
    service: String,
    /// Whether the sidecar reports itself ready; absent if it is unreachable.
    ready: Option<bool>,
    /// State of the connection to the servers: `connected`, or the current step.
    session: Option<String>,
    /// The server that it is connected to.
    server: Option<String>,
    /// Whether its Envoy has acknowledged all of its configuration.
    configured: Option<bool>,
    /// Time since a server last sent configuration.
    last_message_seconds_ago: Option<u64>,
    /// Version of the dataplane.
    version: Option<String>,
    /// Why it is unreachable.
    error: Option<String>,
}

pub(super) async fn run(options: Options) -> anyhow::Result<String> {
    if options.server.http_addr.is_some() {
        let tenant = server::Tenant {
            namespace: options.namespace.as_deref(),
            partition: options.partition.as_deref(),
        };
        return server::list(&options.server, &tenant, options.output).await;
    }
    let client = options.cluster.client().await?;
    let namespace = options.namespace.as_deref();
    let namespace = namespace.unwrap_or(client.default_namespace()).to_owned();
    let api: Api<Pod> = match options.all_namespaces {
        true => Api::all(client.clone()),
        false => Api::namespaced(client.clone(), &namespace),
    };
    let params = ListParams::default().labels(&sidecar::selector());
    let pods = pages(params, async |params| api.list(&params).await).await;
    let mut pods = pods.map_err(anyhow::Error::msg)?;
    // Ended pods and those of other integrations are skipped.
    pods.retain(is_ours);
    let client = &client;
    let rows = stream::iter(pods).map(|pod| async move {
        let status = match Sidecar::of(&pod) {
            Some(sidecar) => sidecar.status(client).await,
            None => Err(anyhow::anyhow!("it has no sidecar container")),
        };
        row(&pod, status.map_err(|error| format!("{error:#}")))
    });
    let rows: Vec<Row> = rows.buffered(PODS_AT_A_TIME).collect().await;
    Ok(match options.output {
        Output::Json => format!("{:#}\n", serde_json::to_value(&rows)?),
        Output::Text if rows.is_empty() => {
            let place = match options.all_namespaces {
                true => "any namespace".to_owned(),
                false => format!("namespace {namespace} (-A: all namespaces)"),
            };
            format!("No pod with a sidecar in {place}.\n")
        }
        Output::Text => text(&rows, options.all_namespaces),
    })
}

fn row(pod: &Pod, status: Result<Value, String>) -> Row {
    let (document, error) = match status {
        Ok(document) => (document, None),
        Err(error) => (Value::Null, Some(error)),
    };
    let text = |path: &str| {
        let value = document.pointer(path).and_then(Value::as_str);
        value.map(str::to_owned)
    };
    let relay = document.get("relay");
    Row {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        service: pod
            .annotations()
            .get(annotations::SERVICE)
            .cloned()
            .unwrap_or_default(),
        ready: document["ready"].as_bool(),
        session: text("/session/state"),
        server: text("/session/server"),
        configured: relay.map(|relay| relay.get("missing").is_none()),
        last_message_seconds_ago: relay
            .and_then(|relay| relay["upstream"]["last_message_seconds_ago"].as_u64()),
        version: text("/version"),
        error,
    }
}

fn text(rows: &[Row], namespaces: bool) -> String {
    let yes = |answer: Option<bool>| match answer {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    };
    let unknown = || "unknown".to_owned();
    let cells = |row: &Row| {
        let server = match (row.session.as_deref(), &row.server) {
            (Some("connected"), Some(server)) => server.clone(),
            (state, _) => state.unwrap_or("unknown").to_owned(),
        };
        let message = row.last_message_seconds_ago.map(Duration::from_secs);
        let mut cells = vec![
            row.name.clone(),
            row.service.clone(),
            yes(row.ready).to_owned(),
            server,
            yes(row.configured).to_owned(),
            message.map_or_else(unknown, duration),
            row.version.clone().unwrap_or_else(unknown),
        ];
        if namespaces {
            cells.insert(0, row.namespace.clone());
        }
        cells
    };
    let mut header = vec![
        "NAME",
        "SERVICE",
        "READY",
        "SERVER",
        "CONFIGURED",
        "LAST UPDATE",
        "VERSION",
    ];
    if namespaces {
        header.insert(0, "NAMESPACE");
    }
    let mut text = table(&header, &rows.iter().map(cells).collect::<Vec<_>>());
    for row in rows {
        if let Some(error) = &row.error {
            let error = crate::kubernetes::table::printable(error);
            text += &format!(
                "{}/{} cannot be queried: {error}\n",
                row.namespace, row.name
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {
            "name": name, "namespace": "shop",
            "annotations": {"consul.hashicorp.com/connect-service": "web"},
        }}))
        .unwrap()
    }

    #[test]
    fn a_row_has_the_status_of_the_sidecar() {
        let status = json!({
            "version": "0.1.0",
            "ready": true,
            "session": {"state": "connected", "server": "10.0.0.1:8502"},
            "relay": {"upstream": {"last_message_seconds_ago": 75}},
        });
        let waits = json!({
            "version": "0.1.0",
            "ready": false,
            "session": {"state": "waiting"},
            "relay": {"missing": "no server has sent Envoy's clusters yet", "upstream": {}},
        });
        let rows = [
            row(&pod("web-1"), Ok(status)),
            row(&pod("web-2"), Ok(waits)),
            row(
                &pod("web-3"),
                Err("port 20600: connection refused".to_owned()),
            ),
        ];
        let expected = "\
NAMESPACE   NAME    SERVICE   READY     SERVER          CONFIGURED   LAST UPDATE   VERSION
shop        web-1   web       yes       10.0.0.1:8502   yes          1m15s         0.1.0
shop        web-2   web       no        waiting         no           unknown       0.1.0
shop        web-3   web       unknown   unknown         unknown      unknown       unknown
shop/web-3 cannot be queried: port 20600: connection refused
";
        assert_eq!(text(&rows, true), expected);
        assert!(text(&rows, false).starts_with("NAME    SERVICE"));
    }
}
