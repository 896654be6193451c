//! Versions of Envoy: whether one has been tested, and whether two can hand over to one another.

use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::process::run_short;

/// The first and the last minor version of Envoy 1 that is tested.
const TESTED: (u32, u32) = (36, 40);

/// A warning for an untested version, from the text in `/server_info`:
/// `<commit>/1.38.2/Clean/RELEASE/BoringSSL`.
pub(super) fn untested(text: &str) -> Option<String> {
    let (first, last) = TESTED;
    let Some(version) = text.split('/').nth(1) else {
        return Some(format!("Envoy reports an unknown version: {text:?}"));
    };
    let minor = version
        .strip_prefix("1.")
        .and_then(|rest| rest.split('.').next());
    match minor.and_then(|minor| minor.parse().ok()) {
        Some(minor) if (first..=last).contains(&minor) => None,
        _ => Some(format!(
            "Envoy {version} is outside the tested range 1.{first} to 1.{last}"
        )),
    }
}

/// Why the Envoy at `new` cannot take over from the one at `old`, if it cannot.
pub(super) async fn incompatible(old: &Path, new: &Path) -> Option<String> {
    let (old, new) = (
        hot_restart_version(old).await,
        hot_restart_version(new).await,
    );
    if old == new && old.is_ok() {
        return None;
    }
    let text =
        |version: Result<String, String>| version.unwrap_or_else(|why| format!("unknown ({why})"));
    Some(format!(
        "the new Envoy's hot restart version is {}, the running one's {}",
        text(new),
        text(old)
    ))
}

async fn hot_restart_version(executable: &Path) -> Result<String, String> {
    let mut command = Command::new(executable);
    command
        .arg("--hot-restart-version")
        .stdin(Stdio::null())
        .env_clear()
        .kill_on_drop(true);
    let output = run_short(&mut command)
        .await
        .map_err(|error| error.to_string())?;
    // Envoy prints this version to standard error, unlike the one of `--version`.
    let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    let version = said
        .iter()
        .flat_map(|said| said.lines().rev())
        .map(str::trim)
        .find(|line| !line.is_empty());
    match version {
        Some(version) if output.status.success() => Ok(version.to_owned()),
        _ => Err(output.status.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_and_checked() {
        let said = |version: &str| format!("f387231af8dd/{version}/Clean/RELEASE/BoringSSL");
        for version in ["1.36.4", "1.38.2", "1.39.0-dev", "1.40.0"] {
            assert_eq!(untested(&said(version)), None);
        }
        for version in ["1.12.0", "1.99.1", "2.38.0"] {
            let warning = untested(&said(version)).unwrap();
            assert!(
                warning.contains(version) && warning.contains("1.36 to 1.40"),
                "{warning}"
            );
        }
        assert!(untested("no idea").is_some());
    }
}
