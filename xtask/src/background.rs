//! Tasks of this program in the background of CI stages, with the lowest priority: they use the time in which tests
//! wait.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

use crate::workspace::Workspace;

/// A task, which ends with this value.
pub(crate) struct Background {
    task: String,
    child: Child,
    log: PathBuf,
}

impl Background {
    /// Starts `cargo xtask` with these arguments. The output is written to a file.
    pub(crate) fn start(workspace: &Workspace, arguments: &[&str]) -> anyhow::Result<Self> {
        let task = arguments.join(" ");
        let log = format!("{}.log", arguments.join("-"));
        let log = workspace.target.join(log);
        let output =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new("nice");
        command
            .args(["-n", "19"])
            // Not the file of this process, which the stage `readme` replaces by its own.
            .arg(workspace.target.join("debug/xtask"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0);
        let child = command.spawn().context("cannot start nice")?;
        Ok(Self { task, child, log })
    }

    /// Waits for the end, and prints the output.
    pub(crate) fn wait(mut self) -> anyhow::Result<()> {
        let status = self.child.wait();
        let status = status.with_context(|| format!("cannot wait for {}", self.task))?;
        println!("-- {}, in the background", self.task);
        print!("{}", fs::read_to_string(&self.log)?);
        ensure!(status.success(), "{} ended with {status}", self.task);
        Ok(())
    }
}

impl Drop for Background {
    /// Stops an abandoned task with all its processes.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let group = format!("-{}", self.child.id());
            let _ = Command::new("kill").args(["--", &group]).status();
            let _ = self.child.wait();
        }
    }
}
