//! `operator`: inspects and manages the servers.

mod autopilot;
mod usage;

use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::not_served;
use crate::output::{columns, line, list, number, quoted, text};
use crate::server_api::ApiOptions;

/// Subcommands of `operator`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Manage the servers that store the state
    #[command(subcommand)]
    Raft(Raft),
    /// Manage Autopilot
    #[command(subcommand)]
    Autopilot(autopilot::Command),
    /// Print usage of the cluster
    #[command(subcommand)]
    Usage(usage::Command),
    /// Not supported: gossip keys
    Keyring(not_served::Anything),
}

#[derive(Subcommand)]
pub(crate) enum Raft {
    /// List the servers
    ListPeers(ListPeers),
    /// Remove a server
    RemovePeer(RemovePeer),
    /// Transfer leadership to another server
    TransferLeader(TransferLeader),
}

#[derive(Args)]
pub(crate) struct ListPeers {
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct RemovePeer {
    /// Address of the server
    #[arg(long, default_value = "")]
    address: String,
    /// Id of the server
    #[arg(long, default_value = "")]
    id: String,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct TransferLeader {
    /// Id of the new leader
    #[arg(long, default_value = "")]
    id: String,
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
        Command::Raft(Raft::ListPeers(options)) => {
            let api = options.api.connect()?;
            let servers = api.get("/v1/operator/raft/configuration").value().await;
            let servers =
                servers.context("Error getting peers: Failed to retrieve raft configuration")?;
            line(&columns(&peers(list(&servers, "Servers"))))?;
        }
        Command::Raft(Raft::RemovePeer(options)) => remove(options).await?,
        Command::Raft(Raft::TransferLeader(options)) => transfer(options).await?,
        Command::Autopilot(command) => return autopilot::run(command).await,
        Command::Usage(command) => usage::run(command).await?,
        Command::Keyring(_) => return not_served::refuse(not_served::KEYRING),
    }
    Ok(ExitCode::SUCCESS)
}

/// The rows of the servers, with their lag behind the leader.
fn peers(servers: &[Value]) -> Vec<[String; 8]> {
    let titles = [
        "Node",
        "ID",
        "Address",
        "State",
        "Voter",
        "RaftProtocol",
        "Commit Index",
        "Trails Leader By",
    ];
    let leads = |server: &&Value| server["Leader"] == true;
    let last = |server: &Value| number(server, "LastIndex");
    let newest = servers.iter().find(leads).map_or(0, last);
    let row = |server: &Value| {
        let leads = leads(&server);
        let behind = match newest.saturating_sub(last(server)) {
            _ if leads => "-".to_owned(),
            1 => "1 commit".to_owned(),
            more => format!("{more} commits"),
        };
        let protocol = match &server["ProtocolVersion"] {
            Value::String(text) if !text.is_empty() => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => "<=1".to_owned(),
        };
        [
            text(server, "Node").to_owned(),
            text(server, "ID").to_owned(),
            text(server, "Address").to_owned(),
            if leads { "leader" } else { "follower" }.to_owned(),
            (server["Voter"] == true).to_string(),
            protocol,
            last(server).to_string(),
            behind,
        ]
    };
    std::iter::once(titles.map(str::to_owned))
        .chain(servers.iter().map(row))
        .collect()
}

async fn remove(options: RemovePeer) -> anyhow::Result<()> {
    let (address, id) = (&options.address, &options.id);
    let removing = "Error removing peer";
    let api = options.api.connect()?;
    ensure!(
        !address.is_empty() || !id.is_empty(),
        "{removing}: an address or id is required for the peer to remove"
    );
    ensure!(
        address.is_empty() || id.is_empty(),
        "{removing}: cannot give both an address and id"
    );
    let ask = api.delete("/v1/operator/raft/peer");
    ask.maybe("address", address)
        .maybe("id", id)
        .ok()
        .await
        .context(removing)?;
    match address.is_empty() {
        false => line(&format!("Removed peer with address {}", quoted(address))),
        true => line(&format!("Removed peer with id {}", quoted(id))),
    }
}

async fn transfer(options: TransferLeader) -> anyhow::Result<()> {
    let failed = "Error transfering leadership: Failed to transfer leadership";
    let api = options.api.connect()?;
    let ask = api
        .post("/v1/operator/raft/transfer-leader")
        .maybe("id", &options.id);
    let done = ask.value().await.context(failed)?;
    ensure!(done["Success"] == true, "{failed}");
    line("Success")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_trail_the_leader() {
        let servers = [
            json!({"Node": "a", "ID": "1", "Address": "x:1", "Leader": true, "Voter": true,
                "ProtocolVersion": "3", "LastIndex": 10}),
            json!({"Node": "b", "ID": "2", "Address": "y:1", "Leader": false, "Voter": true,
                "ProtocolVersion": "3", "LastIndex": 9}),
        ];
        let rows = peers(&servers);
        assert_eq!(rows[1].join("|"), "a|1|x:1|leader|true|3|10|-");
        assert_eq!(rows[2].join("|"), "b|2|y:1|follower|true|3|9|1 commit");
    }
}
