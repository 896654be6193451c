//! Checks dependencies between crates: data flows down the member list, pure crates stay pure, and
//! the host side and the control plane are independent.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context;

use super::Finding;
use crate::workspace::Workspace;

/// Pure crates: no runtime, sockets, processes or randomness.
const PURE: [&str; 10] = [
    "crates/routes",
    "crates/gateway-api",
    "crates/go-template",
    "crates/l4",
    "crates/metrics-page",
    "crates/model",
    "crates/peering",
    "crates/intentions",
    "crates/envoy-json",
    "crates/resources",
];
const IMPURE_CRATES: [&str; 14] = [
    "axum",
    "hickory-proto",
    "hyper",
    "hyper-util",
    "nix",
    "rand",
    "rustls",
    "tempfile",
    "tokio",
    "tokio-rustls",
    "tokio-stream",
    "tokio-util",
    "tonic",
    "tower",
];
const HOST: [&str; 6] = [
    "crates/client",
    "crates/go-template",
    "crates/envoy",
    "crates/l4",
    "crates/metrics-page",
    "crates/dataplane",
];
const CONTROL_PLANE: [&str; 8] = [
    "crates/store",
    "crates/ca",
    "crates/intentions",
    "crates/proxycfg",
    "crates/envoy-json",
    "crates/resources",
    "crates/xds",
    "crates/server",
];
/// Crates that may depend on both sides.
const MEETING_POINTS: [&str; 4] = ["crates/cli", "crates/testkit", "tests", "tests/kind"];
/// Crates that may use Envoy's generated types; the dataplane never compiles them.
const ENVOY_TYPES: [&str; 4] = ["crates/resources", "crates/xds", "crates/testkit", "tests"];
/// Stages after proxycfg, which only use its snapshots.
const SNAPSHOT_STAGES: [&str; 2] = ["crates/resources", "crates/xds"];

/// A workspace member with its manifest.
struct Member {
    folder: String,
    manifest: toml::Table,
}

impl Member {
    fn names(&self, table: &str) -> impl Iterator<Item = &str> {
        self.manifest
            .get(table)
            .and_then(toml::Value::as_table)
            .into_iter()
            .flat_map(|table| table.keys().map(String::as_str))
    }
}

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let mut members = Vec::new();
    for folder in workspace.members()? {
        let path = workspace.root.join(&folder).join("Cargo.toml");
        let manifest = fs::read_to_string(&path)
            .with_context(|| path.display().to_string())?
            .parse()?;
        members.push(Member { folder, manifest });
    }
    let order: Vec<&str> = members
        .iter()
        .map(|member| member.folder.as_str())
        .collect();
    let mut findings = Vec::new();
    for (rank, member) in members.iter().enumerate() {
        findings.extend(direction(member, rank, &order));
        findings.extend(purity(member));
        findings.extend(inheritance(member));
        findings.extend(unused(workspace, member)?);
        findings.extend(test_binaries(&workspace.root, member));
    }
    findings.extend(unused_in_workspace(workspace, &members));
    Ok(findings)
}

/// The folder of a crate: `legate-store` is in `crates/store`.
fn folder_of(dependency: &str) -> Option<String> {
    dependency
        .strip_prefix("legate-")
        .map(|name| format!("crates/{name}"))
}

fn direction(member: &Member, rank: usize, order: &[&str]) -> Vec<Finding> {
    let folder = member.folder.as_str();
    let mut findings = Vec::new();
    for used in member.names("dependencies").filter_map(folder_of) {
        let used = used.as_str();
        let mut forbid =
            |why: &str| findings.push(format!("{folder} may not depend on {used}: {why}"));
        if order
            .iter()
            .position(|other| *other == used)
            .is_none_or(|other| other >= rank)
        {
            forbid(
                "it does not stand above it in the root Cargo.toml, and data flows down that list",
            );
        }
        if HOST.contains(&folder) && CONTROL_PLANE.contains(&used) {
            forbid("the host side runs without the control plane's code");
        }
        if CONTROL_PLANE.contains(&folder) && HOST.contains(&used) {
            forbid("the control plane runs without the host side's code");
        }
        if SNAPSHOT_STAGES.contains(&folder) && ["crates/store", "crates/ca"].contains(&used) {
            forbid("only proxycfg joins store and CA; later stages see its snapshots");
        }
        if MEETING_POINTS.contains(&used) && !MEETING_POINTS.contains(&folder) {
            forbid("it joins both sides, for users and tests only");
        }
    }
    findings
}

