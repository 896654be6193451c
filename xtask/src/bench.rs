//! `cargo xtask bench`: measures the dataplane and the server in one run with the originals, and a mesh in a
//! cluster.
//!
//! Nothing here asserts times; the printed results are those of this machine.

use clap::Args;

use crate::workspace::{self, Workspace};
use crate::{envoy, kind};

/// Options of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// Number of starts of each sidecar
    #[arg(long, default_value_t = 10)]
    starts: u32,
    /// Number of runs of each health probe
    #[arg(long, default_value_t = 50)]
    probes: u32,
    /// Number of updates for each relay, in thousands
    #[arg(long, default_value_t = 5)]
    updates: u32,
    /// Number of times an Envoy is killed
    #[arg(long, default_value_t = 30)]
    kills: u32,
    /// Number of times each failure of a server is measured
    #[arg(long, default_value_t = 20)]
    failures: u32,
    /// One part: start (with memory and probe), relay, metrics, restart or hostile of the dataplane, l4 (the built-in
    /// proxy and Envoy), or server, gateways, federation (proxies that use services of another datacenter), peering
    /// (services of a peered cluster), store, api, etcd; default: all of these. Or failover, as root. Or kubernetes or
    /// gateway-api, with the requirements of `cargo xtask kind`
    #[arg(long, value_parser = [
        "start", "relay", "metrics", "restart", "hostile", "l4", "server", "gateways", "federation", "peering", "store",
        "api", "etcd", "failover", "kubernetes", "gateway-api",
    ])]
    only: Option<String>,
    /// Fewer and shorter turns, in the part l4, with programs that are not optimised: shows that it works
    #[arg(long)]
    quick: bool,
    /// Let each proxy take over from the other one so many times, and measure nothing else, in the part l4
    #[arg(long)]
    hand_overs: Option<u32>,
    /// Profile of the measured dataplane; `quick-release` builds faster and uses more memory
    #[arg(long, default_value = "sidecar")]
    profile: String,
    /// Numbers of proxies connected to each server, one table for each; default: 1000,2000,10000, and 1000 in the
    /// part federation. In the part peering, numbers of exported services; default: 2000
    #[arg(long)]
    proxies: Option<String>,
    /// Deadline in seconds for a server to configure, or import, all of them
    #[arg(long, default_value_t = 300)]
    limit: u32,
    /// Number of restarts of a server under full load, in the part etcd
    #[arg(long, default_value_t = 100)]
    etcd_restarts: u32,
    /// Number of times the server that commits is killed, in the part etcd
    #[arg(long, default_value_t = 50)]
    etcd_kills: u32,
    /// The same while one server is cut off from etcd
    #[arg(long, default_value_t = 50)]
    etcd_kills_cut_off: u32,
    /// Number of simulated pods in the cluster
    #[arg(long, default_value_t = 1000)]
    pods: u32,
}

/// The build profile of benchmarks, and of the servers in those of the store and the API.
const PROFILE: [&str; 3] = ["--profile", "quick-release", "--locked"];

/// Builds optimised binaries and measures them together with the originals, if available.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let only = options.only.as_deref();
    if only == Some("kubernetes") {
        let pods = options.pods.to_string();
        let arguments = ["--simulated-pods".to_owned(), pods];
        return kind::bench(workspace, PROFILE[1], &arguments);
    }
    if only == Some("gateway-api") {
        return kind::bench(workspace, PROFILE[1], &[kind::GATEWAYS.to_owned()]);
    }
    if only == Some("failover") {
        return failover(workspace, options);
    }
    if !matches!(
        only,
        Some("l4" | "server" | "gateways" | "federation" | "peering" | "store" | "api" | "etcd")
    ) {
        sidecar(workspace, options)?;
    }
    if matches!(only, None | Some("relay")) {
        let mut relay = workspace.cargo(&["bench", "-p", "legate-dataplane", "--bench", "relay"]);
        workspace::run(relay.args(PROFILE))?;
    }
    if matches!(only, None | Some("l4")) {
        l4(workspace, options)?;
    }
    if matches!(only, None | Some("server")) {
        server(workspace, options)?;
    }
    if matches!(only, None | Some("gateways")) {
        whole_servers(workspace, "server", &["--gateways"])?;
    }
    for part in ["federation", "peering"] {
        if only.is_none_or(|only| only == part) {
            let part = format!("--{part}");
            let arguments = proxies(options);
            let arguments = arguments.iter().map(String::as_str);
            let arguments: Vec<_> = [part.as_str()].into_iter().chain(arguments).collect();
            whole_servers(workspace, "server", &arguments)?;
        }
    }
    if matches!(only, None | Some("store")) {
        whole_servers(workspace, "store", &[])?;
    }
    if matches!(only, None | Some("api")) {
        whole_servers(workspace, "api", &[])?;
    }
    if matches!(only, None | Some("etcd")) {
        let counts = [
            ("--restarts", options.etcd_restarts),
            ("--kills", options.etcd_kills),
            ("--kills-cut-off", options.etcd_kills_cut_off),
        ];
        let counts = counts.map(|(name, count)| [name.to_owned(), count.to_string()]);
        let arguments: Vec<_> = counts.iter().flatten().map(String::as_str).collect();
        whole_servers(workspace, "etcd", &arguments)?;
    }
    Ok(())
}

