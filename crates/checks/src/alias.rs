//! The status of an alias check: the health of another service, or of a node.

use std::sync::Arc;

use legate_model::{CheckStatus, CheckType, HealthCheck};
use legate_store::ReadTxn;

/// The status of an alias check and its output. `node` and `check_id` are the check's own.
pub(crate) fn status(
    state: &ReadTxn<'_>,
    node: &str,
    check_id: &str,
    of: &CheckType,
) -> (CheckStatus, String) {
    let node = match of.alias_node.as_str() {
        "" => node,
        other => other,
    };
    let service = of.alias_service.as_str();
    let known = match service {
        "" => state.node(node).is_some(),
        service => state.instance(node, service).is_some(),
    };
    if !known {
        let what = match service {
            "" => format!("Node {node} could not be found"),
            service => format!("Service {service} could not be found on node {node}"),
        };
        return (CheckStatus::Critical, what);
    }
    let mut checks = state.checks_on(node);
    checks.retain(|check| {
        let of_it = check.service_id.is_empty() || check.service_id.eq_ignore_ascii_case(service);
        // A check of the node does not wait for itself.
        of_it && !check.check_id.eq_ignore_ascii_case(check_id)
    });
    worst(&checks)
}

/// The worst of some checks, the first one of it.
fn worst(checks: &[Arc<HealthCheck>]) -> (CheckStatus, String) {
    let mut worst: Option<&HealthCheck> = None;
    for check in checks {
        if worst.is_none_or(|worst| worst.status < check.status) {
            worst = Some(check);
        }
    }
    match worst {
        None => (CheckStatus::Passing, "No checks found.".to_owned()),
        Some(worst) if worst.status == CheckStatus::Passing => {
            (CheckStatus::Passing, "All checks passing.".to_owned())
        }
        Some(worst) => {
            let (name, output) = (&worst.name, &worst.output);
            let output = format!("Aliased check {name:?} failing: {output}");
            (worst.status, output)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, status: CheckStatus) -> Arc<HealthCheck> {
        Arc::new(HealthCheck {
            name: name.to_owned(),
            status,
            output: "out".to_owned(),
            ..HealthCheck::default()
        })
    }

    #[test]
    fn the_worst_check_decides() {
        use CheckStatus::{Critical, Passing, Warning};
        assert_eq!(worst(&[]), (Passing, "No checks found.".to_owned()));
        assert_eq!(worst(&[check("a", Passing)]).1, "All checks passing.");
        let all = [
            check("a", Warning),
            check("b", Critical),
            check("c", Critical),
        ];
        let (status, output) = worst(&all);
        assert_eq!(
            (status, output.as_str()),
            (Critical, "Aliased check \"b\" failing: out")
        );
        assert_eq!(worst(&all[..1]).0, Warning);
    }
}
