//! `validate`: checks an agent's configuration files.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;

use crate::output::line;

#[derive(Args)]
pub(crate) struct Options {
    /// Language of the files, hcl or json; always detected automatically
    #[arg(long, default_value = "", value_name = "FORMAT")]
    config_format: String,
    /// Print nothing if the configuration is valid
    #[arg(long)]
    quiet: bool,
    /// One or more FILEs or DIRECTORIES
    arguments: Vec<PathBuf>,
}

/// Prints whether the configuration is valid.
///
/// # Errors
///
/// Names the file and the key that are invalid.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    ensure!(
        !options.arguments.is_empty(),
        "Must specify at least one config file or directory"
    );
    ensure!(
        matches!(options.config_format.as_str(), "" | "hcl" | "json"),
        "-config-format must be either 'hcl' or 'json"
    );
    let valid = crate::agent::validate(options.arguments).await;
    valid.context("Config validation failed")?;
    if !options.quiet {
        line("Configuration is valid!")?;
    }
    Ok(ExitCode::SUCCESS)
}
