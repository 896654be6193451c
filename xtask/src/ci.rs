//! The stages of CI, with their durations.

use clap::Args;

use crate::background::Background;
use crate::left_out::{self, Records};
use crate::test::{self, timed};
use crate::workspace::{self, Workspace};
use crate::{bench, chart, fuzz, interop, kind, machine, tidy, vault};

/// Options of `cargo xtask ci`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only this stage
    #[arg(long, value_parser = STAGES.map(|stage| stage.0))]
    only: Option<String>,
}

type Stage = (&'static str, fn(&Workspace, &Records) -> anyhow::Result<()>);

/// A build that a stage needs, in the background of stages before it. A stage that runs alone builds it itself.
struct Build {
    /// The arguments of `cargo xtask`.
    task: &'static [&'static str],
    /// The stage with which it starts.
    with: &'static str,
    /// The stage before which it ends.
    before: &'static str,
}

const BUILDS: [Build; 3] = [
    // With empty caches they take ten minutes, about as long as the stages that only compile.
    Build {
        task: &["vault"],
        with: "clippy",
        before: "left-out",
    },
    Build {
        task: &["kind", "programs"],
        with: "clippy",
        before: "left-out",
    },
    // Clients of Consul and scenarios with Kubernetes mostly wait.
    Build {
        task: &["fuzz", "--no-run"],
        with: "interop",
        before: "fuzz",
    },
];

const STAGES: [Stage; 12] = [
    ("format", |workspace, _| {
        workspace::run(&mut workspace.cargo(&["fmt", "--all", "--check"]))?;
        fuzz::format(workspace)
    }),
    ("tidy", |workspace, _| tidy::run(workspace)),
    // The commands of the README on a machine that has nothing else, which builds and tests everything.
    ("readme", |workspace, _| machine::run_commands(workspace)),
    // After the tests, from whose builds they take macros and build scripts.
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
    // The tests that were left out there, with the tools of this machine.
    ("left-out", |workspace, records| {
        vault::get(workspace)?;
        let earlier = machine::left_out(workspace);
        left_out::run_again(workspace, &earlier, records, &test::programs(workspace)?)
    }),
    ("etcd", test::etcd_store),
    ("l4", |workspace, _| bench::l4_quick(workspace, None)),
    ("interop", |workspace, _| interop::clients(workspace)),
    ("chart", |workspace, _| {
        chart::run(workspace, &chart::Options::default())
    }),
    ("kind", |workspace, _| kind::all(workspace)),
    ("fuzz", |workspace, _| fuzz::all(workspace)),
];

/// `cargo xtask ci`: all stages, up to the first failure.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let records = Records::start(workspace, true)?;
    let mut builds = Vec::new();
    let mut report = Vec::new();
    let mut outcome = Ok(());
    let wanted = |stage: &&Stage| options.only.as_ref().is_none_or(|only| stage.0 == only);
    for (name, stage) in STAGES.iter().filter(wanted) {
        println!("\n== {name}");
        if options.only.is_none() {
            start_builds(workspace, name, &mut builds)?;
        }
        let (result, took) = timed(|| {
            await_builds(name, &mut builds)?;
            stage(workspace, &records)
        });
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        let took = took.as_secs_f64();
        report.push(format!("{name:<11} {took:>7.1} s  {verdict}"));
        println!("-- {}", report[report.len() - 1]);
        if result.is_err() {
            outcome = result;
            break;
        }
    }
    drop(builds);
    // What is left out is reported together with the result.
    report.push(records.report()?);
    println!("\n{}", report.join("\n"));
    outcome
}

/// Starts the builds that start with a stage.
fn start_builds(
    workspace: &Workspace,
    stage: &str,
    builds: &mut Vec<(&'static Build, Background)>,
) -> anyhow::Result<()> {
    for build in BUILDS.iter().filter(|build| build.with == stage) {
        if build.task != ["kind", "programs"] || kind::builds_programs() {
            builds.push((build, Background::start(workspace, build.task)?));
        }
    }
    Ok(())
}

/// Waits for the builds that a stage needs.
fn await_builds(stage: &str, builds: &mut Vec<(&'static Build, Background)>) -> anyhow::Result<()> {
    let mut needed = builds.extract_if(.., |(build, _)| build.before == stage);
    needed.try_for_each(|(_, build)| build.wait())
}
