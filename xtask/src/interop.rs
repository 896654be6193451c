//! `cargo xtask interop`: runs foreign Consul clients, unmodified from their registries, against `legate`
//! under the name `consul`, and tests a server with a real Vault.
//!
//! The official Go client's own tests start `consul agent` from PATH. A table in `docs/consul-clients.md`
//! lists failing tests with reasons; a failure that is not listed is an error. This module only runs tests;
//! the scripts of the other clients are in `tests/interop/clients`.

mod agent;
mod go_client;
mod scripts;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use crate::vault;
use crate::workspace::Workspace;

/// Options of `cargo xtask interop`.
#[derive(Args)]
pub(crate) struct Options {
    /// One client: go (its whole test suite), python, node or template (consul-template); or vault, the
    /// scenarios with a real Vault as the CA; default: all of these
    #[arg(long, value_parser = ["go", "python", "node", "template", "vault"])]
    only: Option<String>,
    /// Only the Go client's tests whose names match this regular expression; the table of failing tests is
    /// then ignored
    #[arg(long, default_value = "")]
    tests: String,
    /// Program to start under the name `consul`, such as a Consul for comparison; default: `legate`, which
    /// is built first
    #[arg(long)]
    program: Option<PathBuf>,
}

/// The environment of the clients.
struct Environment {
    /// The repository.
    root: PathBuf,
    /// The folder of fetched and built clients, reused by the next run.
    folder: PathBuf,
    /// A folder in which the program is named `consul`.
    bin: PathBuf,
}

impl Environment {
    fn new(workspace: &Workspace, program: &Path) -> anyhow::Result<Self> {
        let folder = workspace.target.join("interop");
        let bin = folder.join("bin");
        fs::create_dir_all(&bin)?;
        let link = bin.join("consul");
        // The link may be left from an earlier run with another program.
        let _ = fs::remove_file(&link);
        symlink(program, &link).with_context(|| format!("cannot make {}", link.display()))?;
        Ok(Self {
            root: workspace.root.clone(),
            folder,
            bin,
        })
    }

    /// The path of the program named `consul`.
    fn consul(&self) -> PathBuf {
        self.bin.join("consul")
    }
}

/// Runs the requested clients.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let program = match &options.program {
        Some(program) => program
            .canonicalize()
            .with_context(|| format!("--program {} cannot be found", program.display()))?,
        None => {
            workspace.build_programs()?;
            workspace.target.join("debug/legate")
        }
    };
    let place = Environment::new(workspace, &program)?;
    let wanted = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    let mut failed = Vec::new();
    let mut note = |name: &str, result: anyhow::Result<()>| {
        if let Err(error) = result {
            println!("{name}: FAILED: {error:#}");
            failed.push(name.to_owned());
        }
    };
    if wanted("python") {
        note("python", scripts::python(&place));
    }
    if wanted("node") {
        note("node", scripts::node(&place));
    }
    if wanted("template") {
        note("template", scripts::template(&place));
    }
    if wanted("vault") {
        note("vault", vault::test(workspace));
    }
    if wanted("go") {
        note("go", go_client::run_all(&place, &options.tests));
    }
    anyhow::ensure!(
        failed.is_empty(),
        "not all clients passed: {}",
        failed.join(", ")
    );
    Ok(())
}

/// Everything, with `legate`.
pub(crate) fn all(workspace: &Workspace) -> anyhow::Result<()> {
    clients(workspace)?;
    vault::test(workspace)
}

/// All clients, with `legate`.
pub(crate) fn clients(workspace: &Workspace) -> anyhow::Result<()> {
    for client in ["python", "node", "template", "go"] {
        let options = Options {
            only: Some(client.to_owned()),
            tests: String::new(),
            program: None,
        };
        run(workspace, &options)?;
    }
    Ok(())
}
