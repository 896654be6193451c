//! Checks that subjects of commits are not truncated in lists.

use std::process::Command;

use anyhow::Context;

use super::Finding;
use crate::workspace::Workspace;

/// The length in characters up to which git and hosting sites show subjects completely.
const LONGEST: usize = 72;

/// Only the latest commits are checked.
const LATEST: &str = "--max-count=100";

/// Without a git history, as for packagers, there is only a hint.
pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let output = Command::new("git")
        // The tree may be owned by another user, as in a container.
        .args(["-c", "safe.directory=*"])
        .args(["log", "--no-merges", "--format=%h %s", LATEST])
        .current_dir(&workspace.root)
        .output()
        .context("cannot start git")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        println!(
            "hint: the subjects of commits are not checked: {}",
            said.trim()
        );
    }
    Ok(too_long(&String::from_utf8_lossy(&output.stdout)))
}

fn too_long(log: &str) -> Vec<Finding> {
    let commits = log.lines().filter_map(|line| line.split_once(' '));
    let lengths = commits.map(|(id, subject)| (id, subject.chars().count()));
    let long = lengths.filter(|(_, length)| *length > LONGEST);
    let finding = |(id, length): (&str, usize)| {
        format!(
            "the subject of commit {id} has {length} characters: the limit is {LONGEST}; move details to the body"
        )
    };
    long.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_counted_in_characters() {
        let longest = "ü".repeat(LONGEST);
        assert_eq!(too_long(&format!("abc {longest}\ndef short")), [""; 0]);
        let [finding] = &too_long(&format!("abc {longest}!"))[..] else {
            panic!("one commit is too long");
        };
        assert!(
            finding.contains("commit abc has 73 characters"),
            "{finding}"
        );
    }
}
