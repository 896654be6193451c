//! `services`: manages registrations with the local agent, and exported services.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use legate_filter::{AnyFields, Filter};
use serde_json::{Map, Value, json};

use crate::input;
use crate::output::{Format, columns, joined, line, list, number, print_json, quoted, text};
use crate::server_api::{ApiFlags, ApiOptions, encoded, encoded_path};

/// Subcommands of `services`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Register services from files, or one from flags
    Register(Box<Register>),
    /// Deregister services from files, or one by id
    Deregister(Deregister),
    /// Export a service to peers or partitions
    Export(Export),
    /// Print exported services
    ExportedServices(Shared),
    /// Print imported services
    ImportedServices(Shared),
}

#[derive(Args)]
pub(crate) struct Register {
    /// Id of the instance [default: the name]
    #[arg(long, default_value = "")]
    id: String,
    /// Name of the service
    #[arg(long, default_value = "")]
    name: String,
    /// Address of the instance
    #[arg(long, default_value = "")]
    address: String,
    /// Port of the instance
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Unix socket of the instance
    #[arg(long, default_value = "", value_name = "PATH")]
    socket: String,
    /// Metadata; may be repeated
    #[arg(long, value_parser = input::pair, value_name = "KEY=VALUE")]
    meta: Vec<(String, String)>,
    /// Tag; may be repeated
    #[arg(long)]
    tag: Vec<String>,
    /// Tagged address; may be repeated
    #[arg(long, value_parser = input::pair, value_name = "NAME=ADDRESS:PORT")]
    tagged_address: Vec<(String, String)>,
    /// Kind, such as connect-proxy
    #[arg(long, default_value = "")]
    kind: String,
    /// One or more FILEs in HCL or JSON
    arguments: Vec<PathBuf>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Deregister {
    /// Id of the instance
    #[arg(long, default_value = "")]
    id: String,
    /// One or more FILEs in HCL or JSON
    arguments: Vec<PathBuf>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Export {
    /// Name of the service
    #[arg(long, default_value = "")]
    name: String,
    /// Consumer peers, separated by commas
    #[arg(long, default_value = "", value_name = "NAMES")]
    consumer_peers: String,
    /// Consumer partitions, separated by commas
    #[arg(long, default_value = "", value_name = "NAMES")]
    consumer_partitions: String,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Shared {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    /// Filter in Consul's filter language
    #[arg(long, default_value = "")]
    filter: String,
    #[command(flatten)]
    api: ApiOptions,
}

/// Runs the command.
///
/// # Errors
///
/// If the command fails; the texts are Consul's.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Register(register) => register.run().await?,
        Command::Deregister(deregister) => deregister.run().await?,
        Command::Export(export) => export.run().await?,
        Command::ExportedServices(shared) => shared.exported().await?,
        Command::ImportedServices(shared) => shared.imported().await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the definitions from files.
fn definitions(files: Vec<PathBuf>) -> anyhow::Result<Vec<Value>> {
    let services = crate::agent::services(files).context("Error")?;
    let values = services.into_iter().map(serde_json::to_value);
    values.collect::<Result<_, _>>().context("Error")
}

impl Register {
    async fn run(self) -> anyhow::Result<()> {
        let files = !self.arguments.is_empty();
        ensure!(
            files || !self.name.is_empty(),
            "Service registration requires at least one argument or flags."
        );
        ensure!(
            !files || self.name.is_empty(),
            "Service registration requires arguments or -id, not both."
        );
        let of_flags = self.definition()?;
        let services = match files {
            true => definitions(self.arguments)?,
            false => vec![of_flags],
        };
        let api = self.api.connect()?;
        for service in services {
            let name = text(&service, "Name");
            let done = api.put("/v1/agent/service/register").json(&service).ok();
            let done = done.await;
            done.with_context(|| format!("Error registering service {}", quoted(name)))?;
            line(&format!("Registered service: {name}"))?;
        }
        Ok(())
    }

    /// The definition from flags.
    fn definition(&self) -> anyhow::Result<Value> {
        let mut addresses = Map::new();
        for (name, address) in &self.tagged_address {
            let parts = address.rsplit_once(':');
            let parts = parts.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
            let (host, port) = parts.with_context(|| {
                format!("Invalid Tagged Address: {address:?} is not ADDRESS:PORT")
            })?;
            let host = host.trim_start_matches('[').trim_end_matches(']');
            addresses.insert(name.clone(), json!({"Address": host, "Port": port}));
        }
        let mut service = json!({
            "Kind": self.kind,
            "ID": self.id,
            "Name": self.name,
            "Address": self.address,
            "Port": self.port,
            "SocketPath": self.socket,
            "Tags": self.tag,
            "Meta": input::object(&self.meta),
            "TaggedAddresses": addresses,
        });
        if let Some(fields) = service.as_object_mut() {
            fields.retain(|_, value| *value != "" && *value != 0 && *value != json!({}));
        }
        Ok(service)
    }
}

impl Deregister {
    async fn run(self) -> anyhow::Result<()> {
        let files = !self.arguments.is_empty();
        ensure!(
            files || !self.id.is_empty(),
            "Service deregistration requires at least one argument or -id."
        );
        ensure!(
            !files || self.id.is_empty(),
            "Service deregistration requires arguments or -id, not both."
        );
        let services = match files {
            true => definitions(self.arguments)?,
            false => vec![json!({"ID": self.id})],
        };
        let api = self.api.connect()?;
        for service in services {
            let name = text(&service, "Name");
            let id = match text(&service, "ID") {
                "" => name,
                id => id,
            };
            if id.is_empty() {
                continue;
            }
            let path = format!("/v1/agent/service/deregister/{}", encoded_path(id));
            let done = api.put(path).ok().await;
            done.with_context(|| format!("Error deregistering service {}", quoted(name)))?;
            line(&format!("Deregistered service: {id}"))?;
        }
        Ok(())
    }
}

/// Parses names separated by commas; empty for an empty text.
fn names(text: &str, what: &str) -> anyhow::Result<Vec<String>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<String> = text.split(',').map(str::to_owned).collect();
    match names.iter().any(String::is_empty) {
        true => bail!("Invalid {what} \"\""),
        false => Ok(names),
    }
}

impl Export {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(!self.name.is_empty(), "Missing the required -name flag");
        ensure!(
            !self.consumer_peers.is_empty() || !self.consumer_partitions.is_empty(),
            "Missing the required -consumer-peers or -consumer-partitions flag"
        );
        let peers = names(&self.consumer_peers, "peer")?;
        let partitions = names(&self.consumer_partitions, "partition")?;
        let api = self.api.connect()?;
        let entry = api.parameter("partition").unwrap_or("default").to_owned();
        let path = format!("/v1/config/exported-services/{}", encoded(&entry));
        let existing = api.get(path).found().await;
        let existing = existing.context("Error reading config entry exported-services/default")?;
        let mut written = existing
            .unwrap_or_else(|| json!({"Kind": "exported-services", "Name": entry, "Services": []}));
        let namespace = api.parameter("ns").unwrap_or_default().to_owned();
        add(&mut written, &self.name, &namespace, &peers, &partitions);
        let index = number(&written, "ModifyIndex").to_string();
        let done = api
            .put("/v1/config")
            .query("cas", index)
            .json(&written)
            .value();
        let done = done.await.context("Error writing config entry")?;
        ensure!(
            done == true,
            "Config entry was changed during update. Please try again"
        );
        let service = quoted(&self.name);
        let mut to = Vec::new();
        if !peers.is_empty() {
            to.push(format!("to cluster peers {}", quoted(&self.consumer_peers)));
        }
        if !partitions.is_empty() {
            to.push(format!(
                "to partitions {}",
                quoted(&self.consumer_partitions)
            ));
        }
        line(&format!(
            "Successfully exported service {service} {}",
            to.join(" and ")
        ))
    }
}

/// Adds missing consumers of a service.
fn add(entry: &mut Value, name: &str, namespace: &str, peers: &[String], partitions: &[String]) {
    if !entry["Services"].is_array() {
        entry["Services"] = json!([]);
    }
    let Some(services) = entry["Services"].as_array_mut() else {
        return;
    };
    let same =
        |service: &Value| text(service, "Name") == name && text(service, "Namespace") == namespace;
    let at = services.iter().position(same).unwrap_or_else(|| {
        let mut service = json!({"Name": name, "Consumers": []});
        if !namespace.is_empty() {
            service["Namespace"] = namespace.into();
        }
        services.push(service);
        services.len() - 1
    });
    let mut consumers = list(&services[at], "Consumers").to_vec();
    for (field, wanted) in [("Peer", peers), ("Partition", partitions)] {
        for one in wanted {
            if !consumers.iter().any(|known| known[field] == one.as_str()) {
                consumers.push(json!({field: one}));
            }
        }
    }
    services[at]["Consumers"] = consumers.into();
}

impl Shared {
    async fn exported(self) -> anyhow::Result<()> {
        let services = self.services("exported").await?;
        let Some(services) = services else {
            return Ok(());
        };
        let tenants = services
            .iter()
            .any(|one| !text(one, "Partition").is_empty());
        let mut rows = vec![match tenants {
            true => vec![
                "Service",
                "Partition",
                "Namespace",
                "Consumer Peers",
                "Consumer Partitions",
            ],
            false => vec!["Service", "Consumer Peers"],
        }];
        let consumers: Vec<[String; 2]> = services
            .iter()
            .map(|one| {
                let of = &one["Consumers"];
                [joined(of, "Peers", ", "), joined(of, "Partitions", ", ")]
            })
            .collect();
        for (service, [peers, partitions]) in services.iter().zip(&consumers) {
            let name = text(service, "Service");
            rows.push(match tenants {
                true => vec![
                    name,
                    text(service, "Partition"),
                    text(service, "Namespace"),
                    peers,
                    partitions,
                ],
                false => vec![name, peers],
            });
        }
        line(&columns(&rows))
    }

