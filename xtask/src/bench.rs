//! `cargo xtask bench`: figures of the dataplane, measured side by side in one run.
//!
//! Nothing here passes or fails by time; what is printed is what was measured on this machine.

use clap::Args;

use crate::envoy;
use crate::workspace::{self, Workspace};

/// What to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// How often a sidecar is started
    #[arg(long, default_value_t = 10)]
    starts: u32,
}

/// Builds optimised binaries, then runs the sidecar measurement and the relay benchmark.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let envoy = envoy::get(workspace)?;
    let profile = ["--profile", "quick-release", "--locked"];
    workspace::run(
        workspace
            .cargo(&["build", "-p", "legate-dataplane"])
            .args(profile),
    )?;
    let binaries = workspace.target.join("quick-release");
    let mut sidecar = workspace.cargo(&["bench", "-p", "legate-tests", "--bench", "sidecar"]);
    sidecar
        .args(profile)
        .env("LEGATE_ENVOY", envoy)
        .env("LEGATE_BINARIES", binaries);
    sidecar.args(["--", "--starts", &options.starts.to_string()]);
    workspace::run(&mut sidecar)?;
    let mut relay = workspace.cargo(&["bench", "-p", "legate-dataplane", "--bench", "relay"]);
    workspace::run(relay.args(profile))
}
