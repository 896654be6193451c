//! `operator autopilot`: configures the management of servers.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use legate_model::duration;
use serde_json::Value;

use crate::input;
use crate::output::{Format, line, list, number, print_json, quoted, text};
use crate::server_api::ApiOptions;

const CONFIGURATION: &str = "/v1/operator/autopilot/configuration";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the configuration
    GetConfig(GetConfig),
    /// Change the configuration
    SetConfig(SetConfig),
    /// Print the state of the servers
    State(State),
}

#[derive(Args)]
pub(crate) struct GetConfig {
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct SetConfig {
    /// Remove failed servers when a new one joins
    #[arg(long, value_parser = truth, value_name = "BOOL")]
    cleanup_dead_servers: Option<bool>,
    /// Maximum log entries a healthy server may lag behind
    #[arg(long, value_name = "NUMBER")]
    max_trailing_logs: Option<u64>,
    /// Minimum number of servers
    #[arg(long, value_name = "NUMBER")]
    min_quorum: Option<u64>,
    /// Maximum time since a healthy server's last contact with the leader
    #[arg(long, value_parser = input::duration, value_name = "DURATION")]
    last_contact_threshold: Option<Duration>,
    /// Time a new server must be healthy before it becomes a voter
    #[arg(long, value_parser = input::duration, value_name = "DURATION")]
    server_stabilization_time: Option<Duration>,
    /// Node metadata key of the redundancy zone
    #[arg(long, value_name = "KEY")]
    redundancy_zone_tag: Option<String>,
    /// Disable migration to servers of a newer version
    #[arg(long, value_parser = truth, value_name = "BOOL")]
    disable_upgrade_migration: Option<bool>,
    /// Node metadata key of the version
    #[arg(long, value_name = "KEY")]
    upgrade_version_tag: Option<String>,
    #[command(flatten)]
    api: ApiOptions,
}

fn truth(text: &str) -> Result<bool, String> {
    let value = crate::go_flags::boolean(text);
    value.ok_or_else(|| format!("{text:?} is neither true nor false"))
}

#[derive(Args)]
pub(crate) struct State {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    #[command(flatten)]
    api: ApiOptions,
}

pub(super) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::GetConfig(options) => {
            let config = options.api.connect()?.get(CONFIGURATION).value().await;
            let config = config.context("Error querying Autopilot configuration")?;
            line(&shown_config(&config))?;
        }
        Command::SetConfig(options) => return options.run().await,
        Command::State(options) => {
            let api = options.api.connect()?;
            let state = api.get("/v1/operator/autopilot/state").value().await;
            let state = state.context("Error querying Autopilot state")?;
            match options.format {
                Format::Json => print_json(&state)?,
                Format::Pretty => line(&shown(&state))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl SetConfig {
    async fn run(self) -> anyhow::Result<ExitCode> {
        let api = self.api.connect()?;
        let config = api.get(CONFIGURATION).value().await;
        let mut config = config.context("Error querying Autopilot configuration")?;
        let time = |time: Option<Duration>| time.map(duration::format).map(Value::from);
        for (field, value) in [
            (
                "CleanupDeadServers",
                self.cleanup_dead_servers.map(Value::from),
            ),
            ("MaxTrailingLogs", self.max_trailing_logs.map(Value::from)),
            ("MinQuorum", self.min_quorum.map(Value::from)),
            ("LastContactThreshold", time(self.last_contact_threshold)),
            (
                "ServerStabilizationTime",
                time(self.server_stabilization_time),
            ),
            (
                "RedundancyZoneTag",
                self.redundancy_zone_tag.map(Value::from),
            ),
            (
                "DisableUpgradeMigration",
                self.disable_upgrade_migration.map(Value::from),
            ),
            (
                "UpgradeVersionTag",
                self.upgrade_version_tag.map(Value::from),
            ),
        ] {
            if let Some(value) = value {
                config[field] = value;
            }
        }
        let index = number(&config, "ModifyIndex").to_string();
        let done = api
            .put(CONFIGURATION)
            .query("cas", index)
            .json(&config)
            .value()
            .await;
        if done.context("Error setting Autopilot configuration")? == true {
            line("Configuration updated!")?;
            return Ok(ExitCode::SUCCESS);
        }
        line("Configuration could not be atomically updated, please try again")?;
        Ok(ExitCode::FAILURE)
    }
}

fn shown_config(config: &Value) -> String {
    let field = |name: &str| {
        let value = match (&config[name], name) {
            (Value::String(text), "RedundancyZoneTag" | "UpgradeVersionTag") => quoted(text),
            (Value::String(text), _) => text.clone(),
            (Value::Null, "RedundancyZoneTag" | "UpgradeVersionTag") => "\"\"".to_owned(),
            (Value::Null, "DisableUpgradeMigration" | "CleanupDeadServers") => "false".to_owned(),
            (Value::Null, _) => "0".to_owned(),
            (other, _) => other.to_string(),
        };
        format!("{name} = {value}")
    };
    let fields = [
        "CleanupDeadServers",
        "LastContactThreshold",
        "MaxTrailingLogs",
        "MinQuorum",
        "ServerStabilizationTime",
        "RedundancyZoneTag",
        "DisableUpgradeMigration",
        "UpgradeVersionTag",
    ];
    fields.map(field).join("\n")
}

/// Formats the state of the servers.
fn shown(state: &Value) -> String {
    let mut out = String::new();
    let mut add = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    add(format!(
        "Healthy:                      {}",
        state["Healthy"]
    ));
    add(format!(
        "Failure Tolerance:            {}",
        number(state, "FailureTolerance")
    ));
    add(format!(
        "Optimistic Failure Tolerance: {}",
        number(state, "OptimisticFailureTolerance")
    ));
    add(format!(
        "Leader:                       {}",
        text(state, "Leader")
    ));
    for (title, field) in [("Voters:", "Voters"), ("Read Replicas:", "ReadReplicas")] {
        let ids = list(state, field);
        if !ids.is_empty() || field == "Voters" {
            add(title.to_owned());
        }
        for id in ids {
            add(format!("   {}", id.as_str().unwrap_or_default()));
        }
    }
    add("Servers:".to_owned());
    for (_, server) in state["Servers"].as_object().into_iter().flatten() {
        add(format!("   {}", text(server, "ID")));
        for (title, field) in [
            ("Name:", "Name"),
            ("Address:", "Address"),
            ("Version:", "Version"),
            ("Status:", "Status"),
            ("Node Type:", "NodeType"),
            ("Node Status:", "NodeStatus"),
            ("Healthy:", "Healthy"),
            ("Last Contact:", "LastContact"),
            ("Last Term:", "LastTerm"),
            ("Last Index:", "LastIndex"),
        ] {
            let value = match &server[field] {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            add(format!("      {title:17}{value}"));
        }
        let meta = server["Meta"].as_object();
        for (i, (key, value)) in meta.into_iter().flatten().enumerate() {
            if i == 0 {
                add("      Meta".to_owned());
            }
            add(format!("         {}: {value}", quoted(key)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_configuration_is_shown_line_by_line() {
        let config = json!({"CleanupDeadServers": true, "LastContactThreshold": "200ms",
            "MaxTrailingLogs": 250, "MinQuorum": 0, "ServerStabilizationTime": "10s",
            "RedundancyZoneTag": "", "DisableUpgradeMigration": false});
        assert_eq!(
            shown_config(&config),
            "CleanupDeadServers = true\nLastContactThreshold = 200ms\nMaxTrailingLogs = 250\n\
             MinQuorum = 0\nServerStabilizationTime = 10s\nRedundancyZoneTag = \"\"\n\
             DisableUpgradeMigration = false\nUpgradeVersionTag = \"\""
        );
    }
}
