//! `connect ca`: manages the configuration of the mesh's CA.

use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::input;
use crate::output::{json, line};
use crate::server_api::ApiOptions;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the configuration
    GetConfig(Get),
    /// Replace the configuration
    SetConfig(Set),
}

#[derive(Args)]
pub(crate) struct Get {
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Set {
    /// File with the configuration as JSON
    #[arg(long, default_value = "", value_name = "FILE")]
    config_file: String,
    /// Replace the root even if proxies cannot trust the old and the new one at the same time
    #[arg(long)]
    force_without_cross_signing: bool,
    #[command(flatten)]
    api: ApiOptions,
}

const PATH: &str = "/v1/connect/ca/configuration";

pub(super) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::GetConfig(options) => {
            let config = options.api.connect()?.get(PATH).value().await;
            let mut config = config.context("Error querying CA configuration")?;
            if config["State"].is_null() {
                config["State"] = Value::Null;
            }
            line(&json(&config, "\t"))?;
        }
        Command::SetConfig(options) => {
            let api = options.api.connect()?;
            ensure!(
                !options.config_file.is_empty(),
                "The -config-file flag is required"
            );
            let text = input::file_text(&options.config_file);
            let text = text.context("Error reading config file")?;
            let config = serde_json::from_str(&text);
            let mut config: Value = config.context("Error parsing config file")?;
            ensure!(
                config.is_object(),
                "Error parsing config file: it is not an object"
            );
            config["ForceWithoutCrossSigning"] = options.force_without_cross_signing.into();
            let done = api.put(PATH).json(&config).ok().await;
            done.context("Error setting CA configuration")?;
            line("Configuration updated!")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
