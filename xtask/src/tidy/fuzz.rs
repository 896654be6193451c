//! Checks the settings of the fuzz targets, a separate workspace that cannot inherit those of the
//! members.

use std::fs;

use anyhow::Context;

use super::Finding;
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let text = fs::read_to_string(workspace.root.join("fuzz/Cargo.toml"))
        .context("cannot read fuzz/Cargo.toml")?;
    let manifest: toml::Table = text.parse().context("fuzz/Cargo.toml")?;
    let mut findings = Vec::new();
    if manifest.get("lints") != workspace.manifest["workspace"].get("lints") {
        findings.push(
            "fuzz/Cargo.toml: [lints] differs from [workspace.lints] of the root Cargo.toml: copy them"
                .to_owned(),
        );
    }
    let targets = manifest.get("bin").and_then(toml::Value::as_array);
    let names = targets
        .into_iter()
        .flatten()
        .filter_map(|target| target.get("name")?.as_str());
    for name in names {
        let seeds = workspace.root.join("fuzz/seeds").join(name);
        if fs::read_dir(&seeds).map_or(0, Iterator::count) == 0 {
            findings.push(format!(
                "fuzz/seeds/{name} has no input: without one, a short run covers nothing"
            ));
        }
    }
    Ok(findings)
}
