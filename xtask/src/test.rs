//! `cargo xtask test`: the tests in parts, of which a plain run has the first.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use clap::Args;

use crate::left_out::{self, Records};
use crate::workspace::{self, Workspace};
use crate::{envoy, etcd, fuzz, interop, kind, vault};

/// Options of `cargo xtask test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run every part, also those that take long or need more programs
    #[arg(long)]
    all: bool,
    /// Arguments of `cargo test`, for example `-p legate-tests --test mesh` or `-- name`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// A part.
struct Part {
    name: &'static str,
    about: &'static str,
    run: fn(&Workspace, &Records) -> anyhow::Result<()>,
}

const PARTS: [Part; 5] = [
    Part {
        name: "tests",
        about: "every test, with the state of servers in a file",
        run: |workspace, records| cargo_test(workspace, records, &[]),
    },
    Part {
        name: "etcd",
        about: "the tests of whole servers with their state in etcd",
        run: etcd_store,
    },
    Part {
        name: "interop",
        about: "clients of Consul from their registries, and a real Vault (Go, Node.js, Python with venv)",
        run: |workspace, _| interop::all(workspace),
    },
    Part {
        name: "kind",
        about: "scenarios in a Kubernetes cluster (a cluster, kind, or root and Go)",
        run: |workspace, _| kind::all(workspace),
    },
    Part {
        name: "fuzz",
        about: "each fuzz target for some seconds (a C++ compiler)",
        run: |workspace, _| fuzz::all(workspace),
    },
];

/// Tests of whole servers, which are repeated with etcd.
const SERVERS: [&str; 2] = ["crates/server/it", "tests/mesh"];

/// Runs the first part, or all; or the tests that arguments select, with the backend in `LEGATE_TEST_STORE`.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let records = Records::start(workspace, false)?;
    if !options.args.is_empty() {
        let outcome = cargo_test(workspace, &records, &options.args);
        print_paragraph(&records.report()?);
        return outcome;
    }
    let chosen = if options.all { PARTS.len() } else { 1 };
    let (chosen, others) = PARTS.split_at(chosen);
    println!("{}", plan(chosen, others));
    let mut times = Vec::new();
    let mut failed = Vec::new();
    for part in chosen {
        println!("\n== {}", part.name);
        let (outcome, took) = timed(|| (part.run)(workspace, &records));
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        times.push(format!(
            "{:<8} {:>7.1} s  {verdict}",
            part.name,
            took.as_secs_f64()
        ));
        if let Err(error) = outcome {
            println!("{}: {error:#}", part.name);
            failed.push(part.name);
        }
    }
    print_paragraph(&records.report()?);
    print_paragraph(&times.join("\n"));
    print_paragraph(&not_run(others));
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// What a run has, and what it has not.
fn plan(chosen: &[Part], others: &[Part]) -> String {
    let mut lines: Vec<String> = chosen
        .iter()
        .map(|part| format!("runs {}: {}", part.name, part.about))
        .collect();
    lines.extend((!others.is_empty()).then(|| not_run(others)));
    lines.join("\n")
}

fn not_run(parts: &[Part]) -> String {
    if parts.is_empty() {
        return String::new();
    }
    let lines = parts
        .iter()
        .map(|part| format!("  {}: {}\n", part.name, part.about));
    format!(
        "not run, because it is not part of a plain run:\n{}run everything with: cargo xtask test --all",
        lines.collect::<String>()
    )
}

fn print_paragraph(text: &str) {
    if !text.is_empty() {
        println!("\n{text}");
    }
}

/// Runs something and measures it.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = SystemTime::now();
    let result = work();
    (result, start.elapsed().unwrap_or_default())
}

/// The programs of tests, fetched if necessary, in the variables that name them.
pub(crate) fn programs(workspace: &Workspace) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    let mut programs = vec![
        ("LEGATE_ENVOY", envoy::get(workspace)?),
        ("LEGATE_ETCD", etcd::get(workspace)?),
    ];
    programs.extend(vault::built(workspace).map(|vault| ("LEGATE_VAULT", vault)));
    Ok(programs)
}

/// Builds everything first, so that scenarios find the binaries they start.
pub(crate) fn cargo_test(
    workspace: &Workspace,
    records: &Records,
    args: &[String],
) -> anyhow::Result<()> {
    let programs = programs(workspace)?;
    // Cargo builds a program only for the tests of its own package.
    workspace.build_programs()?;
    let (built, took) = timed(|| {
        workspace::run(&mut workspace.cargo(&["test", "--workspace", "--locked", "--no-run"]))
    });
    built?;
    println!(
        "the tests are built, after {:.1} s more than the programs",
        took.as_secs_f64()
    );
    let mut command = workspace.cargo(&["test", "--locked", "--no-fail-fast"]);
    let named = |arg: &String| arg.starts_with("-p") || arg.starts_with("--package");
    if !args.iter().any(named) {
        command.arg("--workspace");
    }
    command.args(args).envs(programs);
    records.apply(&mut command);
    if args.is_empty() {
        command.env("LEGATE_TEST_STORE", "file");
    }
    workspace::run(&mut command)
}

/// Runs the tests of whole servers, as built by [`cargo_test`], with their state in etcd.
pub(crate) fn etcd_store(workspace: &Workspace, records: &Records) -> anyhow::Result<()> {
    let programs = programs(workspace)?;
    let binaries = left_out::test_binaries(workspace)?;
    for target in SERVERS {
        let binary = left_out::find(workspace, &binaries, target)?;
        let mut command = Command::new(&binary.program);
        command
            .current_dir(&binary.folder)
            .envs(programs.iter().map(|(name, path)| (name, path)))
            .env("LEGATE_TEST_STORE", "etcd");
        records.apply(&mut command);
        println!("\nLEGATE_TEST_STORE=etcd {}", binary.program.display());
        let (outcome, took) = timed(|| workspace::run(&mut command));
        outcome?;
        println!("{target} with etcd: {:.1} s", took.as_secs_f64());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_says_what_it_runs_and_what_not() {
        let (chosen, others) = PARTS.split_at(1);
        let text = plan(chosen, others);
        assert!(text.starts_with("runs tests: every test"), "{text}");
        for part in &PARTS[1..] {
            assert!(
                text.contains(&format!("\n  {}: {}", part.name, part.about)),
                "{text}"
            );
        }
        assert!(text.ends_with("cargo xtask test --all"), "{text}");
        assert!(!plan(&PARTS, &[]).contains("not run"));
    }
}
