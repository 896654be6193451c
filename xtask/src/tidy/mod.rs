//! `cargo xtask tidy`: checks the rules of ARCHITECTURE.md that can be checked automatically.
//!
//! Every check returns its findings as sentences that name the file and the remedy. All checks run,
//! so that all findings are reported at once.

mod commits;
mod dependencies;
mod fuzz;
mod image;
mod licences;
mod pages;
mod sources;

use std::fs;

use anyhow::bail;

use crate::workspace::Workspace;

/// A broken rule, as a sentence.
type Finding = String;

/// Runs every check.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let mut findings = Vec::new();
    findings.extend(commits::check(workspace)?);
    findings.extend(dependencies::check(workspace)?);
    findings.extend(licences::check(workspace)?);
    findings.extend(sources::check(workspace)?);
    findings.extend(fuzz::check(workspace)?);
    findings.extend(image::check(workspace)?);
    findings.extend(pages::check(workspace)?);
    findings.extend(named_in_architecture(workspace)?);
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} finding(s)", findings.len());
    }
    println!("tidy: nothing to report");
    Ok(())
}

/// Checks that every crate is in the code map.
fn named_in_architecture(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let text = fs::read_to_string(workspace.root.join("ARCHITECTURE.md")).unwrap_or_default();
    let missing = workspace
        .members()?
        .into_iter()
        .filter(|member| !text.contains(&format!("`{member}`")));
    Ok(missing
        .map(|member| format!("ARCHITECTURE.md does not name `{member}`: add it to the code map"))
        .collect())
}
