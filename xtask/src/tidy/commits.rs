//! Subjects of commits fit in the lists that show them.

use std::process::Command;

use anyhow::Context;

use super::Finding;
use crate::workspace::Workspace;

/// What git and the sites that show commits do not cut off, in characters.
const LONGEST: usize = 72;

/// How many of the latest commits are looked at: those before have been judged.
const LATEST: &str = "--max-count=100";

/// Who has the tree without its history, as packagers do, is only reminded.
pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let output = Command::new("git")
        // The tree may be another user's, as in a container.
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
            "the subject of commit {id} has {length} characters: {LONGEST} is the most; say the rest in the body"
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
