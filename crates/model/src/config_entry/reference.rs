//! What entries of API gateways say about each other: names of other entries, and what became of them.

use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde::{Deserialize as DeserializeFields, Serialize};

use crate::invalid::Invalid;
use crate::served::field::Rows;
use crate::served::field::Served::Yes;
use crate::tenancy::TenancyName;

/// The kind that routes lead from.
pub(super) const API_GATEWAY: &str = "api-gateway";

/// Another config entry, or a part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, DeserializeFields)]
#[serde(rename_all = "PascalCase", default)]
pub struct ResourceReference {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The part, such as a listener's name; empty for all of it.
    pub section_name: String,
    /// The namespace; empty for the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition; empty for the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

/// Its row.
pub(super) const SERVED: Rows = (
    "ResourceReference",
    &[(Yes, "Kind Name SectionName"), (Yes, "Namespace Partition")],
);

/// What became of an entry. Clients read it and do not write it: what they send is skipped, as in
/// Consul. Nothing makes conditions yet, so that there are none.
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

/// The gateways that a route belongs to. Consul's words.
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

/// Says of each parent what it is.
pub(super) fn normalise_parents(parents: &mut [ResourceReference]) {
    for parent in parents {
        parent.kind = API_GATEWAY.to_owned();
    }
}
