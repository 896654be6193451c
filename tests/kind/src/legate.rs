//! The `legate` program of the same build, as a user runs it.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::cluster::finish;

/// A finding of `legate check`.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) check: String,
    pub(crate) outcome: String,
    pub(crate) message: String,
    pub(crate) next_step: String,
}

fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let program = own.with_file_name("legate");
    ensure!(
        program.is_file(),
        "{} is not built: run the scenarios with cargo xtask kind",
        program.display()
    );
    Ok(program)
}

/// Runs it and returns exit status and output.
fn legate(words: &[&str]) -> anyhow::Result<Output> {
    // It has its own timeouts; this limit catches defects.
    let mut command = Command::new("timeout");
    command.arg("150").arg(program()?).args(words);
    finish(&mut command, "")
}

/// Runs it and returns its output.
pub(crate) fn output(words: &[&str]) -> anyhow::Result<String> {
    let done = legate(words)?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    ensure!(
        done.status.success(),
        "legate {}: {}: {text}{}",
        words.join(" "),
        done.status,
        String::from_utf8_lossy(&done.stderr).trim_end()
    );
    Ok(text)
}

/// Runs it and returns its output as JSON.
pub(crate) fn json(words: &[&str]) -> anyhow::Result<Value> {
    let text = output(&[words, &["-o", "json"]].concat())?;
    Ok(serde_json::from_str(&text)?)
}

/// Runs `legate check` and returns whether the mesh is healthy, and the findings. The exit status
/// must agree.
pub(crate) fn check() -> anyhow::Result<(bool, Vec<Finding>)> {
    let done = legate(&["check", "-o", "json"])?;
    let document: Value = serde_json::from_slice(&done.stdout).with_context(|| {
        let said = String::from_utf8_lossy(&done.stderr);
        format!("legate check: {}: {said}", done.status)
    })?;
    let healthy = document["healthy"] == true;
    ensure!(
        done.status.code() == Some(i32::from(!healthy)),
        "legate check exited with {} and printed {document}",
        done.status
    );
    let findings = document["findings"].as_array().context("findings")?;
    let text = |finding: &Value, name: &str| {
        let text = finding[name].as_str().unwrap_or_default();
        text.to_owned()
    };
    let findings = findings.iter().map(|finding| Finding {
        check: text(finding, "check"),
        outcome: text(finding, "outcome"),
        message: text(finding, "message"),
        next_step: text(finding, "next_step"),
    });
    Ok((healthy, findings.collect()))
}

/// Expects a failed finding with this text and a next step.
pub(crate) fn fails(check_name: &str, part: &str) -> anyhow::Result<()> {
    let (healthy, findings) = check()?;
    let mut failed = findings
        .iter()
        .filter(|finding| finding.outcome == "failed" && finding.check == check_name);
    ensure!(
        failed.any(|finding| finding.message.contains(part) && !finding.next_step.is_empty()),
        "no failure of {check_name} with {part:?}: {findings:#?}"
    );
    ensure!(!healthy, "{findings:#?}");
    Ok(())
}
