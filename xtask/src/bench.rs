//! `cargo xtask bench`: figures of the dataplane, measured side by side in one run.
//!
//! Nothing here passes or fails by time; what is printed is what was measured on this machine.

use clap::Args;

use crate::envoy;
use crate::workspace::{self, Workspace};

/// What to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// How often each sidecar is started
    #[arg(long, default_value_t = 10)]
    starts: u32,
    /// How often each health probe is run
    #[arg(long, default_value_t = 50)]
    probes: u32,
    /// How many updates each relay gets, in thousands
    #[arg(long, default_value_t = 5)]
    updates: u32,
    /// How often an Envoy is killed
    #[arg(long, default_value_t = 30)]
    kills: u32,
    /// One part: start (with memory and probe), relay, metrics, restart, hostile or store; all unless
    /// given
    #[arg(long, value_parser = ["start", "relay", "metrics", "restart", "hostile", "store"])]
    only: Option<String>,
    /// Profile of the measured dataplane; `quick-release` takes less time to build and more memory
    #[arg(long, default_value = "sidecar")]
    profile: String,
}

/// Builds optimised binaries, then measures whole sidecars (beside `consul-dataplane` when
/// `LEGATE_CONSUL_DATAPLANE` names one or it is on `PATH`) and runs the relay benchmark.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    if options.only.as_deref() == Some("store") {
        return store(workspace, options);
    }
    let envoy = envoy::get(workspace)?;
    let mut build = workspace.cargo(&["build", "-p", "legate-dataplane", "--locked"]);
    workspace::run(build.args(["--profile", &options.profile]))?;
    let binaries = workspace.target.join(&options.profile);
    let profile = ["--profile", "quick-release", "--locked"];
    let mut sidecar = workspace.cargo(&["bench", "-p", "legate-tests", "--bench", "sidecar"]);
    sidecar
        .args(profile)
        .env("LEGATE_ENVOY", envoy)
        .env("LEGATE_BINARIES", binaries)
        .arg("--");
    for (name, count) in [
        ("--starts", options.starts),
        ("--probes", options.probes),
        ("--updates", options.updates),
        ("--kills", options.kills),
    ] {
        sidecar.args([name, &count.to_string()]);
    }
    if let Some(only) = &options.only {
        sidecar.args(["--only", only]);
    }
    workspace::run(&mut sidecar)?;
    if !matches!(options.only.as_deref(), None | Some("relay")) {
        return Ok(());
    }
    let mut relay = workspace.cargo(&["bench", "-p", "legate-dataplane", "--bench", "relay"]);
    workspace::run(relay.args(profile))?;
    match options.only {
        Some(_) => Ok(()),
        None => store(workspace, options),
    }
}

/// What keeping state costs a server, beside Consul when `LEGATE_CONSUL` names it or it is on `PATH`.
fn store(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let mut build = workspace.cargo(&["build", "-p", "legate-server", "--locked"]);
    workspace::run(build.args(["--profile", &options.profile]))?;
    let binaries = workspace.target.join(&options.profile);
    let mut store = workspace.cargo(&["bench", "-p", "legate-tests", "--bench", "store"]);
    store
        .args(["--profile", "quick-release", "--locked"])
        .env("LEGATE_BINARIES", binaries);
    workspace::run(&mut store)
}
