//! Checks source files: no unsafe code, and a module comment. Long files are listed.

use std::fs;
use std::path::{Path, PathBuf};

use super::Finding;
use crate::workspace::Workspace;

/// Longer files are listed as a hint.
const LINES: usize = 500;
/// The only files with unsafe code: the kernel's parent-death signal and the C library's heap have no safe wrapper.
const UNSAFE: [&str; 2] = [
    "crates/envoy/src/process/parent_death.rs",
    "crates/runtime/src/heap.rs",
];
/// Files with root scopes: programs, and components that report every failure to their owner.
const ROOT_SCOPES: [&str; 5] = [
    "crates/cli/src/dev/mod.rs",
    "crates/dataplane/src/main.rs",
    "crates/kubernetes/src/acl_init/mod.rs",
    "crates/kubernetes/src/operator/mod.rs",
    "crates/server/src/server.rs",
];

/// All Rust files below a folder.
pub(super) fn rust_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut exceptions = Vec::new();
    let folders = workspace.members()?.into_iter().chain(["fuzz".to_owned()]);
    for member in folders {
        for path in rust_files(&workspace.root.join(&member))? {
            let name = path
                .strip_prefix(&workspace.root)
                .unwrap_or(&path)
                .display()
                .to_string();
            let text = fs::read_to_string(&path)?;
            let test = name.ends_with("tests.rs")
                || name.contains("/tests/")
                || name.contains("/benches/")
                || name.starts_with("tests/");
            let lines = text.lines().count();
            if lines > LINES && !test {
                println!(
                    "hint: {name} has {lines} lines: are they about one subject? (more than {LINES})"
                );
            }
            if !text.starts_with("//!") && !name.ends_with("tests.rs") {
                findings.push(format!(
                    "{name} does not start with a //! comment on its purpose"
                ));
            }
            let product = name.starts_with("crates/") && !name.starts_with("crates/testkit/");
            if product && !test && !ROOT_SCOPES.contains(&&*name) && has_root_scope(&text) {
                findings.push(format!(
                    "{name} has a scope of its own, whose failures may go unseen: make it a \
                     child of another one (Spawner::child)"
                ));
            }
            if text.contains("unsafe {")
                || text.contains("unsafe fn")
                || text.contains("unsafe impl")
            {
                exceptions.push(name);
            }
        }
    }
    exceptions.retain(|name| name != "xtask/src/tidy/sources.rs");
    if exceptions
        .iter()
        .any(|name| !UNSAFE.contains(&name.as_str()))
    {
        findings.push(format!(
            "unsafe code in {}: only {} may have it",
            exceptions.join(", "),
            UNSAFE.join(" and ")
        ));
    }
    Ok(findings)
}

/// Whether code outside of tests creates a scope without a parent.
fn has_root_scope(text: &str) -> bool {
    let code = text.split("#[cfg(test)]\nmod tests {").next();
    code.is_some_and(|code| code.contains("Scope::new("))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_may_have_root_scopes() {
        assert!(has_root_scope("let scope = Scope::new(\"a\");\n"));
        assert!(!has_root_scope("let scope = spawner.child(\"a\");\n"));
        assert!(!has_root_scope(
            "fn a() {}\n#[cfg(test)]\nmod tests {\n    Scope::new(\"test\");\n}\n"
        ));
    }
}
