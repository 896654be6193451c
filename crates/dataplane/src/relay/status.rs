//! What the relay's state looks like from outside: for readiness, the status document and metrics.
//!
//! It holds names, versions and counts, never the content of a resource.

use legate_api::type_url;
use serde::Serialize;

use super::types::Rejected;

/// The relay's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RelayStatus {
    /// Why Envoy is not configured; absent when it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// The stream towards a server.
    pub upstream: UpstreamStatus,
    /// How many streams Envoys have open: one, or two during a hot restart.
    pub envoy_streams: usize,
    /// One entry a resource type that an Envoy has asked for.
    pub types: Vec<TypeStatus>,
}

/// The stream towards a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct UpstreamStatus {
    /// Address of the server that serves the stream; absent while there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// How many streams have been opened since the start.
    pub streams_opened: u64,
    /// Seconds since the server last sent something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_message_seconds_ago: Option<u64>,
    /// Why the last stream ended, and what to look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The last error will not go away by itself: someone has to change something.
    pub refused: bool,
}

/// One resource type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TypeStatus {
    /// Its type URL.
    pub type_url: String,
    /// All resources are wanted.
    pub wildcard: bool,
    /// How many resources are wanted by name.
    pub names: usize,
    /// How many of those no server has answered.
    pub unanswered_names: usize,
    /// How many resources Envoy has acknowledged.
    pub resources: usize,
    /// The bytes of those resources.
    pub bytes: usize,
    /// The server's version of the last accepted response, where it gives one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system_version: String,
    /// A server has answered and Envoy accepted.
    pub answered: bool,
    /// A response waits for Envoy's answer.
    pub waiting_for_envoy: bool,
    /// Responses that Envoy accepted since the start.
    pub accepted: u64,
    /// Responses that Envoy rejected since the start.
    pub rejected: u64,
    /// Envoy's words about the last response it rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_rejection: Option<RejectionStatus>,
}

/// A response that Envoy rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RejectionStatus {
    /// Envoy's words.
    pub message: String,
    /// The first of the resources in that response.
    pub names: Vec<String>,
}

/// How many names of a rejected response are shown.
pub(super) const SHOWN_NAMES: usize = 10;

/// What people call a type.
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
