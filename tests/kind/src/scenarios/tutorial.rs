//! The tutorial verbatim: the blocks of `docs/kubernetes.md`, each run by a shell in the project's folder
//! as a reader would, with the images under the chart's names.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::cluster::output;
use crate::mesh;
use crate::namespace::Namespace;
use crate::retry::retry;
use crate::run::Scenario;
use crate::tutorial::{self, DOCUMENT, Step};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "the_tutorial_works_as_it_is_written",
    run: the_tutorial_works_as_it_is_written,
}];

/// How long to retry until the output is the expected one.
const PATIENCE: Duration = Duration::from_secs(60);
/// Removes the remains in a reused cluster; the operator must exist as long as its resources do.
const CLEAN: &str = "\
kubectl delete namespace hello hello-restricted --ignore-not-found
helm uninstall legate --namespace legate --ignore-not-found --wait
kubectl delete namespace legate --ignore-not-found";
/// The shell of a block: the folder of `legate` is first on `PATH`, and standard error is part of the
/// output.
const SHELL: &str = "PATH=$0:$PATH; set -euo pipefail; exec 2>&1; eval \"$1\"";

fn the_tutorial_works_as_it_is_written(space: &Namespace) -> anyhow::Result<()> {
    shell(CLEAN).context("what an earlier run has left")?;
    for step in &tutorial::parse(DOCUMENT)?.steps {
        println!("         docs/kubernetes.md:{}", step.line);
        run(step).with_context(|| {
            let spaces = [mesh::RELEASE, "hello", "hello-restricted"];
            let spaces = spaces.map(|name| Namespace {
                cluster: space.cluster,
                name: name.to_owned(),
            });
            spaces.map(|space| space.describe()).join("\n")
        })?;
    }
    Ok(())
}

/// Runs a block; a read-only block is repeated until its output is the expected one.
fn run(step: &Step) -> anyhow::Result<()> {
    let Step {
        line,
        commands,
        shown,
    } = step;
    let patience = if step.is_read_only() {
        PATIENCE
    } else {
        Duration::ZERO
    };
    let block = format!("docs/kubernetes.md, line {line}:\n{commands}");
    let Some(shown) = shown else {
        return shell(commands).map(|_| ()).context(block);
    };
    retry(patience, "the output", || {
        let seen = shell(commands)?;
        match tutorial::difference(shown, &seen) {
            None => Ok(()),
            Some(difference) => Err(anyhow::anyhow!(difference)),
        }
    })
    .context(block)
}

/// The output of commands, which must succeed.
fn shell(commands: &str) -> anyhow::Result<String> {
    let programs = std::env::current_exe()?;
    let programs = programs.parent().context("programs are in a folder")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut shell = Command::new("timeout");
    shell.args(["300", "bash", "-c", SHELL]).arg(programs);
    output(shell.arg(commands).current_dir(root), "")
}
