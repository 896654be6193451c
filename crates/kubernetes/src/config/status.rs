//! The status of a resource: whether the servers have its entry, and if not, why.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::decision::Reason;

/// The type of the only condition.
pub const SYNCED: &str = "Synced";

/// The status of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct Status {
    /// The conditions of the resource.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// When the config entry was last synchronized.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_synced_time: Option<String>,
}

/// A condition of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct Condition {
    /// The type: `Synced`.
    #[schemars(required)]
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    #[schemars(required)]
    pub status: String,
    /// When `status` last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: Option<String>,
    /// The reason, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason, as a message for users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The outcome of reconciling a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The servers have the resource's entry.
    Synced {
        /// Whether it was written by this reconciliation.
        written: bool,
    },
    /// The entry was not written, and a retry fails until something changes.
    Refused(Reason, String),
    /// The state is unknown, because the servers could not be reached.
    Unknown(Reason, String),
}

impl Status {
    /// The status after an outcome at `now` (RFC 3339), or `None` if it is unchanged.
    #[must_use]
    pub fn after(&self, outcome: &Outcome, now: &str) -> Option<Status> {
        let (status, because, written) = match outcome {
            Outcome::Synced { written } => ("True", None, *written),
            Outcome::Refused(reason, message) => ("False", Some((reason, message)), false),
            Outcome::Unknown(reason, message) => ("Unknown", Some((reason, message)), false),
        };
        let last = self.conditions.iter().find(|it| it.r#type == SYNCED);
        let stays = last.is_some_and(|last| last.status == status);
        let since = last.filter(|_| stays);
        let since = since.and_then(|last| last.last_transition_time.clone());
        let condition = Condition {
            r#type: SYNCED.to_owned(),
            status: status.to_owned(),
            last_transition_time: Some(since.unwrap_or_else(|| now.to_owned())),
            reason: because.map(|(reason, _)| reason.as_str().to_owned()),
            message: because.map(|(_, message)| message.clone()),
        };
        if last == Some(&condition) && !written {
            return None;
        }
        let synced = status == "True";
        let others = self.conditions.iter().filter(|it| it.r#type != SYNCED);
        Some(Status {
            conditions: others.cloned().chain([condition]).collect(),
            last_synced_time: match synced {
                true => Some(now.to_owned()),
                false => self.last_synced_time.clone(),
            },
        })
    }
}
