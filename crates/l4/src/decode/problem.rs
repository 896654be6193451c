//! Why a resource is refused, with the path to the place.

use std::fmt::Display;

use super::Refused;

/// A reason and its path, which grows from the inside while the decoder returns.
#[derive(Debug)]
pub(super) struct Problem {
    /// From the innermost name outwards.
    path: Vec<String>,
    text: String,
    invalid: bool,
}

impl Problem {
    /// Only Envoy can serve this. The text may be empty if the path says it all.
    pub(super) fn needs_envoy(text: impl Into<String>) -> Problem {
        Problem {
            path: Vec::new(),
            text: text.into(),
            invalid: false,
        }
    }

    /// Envoy would reject this as well.
    pub(super) fn invalid(text: impl Into<String>) -> Problem {
        Problem {
            invalid: true,
            ..Problem::needs_envoy(text)
        }
    }

    /// The problem is in this field of the message.
    pub(super) fn within(mut self, field: impl Display) -> Problem {
        self.path.push(field.to_string());
        self
    }

    /// The problem is in this element of a repeated field.
    pub(super) fn within_element(self, field: &str, index: usize) -> Problem {
        self.within(format_args!("{field}[{index}]"))
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Refused {
        let outside_in: Vec<String> = problem.path.into_iter().rev().collect();
        let mut what = outside_in.join(".");
        if !what.is_empty() && !problem.text.is_empty() {
            what.push_str(": ");
        }
        what.push_str(&problem.text);
        if problem.invalid {
            return Refused::Invalid(what);
        }
        Refused::NeedsEnvoy { what }
    }
}
