//! Go: programs of others are built from modules of this repository, whose `go.mod` and `go.sum` have the
//! versions and the checksums. Nothing but the Go module proxy is asked.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::workspace;

/// Go where it is usually installed, also when nobody has put that on `PATH`. Programs without the C
/// library run in images that have none.
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

/// What decides about the programs of a module: the compiler's version and every source, one after the
/// other. `instead` says what to do where there is no Go.
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
