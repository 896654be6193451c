//! Tokens: a secret with its linked policies, roles and identities.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::acl::hash::ContentHash;
use crate::acl::identity::{NodeIdentity, ServiceIdentity};
use crate::acl::policy::PolicyLink;
use crate::acl::template::TemplatedPolicy;
use crate::invalid::Invalid;
use crate::secret::Secret;
use crate::tenancy::{Tenancy, TenancyName};
use crate::{duration, name, timestamp};

/// Accessor id of the anonymous token, which requests without a token use.
pub const ANONYMOUS_ACCESSOR: &str = "00000000-0000-0000-0000-000000000002";
/// Secret of the anonymous token.
pub const ANONYMOUS_SECRET: &str = "anonymous";
/// A link to a role, by id, name or both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RoleLink {
    /// The role's id.
    #[serde(rename = "ID")]
    pub id: String,
    /// The role's name.
    pub name: String,
}

/// A token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Token {
    /// Public id.
    #[serde(rename = "AccessorID")]
    pub accessor_id: String,
    /// Secret that requests carry.
    #[serde(rename = "SecretID")]
    pub secret_id: Secret,
    /// Free text for operators; not interpreted.
    pub description: String,
    /// Linked policies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyLink>,
    /// Linked roles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleLink>,
    /// Linked service identities.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_identities: Vec<ServiceIdentity>,
    /// Linked node identities.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_identities: Vec<NodeIdentity>,
    /// Linked templated policies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub templated_policies: Vec<TemplatedPolicy>,
    /// Whether it is valid in its own datacenter only.
    pub local: bool,
    /// The auth method of the login that created it; empty for other tokens.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub auth_method: String,
    /// The auth method's namespace; set if it or the token's namespace is not `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub auth_method_namespace: TenancyName,
    /// Requested time to live, set at creation only; converted to `expiration_time`.
    #[serde(
        rename = "ExpirationTTL",
        with = "duration::text",
        skip_serializing_if = "Duration::is_zero"
    )]
    pub expiration_ttl: Duration,
    /// Expiry; unset means never.
    #[serde(with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    pub expiration_time: Option<SystemTime>,
    /// Time of creation.
    #[serde(with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    pub create_time: Option<SystemTime>,
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

impl Token {
    /// The token that requests without a token use; it has no links.
    pub fn anonymous() -> Self {
        Token {
            accessor_id: ANONYMOUS_ACCESSOR.to_owned(),
            secret_id: Secret::new(ANONYMOUS_SECRET),
            description: "Anonymous Token".to_owned(),
            ..Token::default()
        }
    }

    /// The tenancy of the auth method that created it.
    pub fn method_tenancy(&self) -> Tenancy {
        let own = self.tenancy();
        own.resolve(&TenancyName::default(), &self.auth_method_namespace)
    }

    /// Whether it is the anonymous token.
    pub fn is_anonymous(&self) -> bool {
        self.accessor_id == ANONYMOUS_ACCESSOR
    }

    /// Whether it has expired.
    pub fn is_expired(&self, now: SystemTime) -> bool {
        self.expiration_time.is_some_and(|end| end <= now)
    }

    /// Returns the value with its hash set.
    #[must_use]
    pub fn hashed(self) -> Self {
        let links = self.policies.iter().map(|link| &*link.id);
        let rest = self.links().hashed();
        let place = if self.local { "local" } else { "global" };
        let roles = self.roles.iter().map(|link| &*link.id);
        let hash = ContentHash::of(
            [&*self.description, place]
                .into_iter()
                .chain(links)
                .chain(roles)
                .chain(rest),
        );
        Self { hash, ..self }
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first invalid field.
    pub fn validate(&self) -> Result<(), Invalid> {
        for (field, id) in [
            ("AccessorID", self.accessor_id.as_str()),
            ("SecretID", self.secret_id.expose()),
        ] {
            if !id.is_empty() && !name::is_uuid(id) && !self.is_anonymous() {
                return Err(Invalid::new(
                    field,
                    "it must be a UUID, or left out to get one",
                ));
            }
        }
        if self.local
            && let Some(i) = self
                .service_identities
                .iter()
                .position(|identity| !identity.datacenters.is_empty())
        {
            return Err(Invalid::new(
                format!("ServiceIdentities[{i}].Datacenters"),
                "a local token holds in its own datacenter only: leave them out",
            ));
        }
        let nameless = |link: &RoleLink| link.id.is_empty() && link.name.is_empty();
        if let Some(i) = self.roles.iter().position(nameless) {
            return Err(Invalid::new(
                format!("Roles[{i}]"),
                "ID or Name must identify the role",
            ));
        }
        self.links().validate(&self.tenancy())
    }
}
