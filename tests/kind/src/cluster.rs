//! The cluster, through the programs that people use: kubectl and helm.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::retry::retry;

/// Longest wait of a step; far above what one takes on a slow machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// The cluster that `KUBECONFIG` names, and what else this machine has for the scenarios.
pub(crate) struct Cluster {
    /// A real Consul.
    pub(crate) consul: Option<PathBuf>,
    /// Process 1 of the cluster's only node, where that node is of this machine.
    pub(crate) node: Option<u32>,
}

impl Cluster {
    /// What kubectl prints.
    pub(crate) fn kubectl(&self, words: &[&str]) -> anyhow::Result<String> {
        output(kubectl().args(words), "")
    }

    /// What kubectl prints, with a text as its input.
    pub(crate) fn kubectl_with(&self, input: &str, words: &[&str]) -> anyhow::Result<String> {
        output(kubectl().args(words), input)
    }

    /// Objects as JSON.
    pub(crate) fn json(&self, words: &[&str]) -> anyhow::Result<Value> {
        let text = self.kubectl(&[words, &["--output", "json"]].concat())?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// kubectl, which ends in time whatever the API server does.
fn kubectl() -> Command {
    let mut command = Command::new("timeout");
    command.args(["150", "kubectl"]);
    command
}

/// Runs a command to its end; an exit status other than 0 is an error with what it said.
pub(crate) fn output(command: &mut Command, input: &str) -> anyhow::Result<String> {
    let done = finish(command, input)?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let words = command.get_args().map(|word| word.to_string_lossy());
    ensure!(
        done.status.success(),
        "{} {}: {}: {text}{}",
        command.get_program().display(),
        words.collect::<Vec<_>>().join(" "),
        done.status,
        String::from_utf8_lossy(&done.stderr).trim_end()
    );
    Ok(text)
}

/// Exit status and output, whatever they are.
pub(crate) fn finish(command: &mut Command, input: &str) -> anyhow::Result<Output> {
    let program = command.get_program().display().to_string();
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.stdin(Stdio::piped()).spawn().with_context(|| {
        format!("cannot start {program}: run the scenarios with cargo xtask kind")
    })?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(input.as_bytes())?;
    }
    Ok(child.wait_with_output()?)
}

/// Tries until it succeeds; the last error after [`LIMIT`].
pub(crate) fn eventually<T>(
    what: &str,
    attempt: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    retry(LIMIT, what, attempt)
}
