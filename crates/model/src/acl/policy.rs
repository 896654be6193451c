//! Policies: named sets of rules.

use serde::{Deserialize, Serialize};

use crate::acl::hash::ContentHash;
use crate::acl::rules::{InvalidRules, Rules};
use crate::invalid::Invalid;
use crate::name;
use crate::tenancy::TenancyName;

/// Name of the policy that permits everything.
pub const GLOBAL_MANAGEMENT: &str = "global-management";
/// Id of the policy that permits everything.
pub const GLOBAL_MANAGEMENT_ID: &str = "00000000-0000-0000-0000-000000000001";

/// Id of the policy that permits reading everything.
pub const GLOBAL_READ_ONLY_ID: &str = "00000000-0000-0000-0000-000000000002";
/// Name of the policy that permits reading everything.
pub const GLOBAL_READ_ONLY: &str = "builtin/global-read-only";

/// Name of the policy that every new namespace gets.
pub const NAMESPACE_MANAGEMENT: &str = "namespace-management";

/// Name prefix reserved for built-in policies.
const BUILTIN: &str = "builtin/";

/// Named rules that tokens and roles link to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Policy {
    /// UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// Unique.
    pub name: String,
    /// Free text for operators; not interpreted.
    pub description: String,
    /// The rules in HCL or JSON, verbatim.
    pub rules: String,
    /// Datacenters in which it is valid; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
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

impl Policy {
    /// The built-in policies. Their names and descriptions can be changed, but not their rules.
    pub fn builtin() -> [Policy; 2] {
        let policy = |id: &str, name: &str, access: &str, description: &str| Policy {
            id: id.to_owned(),
            name: name.to_owned(),
            description: format!("A built-in policy that grants {description}"),
            rules: every_resource(access),
            create_index: 1,
            modify_index: 1,
            ..Policy::default()
        };
        [
            policy(
                GLOBAL_MANAGEMENT_ID,
                GLOBAL_MANAGEMENT,
                "write",
                "read and write access to all Consul features",
            ),
            policy(
                GLOBAL_READ_ONLY_ID,
                GLOBAL_READ_ONLY,
                "read",
                "read-only access to all Consul features",
            ),
        ]
    }

    /// The policy that every new namespace gets; it permits managing everything in that namespace.
    pub fn namespace_management(id: String) -> Policy {
        Policy {
            id,
            name: NAMESPACE_MANAGEMENT.to_owned(),
            description: "Permits managing everything in the namespace".to_owned(),
            rules: "acl = \"write\"\nkey_prefix \"\" {\n\tpolicy = \"write\"\n}\nnode_prefix \"\" \
                    {\n\tpolicy = \"read\"\n}\nservice_prefix \"\" {\n\tpolicy = \
                    \"write\"\n\tintentions = \"write\"\n}\nsession_prefix \"\" {\n\tpolicy = \
                    \"write\"\n}"
                .to_owned(),
            ..Policy::default()
        }
    }

    /// The built-in policy with this id.
    pub fn builtin_by_id(id: &str) -> Option<Policy> {
        Policy::builtin().into_iter().find(|policy| policy.id == id)
    }

    /// Whether it is valid in a datacenter.
    pub fn is_valid_in(&self, datacenter: &str) -> bool {
        self.datacenters.is_empty()
            || self
                .datacenters
                .iter()
                .any(|known| known.eq_ignore_ascii_case(datacenter))
    }

    /// The policy as the API returns it.
    #[must_use]
    pub fn shown(&self) -> Policy {
        let own = [&*self.name, &*self.description, &*self.rules];
        let datacenters = self.datacenters.iter().map(String::as_str);
        Policy {
            hash: ContentHash::of(own.into_iter().chain(datacenters)),
            ..self.clone()
        }
    }

    /// Parses the rules.
    ///
    /// # Errors
    ///
    /// [`InvalidRules`] also for rules that a policy of its namespace may not contain.
    pub fn parsed(&self) -> Result<Rules, InvalidRules> {
        let rules = Rules::parse(&self.rules)?;
        let own = self.tenancy();
        rules.check_within(&own)?;
        let everywhere =
            own.is_default() && [GLOBAL_MANAGEMENT_ID, GLOBAL_READ_ONLY_ID].contains(&&*self.id);
        Ok(match everywhere {
            true => rules.and_everywhere(),
            false => rules,
        })
    }

    /// Parses the rules of a policy that an identity or template expands to. Rules of templates that
    /// its namespace may not contain, those of the partition or the whole mesh, are dropped.
    ///
    /// # Errors
    ///
    /// [`InvalidRules`] never occurs for built-in templates.
    pub fn parsed_template(&self) -> Result<Rules, InvalidRules> {
        let rules = Rules::parse(&self.rules)?;
        Ok(rules.permitted_within(&self.tenancy()))
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first invalid field. Rules are not checked here; see [`Policy::parsed`].
    pub fn validate(&self) -> Result<(), Invalid> {
        let refuse = |reason: &str| Err(Invalid::new("Name", reason));
        let builtin = Policy::builtin_by_id(&self.id);
        if builtin.is_some_and(|builtin| builtin.name == self.name) {
            return Ok(());
        }
        if self.name.is_empty() || self.name.len() > 128 {
            return refuse("it must have 1 to 128 characters");
        }
        if self.name.starts_with('/') || self.name.starts_with(BUILTIN) {
            return refuse("it cannot be prefixed with '/' or 'builtin/'");
        }
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_/".contains(&b);
        if !self.name.bytes().all(allowed) || self.name.matches('/').count() > 1 {
            return refuse("only letters, digits, '-', '_' and a single '/' are allowed");
        }
        for (i, datacenter) in self.datacenters.iter().enumerate() {
            name::validate_datacenter(datacenter)
                .map_err(|error| Invalid::new(format!("Datacenters[{i}]"), error.to_string()))?;
        }
        Ok(())
    }
}

/// Rules with one access level for every resource and name; the text is Consul's.
fn every_resource(access: &str) -> String {
    let mut text = String::new();
    for resource in [
        "acl",
        "agent_prefix",
        "event_prefix",
        "key_prefix",
        "keyring",
        "node_prefix",
        "operator",
        "mesh",
        "peering",
        "query_prefix",
        "service_prefix",
        "session_prefix",
    ] {
        text += &match resource {
            "service_prefix" => format!(
                "\n{resource} \"\" {{\n\tpolicy = \"{access}\"\n\tintentions = \"{access}\"\n}}"
            ),
            named if named.ends_with("_prefix") => {
                format!("\n{named} \"\" {{\n\tpolicy = \"{access}\"\n}}")
            }
            whole => format!("\n{whole} = \"{access}\""),
        };
    }
    text
}

/// A link to a policy, by id, name or both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PolicyLink {
    /// The policy's id.
    #[serde(rename = "ID")]
    pub id: String,
    /// The policy's name.
    pub name: String,
}

impl PolicyLink {
    /// Link to the policy that permits everything.
    pub fn global_management() -> Self {
        PolicyLink {
            id: GLOBAL_MANAGEMENT_ID.to_owned(),
            name: GLOBAL_MANAGEMENT.to_owned(),
        }
    }

    /// Whether it links to the policy that permits everything.
    pub fn is_global_management(&self) -> bool {
        self.name == GLOBAL_MANAGEMENT || self.id == GLOBAL_MANAGEMENT_ID
    }
}
