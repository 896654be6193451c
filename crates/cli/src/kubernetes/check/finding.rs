//! A finding: the check, its outcome, and the next step.

use serde::Serialize;

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Ok,
    /// It works, but needs attention.
    Warning,
    Failed,
    /// The check was not possible.
    Unchecked,
}

impl Outcome {
    pub(super) fn label(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Warning => "warn",
            Outcome::Failed => "FAIL",
            Outcome::Unchecked => "skip",
        }
    }
}

/// One line of the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Name of the check.
    pub(super) check: &'static str,
    pub(super) outcome: Outcome,
    /// What was observed.
    pub(super) message: String,
    /// The next step, in one sentence; always present for failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_step: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, message: impl Into<String>) -> Finding {
        Finding {
            check,
            outcome: Outcome::Ok,
            message: message.into(),
            next_step: None,
        }
    }

    pub(super) fn failed(
        check: &'static str,
        message: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Finding {
        Finding {
            outcome: Outcome::Failed,
            next_step: Some(next_step.into()),
            ..Finding::ok(check, message)
        }
    }

    pub(super) fn warning(
        check: &'static str,
        message: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Finding {
        Finding {
            outcome: Outcome::Warning,
            ..Finding::failed(check, message, next_step)
        }
    }

    pub(super) fn unchecked(check: &'static str, message: impl Into<String>) -> Finding {
        Finding {
            outcome: Outcome::Unchecked,
            ..Finding::ok(check, message)
        }
    }
    /// A check that was not possible.
    pub(super) fn cannot_see(check: &'static str, what: &str, why: &str) -> Finding {
        Finding::unchecked(check, format!("{what} cannot be checked: {why}"))
    }
}
