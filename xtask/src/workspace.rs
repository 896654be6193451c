//! The repository from cargo's view: root, target directory, members and their dependencies.
//!
//! The only module of this tool that reads the environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

/// The workspace in which this tool was built.
pub(crate) struct Workspace {
    /// Directory of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's output directory, which also contains everything that this tool fetches.
    pub(crate) target: PathBuf,
    /// The root manifest.
    pub(crate) manifest: toml::Table,
    /// `cargo metadata` of the members and all dependencies.
    pub(crate) metadata: Value,
}

impl Workspace {
    /// Queries cargo, starting from the directory in which this tool was compiled, so that it works
    /// from any directory.
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

    /// Folders of the members, in the order of the root manifest, which is that of the data flow.
    pub(crate) fn members(&self) -> anyhow::Result<Vec<String>> {
        let members = self.manifest["workspace"]["members"]
            .as_array()
            .context("workspace.members is a list")?;
        Ok(members
            .iter()
            .filter_map(|member| member.as_str().map(str::to_owned))
            .collect())
    }

    /// Builds all programs, with the dependencies that the tests have.
    ///
    /// Cargo enables features that only tests need if it builds a test too, and builds everything once more without
    /// them otherwise. So it builds the test with the fewest dependencies of its own as well.
    pub(crate) fn build_programs(&self) -> anyhow::Result<()> {
        let mut build = self.cargo(&["build", "--workspace", "--locked", "--bins"]);
        run(build.args(["--test", "image"]))
    }

    /// A cargo command in this workspace.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command.args(args).current_dir(&self.root);
        command
    }
}

/// Runs a command; an exit status other than 0 is an error with the command.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", show(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", show(command));
    }
    Ok(())
}

/// Runs a command and returns its standard output.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start {}", show(command)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{} ended with {}:\n{text}", show(command), output.status);
    }
    Ok(text)
}

/// The program in a variable, or else the one on `PATH`.
pub(crate) fn program(name: &str, named_by: &str) -> anyhow::Result<Option<PathBuf>> {
    if let Some(path) = variable(named_by).map(PathBuf::from) {
        if !path.is_file() {
            bail!(
                "{named_by} is {}, which is not a file: set it to a program or unset it",
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

/// All environment variables whose names and values are UTF-8.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place of this tool that reads the environment"
)]
pub(crate) fn variables() -> Vec<(String, String)> {
    let variables = std::env::vars_os();
    variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// An environment variable.
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
