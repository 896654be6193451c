//! `legate proxy status POD`: prints the sidecar's status, its Envoy's state, and its state at the
//! server. With `--http-addr` only the state at that server.

use std::time::SystemTime;

use clap::Args;
use legate_dataplane::running;
use serde_json::{Value, json};

use super::target::Target;
use super::{connected, server};
use crate::kubernetes::forward::LARGE;
use crate::kubernetes::sidecar::{Leaf, leaves};
use crate::kubernetes::table::{table, time, until};
use crate::kubernetes::{Output, dump};
use crate::server_api::ServerApi;

/// Options of `legate proxy status`.
#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    server: ServerApi,
    /// Admin partition of the proxy, with --http-addr
    #[arg(long, requires = "http_addr", value_name = "NAME")]
    partition: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text, value_name = "FORMAT")]
    output: Output,
}

pub(super) async fn run(options: Options) -> anyhow::Result<String> {
    if options.server.http_addr.is_some() {
        let target = &options.target;
        let tenant = server::Tenant {
            namespace: target.namespace.as_deref(),
            partition: options.partition.as_deref(),
        };
        return server::status(&options.server, &tenant, &target.pod, options.output).await;
    }
    let found = options.target.find().await?;
    let (client, sidecar) = (&found.client, &found.sidecar);
    let status = sidecar.status(client).await?;
    let admin = |path| sidecar.admin(client, Some(&status), path, LARGE);
    let (certs, clusters, listeners, server) = tokio::join!(
        admin("/certs"),
        admin("/clusters?format=json"),
        admin("/listeners?format=json"),
        connected::document(client, &status, &options.server),
    );
    // Envoy may not have been started yet, in which case the status has the reason; the server may
    // refuse.
    let or_error = |page: anyhow::Result<Value>| {
        page.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }))
    };
    let (certs, clusters, listeners) = (or_error(certs), or_error(clusters), or_error(listeners));
    let server = or_error(server);
    Ok(match options.output {
        Output::Json => {
            let document = json!({
                "status": status,
                "certificates": certs["certificates"],
                "clusters": clusters["cluster_statuses"],
                "listeners": listeners["listener_statuses"],
                "server": if server["error"].is_null() { &server } else { &Value::Null },
                "errors": {
                    "certificates": certs["error"],
                    "clusters": clusters["error"],
                    "listeners": listeners["error"],
                    "server": server["error"],
                },
            });
            format!("{document:#}\n")
        }
        Output::Text => {
            let mut text = running::text(&status);
            text += &certificates(&certs, SystemTime::now());
            text += &section("listeners", &listeners, &["NAME", "ADDRESS"], listener_rows);
            let header = ["NAME", "HEALTHY", "ENDPOINTS"];
            text += &section("clusters", &clusters, &header, cluster_rows);
            text + &server_section(&server, SystemTime::now())
        }
    })
}

fn section(
    title: &str,
    page: &Value,
    header: &[&str],
    rows: fn(&Value) -> Vec<Vec<String>>,
) -> String {
    match page["error"].as_str() {
        Some(error) => format!("\n{title}: {error}\n"),
        None => format!("\n{title}\n{}", indented(&table(header, &rows(page)))),
    }
}

fn server_section(document: &Value, now: SystemTime) -> String {
    match document["error"].as_str() {
        Some(error) => format!("\nserver: {error}\n"),
        None => format!("\nserver\n{}", indented(&server::text(document, now))),
    }
}

fn indented(text: &str) -> String {
    let line = |line: &str| match line {
        "" => "\n".to_owned(),
        line => format!("  {line}\n"),
    };
    text.lines().map(line).collect()
}

fn certificates(certs: &Value, now: SystemTime) -> String {
    let row = |leaf: &Leaf| {
        let left = until(leaf.not_after, now);
        vec![leaf.identity.clone(), time(leaf.not_after), left]
    };
    let rows = leaves(certs).iter().map(row).collect::<Vec<_>>();
    let header = ["IDENTITY", "EXPIRES", ""];
    match certs["error"].as_str() {
        Some(error) => format!("\ncertificates: {error}\n"),
        None => format!("\ncertificates\n{}", indented(&table(&header, &rows))),
    }
}

