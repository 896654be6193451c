//! The status of an object: whether its token was made or used, and if not, why. Its fields are those of consul-k8s.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::kinds::SecretSpec;
use crate::config::status::{Condition, SYNCED};

/// Why an object is not synced: the `reason` of its condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// The servers refuse, or are unreachable. The word of consul-k8s.
    Servers,
    /// The API server refuses, or is unreachable. The word of consul-k8s.
    Kubernetes,
    /// The object has a value that cannot be used.
    Invalid,
    /// An older object has the same peering or Secret.
    Duplicate,
    /// The peering of this name has the other role.
    OtherRole,
    /// The Secret belongs to somebody else.
    SecretTaken,
    /// The Secret or its key does not exist.
    SecretMissing,
    /// The other cluster has deleted the peering.
    Terminated,
    /// A deleted peering is still being removed.
    Removing,
}

impl Reason {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Reason::Servers => "consulAgentError",
            Reason::Kubernetes => "kubernetesError",
            Reason::Invalid => "invalidResource",
            Reason::Duplicate => "duplicateResource",
            Reason::OtherRole => "peeringOfOtherRole",
            Reason::SecretTaken => "secretOfOthers",
            Reason::SecretMissing => "secretMissing",
            Reason::Terminated => "peeringTerminated",
            Reason::Removing => "peeringRemoving",
        }
    }
}

/// The outcome for an object, in its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The token was made or used, with this outcome.
    Synced(Record),
    /// It was not, and a retry fails until something changes.
    Refused(Reason, String),
    /// It is not known, or will change by itself.
    Unknown(Reason, String),
}

/// The token that was made or used last, as it is in the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) secret: SecretRef,
    /// The largest value of the annotation so far.
    pub(super) version: Option<i64>,
}

/// The status of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub(super) struct Status {
    /// The conditions of the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) conditions: Vec<Condition>,
    /// When the token was made or used last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub(super) last_synced_time: Option<String>,
    /// The annotation `consul.hashicorp.com/peering-version` of that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latest_peering_version: Option<i64>,
    /// The Secret that has the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<SecretRef>,
}

/// The Secret with a token that was made or used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub(super) struct SecretRef {
    /// Its name.
    pub(super) name: String,
    /// The key of the token.
    pub(super) key: String,
    /// Where it is stored.
    pub(super) backend: String,
    /// Its version, of dialers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resource_version: Option<String>,
}

impl SecretRef {
    pub(super) fn of(spec: &SecretSpec, resource_version: Option<String>) -> SecretRef {
        SecretRef {
            name: spec.name.clone(),
            key: spec.key.clone(),
            backend: spec.backend.clone(),
            resource_version,
        }
    }

    /// Whether it names the same token, whatever its version.
    pub(super) fn is(&self, spec: &SecretSpec) -> bool {
        (&self.name, &self.key) == (&spec.name, &spec.key)
    }
}

impl Status {
    /// The last token in the status.
    pub(super) fn record(&self) -> Option<Record> {
        let secret = self.secret.clone().filter(|it| !it.name.is_empty())?;
        Some(Record {
            secret,
            version: self.latest_peering_version,
        })
    }

    /// The fields to change at `now` (RFC 3339), or `None` if the status has all that already. `record` is the last
    /// token, if it is known. Conditions of others stay; `raw` has all conditions as they were read.
    pub(super) fn change(
        &self,
        outcome: &Outcome,
        record: Option<&Record>,
        (raw, now): (&[Value], &str),
    ) -> Option<Value> {
        let (status, because) = match outcome {
            Outcome::Synced(_) => ("True", None),
            Outcome::Refused(reason, message) => ("False", Some((reason, message))),
            Outcome::Unknown(reason, message) => ("Unknown", Some((reason, message))),
        };
        let last = self.conditions.iter().find(|it| it.r#type == SYNCED);
        let since = last.filter(|last| last.status == status);
        let since = since.and_then(|last| last.last_transition_time.clone());
        let condition = Condition {
            r#type: SYNCED.to_owned(),
            status: status.to_owned(),
            last_transition_time: Some(since.unwrap_or_else(|| now.to_owned())),
            reason: because.map(|(reason, _)| reason.as_str().to_owned()),
            message: because.map(|(_, message)| shortened(message)),
        };
        let held = self.record();
        let wanted = match outcome {
            Outcome::Synced(record) => Some(record),
            _ => record,
        };
        let recorded = wanted.is_none_or(|wanted| held.as_ref() == Some(wanted));
        if last == Some(&condition) && recorded {
            return None;
        }
        let others = raw.iter().filter(|it| it["type"] != SYNCED).cloned();
        let conditions: Vec<Value> = others.chain([json!(condition)]).collect();
        let mut change = json!({ "conditions": conditions });
        if let Some(record) = wanted.filter(|_| !recorded) {
            change["secret"] = json!(record.secret);
            // A merge patch keeps what it does not name.
            change["secret"]["resourceVersion"] = json!(record.secret.resource_version);
            change["latestPeeringVersion"] = json!(record.version);
        }
        if matches!(outcome, Outcome::Synced(_)) {
            change["lastSyncedTime"] = json!(now);
        }
        Some(change)
    }
}

/// A message, which the API server limits to 32 KiB.
fn shortened(message: &str) -> String {
    const LONGEST: usize = 2_000;
    match message.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}
