//! `cargo xtask interop`: clients of Consul that others wrote, unmodified from their registries, talk to
//! `legate` under the name `consul`; a real Vault signs for a server.
//!
//! The official Go client's own tests start `consul agent` from PATH. Which of them do not pass, and why,
//! is a table in `docs/consul-clients.md`: a test that fails and does not stand there is an error. It tests
//! nothing itself; the scripts for the other clients are in `tests/interop/clients`.

mod agent;
mod go_client;
mod scripts;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use crate::vault;
use crate::workspace::{self, Workspace};

/// Which clients to run.
#[derive(Args)]
pub(crate) struct Options {
    /// One client: go (its whole test suite), python, node or template (consul-template); or vault, the
    /// scenarios with a real Vault as the CA; all of these unless given
    #[arg(long, value_parser = ["go", "python", "node", "template", "vault"])]
    only: Option<String>,
    /// Only the Go client's tests whose names match this regular expression; the table of those that do
    /// not pass is left alone then
    #[arg(long, default_value = "")]
    tests: String,
    /// The program that is started under the name `consul`, such as a Consul to compare with; by default
    /// `legate`, which is built first
    #[arg(long)]
    program: Option<PathBuf>,
}

/// What every client needs.
struct Place {
    /// The repository.
    root: PathBuf,
    /// Where clients are fetched to and built; kept for the next run.
    folder: PathBuf,
    /// A folder in which `consul` is the program.
    bin: PathBuf,
}

impl Place {
    fn new(workspace: &Workspace, program: &Path) -> anyhow::Result<Self> {
        let folder = workspace.target.join("interop");
        let bin = folder.join("bin");
        fs::create_dir_all(&bin)?;
        let link = bin.join("consul");
        // The link may be one of an earlier run, with another program.
        let _ = fs::remove_file(&link);
        symlink(program, &link).with_context(|| format!("cannot make {}", link.display()))?;
        Ok(Self {
            root: workspace.root.clone(),
            folder,
            bin,
        })
    }

    /// The program under the name `consul`.
    fn consul(&self) -> PathBuf {
        self.bin.join("consul")
    }
}

/// Runs the clients that are asked for.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let program = match &options.program {
        Some(program) => program
            .canonicalize()
            .with_context(|| format!("--program {} cannot be found", program.display()))?,
        None => {
            let build = ["build", "--package", "legate-cli", "--locked"];
            workspace::run(&mut workspace.cargo(&build))?;
            workspace.target.join("debug/legate")
        }
    };
    let place = Place::new(workspace, &program)?;
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

/// All clients, as CI runs them.
pub(crate) fn ci(workspace: &Workspace) -> anyhow::Result<()> {
    let options = Options {
        only: None,
        tests: String::new(),
        program: None,
    };
    run(workspace, &options)
}
