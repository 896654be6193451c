//! `cargo xtask bench`: figures of the dataplane and the server, measured side by side in one run, and of
//! a mesh in a cluster.
//!
//! Nothing here passes or fails by time; what is printed is what was measured on this machine.

use clap::Args;

use crate::workspace::{self, Workspace};
use crate::{envoy, kind};

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
    /// One part: start (with memory and probe), relay, metrics, restart or hostile of the dataplane,
    /// server, store or api; all of these unless given. Or kubernetes, which needs what `cargo xtask kind`
    /// needs
    #[arg(long, value_parser = [
        "start", "relay", "metrics", "restart", "hostile", "server", "store", "api", "kubernetes",
    ])]
    only: Option<String>,
    /// Profile of the measured dataplane; `quick-release` takes less time to build and more memory
    #[arg(long, default_value = "sidecar")]
    profile: String,
    /// How many proxies are connected to each server, one table each
    #[arg(long, default_value = "1000,2000,10000")]
    proxies: String,
    /// How many seconds a server gets to configure all of them
    #[arg(long, default_value_t = 300)]
    limit: u32,
    /// How many pods are simulated in the cluster
    #[arg(long, default_value_t = 1000)]
    pods: u32,
}

/// What benchmarks are built with, and the servers of those of the store and the API.
const PROFILE: [&str; 3] = ["--profile", "quick-release", "--locked"];

/// Builds optimised binaries and measures them and the originals, where these are at hand.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let only = options.only.as_deref();
    if only == Some("kubernetes") {
        let pods = options.pods.to_string();
        let arguments = ["--simulated-pods".to_owned(), pods];
        return kind::bench(workspace, PROFILE[1], &arguments);
    }
    if !matches!(only, Some("server" | "store" | "api")) {
        sidecar(workspace, options)?;
    }
    if matches!(only, None | Some("relay")) {
        let mut relay = workspace.cargo(&["bench", "-p", "legate-dataplane", "--bench", "relay"]);
        workspace::run(relay.args(PROFILE))?;
    }
    if matches!(only, None | Some("server")) {
        server(workspace, options)?;
    }
    if matches!(only, None | Some("store")) {
        whole_servers(workspace, "store")?;
    }
    if matches!(only, None | Some("api")) {
        whole_servers(workspace, "api")?;
    }
    Ok(())
}

/// Whole sidecars, compared with `consul-dataplane` when `LEGATE_CONSUL_DATAPLANE` names one or it is on
/// `PATH`.
fn sidecar(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let envoy = envoy::get(workspace)?;
    let mut build = workspace.cargo(&["build", "-p", "legate-dataplane", "--locked"]);
    workspace::run(build.args(["--profile", &options.profile]))?;
    let binaries = workspace.target.join(&options.profile);
    let mut sidecar = workspace.cargo(&["bench", "-p", "legate-tests", "--bench", "sidecar"]);
    sidecar
        .args(PROFILE)
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
    workspace::run(&mut sidecar)
}

/// `legate-server`, as it is shipped, with simulated proxies, compared with `consul` when `LEGATE_CONSUL` names
/// one or it is on `PATH`.
fn server(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let build = ["build", "-p", "legate-server", "--release", "--locked"];
    workspace::run(&mut workspace.cargo(&build))?;
    let mut server = workspace.cargo(&["bench", "-p", "legate-tests", "--bench", "server"]);
    server
        .args(PROFILE)
        .env("LEGATE_BINARIES", workspace.target.join("release"))
        .args(["--", "--proxies", &options.proxies])
        .args(["--limit", &options.limit.to_string()]);
    workspace::run(&mut server)
}

/// What keeping state costs a server, or what its HTTP API takes, compared with `consul` as above.
fn whole_servers(workspace: &Workspace, bench: &str) -> anyhow::Result<()> {
    let mut build = workspace.cargo(&["build", "-p", "legate-server"]);
    workspace::run(build.args(PROFILE))?;
    let mut command = workspace.cargo(&["bench", "-p", "legate-tests", "--bench", bench]);
    command
        .args(PROFILE)
        .env("LEGATE_BINARIES", workspace.target.join("quick-release"));
    workspace::run(&mut command)
}
