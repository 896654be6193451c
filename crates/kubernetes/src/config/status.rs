//! What a resource's status says: whether the servers have what it asks for, and if not, why.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The type of the only condition.
pub const SYNCED: &str = "Synced";

/// The status of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct Status {
    /// What is known about the resource.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// When the servers were last brought to what the resource says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_synced_time: Option<String>,
}

/// One thing that is known about a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct Condition {
    /// What it is about: `Synced`.
    #[schemars(required)]
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    #[schemars(required)]
    pub status: String,
    /// When `status` last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: Option<String>,
    /// Why, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
