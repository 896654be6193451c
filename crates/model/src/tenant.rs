//! Namespaces and partitions as users define them, without their contents.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::acl::{PolicyLink, RoleLink};
use crate::invalid::Invalid;
use crate::json::shown::is_zero;
use crate::tenancy::TenancyName;
use crate::{meta, timestamp};

/// The maximum length of a description, in bytes.
const MAX_DESCRIPTION: usize = 4096;

/// The maximum number of default policies and of default roles of a namespace.
const MAX_DEFAULTS: usize = 64;

/// A namespace of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Namespace {
    /// Its name.
    pub name: TenancyName,
    /// Free text for operators; not interpreted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Default permissions of its tokens.
    #[serde(rename = "ACLs", skip_serializing_if = "Option::is_none")]
    pub acls: Option<Box<NamespaceAcls>>,
    /// Application-defined metadata.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// When its deletion, including all its contents, started.
    #[serde(with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<SystemTime>,
    /// Partition; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Index of the write that created it.
    #[serde(skip_serializing_if = "is_zero")]
    pub create_index: u64,
    /// Index of the last write that changed it.
    #[serde(skip_serializing_if = "is_zero")]
    pub modify_index: u64,
}

/// Policies and roles that all tokens of a namespace have by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NamespaceAcls {
    /// Default policies.
    pub policy_defaults: Vec<PolicyLink>,
    /// Default roles.
    pub role_defaults: Vec<RoleLink>,
}

impl Namespace {
    /// The default namespace, which every partition has.
    #[must_use]
    pub fn builtin() -> Self {
        Self {
            name: TenancyName::default_name(),
            description: "Builtin Default Namespace".to_owned(),
            create_index: 1,
            modify_index: 1,
            ..Self::default()
        }
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        named(&self.name)?;
        described(&self.description)?;
        meta::validate_node(&self.meta)?;
        let Some(acls) = &self.acls else {
            return Ok(());
        };
        for (field, count) in [
            ("ACLs.PolicyDefaults", acls.policy_defaults.len()),
            ("ACLs.RoleDefaults", acls.role_defaults.len()),
        ] {
            if count > MAX_DEFAULTS {
                let reason = format!("a namespace has at most {MAX_DEFAULTS}");
                return Err(Invalid::new(field, reason));
            }
        }
        Ok(())
    }
}

/// A partition of the mesh.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Partition {
    /// Its name.
    pub name: TenancyName,
    /// Free text for operators; not interpreted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Stored and returned; there is no gossip.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_gossip: bool,
    /// When its deletion, including all its contents, started.
    #[serde(with = "timestamp::option", skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<SystemTime>,
    /// Index of the write that created it.
    #[serde(skip_serializing_if = "is_zero")]
    pub create_index: u64,
    /// Index of the last write that changed it.
    #[serde(skip_serializing_if = "is_zero")]
    pub modify_index: u64,
}

impl Partition {
    /// The default partition.
    #[must_use]
    pub fn builtin() -> Self {
        Self {
            name: TenancyName::default_name(),
            description: "Builtin Default Partition".to_owned(),
            create_index: 1,
            modify_index: 1,
            ..Self::default()
        }
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        named(&self.name)?;
        described(&self.description)
    }
}

fn named(name: &TenancyName) -> Result<(), Invalid> {
    if name.is_empty() {
        return Err(Invalid::new("Name", "it must be given"));
    }
    if name.is_every() {
        return Err(Invalid::new("Name", "\"*\" is not allowed here"));
    }
    Ok(())
}

fn described(description: &str) -> Result<(), Invalid> {
    if description.len() <= MAX_DESCRIPTION {
        return Ok(());
    }
    let reason = format!("it must be at most {MAX_DESCRIPTION} bytes");
    Err(Invalid::new("Description", reason))
}
