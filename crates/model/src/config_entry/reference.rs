//! References between the entries of API gateways, and their status.

use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde::{Deserialize as DeserializeFields, Serialize, Serializer};

use super::ConfigKind;
use crate::invalid::Invalid;
use crate::json::shown::null_if_empty;
use crate::tenancy::{ServiceName, Tenancy, TenancyName};

/// The kind of a route's parents.
pub(super) const API_GATEWAY: &str = "api-gateway";

/// A reference to another config entry or a part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, DeserializeFields)]
#[serde(rename_all = "PascalCase", default)]
pub struct ResourceReference {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Name of the part, such as a listener; empty for the whole entry.
    pub section_name: String,
    /// Namespace; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

impl ResourceReference {
    /// A reference to a whole entry, as Consul shows it.
    #[must_use]
    pub fn to(kind: ConfigKind, entry: &ServiceName) -> Self {
        Self {
            kind: kind.as_str().to_owned(),
            name: entry.name.as_ref().to_owned(),
            section_name: String::new(),
            namespace: entry.tenancy.shown_namespace(),
            partition: entry.tenancy.shown_partition(),
        }
    }

    /// The name of the entry that an entry of tenancy `own` refers to.
    #[must_use]
    pub fn resolve(&self, own: &Tenancy) -> ServiceName {
        ServiceName::new(&own.resolve(&self.partition, &self.namespace), &self.name)
    }
}

/// Status of an entry: what servers say about its use. Read-only: values in writes are ignored, as in
/// Consul. Never stored; it is computed when an entry is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Status {
    /// The statements.
    #[serde(serialize_with = "null_if_empty")]
    pub conditions: Vec<Condition>,
}

/// A statement about an entry or about a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Condition {
    /// What it is about, as in `Accepted`.
    pub r#type: &'static str,
    /// Whether it holds.
    #[serde(serialize_with = "true_or_false")]
    pub status: bool,
    /// A word for programs.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
    /// The part of the entry, or the other entry; empty for the whole entry.
    pub resource: ResourceReference,
    /// Always unset: a computed statement has no time of its own.
    last_transition_time: Option<()>,
}

impl Condition {
    /// A statement about a whole entry.
    #[must_use]
    pub fn new(r#type: &'static str, status: bool, reason: &'static str, message: &str) -> Self {
        Self {
            r#type,
            status,
            reason,
            message: message.to_owned(),
            resource: ResourceReference::default(),
            last_transition_time: None,
        }
    }

    /// The same statement about this part or other entry.
    #[must_use]
    pub fn about(mut self, resource: ResourceReference) -> Self {
        self.resource = resource;
        self
    }
}

/// As in Kubernetes, a text.
fn true_or_false<S: Serializer>(status: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *status { "True" } else { "False" })
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self::default())
    }
}

/// Validates the parents of a route, with Consul's error texts.
pub(super) fn validate_parents(parents: &[ResourceReference]) -> Result<(), Invalid> {
    for (at, parent) in parents.iter().enumerate() {
        let refused = |reason: String| Err(Invalid::new(format!("Parents[{at}]"), reason));
        if !matches!(parent.kind.as_str(), "" | API_GATEWAY) {
            return refused(format!(
                "unsupported parent kind: {:?}, must be 'api-gateway'",
                parent.kind
            ));
        }
        let same = |other: &ResourceReference| {
            (&other.name, &other.section_name) == (&parent.name, &parent.section_name)
        };
        if parents[..at].iter().any(same) {
            return refused("route parents must be unique".to_owned());
        }
    }
    Ok(())
}

/// Sets the kind of each parent.
pub(super) fn normalise_parents(parents: &mut [ResourceReference]) {
    for parent in parents {
        parent.kind = API_GATEWAY.to_owned();
    }
}
