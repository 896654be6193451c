//! Why an attempt has not reached its end, and whether it is tried again.

use http::StatusCode;

use crate::servers::{Answer, Path, ServersError};

/// Why an attempt has not reached its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// It may work later.
    Later(String),
    /// Somebody has to do something.
    Final(String),
}

impl Failure {
    /// A status that is no success. Servers that start, or have no leader, answer 5xx and 429.
    pub(super) fn of_answer(method: &str, path: &Path, answer: &Answer) -> Failure {
        let text = format!(
            "the servers answer {method} {path} with {}: {}",
            answer.status,
            answer.text()
        );
        let unserved = answer.status == StatusCode::NOT_IMPLEMENTED;
        let busy = answer.status.is_server_error() && !unserved
            || answer.status == StatusCode::TOO_MANY_REQUESTS;
        // A token that one server has just made may not be known to the next one yet.
        let behind =
            answer.status == StatusCode::FORBIDDEN && answer.text().contains("ACL not found");
        if busy || behind {
            Failure::Later(text)
        } else {
            Failure::Final(text)
        }
    }

    /// Rights are given to the Job's service account by the chart, and maybe a moment later. The
    /// client's own text says little: what failed stands in its causes.
    pub(super) fn of_kube(about: &str, error: &kube::Error) -> Failure {
        let mut text = format!("{about}: {error}");
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            let own = error.to_string();
            if !text.contains(&own) {
                text = format!("{text}: {own}");
            }
            cause = error.source();
        }
        Failure::Later(text)
    }
}

impl From<ServersError> for Failure {
    fn from(error: ServersError) -> Failure {
        match error {
            ServersError::Host { .. } => Failure::Final(error.to_string()),
            error => Failure::Later(error.to_string()),
        }
    }
}
