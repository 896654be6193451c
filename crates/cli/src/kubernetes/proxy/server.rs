//! The state of connected proxies as reported by a server: resources, refusals, and errors. From
//! `/v1/internal/legate/proxies`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::SystemTime;

use anyhow::bail;
use legate_model::timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::kubernetes::Output;
use crate::kubernetes::table::{duration, printable, table, until};
use crate::server_api::ServerApi;

const PROXIES: &str = "/v1/internal/legate/proxies";

/// Filter by tenant; an empty filter selects all proxies.
pub(super) struct Tenant<'a> {
    pub(super) namespace: Option<&'a str>,
    pub(super) partition: Option<&'a str>,
}

impl Tenant<'_> {
    fn has(&self, proxy: &Value) -> bool {
        let [namespace, partition] = tenant_of(proxy);
        let is = |wanted: Option<&str>, own: &str| {
            wanted.is_none_or(|wanted| wanted.eq_ignore_ascii_case(own))
        };
        is(self.namespace, namespace) && is(self.partition, partition)
    }

    async fn proxies(&self, server: &ServerApi) -> anyhow::Result<Value> {
        let mut all = server.get(PROXIES, &[]).await?;
        if let Some(all) = all.as_array_mut() {
            all.retain(|one| self.has(one));
        }
        Ok(all)
    }
}

/// Namespace and partition of a proxy; a server omits the default ones.
fn tenant_of(proxy: &Value) -> [&str; 2] {
    ["Namespace", "Partition"].map(|field| proxy[field].as_str().unwrap_or("default"))
}

/// `legate proxy list` for a server.
pub(super) async fn list(
    server: &ServerApi,
    tenant: &Tenant<'_>,
    output: Output,
) -> anyhow::Result<String> {
    let all = tenant.proxies(server).await?;
    Ok(match output {
        Output::Json => format!("{all:#}\n"),
        Output::Text if entries(&all).next().is_none() => {
            "No proxy is connected to this server.\n".to_owned()
        }
        Output::Text => list_text(&all, SystemTime::now()),
    })
}

/// `legate proxy status` for a server: `PROXY-ID`, or `NODE/PROXY-ID`.
pub(super) async fn status(
    server: &ServerApi,
    tenant: &Tenant<'_>,
    proxy: &str,
    output: Output,
) -> anyhow::Result<String> {
    let all = tenant.proxies(server).await?;
    let found = one_of(&all, proxy)?;
    let [namespace, partition] = tenant_of(found);
    let of = |field: &str| found[field].as_str().unwrap_or_default();
    let query = [("ns", namespace), ("partition", partition)];
    let document = server.get(&path(of("Node"), of("ID")), &query).await?;
    Ok(match output {
        Output::Json => format!("{document:#}\n"),
        Output::Text => text(&document, SystemTime::now()),
    })
}

/// The path of a proxy's state.
pub(super) fn path(node: &str, id: &str) -> String {
    let segment = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    format!(
        "/v1/internal/legate/proxy/{}/{}",
        segment(node),
        segment(id)
    )
}

/// The only proxy named `ID` or `NODE/ID`.
fn one_of<'a>(all: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    let (node, id) = match name.split_once('/') {
        Some((node, id)) => (Some(node), id),
        None => (None, name),
    };
    let is_on = |one: &Value| {
        let own = one["Node"].as_str().unwrap_or_default();
        node.is_none_or(|node| node.eq_ignore_ascii_case(own))
    };
    let found: Vec<&Value> = entries(all)
        .filter(|one| one["ID"] == id && is_on(one))
        .collect();
    let nodes: BTreeSet<&str> = found
        .iter()
        .filter_map(|one| one["Node"].as_str())
        .collect();
    match found[..] {
        [one] => Ok(one),
        [] => bail!(
            "no proxy {name:?} is connected to this server: `legate proxy list --http-addr ADDRESS` \
             lists the connected ones; with several servers, try the others"
        ),
        _ if nodes.len() > 1 => bail!(
            "{id:?} exists on the nodes {}: select one with NODE/{id}",
            Vec::from_iter(nodes).join(", ")
        ),
        _ => bail!(
            "several tenants have a proxy {name:?}: select one with --namespace and --partition; `legate \
             proxy list` shows them"
        ),
    }
}

