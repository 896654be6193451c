//! The stages of CI, with their durations.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use serde_json::Value;

use crate::workspace::{self, Workspace};
use crate::{chart, envoy, fuzz, interop, kind, tidy};

type Stage = (&'static str, fn(&Workspace) -> anyhow::Result<()>);

const STAGES: [Stage; 11] = [
    ("format", |workspace| {
        workspace::run(&mut workspace.cargo(&["fmt", "--all", "--check"]))?;
        fuzz::format(workspace)
    }),
    ("tidy", tidy::run),
    ("clippy", |workspace| {
        workspace::run(&mut workspace.cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ]))?;
        fuzz::clippy(workspace)
    }),
    ("docs", |workspace| {
        let args = [
            "doc",
            "--workspace",
            "--no-deps",
            "--locked",
            "--document-private-items",
        ];
        workspace::run(workspace.cargo(&args).env("RUSTDOCFLAGS", "-D warnings"))
    }),
    ("test", |workspace| cargo_test(workspace, &[])),
    ("file", |workspace| scenarios(workspace, "file")),
    ("etcd", |workspace| scenarios(workspace, "etcd")),
    ("interop", interop::ci),
    ("chart", |workspace| {
        chart::run(workspace, &chart::Options::default())
    }),
    ("kind", kind::ci),
    ("fuzz", fuzz::ci),
];

/// Tests of whole servers, which are repeated with each store backend: folder and test.
const SCENARIOS: [(&str, &str); 2] = [("crates/server", "it"), ("tests", "mesh")];

fn run_stage(workspace: &Workspace, stage: &Stage) -> (anyhow::Result<()>, Duration) {
    let start = SystemTime::now();
    let result = stage.1(workspace);
    (result, start.elapsed().unwrap_or_default())
}

/// `cargo xtask ci`: all stages, up to the first failure.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    // With an empty cache it takes ten minutes, about as long as the stages that only compile.
    // Tests have the machine to themselves.
    let mut background = kind::Background::start(workspace)?;
    let mut report = Vec::new();
    let mut outcome = Ok(());
    for stage in &STAGES {
        println!("\n== {}", stage.0);
        if stage.0 == "test" {
            background.wait()?;
        }
        let (result, took) = run_stage(workspace, stage);
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        report.push(format!(
            "{:<8} {:>7.1} s  {verdict}",
            stage.0,
            took.as_secs_f64()
        ));
        if result.is_err() {
            outcome = result;
            break;
        }
    }
    drop(background);
    // Skipped tests are reported together with the result.
    if workspace::variable("LEGATE_INTEROP").is_some_and(|value| value == "off") {
        report.push(
            "tests/interop  NOT RUN: LEGATE_INTEROP=off leaves out every scenario with a real consul or \
             consul-dataplane"
                .to_owned(),
        );
    }
    println!("\n{}", report.join("\n"));
    outcome
}

/// `cargo xtask test`: every test, with those of whole servers repeated for each store backend;
/// with arguments, the selected tests, with the backend in `LEGATE_TEST_STORE`.
pub(crate) fn test(workspace: &Workspace, args: &[String]) -> anyhow::Result<()> {
    cargo_test(workspace, args)?;
    if args.is_empty() {
        scenarios(workspace, "file")?;
        scenarios(workspace, "etcd")?;
    }
    Ok(())
}

/// Builds everything first, so that scenarios find the binaries they start.
fn cargo_test(workspace: &Workspace, args: &[String]) -> anyhow::Result<()> {
    let envoy = envoy::get(workspace)?;
    // Cargo builds a program only for the tests of its own package.
    workspace::run(&mut workspace.cargo(&["build", "--workspace", "--locked", "--bins"]))?;
    workspace::run(&mut workspace.cargo(&["test", "--workspace", "--locked", "--no-run"]))?;
    let mut command = workspace.cargo(&["test", "--locked", "--no-fail-fast"]);
    let named = |arg: &String| arg.starts_with("-p") || arg.starts_with("--package");
    if !args.iter().any(named) {
        command.arg("--workspace");
    }
    command.args(args).env("LEGATE_ENVOY", envoy);
    if args.is_empty() {
        command.env("LEGATE_TEST_STORE", "memory");
    }
    workspace::run(&mut command)
}

/// Runs the tests of whole servers, as built by [`cargo_test`], with another store backend.
fn scenarios(workspace: &Workspace, store: &str) -> anyhow::Result<()> {
    let envoy = envoy::get(workspace)?;
    let binaries = test_binaries(workspace)?;
    for (folder, name) in SCENARIOS {
        let folder = workspace.root.join(folder);
        let manifest = folder.join("Cargo.toml");
        let binary = binaries.iter().find(|artifact| {
            artifact["target"]["name"] == name
                && artifact["manifest_path"].as_str().map(Path::new) == Some(&manifest)
        });
        let binary = binary.and_then(|artifact| artifact["executable"].as_str());
        let binary = binary.with_context(|| format!("{} has no test {name}", folder.display()))?;
        let mut command = Command::new(binary);
        command
            .current_dir(&folder)
            .env("LEGATE_ENVOY", &envoy)
            .env("LEGATE_TEST_STORE", store);
        println!("\nLEGATE_TEST_STORE={store} {binary}");
        let start = SystemTime::now();
        workspace::run(&mut command)?;
        let took = start.elapsed().unwrap_or_default();
        println!("{name} with {store}: {:.1} s", took.as_secs_f64());
    }
    Ok(())
}

/// Cargo's messages about each test binary. Selecting two packages would rebuild their dependencies
/// with the features that these two need.
fn test_binaries(workspace: &Workspace) -> anyhow::Result<Vec<Value>> {
    let args = ["test", "--workspace", "--locked", "--no-run"];
    let mut command = workspace.cargo(&args);
    let built = command
        .arg("--message-format=json")
        .stderr(Stdio::inherit());
    let built = built.output().context("cannot start cargo")?;
    anyhow::ensure!(built.status.success(), "cargo {} failed", args.join(" "));
    let lines = built.stdout.split(|byte| *byte == b'\n');
    let messages = lines
        .filter(|line| !line.is_empty())
        .map(serde_json::from_slice);
    let messages: Vec<Value> = messages.collect::<Result<_, _>>()?;
    let is_test = |message: &Value| message["profile"]["test"] == true;
    Ok(messages.into_iter().filter(is_test).collect())
}
