//! `peering`: manages connections to other clusters.

use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::input;
use crate::output::{Format, columns, go_time, line, list, number, pairs, text};
use crate::server_api::{Api, ApiOptions, encoded};

/// Subcommands of `peering`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Generate a token for another cluster to connect to this one
    GenerateToken(Generate),
    /// Connect to another cluster with a token from there
    Establish(Establish),
    /// Print all peerings
    List(List),
    /// Print a peering
    Read(Named),
    /// Delete a peering
    Delete(Named),
    /// Print the services exported to a peer
    ExportedServices(Named),
}

#[derive(Args)]
pub(crate) struct Generate {
    /// Local name of the peer
    #[arg(long, default_value = "")]
    name: String,
    /// Metadata; may be repeated
    #[arg(long, value_parser = input::pair, value_name = "KEY=VALUE")]
    meta: Vec<(String, String)>,
    /// Addresses of this cluster's servers for the peer, separated by commas
    #[arg(long, default_value = "", value_name = "HOST:PORT,…")]
    server_external_addresses: String,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Establish {
    /// Local name of the peer
    #[arg(long, default_value = "")]
    name: String,
    /// The token
    #[arg(long, default_value = "", value_name = "TOKEN")]
    peering_token: String,
    /// Metadata; may be repeated
    #[arg(long, value_parser = input::pair, value_name = "KEY=VALUE")]
    meta: Vec<(String, String)>,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct List {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Named {
    /// Local name of the peer
    #[arg(long, default_value = "")]
    name: String,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
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
        Command::GenerateToken(options) => options.run().await?,
        Command::Establish(options) => options.run().await?,
        Command::List(options) => options.run().await?,
        Command::Read(options) => {
            let peering = options.read().await?;
            match options.format {
                Format::Json => line(&peering.to_string())?,
                Format::Pretty => line(&shown(&peering))?,
            }
        }
        Command::Delete(options) => {
            let name = options.checked_name()?;
            let api = options.api.connect()?;
            let deleted = api.delete(path(name)).ok().await;
            deleted.with_context(|| format!("Error deleting peering for {name}"))?;
            line(&format!(
                "Successfully submitted peering connection, {name}, for deletion"
            ))?;
        }
        Command::ExportedServices(options) => {
            let peering = options.read().await?;
            let services = list(&peering["StreamStatus"], "ExportedServices");
            let names: Vec<&str> = services.iter().filter_map(Value::as_str).collect();
            match options.format {
                Format::Json => {
                    let services: Value = names.iter().map(|name| json!({"ID": name})).collect();
                    line(&services.to_string())?;
                }
                Format::Pretty => line(&names.join("\n"))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn path(name: &str) -> String {
    format!("/v1/peering/{}", encoded(name))
}

/// Adds the tenant and the metadata to a request.
fn complete(body: &mut Value, api: &Api, meta: &[(String, String)]) {
    if let Some(partition) = api.parameter("partition") {
        body["Partition"] = partition.into();
    }
    if !meta.is_empty() {
        body["Meta"] = input::object(meta);
    }
}

impl Generate {
    async fn run(self) -> anyhow::Result<()> {
        let name = &self.name;
        ensure!(!name.is_empty(), "Missing the required -name flag");
        let api = self.api.connect()?;
        let mut body = json!({"PeerName": name});
        complete(&mut body, &api, &self.meta);
        if !self.server_external_addresses.is_empty() {
            let addresses = self.server_external_addresses.split(',');
            body["ServerExternalAddresses"] = addresses.collect();
        }
        let made = api.post("/v1/peering/token").json(&body).value().await;
        let made = made.with_context(|| format!("Error generating peering token for {name}"))?;
        match self.format {
            Format::Json => line(&made.to_string()),
            Format::Pretty => line(text(&made, "PeeringToken")),
        }
    }
}

impl Establish {
    async fn run(self) -> anyhow::Result<()> {
        let name = &self.name;
        ensure!(!name.is_empty(), "Missing the required -name flag");
        ensure!(
            !self.peering_token.is_empty(),
            "Missing the required -peering-token flag"
        );
        let api = self.api.connect()?;
        let mut body = json!({"PeerName": name, "PeeringToken": self.peering_token});
        complete(&mut body, &api, &self.meta);
        let done = api.post("/v1/peering/establish").json(&body).ok().await;
        done.with_context(|| format!("Error establishing peering for {name}"))?;
        line(&format!(
            "Successfully established peering connection with {name}"
        ))
    }
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        let peerings = self.api.connect()?.get("/v1/peerings").value().await;
        let peerings = peerings.context("Error listing peerings")?;
        let mut peerings: Vec<Value> = peerings.as_array().cloned().unwrap_or_default();
        peerings.sort_by_key(|peering| text(peering, "Name").to_owned());
        if self.format == Format::Json {
            return line(&Value::from(peerings).to_string());
        }
        if peerings.is_empty() {
            return line("There are no peering connections.");
        }
        let titles = ["Name", "State", "Imported Svcs", "Exported Svcs", "Meta"];
        let mut rows = vec![titles.map(str::to_owned)];
        for peering in &peerings {
            let status = &peering["StreamStatus"];
            rows.push([
                text(peering, "Name").to_owned(),
                text(peering, "State").to_owned(),
                list(status, "ImportedServices").len().to_string(),
                list(status, "ExportedServices").len().to_string(),
                pairs(&peering["Meta"]).join(","),
            ]);
        }
        line(&columns(&rows))
    }
}

impl Named {
    fn checked_name(&self) -> anyhow::Result<&str> {
        ensure!(!self.name.is_empty(), "Missing the required -name flag");
        Ok(&self.name)
    }

    async fn read(&self) -> anyhow::Result<Value> {
        let name = self.checked_name()?;
        let found = self.api.connect()?.get(path(name)).found().await;
        let found = found.context("Error reading peering")?;
        found.with_context(|| format!("No peering with name {name} found."))
    }
}

/// Formats a peering.
fn shown(peering: &Value) -> String {
    let mut out = String::new();
    let mut add = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    let of = |field: &str| text(peering, field);
    add(format!("Name:         {}", of("Name")));
    add(format!("ID:           {}", of("ID")));
    for (title, field) in [
        ("Partition:    ", "Partition"),
        ("DeletedAt:    ", "DeletedAt"),
    ] {
        if !of(field).is_empty() {
            add(format!("{title}{}", of(field)));
        }
    }
    add(format!("State:        {}", of("State")));
    // Consul's servers give no reason.
    if !of("StateReason").is_empty() {
        add(format!("Reason:       {}", of("StateReason")));
    }
    let meta = pairs(&peering["Meta"]);
    if !meta.is_empty() {
        add("Meta:".to_owned());
    }
    for pair in meta {
        add(format!("    {pair}"));
    }
    add(format!("\nPeer ID:               {}", of("PeerID")));
    add(format!("Peer Server Name:      {}", of("PeerServerName")));
    let authorities = list(peering, "PeerCAPems").len();
    add(format!("Peer CA Pems:          {authorities}"));
    let addresses = list(peering, "PeerServerAddresses");
    if !addresses.is_empty() {
        add("Peer Server Addresses:".to_owned());
    }
    for address in addresses {
        add(format!("    {}", address.as_str().unwrap_or_default()));
    }
    let status = &peering["StreamStatus"];
    let count = |field: &str| list(status, field).len();
    add(format!(
        "\nImported Services: {}",
        count("ImportedServices")
    ));
    add(format!("Exported Services: {}", count("ExportedServices")));
    let time = |field: &str| match text(status, field) {
        "" => "<nil>".to_owned(),
        time => go_time(time),
    };
    add(format!("\nLast Heartbeat:    {}", time("LastHeartbeat")));
    add(format!("Last Send:         {}", time("LastSend")));
    add(format!("Last Receive:      {}", time("LastReceive")));
    add(format!(
        "\nCreate Index: {}",
        number(peering, "CreateIndex")
    ));
    add(format!("Modify Index: {}", number(peering, "ModifyIndex")));
    out
}
