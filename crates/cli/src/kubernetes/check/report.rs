//! Formats findings as text lines and as JSON.

use serde_json::json;

use super::finding::{Finding, Outcome};
use crate::kubernetes::table::printable;

/// Whether nothing failed.
pub(super) fn healthy(findings: &[Finding]) -> bool {
    !findings
        .iter()
        .any(|finding| finding.outcome == Outcome::Failed)
}

/// One line per finding, and a summary.
pub(super) fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let label = finding.outcome.label();
        text += &format!(
            "{label:<4}  {}: {}",
            finding.check,
            printable(&finding.message)
        );
        if let Some(next) = &finding.next_step {
            text += &format!(". Next: {}", printable(next));
        }
        text.push('\n');
    }
    let count = |outcome| findings.iter().filter(|it| it.outcome == outcome).count();
    let (failed, warnings) = (count(Outcome::Failed), count(Outcome::Warning));
    let unchecked = count(Outcome::Unchecked);
    if unchecked > 0 {
        text += &format!("\nNot checked: {unchecked}.");
    }
    text += &match (failed, warnings) {
        (0, _) if unchecked > 0 => format!("\nNothing failed, warnings {warnings}.\n"),
        (0, 0) => "\nThe mesh is healthy.\n".to_owned(),
        (0, _) => format!("\nThe mesh is healthy, with warnings: {warnings}.\n"),
        _ => format!("\nThe mesh is not healthy: failed {failed}, warnings {warnings}.\n"),
    };
    text
}

/// `{"healthy": …, "unchecked": …, "findings": […]}`; `healthy` is true if no check failed.
pub(super) fn json(findings: &[Finding]) -> String {
    let unchecked = |finding: &&Finding| finding.outcome == Outcome::Unchecked;
    let unchecked = findings.iter().filter(unchecked).count();
    let document = json!({
        "healthy": healthy(findings), "unchecked": unchecked, "findings": findings,
    });
    format!("{document:#}\n")
}
