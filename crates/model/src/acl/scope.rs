//! Whose resources a rule is about: those of namespaces of partitions. What may be done with them is
//! said by the rule.

use std::sync::Arc;

use crate::acl::resource::{Names, Resource};
use crate::tenancy::{DEFAULT_TENANCY, Tenancy};

/// Which namespaces, or which partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenants {
    /// That of the policy.
    #[default]
    Own,
    /// The one with this name.
    Exact(Arc<str>),
    /// Those whose names start with this, which may be empty.
    Prefix(Arc<str>),
}

impl Tenants {
    /// Whether a namespace or partition is among them, where a policy is of `own`.
    pub(crate) fn include(&self, own: &str, name: &str) -> bool {
        match self {
            Self::Own => own == name,
            Self::Exact(exact) => **exact == *name,
            Self::Prefix(prefix) => name.starts_with(&**prefix),
        }
    }

    fn of(names: &Names) -> Self {
        match names {
            Names::All => Self::Prefix("".into()),
            Names::Exact(name) => Self::Exact(name.as_str().into()),
            Names::Prefix(prefix) => Self::Prefix(prefix.as_str().into()),
        }
    }

    fn main() -> Self {
        Self::Exact(DEFAULT_TENANCY.into())
    }

    /// A name before a prefix, a longer prefix before a shorter one: the higher, the more specific.
    fn weight(&self) -> usize {
        match self {
            Self::Own | Self::Exact(_) => usize::MAX,
            Self::Prefix(prefix) => prefix.len(),
        }
    }
}

/// Namespaces of partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// Which partitions.
    pub partitions: Tenants,
    /// Which namespaces of these.
    pub namespaces: Tenants,
}

impl Scope {
    /// Every namespace of every partition.
    pub(crate) fn everywhere() -> Self {
        let every = Tenants::Prefix("".into());
        Self {
            partitions: every.clone(),
            namespaces: every,
        }
    }

    /// What a block inside of this one is about. `None` where it cannot have one.
    pub(crate) fn of_block(&self, resource: Resource, names: &Names) -> Option<Self> {
        let outside = *self == Self::default();
        let in_partition = self.partitions != Tenants::Own && self.namespaces == Tenants::main();
        match resource {
            Resource::Partition if outside => Some(Self {
                partitions: Tenants::of(names),
                namespaces: Tenants::main(),
            }),
            Resource::Namespace if outside || in_partition => Some(Self {
                partitions: self.partitions.clone(),
                namespaces: Tenants::of(names),
            }),
            _ => None,
        }
    }

    /// Where rules about namespaces or partitions themselves hold: in what these are of.
    pub(crate) fn of_tenants(&self, resource: Resource) -> Self {
        let namespaces = match resource {
            Resource::Namespace if self.partitions != Tenants::Own => Tenants::main(),
            _ => Tenants::Own,
        };
        Self {
            partitions: self.partitions.clone(),
            namespaces,
        }
    }

    /// The same for a policy of a tenancy, by names.
    pub(crate) fn resolved(&self, own: &Tenancy) -> Self {
        let named = |tenants: &Tenants, own: &Arc<str>| match tenants {
            Tenants::Own => Tenants::Exact(own.clone()),
            other => other.clone(),
        };
        Self {
            partitions: named(&self.partitions, &own.partition),
            namespaces: named(&self.namespaces, &own.namespace),
        }
    }

    /// Whether it has a tenancy, where the policy is of `own`.
    pub(crate) fn holds_in(&self, own: &Tenancy, tenancy: &Tenancy) -> bool {
        self.partitions.include(&own.partition, &tenancy.partition)
            && self.namespaces.include(&own.namespace, &tenancy.namespace)
    }

    /// The higher, the more specific: first by partitions.
    pub(crate) fn weight(&self) -> (usize, usize) {
        (self.partitions.weight(), self.namespaces.weight())
    }
}