fn entries(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn string(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn yes(value: &Value) -> String {
    let text = if *value == Value::Bool(true) {
        "yes"
    } else {
        "no"
    };
    text.to_owned()
}

/// The time since `value`.
fn ago(value: &Value, now: SystemTime) -> String {
    let time = value.as_str().and_then(|text| timestamp::parse(text).ok());
    let ago = time.map(|time| now.duration_since(time).unwrap_or_default());
    ago.map(duration).unwrap_or_default()
}

fn list_text(all: &Value, now: SystemTime) -> String {
    let mut header = vec![
        "NODE",
        "PROXY",
        "SERVICE",
        "IN SYNC",
        "FOR",
        "NOT SERVED",
        "LAST REFUSAL",
    ];
    let has_tenants = entries(all).any(|one| tenant_of(one) != ["default"; 2]);
    if has_tenants {
        header.splice(2..2, ["NAMESPACE", "PARTITION"]);
    }
    let row = |one: &Value| {
        let refusal = &one["LastRefusal"];
        let last = match refusal.is_null() {
            true => String::new(),
            false => format!(
                "{} {} ago",
                string(&refusal["Type"]),
                ago(&refusal["At"], now)
            ),
        };
        let mut cells = vec![
            string(&one["Node"]),
            string(&one["ID"]),
            string(&one["Service"]),
            yes(&one["InSync"]),
            ago(&one["Since"], now),
            string(&one["NotServed"]),
            last,
        ];
        if has_tenants {
            cells.splice(2..2, tenant_of(one).map(printable));
        }
        cells
    };
    table(&header, &entries(all).map(row).collect::<Vec<_>>())
}

pub(super) fn text(document: &Value, now: SystemTime) -> String {
    let of = |field: &str| string(&document[field]);
    let mut out = format!(
        "{} on {}, service {}\nconnected for {}, in sync: {} for {}\n\n",
        of("ID"),
        of("Node"),
        of("Service"),
        ago(&document["ConnectedAt"], now),
        yes(&document["InSync"]),
        ago(&document["Since"], now),
    );
    let types = document["Types"].as_object().into_iter().flatten();
    let types: Vec<_> = types.filter(|(_, one)| one["Subscribed"] == true).collect();
    let header = [
        "TYPE",
        "IN SYNC",
        "FOR",
        "RESOURCES",
        "UNANSWERED",
        "REFUSED",
    ];
    let row = |(kind, one): &(&String, &Value)| {
        vec![
            printable(kind),
            yes(&one["InSync"]),
            ago(&one["Since"], now),
            string(&one["Resources"]),
            string(&one["Unanswered"]),
            string(&one["Refused"]),
        ]
    };
    out += &table(&header, &types.iter().map(row).collect::<Vec<_>>());
    for (kind, one) in &types {
        let refusal = &one["LastRefusal"];
        if refusal.is_null() {
            continue;
        }
        let names: Vec<String> = entries(&refusal["Resources"]).map(string).collect();
        let _ = write!(
            out,
            "\nthe proxy refused {kind} {} {} ago:\n  {}\n",
            names.join(", "),
            ago(&refusal["At"], now),
            string(&refusal["Reason"]),
        );
        let still: Vec<String> = entries(&one["RefusedResources"]).map(string).collect();
        if !still.is_empty() {
            let _ = writeln!(out, "  waiting for a change of {}", still.join(", "));
        }
    }
    for failure in entries(&document["NotServed"]) {
        let kept = match failure["Kept"] == true {
            true => "the last good version stays in use",
            false => "no version of it is served",
        };
        let _ = write!(
            out,
            "\nnot served: {} {} ({kept}):\n  {}\n",
            string(&failure["Type"]),
            string(&failure["Resource"]),
            string(&failure["Reason"]),
        );
    }
    for warning in entries(&document["Warnings"]) {
        let _ = write!(out, "\nwarning: {}\n", string(warning));
    }
    out + &certificates(document, now) + &upstreams(document)
}

fn certificates(document: &Value, now: SystemTime) -> String {
    let row = |one: &Value| {
        let expires = one["Expires"].as_str();
        let left = match expires.and_then(|text| timestamp::parse(text).ok()) {
            Some(at) => until(at, now),
            None => "in files of the gateway".to_owned(),
        };
        vec![string(&one["Name"]), string(&one["Expires"]), left]
    };
    let rows: Vec<_> = entries(&document["Certificates"]).map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", table(&["CERTIFICATE", "EXPIRES", ""], &rows)),
    }
}

fn upstreams(document: &Value) -> String {
    let row = |one: &Value| {
        let chain = &one["Chain"];
        let targets = chain["Targets"].as_object().into_iter().flatten();
        let targets: Vec<String> = targets.map(|(id, _)| printable(id)).collect();
        let leads = match one["ChainError"].as_str() {
            Some(error) => printable(error),
            None => targets.join(", "),
        };
        vec![string(&one["Name"]), string(&chain["Protocol"]), leads]
    };
    let rows: Vec<_> = entries(&document["Upstreams"]).map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", table(&["UPSTREAM", "PROTOCOL", "LEADS TO"], &rows)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> SystemTime {
        timestamp::parse("2026-01-01T00:10:00Z").unwrap()
    }

    #[test]
    fn a_proxy_is_found_by_its_id() {
        let all = json!([
            {"Node": "a", "ID": "web"}, {"Node": "a", "ID": "api"}, {"Node": "b", "ID": "api"},
        ]);
        assert_eq!(one_of(&all, "web").unwrap()["Node"], "a");
        assert_eq!(one_of(&all, "B/api").unwrap(), &all[2]);
        let twice = one_of(&all, "api").unwrap_err().to_string();
        assert!(twice.contains("a, b: select one with NODE/api"), "{twice}");
        assert!(one_of(&all, "db").is_err());
        let all = json!([{"Node": "a", "ID": "web", "Namespace": "shop"}, all[0]]);
        let twice = one_of(&all, "web").unwrap_err().to_string();
        assert!(twice.starts_with("several tenants have"), "{twice}");
        let shop = Tenant {
            namespace: Some("shop"),
            partition: None,
        };
        assert!(shop.has(&all[0]) && !shop.has(&all[1]));
        assert_eq!(tenant_of(&all[1]), ["default", "default"]);
    }

    #[test]
    fn the_list() {
        let all = json!([{
            "Node": "vm-1", "ID": "web-proxy", "Service": "web", "InSync": false,
            "Since": "2026-01-01T00:08:00Z", "NotServed": 1,
            "LastRefusal": {"Type": "listener", "At": "2026-01-01T00:09:00Z"},
        }]);
        assert_eq!(
            list_text(&all, now()),
            "NODE   PROXY       SERVICE   IN SYNC   FOR   NOT SERVED   LAST REFUSAL\n\
             vm-1   web-proxy   web       no        2m    1            listener 1m ago\n"
        );
        let mut all = all;
        all[0]["Namespace"] = "shop".into();
        let text = list_text(&all, now());
        assert!(
            text.contains("vm-1   web-proxy   shop        default     web"),
            "{text}"
        );
    }

    #[test]
    fn one_proxy() {
        let document = json!({
            "Node": "vm-1", "ID": "web-proxy", "Service": "web", "InSync": false,
            "ConnectedAt": "2026-01-01T00:00:00Z", "Since": "2026-01-01T00:08:00Z",
            "Types": {
                "listener": {
                    "Subscribed": true, "InSync": false, "Since": "2026-01-01T00:08:00Z",
                    "Resources": 2, "Unanswered": 0, "Refused": 1,
                    "RefusedResources": ["public_listener:0.0.0.0:20000"],
                    "LastRefusal": {
                        "At": "2026-01-01T00:09:00Z", "Reason": "no\u{1b}port",
                        "Resources": ["public_listener:0.0.0.0:20000"],
                    },
                },
                "secret": {"Subscribed": false},
            },
            "NotServed": [
                {"Type": "cluster", "Resource": "local_app", "Reason": "bad", "Kept": true},
            ],
            "Warnings": ["careful"],
            "Certificates": [
                {"Name": "inline-certificate/old", "Expires": "2025-12-31T23:10:00Z"},
                {"Name": "inline-certificate/new", "Expires": "2026-01-04T00:10:00Z"},
                {"Name": "file-system-certificate/disk", "Expires": null},
            ],
            "Upstreams": [{"Name": "api", "Chain": {"Protocol": "http", "Targets": {"api.x": {}}}}],
        });
        assert_eq!(
            text(&document, now()),
            "web-proxy on vm-1, service web\n\
             connected for 10m, in sync: no for 2m\n\n\
             TYPE       IN SYNC   FOR   RESOURCES   UNANSWERED   REFUSED\n\
             listener   no        2m    2           0            1\n\n\
             the proxy refused listener public_listener:0.0.0.0:20000 1m ago:\n  no port\n  \
             waiting for a change of public_listener:0.0.0.0:20000\n\n\
             not served: cluster local_app (the last good version stays in use):\n  bad\n\n\
             warning: careful\n\n\
             CERTIFICATE                    EXPIRES\n\
             inline-certificate/old         2025-12-31T23:10:00Z   EXPIRED 1h ago\n\
             inline-certificate/new         2026-01-04T00:10:00Z   in 3d\n\
             file-system-certificate/disk                          in files of the gateway\n\n\
             UPSTREAM   PROTOCOL   LEADS TO\n\
             api        http       api.x\n"
        );
    }
}
