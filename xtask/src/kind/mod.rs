//! `cargo xtask kind`: the scenarios of `tests/kind` in a real cluster.
//!
//! The cluster is that of `KUBECONFIG`; or one created by kind, if docker and kind are installed; or a
//! single node of the real components, started here ([`node`]). This module selects the cluster, loads
//! the images, runs the scenarios and reports the duration of each part. The scenarios are in
//! `tests/kind`.

mod archive;
mod cache;
mod certificates;
mod cgroups;
mod gateway_api;
mod image;
mod layer;
mod node;
mod programs;
#[path = "../../../tests/kind/src/retry.rs"]
mod retry;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::ensure;
use clap::{Args, Subcommand};

use crate::images::IMAGES;
use crate::workspace::{self, Workspace};
use cache::Cache;
use node::{Lifetime, Node};

/// The name of kind's cluster.
const KIND_NAME: &str = "legate";

/// Options of `cargo xtask kind`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Action>,
    /// Leave the cluster running; `cargo xtask kind down` stops it
    #[arg(long, global = true)]
    keep: bool,
    /// Run the scenarios whose name contains this text; may be repeated
    #[arg(long, value_name = "NAME")]
    filter: Vec<String>,
}

#[derive(Subcommand)]
enum Action {
    /// Start a cluster with the images for experiments, and leave it running
    Up,
    /// Stop the cluster and remove all its remains on this machine
    Down,
    /// Build the programs of the cluster, if they are not in the cache
    Programs,
    /// Run the conformance suite of the Gateway API on a node that is started here, and write its reports
    GatewayApi(gateway_api::Options),
}

/// Runs the scenarios, or the given action.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let suite = match &options.command {
        Some(Action::Down) => return down(workspace),
        Some(Action::Programs) => {
            return programs::get(workspace, &Cache::find()?).map(|_| ());
        }
        Some(Action::GatewayApi(suite)) => Some(suite),
        Some(Action::Up) | None => None,
    };
    let mut times = Times::default();
    let kind = match suite {
        Some(_) => Kind::own_node(workspace)?,
        None => Kind::choose(workspace)?,
    };
    let stays = options.keep || matches!(options.command, Some(Action::Up));
    let lifetime = if stays {
        Lifetime::UntilDown
    } else {
        Lifetime::WithThisProcess
    };
    let outcome = match suite {
        Some(suite) => gateway_api::run(workspace, suite, &kind, lifetime, &mut times),
        None => scenarios(workspace, options, &kind, lifetime, &mut times),
    };
    let ended = if stays && outcome.is_ok() {
        println!("\nthe cluster is up: {}", kind.how_to_use());
        Ok(())
    } else if options.keep {
        println!(
            "\nthe cluster is kept for inspection: {}",
            kind.how_to_use()
        );
        Ok(())
    } else {
        times.measure("down", || kind.down())
    };
    println!("\n{}", times.0.join("\n"));
    outcome.and(ended)
}

/// The helm built with the programs of a cluster.
pub(crate) fn helm(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    Ok(programs::get(workspace, &Cache::find()?)?.join("helm"))
}

/// Every scenario, and no cluster afterwards.
pub(crate) fn all(workspace: &Workspace) -> anyhow::Result<()> {
    let options = Options {
        command: None,
        keep: false,
        filter: Vec::new(),
    };
    run(workspace, &options)
}

/// The argument of `legate-kind bench` that needs the definitions of the Gateway API.
pub(crate) const GATEWAYS: &str = "--gateways";

/// Runs `legate-kind bench` in a new cluster, or in that of `KUBECONFIG`, with programs of this
/// profile.
pub(crate) fn bench(
    workspace: &Workspace,
    profile: &str,
    arguments: &[String],
) -> anyhow::Result<()> {
    let kind = Kind::choose(workspace)?;
    let outcome = measure(workspace, &kind, profile, arguments);
    outcome.and(kind.down())
}

