//! The repository as cargo sees it: root, target directory, members and their dependencies.
//!
//! The only module of this tool that reads the environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

/// The workspace this tool was built in.
pub(crate) struct Workspace {
    /// Directory of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Where cargo puts what it builds; everything this tool fetches goes below it as well.
    pub(crate) target: PathBuf,
    /// The root manifest.
    pub(crate) manifest: toml::Table,
    /// `cargo metadata` of the members and everything they depend on.
    pub(crate) metadata: Value,
}

impl Workspace {
    /// Asks cargo; the directory this tool was compiled in is the starting point, so that it does
    /// not matter where it is called from.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask is a folder of the workspace")?
            .to_path_buf();
        let output = Command::new("cargo")
            .args(["metadata", "--format-version", "1"])
            .current_dir(&root)
            .output()
            .context("cannot start cargo")?;
        if !output.status.success() {
            bail!(
                "cargo metadata failed:\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let target = metadata["target_directory"]
            .as_str()
            .context("cargo metadata has no target_directory")?
            .into();
        let manifest = std::fs::read_to_string(root.join("Cargo.toml"))?.parse()?;
        Ok(Self {
            root,
            target,
            manifest,
            metadata,
        })
    }

    /// Folders of the members, in the order of the root manifest: the order in which data flows.
    pub(crate) fn members(&self) -> anyhow::Result<Vec<String>> {
        let members = self.manifest["workspace"]["members"]
            .as_array()
            .context("workspace.members is a list")?;
        Ok(members
            .iter()
            .filter_map(|member| member.as_str().map(str::to_owned))
            .collect())
    }

    /// A cargo command in this workspace.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command.args(args).current_dir(&self.root);
        command
    }
}

/// Runs a command to its end; an exit status other than 0 is an error that shows the command.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", show(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", show(command));
    }
    Ok(())
}

/// The same, with what the command prints on standard output instead of printing it.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start {}", show(command)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{} ended with {}:\n{text}", show(command), output.status);
    }
    Ok(text)
}

/// The program that a variable names, or else the one of this name on `PATH`.
pub(crate) fn program(name: &str, named_by: &str) -> anyhow::Result<Option<PathBuf>> {
    if let Some(path) = variable(named_by).map(PathBuf::from) {
        if !path.is_file() {
            bail!(
                "{named_by} is {}, which is not a file: name a program or unset it",
                path.display()
            );
        }
        return Ok(Some(path));
    }
    Ok(variable("PATH").and_then(|path| {
        std::env::split_paths(&path)
            .map(|folder| folder.join(name))
            .find(|candidate| candidate.is_file())
    }))
}

/// One variable of the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place of this tool that reads the environment"
)]
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
