//! What a rule is about, by kind and by name, and how far it goes.

use std::fmt;

/// How far a rule goes. In the order in which one takes precedence over another for the same names:
/// what is denied anywhere is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Looking at one.
    Read,
    /// Reading, and listing what there is. Keys only.
    List,
    /// Everything.
    Write,
    /// Nothing.
    Deny,
}

impl Access {
    /// Consul reads the names without regard to case.
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

    /// Whether a rule of this level permits what asks for `wanted`.
    pub const fn permits(self, wanted: Access) -> bool {
        match (self, wanted) {
            (Access::Write, _) | (Access::Read, Access::Read) => true,
            (Access::List, Access::Read | Access::List) => true,
            (Access::Read | Access::List | Access::Deny, _) => false,
        }
    }
}

/// What rules are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are those of rules")]
pub enum Resource {
    Acl,
    Agent,
    Event,
    /// The intentions of which a service is the destination. Written inside rules of services.
    Intention,
    Key,
    Keyring,
    Mesh,
    /// Namespaces themselves, not what is in them.
    Namespace,
    Node,
    Operator,
    /// Partitions themselves, not what is in them.
    Partition,
    Peering,
    Query,
    Service,
    Session,
}

impl Resource {
    /// All of them.
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

    /// The name in rules, permissions and questions.
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

    /// Whether rules of it are about names. The others are about all of it.
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

    /// Whether it is of the mesh as a whole, and of no other partition than the default one.
    pub(super) const fn is_of_mesh(self) -> bool {
        matches!(
            self,
            Resource::Event | Resource::Keyring | Resource::Operator | Resource::Query
        )
    }

    /// Whether it is of a partition, and of none of its namespaces.
    pub(super) const fn is_of_partition(self) -> bool {
        matches!(self, Resource::Agent | Resource::Mesh | Resource::Peering)
    }

    /// The resource with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == name)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which names a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Names {
    /// All there is, of a resource without names.
    All,
    /// This one.
    Exact(String),
    /// Those that start with this, which may be empty.
    Prefix(String),
}