/// Whole sidecars, compared with `consul-dataplane` from `LEGATE_CONSUL_DATAPLANE` or `PATH`, if available.
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

/// The part l4 with few and short turns, with programs as tests have them: shows that it works.
pub(crate) fn l4_quick(workspace: &Workspace, hand_overs: Option<u32>) -> anyhow::Result<()> {
    workspace.build_programs()?;
    // All packages, so that their features are those of the tests, and nothing is built twice.
    let mut l4 = workspace.cargo(&["bench", "--workspace", "--bench", "l4", "--locked"]);
    l4.args(["--profile", "dev"])
        .env("LEGATE_ENVOY", envoy::get(workspace)?)
        .env("LEGATE_BINARIES", workspace.target.join("debug"))
        .args(["--", "--quick"]);
    if let Some(count) = hand_overs {
        l4.args(["--hand-overs", &count.to_string()]);
    }
    workspace::run(&mut l4)
}

/// Sidecars with the built-in proxy, compared with those with Envoy.
fn l4(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    if options.quick {
        return l4_quick(workspace, options.hand_overs);
    }
    let envoy = envoy::get(workspace)?;
    let mut build = workspace.cargo(&["build", "-p", "legate-dataplane", "--locked"]);
    workspace::run(build.args(["--profile", &options.profile]))?;
    let mut l4 = workspace.cargo(&["bench", "-p", "legate-tests", "--bench", "l4"]);
    l4.args(PROFILE)
        .env("LEGATE_ENVOY", envoy)
        .env("LEGATE_BINARIES", workspace.target.join(&options.profile))
        .arg("--");
    if let Some(count) = options.hand_overs {
        l4.args(["--hand-overs", &count.to_string()]);
    }
    workspace::run(&mut l4)
}

/// Sidecars that lose a server, compared with `consul-dataplane` as above.
fn failover(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let envoy = envoy::get(workspace)?;
    let build = ["build", "-p", "legate-dataplane", "-p", "legate-server"];
    workspace::run(workspace.cargo(&build).args(PROFILE))?;
    let mut failover = workspace.cargo(&["bench", "-p", "legate-tests", "--bench", "failover"]);
    failover
        .args(PROFILE)
        .env("LEGATE_ENVOY", envoy)
        .env("LEGATE_BINARIES", workspace.target.join(PROFILE[1]))
        .args(["--", "--rounds", &options.failures.to_string()]);
    workspace::run(&mut failover)
}

/// `legate-server` with its release profile and simulated proxies, compared with `consul` from `LEGATE_CONSUL`
/// or `PATH`, if available.
fn server(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let build = ["build", "-p", "legate-server", "--release", "--locked"];
    workspace::run(&mut workspace.cargo(&build))?;
    let mut server = workspace.cargo(&["bench", "-p", "legate-tests", "--bench", "server"]);
    server
        .args(PROFILE)
        .env("LEGATE_BINARIES", workspace.target.join("release"))
        .arg("--")
        .args(proxies(options));
    workspace::run(&mut server)
}

/// The arguments about simulated proxies.
fn proxies(options: &Options) -> Vec<String> {
    let limit = ["--limit".to_owned(), options.limit.to_string()];
    let counts = options.proxies.iter();
    let counts = counts.flat_map(|counts| ["--proxies".to_owned(), counts.clone()]);
    limit.into_iter().chain(counts).collect()
}

/// The cost of large gateways, of a server's persistence, or the throughput of its HTTP API, compared with `consul`
/// as above, or several servers with one etcd.
fn whole_servers(workspace: &Workspace, bench: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let mut build = workspace.cargo(&["build", "-p", "legate-server"]);
    workspace::run(build.args(PROFILE))?;
    let mut command = workspace.cargo(&["bench", "-p", "legate-tests", "--bench", bench]);
    command
        .args(PROFILE)
        .env("LEGATE_BINARIES", workspace.target.join("quick-release"))
        .arg("--")
        .args(arguments);
    workspace::run(&mut command)
}
