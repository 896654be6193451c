//! `cargo xtask fuzz`: a bounded run of each fuzz target in `fuzz/`.
//!
//! It is no stage of `cargo xtask ci`: fuzzing needs a nightly compiler, and CI has the stable one
//! of `rust-toolchain.toml` only. There, the owning crates test what they read against generated
//! input, for all but the configuration file.
//!
//! `fuzz/seeds` has an input of each kind and is never written to. What a run finds stays below the
//! target directory and is where the next run starts; an input that breaks a target is put into
//! `fuzz/artifacts`.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Args;

use crate::workspace::{self, Workspace};

/// What to fuzz, and for how long.
#[derive(Args)]
pub(crate) struct Options {
    /// How long each target runs, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// One target; all of them unless given
    target: Option<String>,
}

/// Longest time in seconds that one input may take, and memory in MiB that one target may use:
/// whatever is read has to be done with quickly, and in little.
const INPUT_SECONDS: u32 = 10;
const MEMORY: u32 = 1024;

/// Runs the targets one after another, up to the first that fails.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let targets = chosen(workspace, options.target.as_deref())?;
    check_tools(workspace)?;
    for target in targets {
        println!("\n== {target}");
        fuzz(workspace, &target, options.seconds)
            .with_context(|| format!("fuzz target {target} failed"))?;
    }
    Ok(())
}

/// The targets that `fuzz/Cargo.toml` names, or the one that is asked for.
fn chosen(workspace: &Workspace, wanted: Option<&str>) -> anyhow::Result<Vec<String>> {
    let path = workspace.root.join("fuzz/Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
    let manifest: toml::Table = text.parse()?;
    let targets = manifest.get("bin").and_then(toml::Value::as_array);
    let known: Vec<String> = targets
        .context("fuzz/Cargo.toml names its targets as [[bin]]")?
        .iter()
        .filter_map(|target| target.get("name")?.as_str().map(str::to_owned))
        .collect();
    match wanted {
        None => Ok(known),
        Some(wanted) if known.iter().any(|target| target == wanted) => Ok(vec![wanted.to_owned()]),
        Some(wanted) => bail!(
            "there is no fuzz target {wanted:?}; there are {}",
            known.join(", ")
        ),
    }
}

/// One line for each way in which fuzzing cannot work here.
fn check_tools(workspace: &Workspace) -> anyhow::Result<()> {
    let works = |args: &[&str]| {
        let mut command = nightly(workspace, args);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !works(&["rustc", "--version"]) {
        bail!(
            "fuzzing needs a nightly compiler: rustup toolchain install nightly --profile minimal"
        );
    }
    if !works(&["cargo", "fuzz", "--version"]) {
        bail!("fuzzing needs cargo-fuzz: cargo install cargo-fuzz --locked");
    }
    Ok(())
}

fn fuzz(workspace: &Workspace, target: &str, seconds: u32) -> anyhow::Result<()> {
    let built = workspace.target.join("fuzz");
    let found = built.join("corpus").join(target);
    fs::create_dir_all(&found).with_context(|| format!("cannot create {found:?}"))?;
    let mut command = nightly(workspace, &["cargo", "fuzz", "run", "--target-dir"]);
    command.arg(&built).arg(target);
    // Only the first folder is written to.
    let seeds = workspace.root.join("fuzz/seeds").join(target);
    command.arg(&found).arg(seeds);
    command.arg("--").args([
        format!("-max_total_time={seconds}"),
        format!("-timeout={INPUT_SECONDS}"),
        format!("-rss_limit_mb={MEMORY}"),
        "-print_final_stats=1".to_owned(),
    ]);
    workspace::run(&mut command)
}

/// A command of the nightly toolchain, whichever runs this tool.
fn nightly(workspace: &Workspace, args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]).args(args);
    command.current_dir(workspace.root.join("fuzz"));
    command
}