fn measure(
    workspace: &Workspace,
    kind: &Kind,
    profile: &str,
    arguments: &[String],
) -> anyhow::Result<()> {
    let mut build = workspace.cargo(&["build", "--bins", "--locked", "--profile", profile]);
    for image in IMAGES {
        build.args(["-p", image.package]);
    }
    workspace::run(build.args(["-p", "legate-kind"]))?;
    let programs = workspace.target.join(profile);
    let archive = image::archive(workspace, kind.node_images(), &programs)?;
    kind.up(Lifetime::WithThisProcess)?;
    kind.load(&archive)?;
    kind.ready(workspace)?;
    let mut command = Command::new(programs.join("legate-kind"));
    command.current_dir(&workspace.root);
    if arguments.iter().any(|argument| argument == GATEWAYS) {
        let folder = gateway_api::definitions(workspace)?;
        command.arg("--gateway-api").arg(folder);
    }
    kind.environment(&mut command)?;
    workspace::run(command.arg("bench").args(arguments))
}

/// Runs the scenarios in a cluster, from loading the images to the result.
fn scenarios(
    workspace: &Workspace,
    options: &Options,
    kind: &Kind,
    lifetime: Lifetime,
    times: &mut Times,
) -> anyhow::Result<()> {
    times.measure("build", || workspace.build_programs())?;
    let programs = workspace.target.join("debug");
    let archive = times.measure("images", || {
        image::archive(workspace, kind.node_images(), &programs)
    })?;
    times.measure("up", || kind.up(lifetime))?;
    times.measure("load", || kind.load(&archive))?;
    times.measure("ready", || kind.ready(workspace))?;
    if options.command.is_some() {
        return Ok(());
    }
    let mut command = Command::new(programs.join("legate-kind"));
    command.current_dir(&workspace.root);
    kind.environment(&mut command)?;
    if let Kind::Node(node) = kind {
        command.args(["--node", &node.init()?]);
    }
    match gateway_api::definitions(workspace) {
        Ok(folder) => {
            command.arg("--gateway-api").arg(folder);
        }
        // The program says which scenario does not run without them.
        Err(error) if !matches!(kind, Kind::Node(_)) => println!("{error:#}"),
        Err(error) => return Err(error),
    }
    for name in &options.filter {
        command.args(["--filter", name]);
    }
    times.measure("scenarios", || workspace::run(&mut command))
}

/// Stops the cluster of an earlier run, of whatever kind.
fn down(workspace: &Workspace) -> anyhow::Result<()> {
    if has_kind() {
        end_kind()?;
    }
    let cache = Cache::find()?;
    Node::new(workspace, &cache, None).down()
}

/// The kind of cluster, with the data to use it.
enum Kind {
    /// A user's cluster from `KUBECONFIG`, which is not stopped.
    Named(PathBuf),
    /// Created by the program kind.
    Docker { cache: Cache },
    /// A single node, started here.
    Node(Node),
}

impl Kind {
    fn choose(workspace: &Workspace) -> anyhow::Result<Self> {
        let cache = Cache::find()?;
        if let Some(path) = workspace::variable("KUBECONFIG") {
            let node = Node::new(workspace, &cache, None);
            // `up` starts our node and suggests to set the variable to this file.
            if node.kubeconfig().as_os_str() == path {
                let programs = programs::get(workspace, &cache)?;
                return Ok(Self::Node(Node::new(workspace, &cache, Some(programs))));
            }
            return Ok(Self::Named(path.into()));
        }
        if has_kind() {
            return Ok(Self::Docker { cache });
        }
        let programs = programs::get(workspace, &cache)?;
        Ok(Self::Node(Node::new(workspace, &cache, Some(programs))))
    }

    /// A node of this machine, for tests that call the addresses of Services.
    fn own_node(workspace: &Workspace) -> anyhow::Result<Self> {
        let cache = Cache::find()?;
        let node = Node::new(workspace, &cache, None);
        let named = workspace::variable("KUBECONFIG");
        ensure!(
            named.is_none_or(|path| node.kubeconfig().as_os_str() == path),
            "this runs on a node that is started here, because it calls addresses of load balancers: unset KUBECONFIG"
        );
        let programs = programs::get(workspace, &cache)?;
        Ok(Self::Node(Node::new(workspace, &cache, Some(programs))))
    }

