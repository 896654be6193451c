//! References between the entries of API gateways, and their status.

use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde::{Deserialize as DeserializeFields, Serialize};

use crate::invalid::Invalid;
use crate::tenancy::TenancyName;

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

/// Status of an entry. Read-only: values in writes are ignored, as in Consul. Nothing sets conditions
/// yet, so the list is always empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Status {
    conditions: (),
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
