//! The conditions in the status of objects.

/// A condition of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Condition {
    /// Its type, as in `Accepted`.
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// Why, in one word for programs.
    pub reason: &'static str,
    /// Why, for people.
    pub message: String,
}

/// Why something is not as an object asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

impl Condition {
    /// A condition that holds.
    pub(crate) fn holds(kind: &'static str, reason: &'static str) -> Self {
        Self {
            kind,
            holds: true,
            reason,
            message: String::new(),
        }
    }

    /// A condition that holds unless there is a problem.
    pub(crate) fn unless(
        kind: &'static str,
        reason: &'static str,
        problem: Option<&Problem>,
    ) -> Self {
        match problem {
            None => Self::holds(kind, reason),
            Some(problem) => Self {
                holds: false,
                ..Self::holds(kind, problem.reason).saying(&problem.message)
            },
        }
    }

    pub(crate) fn saying(self, message: &str) -> Self {
        Self {
            message: message.to_owned(),
            ..self
        }
    }
}

pub(crate) const ACCEPTED: &str = "Accepted";
pub(crate) const PROGRAMMED: &str = "Programmed";
pub(crate) const RESOLVED: &str = "ResolvedRefs";
pub(crate) const CONFLICTED: &str = "Conflicted";

/// The reason for what is not served.
pub(crate) const UNSUPPORTED: &str = "UnsupportedValue";
