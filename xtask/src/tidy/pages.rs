//! Checks Markdown pages: links point to existing files and headings, and the README links to each page
//! of `docs`. It needs no network: links to other sites are not checked. Marks of a merge conflict are found, too: in other
//! files they do not compile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::Finding;
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let mut pages = BTreeMap::new();
    read(&workspace.root, Path::new(""), &mut pages)?;
    let mut findings = Vec::new();
    let mut from_readme = BTreeSet::new();
    for (page, text) in &pages {
        findings.extend(conflict(text).map(|line| {
            let page = page.display();
            format!("{page}:{line} is a mark of a merge conflict: resolve the conflict")
        }));
        for (line, link) in links(text) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => joined(page.parent().unwrap_or(Path::new("")), file),
            };
            let found = match pages.get(&target) {
                Some(text) => heading.is_empty() || headings(text).any(|known| known == heading),
                None => workspace.root.join(&target).exists(),
            };
            if !found {
                let page = page.display();
                findings.push(format!(
                    "{page}:{line} links to {link}, which does not exist: correct the link"
                ));
            }
            if page == Path::new("README.md") {
                from_readme.insert(target);
            }
        }
    }
    let of_docs = pages.keys().filter(|page| page.starts_with("docs"));
    let missing = of_docs.filter(|page| !from_readme.contains(*page));
    findings.extend(missing.map(|page| {
        format!(
            "README.md does not link to {}: add it to the pages there",
            page.display()
        )
    }));
    Ok(findings)
}

/// Reads all pages below a folder, by path relative to the root.
fn read(root: &Path, folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name();
        let path = folder.join(&name);
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.starts_with('.') {
                read(root, &path, pages)?;
            }
        } else if name.ends_with(".md") {
            pages.insert(path, fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// Resolves a path relative to a folder, without `..`.
fn joined(folder: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// The number of the first line that a merge left with a conflict.
fn conflict(text: &str) -> Option<usize> {
    let is_mark = |line: &str| {
        ["<<<<<<< ", ">>>>>>> "]
            .iter()
            .any(|mark| line.starts_with(mark))
    };
    Some(text.lines().position(is_mark)? + 1)
}

/// The lines outside of code blocks, with line numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((number + 1, line))
    })
}

/// The links of a page within the repository, with line numbers.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        let targets = line.split("](").skip(1);
        let targets = targets.filter_map(|rest| rest.split_once(')'));
        let inside = targets.map(|(target, _)| target);
        let inside = inside.filter(|target| !target.contains("://") && !target.contains(' '));
        inside.map(move |target| (number, target))
    })
}

/// The anchors of a page's headings.
fn headings(text: &str) -> impl Iterator<Item = String> {
    prose(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            words
                .chars()
                .filter(|of| of.is_alphanumeric() || ['-', '_', ' '].contains(of))
                .map(|of| if of == ' ' { '-' } else { of })
                .collect()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# `legate agent`, and more\n\nSee [a](a.md) and [b](../b.md#the-end),\n\
                        [c](https://c.example/d.md).\n```text\n# [e](e.md)\n```\n[f](#f)\n";

    #[test]
    fn links_are_those_within_the_repository_and_not_in_code() {
        let found: Vec<_> = links(PAGE).collect();
        assert_eq!(found, [(3, "a.md"), (3, "../b.md#the-end"), (8, "#f")]);
    }

    #[test]
    fn headings_have_the_anchors_of_code_hosting_sites() {
        let found: Vec<_> = headings(PAGE).collect();
        assert_eq!(found, ["legate-agent-and-more"]);
    }

    #[test]
    fn a_conflict_is_found_by_its_first_mark() {
        let marks = ["<<<<<<< HEAD", "a", "=======", "b", ">>>>>>> other"];
        assert_eq!(
            conflict(&format!("# Page\n{}\n", marks.join("\n"))),
            Some(2)
        );
        assert_eq!(conflict("Page\n=======\n\n> > quoted\n"), None);
    }

    #[test]
    fn paths_are_relative_to_the_page() {
        let seen = |folder: &str, link| joined(Path::new(folder), link);
        assert_eq!(seen("docs", "../README.md"), Path::new("README.md"));
        assert_eq!(seen("", "docs"), Path::new("docs"));
        assert_eq!(seen("a/b", "./c.md"), Path::new("a/b/c.md"));
    }
}
