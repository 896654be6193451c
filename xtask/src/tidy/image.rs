//! Checks the values that the Dockerfile has to repeat: versions, profiles, and the names and the user
//! that charts rely on.

use std::fs;

use anyhow::Context;

use super::Finding;
use crate::envoy;
use crate::images::{DATAPLANE, IMAGES, Image, USER, program};
use crate::workspace::Workspace;

/// The programs that containers start, and the Envoy that gateways refer to.
const NAMES: [&str; 3] = [
    "consul-dataplane",
    "privileged-consul-dataplane",
    "privileged-envoy",
];

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
    findings.extend(user(&dockerfile));
    for image in IMAGES {
        findings.extend(container(&dockerfile, &image));
    }
    if let Some(script) = DATAPLANE.layout {
        findings.extend(layout(script, &read(script)?));
    }
    Ok(findings)
}

/// A version that is defined elsewhere and repeated in the Dockerfile.
fn argument(dockerfile: &str, name: &str, expected: &str, place: &str) -> Vec<Finding> {
    let found = dockerfile.lines().find_map(|line| {
        line.strip_prefix("ARG ")?
            .strip_prefix(name)?
            .strip_prefix('=')
    });
    match found {
        Some(found) if found == expected => Vec::new(),
        found => vec![format!(
            "Dockerfile: ARG {name} is {}, but {place} has {expected}",
            found.unwrap_or("not there")
        )],
    }
}

/// The user in the base of all images.
fn user(dockerfile: &str) -> Vec<Finding> {
    let users: Vec<&str> = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("USER "))
        .collect();
    if users == [USER] {
        return Vec::new();
    }
    vec![format!(
        "Dockerfile: USER is {users:?}, not {USER} once: Kubernetes cannot verify other users, and they are not \
         those of the tests"
    )]
}

/// The build of an image, and the program that its containers start.
fn container(dockerfile: &str, image: &Image) -> Vec<Finding> {
    let Image {
        name,
        package,
        profile,
        layout,
    } = image;
    let mut needed = vec![
        format!("cargo build --locked --profile {profile} --package {package} "),
        format!("images/strip target/{profile}/{name} /out\n"),
        format!("/out/{name}.debug /\n"),
        format!("AS {name}\n"),
        format!("ENTRYPOINT [\"{}\"]\n", program(name)),
    ];
    needed.extend(layout.map(|script| format!("COPY {script} ")));
    needed.retain(|part| !dockerfile.contains(part));
    needed
        .into_iter()
        .map(|part| format!("Dockerfile: {name} needs `{}`", part.trim()))
        .collect()
}

fn layout(name: &str, script: &str) -> Vec<Finding> {
    let missing = |program: &&str| !script.contains(&format!("\"$bin/{program}\""));
    NAMES
        .into_iter()
        .filter(missing)
        .map(|program| {
            format!("{name} makes no /usr/local/bin/{program}, which Consul's Helm chart starts")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "ARG RUST=1.2.3\nRUN cargo build --locked --profile sidecar --package legate-dataplane && images/strip target/sidecar/legate-dataplane /out\nCOPY /out/legate-dataplane.debug /\nCOPY images/dataplane/layout /\nUSER 100:100\nFROM base AS legate-dataplane\nENTRYPOINT [\"/usr/local/bin/legate-dataplane\"]\n";

    #[test]
    fn differences_are_reported() {
        assert_eq!(user(GOOD), Vec::<String>::new());
        assert_eq!(container(GOOD, &DATAPLANE), Vec::<String>::new());
        for other in ["USER legate", "USER 0", "", "USER 100:100\nUSER 0"] {
            let findings = user(&GOOD.replace("USER 100:100", other));
            assert_eq!(findings.len(), 1, "{other}: {findings:?}");
        }
        for (part, other) in [
            ("[\"/usr/local/bin/legate-dataplane\"]", "legate-dataplane"),
            ("--locked ", ""),
            ("images/strip", "cp"),
            (".debug", ".symbols"),
            ("COPY images", "COPY other"),
            ("AS legate-dataplane", "AS dataplane"),
        ] {
            let findings = container(&GOOD.replace(part, other), &DATAPLANE);
            assert_eq!(findings.len(), 1, "{other}: {findings:?}");
        }
        assert!(argument(GOOD, "RUST", "1.2.3", "").is_empty());
        assert_eq!(argument(GOOD, "RUST", "1.2.4", "x").len(), 1);
        assert_eq!(argument(GOOD, "ENVOY", "1.2.3", "x").len(), 1);
        assert_eq!(layout("", "").len(), NAMES.len());
    }
}
