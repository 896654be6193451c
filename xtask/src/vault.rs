//! Finds a Vault for the tests, or builds the version that this workspace is tested with.
//!
//! In order: `LEGATE_VAULT`, `vault` on `PATH`, the Go module in `tests/interop/vault`, built below the
//! target directory. The version is in the `go.mod` of that module, checksums are in its `go.sum`.

use std::fs;
use std::path::PathBuf;

use anyhow::ensure;

use crate::go;
use crate::workspace::{self, Workspace, run};

/// The folder of the module.
const FOLDER: &str = "tests/interop/vault";
/// The sources that determine the program.
const SOURCES: [&str; 3] = ["go.mod", "go.sum", "main.go"];

/// Path of an executable Vault.
pub(crate) fn get(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    match workspace::program("vault", "LEGATE_VAULT")? {
        Some(path) => Ok(path),
        None => build(workspace),
    }
}

/// The Vault of an earlier [`get`], also if the module has changed since.
pub(crate) fn built(workspace: &Workspace) -> Option<PathBuf> {
    let binary = workspace.target.join("vault/vault");
    let named = workspace::program("vault", "LEGATE_VAULT").ok().flatten();
    named.or_else(|| Some(binary).filter(|binary| binary.is_file()))
}

fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let module = workspace.root.join(FOLDER);
    let folder = workspace.target.join("vault");
    let (binary, stamp) = (folder.join("vault"), folder.join("stamp"));
    let instead = "set LEGATE_VAULT to a Vault";
    let sources = go::stamp(&module, &SOURCES, instead)?;
    if binary.is_file() && fs::read(&stamp).is_ok_and(|found| found == sources) {
        return Ok(binary);
    }
    fs::create_dir_all(&folder)?;
    eprintln!("building Vault in {}: some minutes, once", folder.display());
    let arguments = ["build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w"];
    let mut build = go::command(&module);
    run(build.args(arguments).arg("-o").arg(&binary).arg("."))?;
    fs::write(stamp, sources)?;
    Ok(binary)
}

/// Runs the scenarios with a real Vault, which is built if necessary.
pub(crate) fn test(workspace: &Workspace) -> anyhow::Result<()> {
    let vault = get(workspace)?;
    // With the features of all tests, so that nothing is built twice.
    let arguments = [
        "test",
        "--workspace",
        "--locked",
        "--test",
        "interop",
        "vault::",
    ];
    let mut tests = workspace.cargo(&arguments);
    tests.env("LEGATE_VAULT", vault);
    let text = workspace::output(&mut tests)?;
    println!("{text}");
    ensure!(
        !text.contains("running 0 tests"),
        "no scenario with a real Vault was found in tests/interop"
    );
    Ok(())
}
