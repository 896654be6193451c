//! `cargo xtask demo`: finds an Envoy, builds, and executes `legate dev`.

use clap::Args;

use crate::envoy;
use crate::workspace::Workspace;

/// Options of `cargo xtask demo`.
#[derive(Args)]
pub(crate) struct Options {
    /// Exit after the verification: exit status 0, or the reason of the failure
    #[arg(long)]
    once: bool,
}

/// Builds the binaries and runs the mesh in the foreground.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let envoy = envoy::get(workspace)?;
    // The same build as that of the tests, which a contributor runs next.
    workspace.build_programs()?;
    let binaries = workspace.target.join("debug");
    let mut command = std::process::Command::new(binaries.join("legate"));
    command
        .arg("dev")
        .arg("--envoy")
        .arg(envoy)
        .arg("--dataplane")
        .arg(binaries.join("legate-dataplane"));
    if options.once {
        command.arg("--once");
    }
    exec(&mut command)
}

/// Replaces this process, so that Ctrl-C and the exit status are those of the demo.
fn exec(command: &mut std::process::Command) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt;
    Err(anyhow::Error::new(command.exec()).context("cannot start legate dev"))
}