    async fn imported(self) -> anyhow::Result<()> {
        let services = self.services("imported").await?;
        let Some(services) = services else {
            return Ok(());
        };
        let fields = [
            "Service",
            "Partition",
            "Namespace",
            "SourcePeer",
            "SourcePartition",
        ];
        let titles = [
            "Service",
            "Partition",
            "Namespace",
            "Source Peer",
            "Source Partition",
        ];
        let mut rows = vec![titles.to_vec()];
        rows.extend(
            services
                .iter()
                .map(|one| fields.map(|field| text(one, field)).to_vec()),
        );
        line(&columns(&rows))
    }

    /// Prints the list as JSON and returns `None`, or returns it for a table; `None` if it is
    /// empty.
    async fn services(&self, what: &str) -> anyhow::Result<Option<Vec<Value>>> {
        let api = self.api.connect()?;
        let ask = api
            .get(format!("/v1/{what}-services"))
            .maybe("filter", &self.filter);
        let services = ask.value().await;
        let services = services.with_context(|| format!("Error reading {what} services"))?;
        let mut services: Vec<Value> = services.as_array().cloned().unwrap_or_default();
        // Not every server filters this list.
        let filter = Filter::parse(&self.filter, &AnyFields);
        let filter = filter.context("Error while creating filter")?;
        services.retain(|service| filter.matches(service));
        if services.is_empty() {
            line(&format!("No {what} services found"))?;
            return Ok(None);
        }
        if self.format == Format::Json {
            print_json(&services.into())?;
            return Ok(None);
        }
        Ok(Some(services))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_are_added_once() {
        let mut entry = json!({"Name": "default"});
        let of = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        add(&mut entry, "web", "", &of(&["a"]), &[]);
        add(&mut entry, "web", "", &of(&["a", "b"]), &of(&["p"]));
        assert_eq!(
            entry["Services"],
            json!([{"Name": "web",
                "Consumers": [{"Peer": "a"}, {"Peer": "b"}, {"Partition": "p"}]}])
        );
    }
}