fn purity(member: &Member) -> Vec<Finding> {
    let folder = member.folder.as_str();
    let mut findings = Vec::new();
    for used in member.names("dependencies") {
        if PURE.contains(&folder) && IMPURE_CRATES.contains(&used) {
            findings.push(format!(
                "{folder} may not depend on {used}: it must stay pure"
            ));
        }
        if used == "envoy-types" && !ENVOY_TYPES.contains(&folder) {
            findings.push(format!(
                "{folder} may not depend on envoy-types: only {} do",
                ENVOY_TYPES.join(", ")
            ));
        }
    }
    findings
}

fn inheritance(member: &Member) -> Vec<Finding> {
    let inherits = |value: Option<&toml::Value>| {
        value
            .and_then(|value| value.get("workspace"))
            .and_then(toml::Value::as_bool)
            .unwrap_or_default()
    };
    let mut findings = Vec::new();
    if !inherits(member.manifest.get("lints")) {
        findings.push(format!(
            "{}/Cargo.toml does not inherit the lints: add [lints] workspace = true",
            member.folder
        ));
    }
    for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
        for (name, value) in member
            .manifest
            .get(table)
            .and_then(toml::Value::as_table)
            .into_iter()
            .flatten()
        {
            if !inherits(Some(value)) {
                let folder = &member.folder;
                findings.push(format!(
                    "{folder}/Cargo.toml: {name} does not take its version from the workspace"
                ));
            }
        }
    }
    findings
}

/// A dependency that no source file uses only costs compile time.
fn unused(workspace: &Workspace, member: &Member) -> anyhow::Result<Vec<Finding>> {
    let folder = workspace.root.join(&member.folder);
    let mut code = String::new();
    for path in super::sources::rust_files(&folder)? {
        code.push_str(&fs::read_to_string(path)?);
    }
    let mut findings = Vec::new();
    for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
        for name in member.names(table) {
            let ident = name.replace('-', "_");
            // Code generated by prost and tonic uses these implicitly.
            let generated = member.folder == "crates/api"
                && ["prost", "tonic-prost", "prost-types"].contains(&name);
            if !generated && !code.contains(&ident) {
                findings.push(format!(
                    "{}/Cargo.toml: {name} in [{table}] is not used: remove it",
                    member.folder
                ));
            }
        }
    }
    Ok(findings)
}

/// One test binary per crate, because linking dominates test times.
fn test_binaries(root: &Path, member: &Member) -> Vec<Finding> {
    let Ok(entries) = fs::read_dir(root.join(&member.folder).join("tests")) else {
        return Vec::new();
    };
    let stray = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs"));
    stray
        .map(|path| {
            format!(
                "{}: put it below tests/it/, one test binary a crate",
                path.display()
            )
        })
        .collect()
}

fn unused_in_workspace(workspace: &Workspace, members: &[Member]) -> Vec<Finding> {
    let used: BTreeSet<&str> = members
        .iter()
        .flat_map(|member| {
            ["dependencies", "dev-dependencies", "build-dependencies"].map(|table| (member, table))
        })
        .flat_map(|(member, table)| member.names(table))
        .collect();
    let declared = workspace.manifest["workspace"]["dependencies"]
        .as_table()
        .into_iter()
        .flat_map(|table| table.keys());
    declared
        .filter(|name| !used.contains(name.as_str()))
        .map(|name| {
            format!("Cargo.toml: no member uses {name} of [workspace.dependencies]: remove it")
        })
        .collect()
}
