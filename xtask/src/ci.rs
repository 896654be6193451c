//! What a change has to pass, stage by stage, with the time each took.

use std::time::{Duration, SystemTime};

use crate::workspace::{self, Workspace};
use crate::{envoy, fuzz, tidy};

type Stage = (&'static str, fn(&Workspace) -> anyhow::Result<()>);

const STAGES: [Stage; 6] = [
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
    ("test", |workspace| test(workspace, &[])),
    ("fuzz", fuzz::ci),
];

fn run_stage(workspace: &Workspace, stage: &Stage) -> (anyhow::Result<()>, Duration) {
    let start = SystemTime::now();
    let result = stage.1(workspace);
    (result, start.elapsed().unwrap_or_default())
}

/// `cargo xtask ci`: all stages, up to the first that fails.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let mut report = Vec::new();
    let mut outcome = Ok(());
    for stage in &STAGES {
        println!("\n== {}", stage.0);
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
    // What the test stage left out has to be seen beside its verdict.
    if workspace::variable("LEGATE_INTEROP").is_some_and(|value| value == "off") {
        report.push(
            "interop  NOT RUN: LEGATE_INTEROP=off leaves out every scenario with a real consul or \
             consul-dataplane"
                .to_owned(),
        );
    }
    println!("\n{}", report.join("\n"));
    outcome
}

/// `cargo xtask test`: builds everything first, so that scenarios find the binaries they start.
pub(crate) fn test(workspace: &Workspace, args: &[String]) -> anyhow::Result<()> {
    let envoy = envoy::get(workspace)?;
    // Cargo builds a program for the tests of its own package only.
    workspace::run(&mut workspace.cargo(&["build", "--workspace", "--locked", "--bins"]))?;
    workspace::run(&mut workspace.cargo(&["test", "--workspace", "--locked", "--no-run"]))?;
    let mut command = workspace.cargo(&["test", "--locked"]);
    let named = |arg: &String| arg.starts_with("-p") || arg.starts_with("--package");
    if !args.iter().any(named) {
        command.arg("--workspace");
    }
    command.args(args).env("LEGATE_ENVOY", envoy);
    workspace::run(&mut command)
}
