//! Documents verbatim: their blocks, each run by a shell in the project's folder as a reader would, with the images
//! under the chart's names.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use legate_testkit::document::{Document, Step, difference};

use crate::cluster::output;
use crate::mesh;
use crate::namespace::Namespace;
use crate::retry::retry;
use crate::run::Scenario;

/// The tutorial.
const TUTORIAL: Document = Document {
    path: "docs/kubernetes.md",
    text: include_str!("../../../../docs/kubernetes.md"),
    section: None,
};

/// The way to a Gateway of the Gateway API.
const GATEWAY_API: Document = Document {
    path: "docs/gateways-kubernetes.md",
    text: include_str!("../../../../docs/gateways-kubernetes.md"),
    section: Some("## From nothing to HTTPS"),
};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "the_tutorial_works_as_it_is_written",
    run: |space| run(space, &TUTORIAL),
}];

/// Those for a cluster with the definitions of the Gateway API.
pub(super) const WITH_GATEWAY_API: &[Scenario] = &[Scenario {
    name: "the_way_to_a_gateway_works_as_it_is_written",
    run: |space| run(space, &GATEWAY_API),
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

fn run(space: &Namespace, document: &Document) -> anyhow::Result<()> {
    shell(CLEAN).context("what an earlier run has left")?;
    for step in &document.parse().map_err(anyhow::Error::msg)?.steps {
        let block = format!("{}:{}", document.path, step.line);
        println!("         {block}");
        run_step(step).context(block).with_context(|| {
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
fn run_step(step: &Step) -> anyhow::Result<()> {
    let patience = if step.is_read_only() {
        PATIENCE
    } else {
        Duration::ZERO
    };
    let Some(shown) = &step.shown else {
        return shell(&step.commands).map(|_| ());
    };
    retry(patience, "the output", || {
        let seen = shell(&step.commands)?;
        match difference(shown, &seen) {
            None => Ok(()),
            Some(difference) => Err(anyhow::anyhow!(difference)),
        }
    })
    .with_context(|| step.commands.clone())
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// Files of the repository that documents may quote.
    fn files() -> Vec<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folders = [
            "examples/kubernetes",
            "examples/kubernetes/gateway-api",
            "tests/chart",
        ];
        let entries = folders.map(|folder| fs::read_dir(root.join(folder)).unwrap());
        let paths = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.extension().is_some_and(|is| is == "yaml"))
            .collect()
    }

    #[test]
    fn the_documents_can_be_run() {
        let files: Vec<String> = files()
            .iter()
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
        for (document, at_least, not_run) in [(TUTORIAL, 10, 3), (GATEWAY_API, 3, 1)] {
            let content = document.parse().unwrap();
            let shown = content.steps.iter().filter(|step| step.shown.is_some());
            assert!(shown.count() >= at_least, "{content:?}");
            assert!(content.not_run.len() <= not_run, "{:?}", content.not_run);
            for excerpt in &content.excerpts {
                let known = files.iter().any(|file| file.contains(excerpt));
                assert!(known, "no file has this in it:\n{excerpt}");
            }
        }
    }
}
