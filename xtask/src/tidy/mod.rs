//! `cargo xtask tidy`: the rules of ARCHITECTURE.md that a program can check.
//!
//! Every check returns what is wrong as sentences that name the file and the way out; all checks
//! run, so that one look shows everything.

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

/// One rule that is broken, in words.
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

/// A reader finds every crate in the code map.
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
