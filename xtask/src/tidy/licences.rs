//! Checks that the licence of every linked crate is allowed by `deny.toml`.

use std::collections::BTreeSet;
use std::fs;

use anyhow::Context;

use super::Finding;
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let text = fs::read_to_string(workspace.root.join("deny.toml")).context("deny.toml")?;
    let policy: toml::Table = text.parse().context("deny.toml")?;
    let allowed: BTreeSet<&str> = policy["licenses"]["allow"]
        .as_array()
        .context("deny.toml: licenses.allow is a list")?
        .iter()
        .filter_map(toml::Value::as_str)
        .collect();
    let packages = workspace.metadata["packages"]
        .as_array()
        .context("cargo metadata has packages")?;
    let mut findings = Vec::new();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or_default();
        if !accepts(&allowed, licence) {
            findings.push(format!(
                "{} is licensed {licence:?}, which deny.toml does not allow",
                package["name"]
            ));
        }
    }
    Ok(findings)
}

/// Evaluates the SPDX expressions that occur in practice: `OR`, `AND`, `WITH`, `/`, one level of
/// parentheses. Expressions that it cannot parse are refused.
fn accepts(allowed: &BTreeSet<&str>, expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let mut depth = 0usize;
    let mut alternatives = vec![String::new()];
    let mut conjunctions = Vec::new();
    for word in expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .split_whitespace()
    {
        match word {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            "OR" if depth == 0 => alternatives.push(String::new()),
            "AND" if depth == 0 => {
                conjunctions.push(std::mem::replace(&mut alternatives, vec![String::new()]))
            }
            word => {
                let Some(last) = alternatives.last_mut() else {
                    return false;
                };
                if !last.is_empty() {
                    last.push(' ');
                }
                last.push_str(word);
            }
        }
    }
    conjunctions.push(alternatives);
    conjunctions
        .iter()
        .all(|alternatives| alternatives.iter().any(|term| accepts_term(allowed, term)))
}

fn accepts_term(allowed: &BTreeSet<&str>, term: &str) -> bool {
    allowed.contains(term)
        || (term.contains(" OR ") || term.contains(" AND ")) && accepts(allowed, term)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        let allowed = BTreeSet::from(["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]);
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR GPL-3.0) AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(accepts(&allowed, good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR Apache-2.0) AND GPL-3.0",
        ] {
            assert!(!accepts(&allowed, bad), "{bad}");
        }
    }
}
