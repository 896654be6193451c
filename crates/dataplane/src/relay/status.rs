//! The relay's state for readiness, the status document and metrics.
//!
//! Contains names, versions and counts, never the content of a resource.

use legate_api::type_url;
use serde::Serialize;

use super::types::Rejected;

/// The relay's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RelayStatus {
    /// Why Envoy's configuration is incomplete; `None` if it is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// The stream towards a server.
    pub upstream: UpstreamStatus,
    /// Number of open streams of Envoys: one, or two during a hot restart.
    pub envoy_streams: usize,
    /// One entry for each resource type that an Envoy has requested.
    pub types: Vec<TypeStatus>,
}

/// The stream towards a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct UpstreamStatus {
    /// Address of the server that serves the stream; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Number of streams opened since the start.
    pub streams_opened: u64,
    /// Seconds since the last message of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_message_seconds_ago: Option<u64>,
    /// Why the last stream ended, with advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Whether the last error needs an operator to act.
    pub refused: bool,
}

/// One resource type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TypeStatus {
    /// Its type URL.
    pub type_url: String,
    /// Whether all resources are subscribed to.
    pub wildcard: bool,
    /// Number of resources subscribed to by name.
    pub names: usize,
    /// Number of those without an answer from a server.
    pub unanswered_names: usize,
    /// Number of resources that Envoy has acknowledged.
    pub resources: usize,
    /// Total size of those resources in bytes.
    pub bytes: usize,
    /// The server's version of the last accepted response; empty if it sends none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system_version: String,
    /// Whether Envoy has accepted a response of a server.
    pub answered: bool,
    /// Whether a response is waiting for Envoy's answer.
    pub waiting_for_envoy: bool,
    /// Number of responses that Envoy accepted since the start.
    pub accepted: u64,
    /// Number of responses that Envoy rejected since the start.
    pub rejected: u64,
    /// The last response that Envoy rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_rejection: Option<RejectionStatus>,
}

/// A response that Envoy rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RejectionStatus {
    /// Envoy's error message.
    pub message: String,
    /// The first resources in that response.
    pub names: Vec<String>,
}

/// Maximum number of names shown for a rejected response.
pub(super) const SHOWN_NAMES: usize = 10;

/// Human-readable name of a resource type.
pub(crate) fn label(url: &str) -> &str {
    match url {
        type_url::CLUSTER => "clusters",
        type_url::ENDPOINT => "endpoints",
        type_url::LISTENER => "listeners",
        type_url::ROUTE => "routes",
        type_url::SECRET => "secrets",
        other => other,
    }
}

impl RejectionStatus {
    pub(super) fn of(rejected: &Rejected) -> RejectionStatus {
        RejectionStatus {
            message: rejected.message.clone(),
            names: rejected.names.iter().take(SHOWN_NAMES).cloned().collect(),
        }
    }
}
