//! `members`: lists the agents of a cluster.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use regex::Regex;
use serde_json::Value;

use crate::output::{columns, line, pairs, text};
use crate::server_api::ApiOptions;

#[derive(Args)]
pub(crate) struct Options {
    /// Print all tags
    #[arg(long)]
    detailed: bool,
    /// List the servers of all datacenters
    #[arg(long)]
    wan: bool,
    /// Regular expression for the status
    #[arg(long, default_value = ".*", value_name = "REGEX")]
    status: String,
    /// Network segment [default: all]
    #[arg(long, default_value = "_all", value_name = "NAME")]
    segment: String,
    /// Filter in Consul's filter language
    #[arg(long, default_value = "")]
    filter: String,
    #[command(flatten)]
    api: ApiOptions,
}

/// Prints the members. The exit code is 2 if there are none.
///
/// # Errors
///
/// If the request fails.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let status = Regex::new(&options.status).context("Failed to compile status regexp")?;
    let api = options.api.connect()?;
    let mut ask = api
        .get("/v1/agent/members")
        .query("segment", options.segment.as_str());
    if options.wan {
        ask = ask.query("wan", "1");
    }
    let members = ask.maybe("filter", &options.filter).value().await;
    let members = members.context("Error retrieving members")?;
    let mut members: Vec<Value> = members.as_array().cloned().unwrap_or_default();
    for member in &mut members {
        complete(member, options.segment == "_all");
    }
    members.retain(|member| status.is_match(status_of(member)));
    if members.is_empty() {
        return Ok(ExitCode::from(2));
    }
    members.sort_by_key(order);
    let rows: Vec<Vec<String>> = match options.detailed {
        true => table(&["Node", "Address", "Status", "Tags"], &members, detailed),
        false => table(
            &[
                "Node",
                "Address",
                "Status",
                "Type",
                "Build",
                "Protocol",
                "DC",
                "Partition",
                "Segment",
            ],
            &members,
            row,
        ),
    };
    line(&columns(&rows))?;
    Ok(ExitCode::SUCCESS)
}

fn table(
    header: &[&str],
    members: &[Value],
    row: impl Fn(&Value) -> Vec<String>,
) -> Vec<Vec<String>> {
    let header = header.iter().map(|name| (*name).to_owned()).collect();
    std::iter::once(header)
        .chain(members.iter().map(row))
        .collect()
}

/// Adds the default partition and segment if a member has none.
fn complete(member: &mut Value, all_segments: bool) {
    let server = member["Tags"]["role"] == "consul";
    let tags = &mut member["Tags"];
    if text(tags, "ap").is_empty() {
        tags["ap"] = "default".into();
    }
    if tags["ap"] != "default" {
        tags["segment"] = "".into();
    } else if all_segments && server {
        tags["segment"] = "<all>".into();
    } else if text(tags, "segment").is_empty() {
        tags["segment"] = "<default>".into();
    }
}

/// The sort key: servers first, then the default partition, then segment, partition and name.
fn order(member: &Value) -> (bool, bool, String, String, String) {
    let tags = &member["Tags"];
    let partition = text(tags, "ap").to_owned();
    (
        tags["role"] != "consul",
        partition != "default",
        text(tags, "segment").to_owned(),
        partition,
        text(member, "Name").to_owned(),
    )
}

fn status_of(member: &Value) -> &'static str {
    match member["Status"].as_u64() {
        Some(1) => "alive",
        Some(2) => "leaving",
        Some(3) => "left",
        Some(4) => "failed",
        _ => "none",
    }
}

fn address(member: &Value) -> String {
    let (host, port) = (text(member, "Addr"), &member["Port"]);
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

fn row(member: &Value) -> Vec<String> {
    let tags = &member["Tags"];
    let kind = match text(tags, "role") {
        "consul" => "server",
        "node" => "client",
        _ => "unknown",
    };
    let build = match text(tags, "build") {
        "" => "< 0.3",
        build => build.split(':').next().unwrap_or(build),
    };
    let rest = [
        build,
        text(tags, "vsn"),
        text(tags, "dc"),
        text(tags, "ap"),
        text(tags, "segment"),
    ];
    let rest = rest.map(|cell| if kind == "unknown" { "" } else { cell });
    let mut row = vec![
        text(member, "Name").to_owned(),
        address(member),
        status_of(member).to_owned(),
        kind.to_owned(),
    ];
    row.extend(rest.map(str::to_owned));
    row
}

/// How the server that was asked reaches a member of another datacenter.
fn reached(member: &Value) -> Vec<String> {
    let seconds = member["RoundTrip"].as_f64();
    let time = seconds.map(|seconds| format!("rtt={:.3}ms", seconds * 1000.0));
    let gateway = Some(text(member, "Gateway")).filter(|gateway| !gateway.is_empty());
    let error = Some(text(member, "Error")).filter(|error| !error.is_empty());
    let gateway = gateway.map(|gateway| format!("gateway={gateway}"));
    let error = error.map(|error| format!("error={error:?}"));
    [time, gateway, error].into_iter().flatten().collect()
}

fn detailed(member: &Value) -> Vec<String> {
    vec![
        text(member, "Name").to_owned(),
        address(member),
        status_of(member).to_owned(),
        [pairs(&member["Tags"]), reached(member)].concat().join(","),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_come_first_with_their_segment() {
        let mut client = json!({"Name": "a", "Addr": "::1", "Port": 1, "Status": 4,
            "Tags": {"role": "node", "build": "1.21.0:abc", "vsn": "2", "dc": "d"}});
        let mut server = json!({"Name": "b", "Addr": "10.0.0.1", "Port": 2, "Status": 1,
            "Tags": {"role": "consul", "build": "1.21.0", "vsn": "2", "dc": "d"}});
        complete(&mut client, true);
        complete(&mut server, true);
        assert!(order(&server) < order(&client));
        let client = row(&client).join("|");
        assert_eq!(
            client,
            "a|[::1]:1|failed|client|1.21.0|2|d|default|<default>"
        );
        let server = row(&server).join("|");
        assert_eq!(server, "b|10.0.0.1:2|alive|server|1.21.0|2|d|default|<all>");
    }
}
