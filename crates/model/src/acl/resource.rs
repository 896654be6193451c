//! Resources, names and access levels of rules.

use std::fmt;

/// Access level of a rule. Ordered by precedence among rules for the same names; deny takes
/// precedence over all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Read only.
    Read,
    /// Read and list. For keys only.
    List,
    /// Full access.
    Write,
    /// No access.
    Deny,
}

impl Access {
    /// Parses an access level. Names are case-insensitive, as in Consul.
    pub(super) fn parse(text: &str) -> Option<Self> {
        [Access::Read, Access::List, Access::Write, Access::Deny]
            .into_iter()
            .find(|access| access.as_str().eq_ignore_ascii_case(text))
    }

    /// The name in rules.
    pub const fn as_str(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::List => "list",
            Access::Write => "write",
            Access::Deny => "deny",
        }
    }

    /// Whether a rule of this level permits `wanted`.
    pub const fn permits(self, wanted: Access) -> bool {
        match (self, wanted) {
            (Access::Write, _) | (Access::Read, Access::Read) => true,
            (Access::List, Access::Read | Access::List) => true,
            (Access::Read | Access::List | Access::Deny, _) => false,
        }
    }
}

/// Resource kinds of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are those of rules")]
pub enum Resource {
    Acl,
    Agent,
    Event,
    /// The intentions of a destination service. Set inside of service rules.
    Intention,
    Key,
    Keyring,
    Mesh,
    /// Namespaces themselves, not their contents.
    Namespace,
    Node,
    Operator,
    /// Partitions themselves, not their contents.
    Partition,
    Peering,
    Query,
    Service,
    Session,
}

impl Resource {
    /// All resources.
    pub const ALL: [Resource; 15] = [
        Resource::Acl,
        Resource::Agent,
        Resource::Event,
        Resource::Intention,
        Resource::Key,
        Resource::Keyring,
        Resource::Mesh,
        Resource::Namespace,
        Resource::Node,
        Resource::Operator,
        Resource::Partition,
        Resource::Peering,
        Resource::Query,
        Resource::Service,
        Resource::Session,
    ];

    /// The name in rules, permissions and permission checks.
    pub const fn as_str(self) -> &'static str {
        match self {
            Resource::Acl => "acl",
            Resource::Agent => "agent",
            Resource::Event => "event",
            Resource::Intention => "intention",
            Resource::Key => "key",
            Resource::Keyring => "keyring",
            Resource::Mesh => "mesh",
            Resource::Namespace => "namespace",
            Resource::Node => "node",
            Resource::Operator => "operator",
            Resource::Partition => "partition",
            Resource::Peering => "peering",
            Resource::Query => "query",
            Resource::Service => "service",
            Resource::Session => "session",
        }
    }

    /// Whether rules apply to names. Otherwise one rule covers the whole resource.
    pub const fn has_names(self) -> bool {
        !matches!(
            self,
            Resource::Acl
                | Resource::Keyring
                | Resource::Mesh
                | Resource::Operator
                | Resource::Peering
        )
    }

    /// Whether it belongs to the whole mesh and exists only in the default partition.
    pub(super) const fn is_of_mesh(self) -> bool {
        matches!(
            self,
            Resource::Event | Resource::Keyring | Resource::Operator | Resource::Query
        )
    }

    /// Whether it belongs to a partition rather than to a namespace.
    pub(super) const fn is_of_partition(self) -> bool {
        matches!(self, Resource::Agent | Resource::Mesh | Resource::Peering)
    }

    /// Finds a resource by name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == name)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Names that a rule applies to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Names {
    /// The whole resource, for resources without names.
    All,
    /// This name only.
    Exact(String),
    /// Names with this prefix, which may be empty.
    Prefix(String),
}
