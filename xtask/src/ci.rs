//! The stages of CI, with their durations.

use std::path::Path;

use clap::Args;

use crate::left_out::{self, Records};
use crate::test::{self, timed};
use crate::workspace::{self, Workspace};
use crate::{chart, fuzz, interop, kind, machine, tidy, vault};

/// Options of `cargo xtask ci`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only this stage
    #[arg(long, value_parser = STAGES.map(|stage| stage.0))]
    only: Option<String>,
}

type Stage = (&'static str, fn(&Workspace, &Records) -> anyhow::Result<()>);

/// The stage before which builds in the background have ended: tests have the machine to themselves.
const FIRST_WITH_TESTS: &str = "readme";

const STAGES: [Stage; 11] = [
    ("format", |workspace, _| {
        workspace::run(&mut workspace.cargo(&["fmt", "--all", "--check"]))?;
        fuzz::format(workspace)
    }),
    ("tidy", |workspace, _| tidy::run(workspace)),
    ("clippy", |workspace, _| {
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
    ("docs", |workspace, _| {
        let args = [
            "doc",
            "--workspace",
            "--no-deps",
            "--locked",
            "--document-private-items",
        ];
        workspace::run(workspace.cargo(&args).env("RUSTDOCFLAGS", "-D warnings"))
    }),
    // The commands of the README on a machine that has nothing else, which builds and tests everything.
    ("readme", |workspace, records| {
        let earlier = machine::run_commands(workspace)?;
        // The tests that were left out there, with the tools of this machine.
        let (outcome, took) = timed(|| left_out(workspace, &earlier, records));
        println!("tests that were left out: {:.1} s", took.as_secs_f64());
        outcome
    }),
    ("file", |workspace, records| {
        test::stores(workspace, records, "file")
    }),
    ("etcd", |workspace, records| {
        test::stores(workspace, records, "etcd")
    }),
    ("interop", |workspace, _| interop::clients(workspace)),
    ("chart", |workspace, _| {
        chart::run(workspace, &chart::Options::default())
    }),
    ("kind", |workspace, _| kind::all(workspace)),
    ("fuzz", |workspace, _| fuzz::all(workspace)),
];

/// Runs the tests that were left out on the machine of the README, of which none may be missing except those in
/// the list.
fn left_out(workspace: &Workspace, earlier: &Path, records: &Records) -> anyhow::Result<()> {
    vault::get(workspace)?;
    left_out::run_again(workspace, earlier, records, &test::programs(workspace)?)
}

/// `cargo xtask ci`: all stages, up to the first failure.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let records = Records::start(workspace, true)?;
    // With an empty cache it takes ten minutes, about as long as the stages that only compile.
    let mut background = match options.only {
        Some(_) => kind::Background::none(),
        None => kind::Background::start(workspace)?,
    };
    let mut report = Vec::new();
    let mut outcome = Ok(());
    let wanted = |stage: &&Stage| options.only.as_ref().is_none_or(|only| stage.0 == only);
    for stage in STAGES.iter().filter(wanted) {
        println!("\n== {}", stage.0);
        if stage.0 == FIRST_WITH_TESTS {
            background.wait()?;
        }
        let (result, took) = timed(|| stage.1(workspace, &records));
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
    // What is left out is reported together with the result.
    report.push(records.report()?);
    println!("\n{}", report.join("\n"));
    outcome
}
