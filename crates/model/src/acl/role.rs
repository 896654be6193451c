//! Roles: named sets of policies and identities that tokens link to.

use serde::{Deserialize, Serialize};

use crate::acl::hash::ContentHash;
use crate::acl::identity::{NodeIdentity, ServiceIdentity};
use crate::acl::policy::PolicyLink;
use crate::acl::template::TemplatedPolicy;
use crate::invalid::Invalid;
use crate::tenancy::TenancyName;

/// A named set of policies and identities.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Role {
    /// UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// Unique.
    pub name: String,
    /// Free text for operators; not interpreted.
    pub description: String,
    /// Linked policies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyLink>,
    /// Linked service identities.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_identities: Vec<ServiceIdentity>,
    /// Linked node identities.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_identities: Vec<NodeIdentity>,
    /// Linked templated policies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub templated_policies: Vec<TemplatedPolicy>,
    /// Computed for responses; never stored.
    #[serde(skip_serializing_if = "ContentHash::is_none")]
    pub hash: ContentHash,
    /// Namespace; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

impl Role {
    /// Returns the value with its hash set.
    #[must_use]
    pub fn hashed(self) -> Self {
        let links = self.policies.iter().map(|link| &*link.id);
        let rest = self.links().hashed();
        let hash = ContentHash::of(
            [&*self.name, &*self.description]
                .into_iter()
                .chain(links)
                .chain(rest),
        );
        Self { hash, ..self }
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first invalid field.
    pub fn validate(&self) -> Result<(), Invalid> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
        let length = 1..=256;
        if !length.contains(&self.name.len()) || !self.name.bytes().all(allowed) {
            return Err(Invalid::new(
                "Name",
                "it must have 1 to 256 letters, digits, '-' and '_'",
            ));
        }
        self.links().validate(&self.tenancy())
    }
}
