//! `keygen`: generates a random key of 32 bytes, in base64.

use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;

use crate::output::line;

#[derive(Args)]
pub(crate) struct Options {
    #[arg(hide = true)]
    arguments: Vec<String>,
}

/// Prints a new key.
///
/// # Errors
///
/// If standard output is closed.
pub(crate) fn run(_: &Options) -> anyhow::Result<ExitCode> {
    line(&STANDARD.encode(rand::random::<[u8; 32]>()))?;
    Ok(ExitCode::SUCCESS)
}
