//! What the relay's state looks like from outside: for readiness, the status document and metrics.
//!
//! It holds names, versions and counts, never the content of a resource.

use legate_api::type_url;
use serde::Serialize;

use super::cache::TypeState;
use super::core::{Core, Rejected};
use super::session::{Session, Subscription};

/// Whether Envoy has its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Configuration {
    /// It has acknowledged every type that it asked for.
    Complete,
    /// It has not, and why.
    Missing(String),
}

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
    fn of(rejected: &Rejected) -> RejectionStatus {
        RejectionStatus {
            message: rejected.message.clone(),
            names: rejected.names.iter().take(SHOWN_NAMES).cloned().collect(),
        }
    }
}

impl Core {
    /// Whether an Envoy has acknowledged every type that it asked for. While a new one takes over
    /// that is the old one, which serves until then.
    pub fn configuration(&self) -> Configuration {
        let mut envoys = self.subscribed();
        let Some(newest) = envoys.next() else {
            return Configuration::Missing("Envoy has not asked for its configuration".to_owned());
        };
        match self.missing(newest) {
            Some(why) if envoys.all(|older| self.missing(older).is_some()) => {
                Configuration::Missing(why)
            }
            _ => Configuration::Complete,
        }
    }

    /// Whether the newest Envoy has acknowledged every type that it asked for.
    pub fn newest_is_configured(&self) -> bool {
        let newest = self.subscribed().next();
        newest.is_some_and(|newest| self.missing(newest).is_none())
    }

    /// The Envoys that have asked for something, the newest first.
    fn subscribed(&self) -> impl Iterator<Item = &Session> {
        let newest_first = self.sessions.values().rev();
        newest_first.filter(|session| session.is_subscribed())
    }

    /// What an Envoy lacks.
    fn missing(&self, session: &Session) -> Option<String> {
        self.in_order.iter().find_map(|key| {
            let subscription = session.get(*key).filter(|s| !s.is_settled())?;
            Some(reason(&self.types[key.0], subscription))
        })
    }

    /// The core's part of the status; who owns the streams adds what it knows of the server.
    pub fn status(&self, upstream: UpstreamStatus) -> RelayStatus {
        RelayStatus {
            missing: match self.configuration() {
                Configuration::Complete => None,
                Configuration::Missing(why) => Some(why),
            },
            upstream,
            envoy_streams: self.sessions.len(),
            types: self
                .in_order
                .iter()
                .map(|key| self.type_status(&self.types[key.0]))
                .collect(),
        }
    }

    /// How many resources of a type Envoy has acknowledged, and their bytes.
    pub fn held(&self, url: &str) -> (usize, usize) {
        self.types
            .iter()
            .find(|state| state.url == url)
            .map_or((0, 0), TypeState::held)
    }

    fn type_status(&self, state: &TypeState) -> TypeStatus {
        let (resources, bytes) = state.held();
        TypeStatus {
            type_url: state.url.clone(),
            wildcard: state.wildcard,
            names: state.names.len(),
            unanswered_names: state
                .names
                .iter()
                .filter(|name| !state.entries.contains_key(*name))
                .count(),
            resources,
            bytes,
            system_version: state.system_version.clone(),
            answered: state.answered,
            waiting_for_envoy: state.in_flight.is_some(),
            accepted: state.accepted_total,
            rejected: state.rejected_total,
            last_rejection: state.last_rejection.as_ref().map(RejectionStatus::of),
        }
    }
}

fn reason(state: &TypeState, subscription: &Subscription) -> String {
    let what = label(&state.url);
    if subscription.is_waiting() {
        return format!("Envoy has not acknowledged its {what}");
    }
    if let Some(rejection) = &subscription.rejection {
        return format!("Envoy rejected its {what}: {}", rejection.message);
    }
    match subscription.unanswered() {
        0 => format!("no server has sent Envoy's {what} yet"),
        count => format!("no server has sent {count} of Envoy's {what} yet"),
    }
}
