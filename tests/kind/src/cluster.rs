//! Access to the cluster with the tools of its users: kubectl and helm.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::retry::retry;

/// The deadline of a step, with a wide margin for slow machines.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// The cluster of `KUBECONFIG`, and other programs on this machine.
pub(crate) struct Cluster {
    /// The path of a real Consul.
    pub(crate) consul: Option<PathBuf>,
    /// The folder with the definitions of the Gateway API.
    pub(crate) gateway_api: Option<PathBuf>,
    /// Process 1 of the cluster's only node, if it runs on this machine.
    pub(crate) node: Option<u32>,
}

impl Cluster {
    /// Runs kubectl and returns its output.
    pub(crate) fn kubectl(&self, words: &[&str]) -> anyhow::Result<String> {
        output(kubectl().args(words), "")
    }

    /// The same with text on standard input.
    pub(crate) fn kubectl_with(&self, input: &str, words: &[&str]) -> anyhow::Result<String> {
        output(kubectl().args(words), input)
    }

    /// Objects as JSON.
    pub(crate) fn json(&self, words: &[&str]) -> anyhow::Result<Value> {
        let text = self.kubectl(&[words, &["--output", "json"]].concat())?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// The kubectl command with a timeout.
fn kubectl() -> Command {
    let mut command = Command::new("timeout");
    command.args(["150", "kubectl"]);
    command
}

/// Runs a command; an exit status other than 0 is an error with its output.
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

/// Runs a command and returns exit status and output.
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

/// Retries until success; returns the last error after [`LIMIT`].
pub(crate) fn eventually<T>(
    what: &str,
    attempt: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    retry(LIMIT, what, attempt)
}
