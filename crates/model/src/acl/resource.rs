//! Resources, names and access levels of rules.

use crate::named::named;

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
        let named = |access: &Access| access.as_str().eq_ignore_ascii_case(text);
        Self::ALL.into_iter().find(named)
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

named! {
    Access { Read = "read", List = "list", Write = "write", Deny = "deny" }
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

named! {
    Resource {
        Acl = "acl",
        Agent = "agent",
        Event = "event",
        Intention = "intention",
        Key = "key",
        Keyring = "keyring",
        Mesh = "mesh",
        Namespace = "namespace",
        Node = "node",
        Operator = "operator",
        Partition = "partition",
        Peering = "peering",
        Query = "query",
        Service = "service",
        Session = "session",
    }
}

impl Resource {
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
