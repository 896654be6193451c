//! Builds foreign programs with Go from modules of this repository, whose `go.mod` and `go.sum` have the
//! versions and checksums. Only the Go module proxy is accessed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::workspace;

/// Go in its usual place, also if it is not on `PATH`. cgo is disabled, so that programs run in images
/// without a C library.
pub(crate) fn command(module: &Path) -> Command {
    let installed = Path::new("/usr/local/go/bin/go");
    let on_path = workspace::variable("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("go").is_file()));
    let mut command = if on_path || !installed.is_file() {
        Command::new("go")
    } else {
        Command::new(installed)
    };
    command.current_dir(module).env("CGO_ENABLED", "0");
    command
}

/// The fingerprint of a module's programs: the compiler's version and all sources. `instead` is the
/// alternative in the error if Go is missing.
pub(crate) fn stamp(module: &Path, sources: &[&str], instead: &str) -> anyhow::Result<Vec<u8>> {
    let version = command(module).arg("version").output();
    let version = version.with_context(|| {
        format!("cannot start go: install Go 1.26 (https://go.dev/dl), or {instead}")
    })?;
    let mut all = version.stdout;
    for name in sources {
        let path = module.join(name);
        all.extend(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    Ok(all)
}