fn entries<'a>(page: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    page[list].as_array().into_iter().flatten()
}

fn listener_rows(page: &Value) -> Vec<Vec<String>> {
    let row = |listener: &Value| {
        let name = listener["name"].as_str().unwrap_or_default();
        vec![name.to_owned(), dump::address(&listener["local_address"])]
    };
    entries(page, "listener_statuses").map(row).collect()
}

/// Whether Envoy sends requests to an endpoint, that is, no health check fails.
fn is_healthy(host: &Value) -> bool {
    let Some(health) = host["health_status"].as_object() else {
        return true;
    };
    health.iter().all(|(check, value)| match value {
        Value::Bool(failed) => !failed,
        Value::String(state) if check == "eds_health_status" => state == "HEALTHY",
        _ => true,
    })
}

fn cluster_rows(page: &Value) -> Vec<Vec<String>> {
    let row = |cluster: &Value| {
        let name = cluster["name"].as_str().unwrap_or_default();
        let healthy = entries(cluster, "host_statuses").filter(|host| is_healthy(host));
        vec![
            name.to_owned(),
            healthy.count().to_string(),
            entries(cluster, "host_statuses").count().to_string(),
        ]
    };
    entries(page, "cluster_statuses").map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_healthy_unless_a_check_fails() {
        let clusters = json!({"cluster_statuses": [{"name": "api", "host_statuses": [
            {"health_status": {"eds_health_status": "HEALTHY"}},
            {"health_status": {"eds_health_status": "UNHEALTHY"}},
            {"health_status": {"eds_health_status": "HEALTHY", "failed_outlier_check": true}},
            {},
        ]}, {"name": "empty"}]});
        let rows = cluster_rows(&clusters);
        assert_eq!(rows, [["api", "2", "4"], ["empty", "0", "0"]]);
    }

    #[test]
    fn a_missing_page_of_envoy_is_named() {
        let page = json!({"error": "port 19000: connection refused"});
        let text = section("clusters", &page, &["NAME"], cluster_rows);
        assert_eq!(text, "\nclusters: port 19000: connection refused\n");
    }

    #[test]
    fn the_state_at_the_server_is_a_separate_section() {
        let now = legate_model::timestamp::parse("2026-01-01T00:10:00Z").unwrap();
        let document = json!({
            "Node": "n1-virtual", "ID": "web-1-web-sidecar-proxy", "Service": "web", "InSync": true,
            "ConnectedAt": "2026-01-01T00:00:00Z", "Since": "2026-01-01T00:08:00Z",
            "Types": {"cluster": {
                "Subscribed": true, "InSync": true, "Since": "2026-01-01T00:08:00Z",
                "Resources": 2, "Unanswered": 0, "Refused": 0,
            }},
        });
        assert_eq!(
            server_section(&document, now),
            "\nserver\n  web-1-web-sidecar-proxy on n1-virtual, service web\n  \
             connected for 10m, in sync: yes for 2m\n\n  \
             TYPE      IN SYNC   FOR   RESOURCES   UNANSWERED   REFUSED\n  \
             cluster   yes       2m    2           0            0\n"
        );
        let refused = json!({"error": "pod legate-server-0 answers 403 Forbidden"});
        assert_eq!(
            server_section(&refused, now),
            "\nserver: pod legate-server-0 answers 403 Forbidden\n"
        );
    }

    #[test]
    fn an_expired_certificate_is_marked() {
        let certs = json!({"certificates": [{"cert_chain": [{
            "subject_alt_names": [{"uri": "spiffe://x/svc/web"}],
            "valid_from": "2026-01-01T00:00:00Z", "expiration_time": "2026-01-04T00:00:00Z",
        }]}]});
        let at = |text: &str| legate_model::timestamp::parse(text).unwrap();
        let text = certificates(&certs, at("2026-01-03T00:00:00Z"));
        assert!(
            text.contains("spiffe://x/svc/web   2026-01-04T00:00:00Z   in 1d"),
            "{text}"
        );
        let text = certificates(&certs, at("2026-01-04T01:00:00Z"));
        assert!(text.contains("EXPIRED 1h ago"), "{text}");
    }
}
