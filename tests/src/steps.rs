//! Runs the commands of a document as a reader would: a shell for each block, in a folder that all blocks share, and
//! in the network of its site. Programs that a block starts with `&` run until the shell is dropped.
//!
//! It never changes a command. What a reader does without one, such as to stop a program, is up to the scenario.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use legate_testkit::document::{Step, difference};
use legate_testkit::envoy;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::time::timeout;

use crate::sites::Namespace;
use crate::wait::eventually_within;

/// The deadline of a block.
const LIMIT: Duration = Duration::from_secs(60);
/// Ends at the first failed command; standard error is part of the output.
const SCRIPT: &str = "set -euo pipefail; exec 2>&1; eval \"$1\"";

/// Runs blocks of one site.
pub struct Shell {
    folder: PathBuf,
    programs: PathBuf,
    network: Namespace,
    /// What was started, in order.
    started: Vec<Started>,
}

/// The programs that a block has started, which are one group of processes.
#[derive(Debug, Clone)]
pub struct Started {
    group: Pid,
    output: PathBuf,
}

/// How a block has ended, and what it has printed.
#[derive(Debug)]
struct Outcome {
    success: bool,
    output: String,
}

impl Shell {
    /// A shell whose blocks run in this folder and network. Their programs are an Envoy, and those that are added to a
    /// new folder of this name.
    ///
    /// # Panics
    ///
    /// If the folder cannot be written.
    #[must_use]
    pub fn new(folder: &Path, programs: &str, network: &Namespace) -> Self {
        let programs = folder.join(programs);
        fs::create_dir(&programs).expect("the folder can be written");
        symlink(envoy::binary(), programs.join("envoy")).expect("the folder is empty");
        Self {
            folder: folder.to_owned(),
            programs,
            network: network.clone(),
            started: Vec::new(),
        }
    }

    /// Adds a program, which runs in the network of any site. `also` are words with which a command begins, and flags
    /// that the test adds to such a command.
    ///
    /// # Panics
    ///
    /// If the folder cannot be written.
    pub fn add(&self, name: &str, program: &Path, network: &Namespace, also: Option<(&str, &str)>) {
        let (program, network) = (program.display(), network.path());
        let run = format!("exec nsenter --net={network} {program} \"$@\"");
        let also = also
            .map(|(words, flags)| format!("case \"$*\" in '{words} '*) {run} {flags};; esac\n"));
        let script = format!("#!/bin/sh\n{}{run}\n", also.unwrap_or_default());
        let file = self.programs.join(name);
        fs::write(&file, script).expect("the folder can be written");
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&file, executable).expect("it is our file");
    }

    /// Runs a step, which must succeed. One that changes nothing is repeated until its output is that in the document.
    ///
    /// # Panics
    ///
    /// If it fails, or its output is another one, with the output.
    pub async fn run(&mut self, step: &Step) {
        let Some(shown) = &step.shown else {
            self.start(&step.commands).await;
            return;
        };
        assert!(
            !begins(&step.commands),
            "line {}: what begins here has no end",
            step.line
        );
        let once = step.is_read_only().then_some(LIMIT);
        let run = || async {
            let (_, outcome) = self.execute(&step.commands).await;
            match (outcome.success, difference(shown, &outcome.output)) {
                (true, None) => Ok(()),
                (true, Some(difference)) => Err(difference),
                (false, _) => Err(outcome.output),
            }
        };
        let what = format!("line {}: {}", step.line, step.commands);
        eventually_within(once.unwrap_or_default(), &what, run, Result::is_ok)
            .await
            .expect("it was accepted");
    }

    /// Runs commands, which must succeed, and returns what they have started.
    ///
    /// # Panics
    ///
    /// If they fail, with the output.
    pub async fn start(&mut self, commands: &str) -> Started {
        let (started, outcome) = self.execute(commands).await;
        if begins(commands) {
            self.started.push(started.clone());
        }
        assert!(outcome.success, "{commands}\n{}", outcome.output);
        started
    }

    async fn execute(&self, commands: &str) -> (Started, Outcome) {
        let file =
            tempfile::NamedTempFile::new_in(&self.folder).expect("the folder can be written");
        let (file, path) = file.keep().expect("the file can stay");
        let search = format!("{}:{}", self.programs.display(), search_path());
        let mut command = Command::new("bash");
        command
            .env_clear()
            .env("PATH", search)
            .args(["-c", SCRIPT, "bash", commands])
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(file)
            .process_group(0);
        let run = async {
            let mut child = command.spawn().expect("there is a bash");
            let group = child.id().expect("it was not waited for");
            (group, timeout(LIMIT, child.wait()).await)
        };
        let (group, ended) = self.network.within(run).await;
        let started = Started {
            group: Pid::from_raw(group.cast_signed()),
            output: path,
        };
        let output = started.output();
        let status = match ended {
            Ok(status) => status.expect("a child can be waited for"),
            Err(_) => panic!("{commands}: no end after {LIMIT:?}\n{output}"),
        };
        let success = status.success();
        (started, Outcome { success, output })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the tools of a block are those of this machine"
)]
fn search_path() -> String {
    std::env::var("PATH").unwrap_or_default()
}

/// Whether commands start a program that goes on after them.
fn begins(commands: &str) -> bool {
    commands.lines().any(|line| line.ends_with(" &"))
}

impl Started {
    /// Stops the programs.
    pub fn stop(&self) {
        // They may have ended.
        let _ = killpg(self.group, Signal::SIGTERM);
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for started in &self.started {
            let _ = killpg(started.group, Signal::SIGKILL);
        }
    }
}
