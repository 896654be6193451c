//! Why an attempt did not complete, and whether it is retried.

use http::StatusCode;

use crate::servers::{Answer, Path, ServersError};

/// The reason why an attempt did not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// A retry may succeed.
    Later(String),
    /// A user has to act first.
    Final(String),
}

impl Failure {
    /// An error status. Servers that are starting or have no leader answer 5xx and 429.
    pub(super) fn of_answer(method: &str, path: &Path, answer: &Answer) -> Failure {
        let text = format!(
            "the servers answer {method} {path} with {}: {}",
            answer.status,
            answer.text()
        );
        let unserved = answer.status == StatusCode::NOT_IMPLEMENTED;
        let busy = answer.status.is_server_error() && !unserved
            || answer.status == StatusCode::TOO_MANY_REQUESTS;
        // A token that one server has just created may not have reached the next server yet.
        let behind =
            answer.status == StatusCode::FORBIDDEN && answer.text().contains("ACL not found");
        if busy || behind {
            Failure::Later(text)
        } else {
            Failure::Final(text)
        }
    }

    /// Kubernetes errors are always retried, because the chart's role bindings may take effect after the
    /// Job starts. The text includes the causes, because the client's own text has few details.
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
