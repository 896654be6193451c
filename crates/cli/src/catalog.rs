//! `catalog`: lists datacenters, nodes and services.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::input;
use crate::output::{columns, line, list, pairs, tabbed, text, warn};
use crate::server_api::{ApiOptions, Ask, encoded};

/// Subcommands of `catalog`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the datacenters
    Datacenters(Datacenters),
    /// Print the nodes
    Nodes(Nodes),
    /// Print the services
    Services(Services),
}

#[derive(Args)]
pub(crate) struct Datacenters {
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Nodes {
    /// Filter in Consul's filter language: text, @FILE, or - for standard input
    #[arg(long, default_value = "")]
    filter: String,
    /// Print all fields
    #[arg(long)]
    detailed: bool,
    /// Sort by round-trip time from this node; _agent is the queried agent
    #[arg(long, default_value = "", value_name = "NODE")]
    near: String,
    /// Required node metadata, KEY=VALUE; may be repeated
    #[arg(long, value_parser = input::pair, value_name = "KEY=VALUE")]
    node_meta: Vec<(String, String)>,
    /// Only nodes with an instance of this service
    #[arg(long, default_value = "", value_name = "NAME")]
    service: String,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Services {
    /// Only services of this node
    #[arg(long, default_value = "", value_name = "NODE")]
    node: String,
    /// Required node metadata, KEY=VALUE; may be repeated
    #[arg(long, value_parser = input::pair, value_name = "KEY=VALUE")]
    node_meta: Vec<(String, String)>,
    /// Print the services' tags
    #[arg(long)]
    tags: bool,
    #[command(flatten)]
    api: ApiOptions,
}

/// Runs the command.
///
/// # Errors
///
/// If the request fails.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Datacenters(datacenters) => {
            input::none(&datacenters.api.arguments)?;
            let api = datacenters.api.connect()?;
            let names = api.get("/v1/catalog/datacenters").value().await;
            let names = names.context("Error listing datacenters")?;
            for name in names.as_array().into_iter().flatten() {
                line(name.as_str().unwrap_or_default())?;
            }
        }
        Command::Nodes(nodes) => nodes.run().await?,
        Command::Services(services) => services.run().await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn with_meta<'a>(ask: Ask<'a>, meta: &[(String, String)]) -> Ask<'a> {
    let add = |ask: Ask<'a>, (key, value): &(String, String)| {
        ask.query("node-meta", format!("{key}:{value}"))
    };
    meta.iter().fold(ask, add)
}

impl Nodes {
    async fn run(self) -> anyhow::Result<()> {
        input::none(&self.api.arguments)?;
        let api = self.api.connect()?;
        let filter = input::text_or_file(&self.filter);
        let filter = filter.context("Could not process filter argument")?;
        let (path, what) = match self.service.as_str() {
            "" => ("/v1/catalog/nodes".to_owned(), "Error listing nodes"),
            service => (
                format!("/v1/catalog/service/{}", encoded(service)),
                "Error listing nodes for service",
            ),
        };
        let ask = api
            .get(path)
            .maybe("near", &self.near)
            .maybe("filter", &filter);
        let nodes = with_meta(ask, &self.node_meta)
            .value()
            .await
            .context(what)?;
        let nodes = nodes.as_array().map_or(&[][..], Vec::as_slice);
        if nodes.is_empty() {
            warn("No nodes match the given query - try expanding your search.");
            return Ok(());
        }
        line(&nodes_table(nodes, self.detailed))
    }
}

fn nodes_table(nodes: &[Value], detailed: bool) -> String {
    let mut rows = vec![["Node", "ID", "Address", "DC"].map(str::to_owned).to_vec()];
    if detailed {
        rows[0].extend(["TaggedAddresses", "Meta"].map(str::to_owned));
    }
    for node in nodes {
        let id = text(node, "ID");
        let short = id.split('-').next().unwrap_or(id);
        let mut row = vec![
            text(node, "Node").to_owned(),
            if detailed { id } else { short }.to_owned(),
            text(node, "Address").to_owned(),
            text(node, "Datacenter").to_owned(),
        ];
        if detailed {
            // Service instances have the metadata of their node in another field.
            let meta = node.get("NodeMeta").unwrap_or(&node["Meta"]);
            row.push(pairs(&node["TaggedAddresses"]).join(", "));
            row.push(pairs(meta).join(", "));
        }
        rows.push(row);
    }
    columns(&rows)
}

impl Services {
    async fn run(self) -> anyhow::Result<()> {
        input::none(&self.api.arguments)?;
        let api = self.api.connect()?;
        let mut services: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let tags = |tags: &[Value]| -> Vec<String> {
            let tags = tags.iter().filter_map(Value::as_str);
            tags.map(str::to_owned).collect()
        };
        if self.node.is_empty() {
            let ask = with_meta(api.get("/v1/catalog/services"), &self.node_meta);
            let found = ask.value().await.context("Error listing services")?;
            for (name, of) in found.as_object().into_iter().flatten() {
                services.insert(name.clone(), tags(of.as_array().map_or(&[], Vec::as_slice)));
            }
        } else {
            let path = format!("/v1/catalog/node/{}", encoded(&self.node));
            let found = with_meta(api.get(path), &self.node_meta).value().await;
            let found = found.context("Error listing services for node")?;
            for instance in found["Services"].as_object().into_iter().flatten() {
                let name = text(instance.1, "Service").to_owned();
                services
                    .entry(name)
                    .or_default()
                    .extend(tags(list(instance.1, "Tags")));
            }
        }
        if services.is_empty() {
            warn("No services match the given query - try expanding your search.");
            return Ok(());
        }
        if !self.tags {
            let names: BTreeSet<&str> = services.keys().map(String::as_str).collect();
            for name in names {
                line(name)?;
            }
            return Ok(());
        }
        let rows: Vec<[String; 2]> = services
            .into_iter()
            .map(|(name, mut tags)| {
                tags.sort();
                [name, tags.join(",")]
            })
            .collect();
        line(tabbed(&rows).trim())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_are_short_unless_all_is_shown() {
        let node = json!({"Node": "n", "ID": "ab-cd", "Address": "a", "Datacenter": "d",
            "TaggedAddresses": {"lan": "a"}, "Meta": {"x": "y"}});
        let nodes = [node];
        assert_eq!(
            nodes_table(&nodes, false),
            "Node  ID  Address  DC\nn     ab  a        d"
        );
        assert!(
            nodes_table(&nodes, true).ends_with("n     ab-cd  a        d   lan=a            x=y")
        );
    }
}
