//! What the Dockerfile says again because Docker cannot read it elsewhere: versions, and the names
//! and the user that Consul's Helm chart relies on.

use std::fs;

use anyhow::Context;

use super::Finding;
use crate::envoy;
use crate::workspace::Workspace;

/// The programs that containers are started with, and the Envoy that gateways name.
const NAMES: [&str; 3] = [
    "consul-dataplane",
    "privileged-consul-dataplane",
    "privileged-envoy",
];
/// The script that puts the programs into the image.
const LAYOUT: &str = "images/dataplane/layout";

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let read = |name: &str| {
        let path = workspace.root.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))
    };
    let dockerfile = read("Dockerfile")?;
    let toolchain: toml::Table = read("rust-toolchain.toml")?.parse()?;
    let channel = toolchain["toolchain"]["channel"]
        .as_str()
        .context("rust-toolchain.toml names a channel")?;
    let mut findings = argument(&dockerfile, "RUST", channel, "rust-toolchain.toml");
    let version = envoy::version(workspace)?;
    findings.extend(argument(
        &dockerfile,
        "ENVOY",
        version,
        "[workspace.metadata.envoy] in Cargo.toml",
    ));
    findings.extend(container(&dockerfile));
    findings.extend(layout(&read(LAYOUT)?));
    Ok(findings)
}

/// One version is in one place, and repeated here.
fn argument(dockerfile: &str, name: &str, expected: &str, place: &str) -> Vec<Finding> {
    let found = dockerfile.lines().find_map(|line| {
        line.strip_prefix("ARG ")?
            .strip_prefix(name)?
            .strip_prefix('=')
    });
    match found {
        Some(found) if found == expected => Vec::new(),
        found => vec![format!(
            "Dockerfile: ARG {name} is {}, and {place} says {expected}",
            found.unwrap_or("not there")
        )],
    }
}

/// What the last stages say about how containers run.
fn container(dockerfile: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let users: Vec<&str> = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("USER "))
        .collect();
    let numeric = |user: &&str| {
        user.split(':')
            .all(|id| id.parse::<u32>().is_ok_and(|id| id > 0))
    };
    if users.len() != 1 || !users.iter().all(numeric) {
        findings.push(format!(
            "Dockerfile: USER is {users:?}: one number but 0, or Kubernetes refuses to start it with runAsNonRoot"
        ));
    }
    let expected = "ENTRYPOINT [\"/usr/local/bin/legate-dataplane\"]";
    if !dockerfile.lines().any(|line| line == expected) {
        findings.push(format!(
            "Dockerfile: there is no {expected}: sidecars are started with flags only, and there is no shell"
        ));
    }
    for part in [LAYOUT, "--profile sidecar", "--locked"] {
        if !dockerfile.contains(part) {
            findings.push(format!("Dockerfile: {part} is not used"));
        }
    }
    findings
}

fn layout(script: &str) -> Vec<Finding> {
    let missing = |name: &&str| !script.contains(&format!("\"$bin/{name}\""));
    NAMES
        .into_iter()
        .filter(missing)
        .map(|name| {
            format!("{LAYOUT} makes no /usr/local/bin/{name}, which Consul's Helm chart starts")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "ARG RUST=1.2.3\nRUN cargo build --locked --profile sidecar\nCOPY images/dataplane/layout /\nUSER 100:100\nENTRYPOINT [\"/usr/local/bin/legate-dataplane\"]\n";

    #[test]
    fn what_differs_is_told() {
        assert_eq!(container(GOOD), Vec::<String>::new());
        for (part, other) in [
            ("USER 100:100", "USER legate"),
            ("USER 100:100", "USER 0"),
            ("USER 100:100", ""),
            ("[\"/usr/local/bin/legate-dataplane\"]", "legate-dataplane"),
            ("--locked ", ""),
        ] {
            let findings = container(&GOOD.replace(part, other));
            assert_eq!(findings.len(), 1, "{other}: {findings:?}");
        }
        assert!(argument(GOOD, "RUST", "1.2.3", "").is_empty());
        assert_eq!(argument(GOOD, "RUST", "1.2.4", "x").len(), 1);
        assert_eq!(argument(GOOD, "ENVOY", "1.2.3", "x").len(), 1);
        assert_eq!(layout("").len(), NAMES.len());
    }
}