    /// The folder of programs that a node runs as containers, if it is our node.
    fn node_images(&self) -> Option<&Path> {
        match self {
            Self::Node(node) => node.programs(),
            Self::Named(_) | Self::Docker { .. } => None,
        }
    }

    fn kubeconfig(&self) -> PathBuf {
        match self {
            Self::Named(path) => path.clone(),
            Self::Docker { cache } => cache.folder.join("kind.conf"),
            Self::Node(node) => node.kubeconfig(),
        }
    }

    fn up(&self, lifetime: Lifetime) -> anyhow::Result<()> {
        match self {
            Self::Named(_) => Ok(()),
            Self::Docker { .. } => {
                let known = Command::new("kind").args(["get", "clusters"]).output()?;
                let known = String::from_utf8_lossy(&known.stdout);
                if known.lines().any(|name| name == KIND_NAME) {
                    return Ok(());
                }
                let mut create = Command::new("kind");
                create.args(["create", "cluster", "--name", KIND_NAME, "--kubeconfig"]);
                workspace::run(create.arg(self.kubeconfig()))
            }
            Self::Node(node) if node.runs() => Ok(()),
            Self::Node(node) => node.up(lifetime),
        }
    }

    fn load(&self, archive: &Path) -> anyhow::Result<()> {
        match self {
            Self::Named(_) => {
                println!(
                    "KUBECONFIG selects a cluster, whose nodes need the images of {}",
                    archive.display()
                );
                Ok(())
            }
            Self::Docker { .. } => {
                let mut load = Command::new("kind");
                load.args(["load", "image-archive", "--name", KIND_NAME]);
                workspace::run(load.arg(archive))
            }
            Self::Node(node) => node.load(archive),
        }
    }

    fn ready(&self, workspace: &Workspace) -> anyhow::Result<()> {
        match self {
            Self::Named(_) | Self::Docker { .. } => Ok(()),
            Self::Node(node) => node.ready(workspace),
        }
    }

    /// Sets the environment variables of scenarios and users.
    fn environment(&self, command: &mut Command) -> anyhow::Result<()> {
        command.env("KUBECONFIG", self.kubeconfig());
        if let Some(programs) = self.node_images() {
            let path = workspace::variable("PATH").unwrap_or_default();
            let folders = [programs.to_path_buf()].into_iter();
            let path = std::env::join_paths(folders.chain(std::env::split_paths(&path)))?;
            command.env("PATH", path);
        }
        Ok(())
    }

    fn how_to_use(&self) -> String {
        let kubeconfig = self.kubeconfig();
        let mut text = format!("export KUBECONFIG={}", kubeconfig.display());
        if let Some(programs) = self.node_images() {
            text += &format!(" PATH={}:$PATH", programs.display());
        }
        text
    }

    fn down(&self) -> anyhow::Result<()> {
        match self {
            Self::Named(_) => Ok(()),
            Self::Docker { .. } => end_kind(),
            Self::Node(node) => node.down(),
        }
    }
}

/// Whether kind can create a cluster here.
fn has_kind() -> bool {
    let answers = |program: &str, argument: &str| {
        let mut command = Command::new(program);
        command.arg(argument).stdout(Stdio::null());
        let status = command.stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    answers("docker", "info") && answers("kind", "version")
}

/// Whether the scenarios run on a node that is started here, from programs that are built here.
pub(crate) fn builds_programs() -> bool {
    workspace::variable("KUBECONFIG").is_none() && !has_kind()
}

fn end_kind() -> anyhow::Result<()> {
    workspace::run(Command::new("kind").args(["delete", "cluster", "--name", KIND_NAME]))
}

/// The duration of each part.
#[derive(Default)]
struct Times(Vec<String>);

impl Times {
    fn measure<T>(
        &mut self,
        what: &str,
        part: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let start = SystemTime::now();
        let outcome = part();
        let took = start.elapsed().unwrap_or_default().as_secs_f64();
        self.0.push(format!("kind: {what:<10} {took:>6.1} s"));
        outcome
    }
}
