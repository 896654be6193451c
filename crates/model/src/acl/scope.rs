//! Scopes of rules: the partitions and namespaces in which a rule is valid.

use std::sync::Arc;

use crate::acl::resource::{Names, Resource};
use crate::tenancy::{DEFAULT_TENANCY, Tenancy};

/// Selects namespaces or partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenants {
    /// The policy's own.
    #[default]
    Own,
    /// The one with this name.
    Exact(Arc<str>),
    /// Those with this prefix, which may be empty.
    Prefix(Arc<str>),
}

impl Tenants {
    /// Whether a namespace or partition is selected; `own` is the policy's.
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

    /// Specificity: exact names above prefixes, longer prefixes above shorter ones.
    fn weight(&self) -> usize {
        match self {
            Self::Own | Self::Exact(_) => usize::MAX,
            Self::Prefix(prefix) => prefix.len(),
        }
    }
}

/// Selects namespaces of partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// The partitions.
    pub partitions: Tenants,
    /// The namespaces of these partitions.
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

    /// The scope of a nested block, or `None` where such a block is not permitted.
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

    /// The scope of rules about namespaces or partitions themselves, which belong to the partition or
    /// mesh around them.
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

    /// Replaces [`Tenants::Own`] with the names of the policy's tenancy.
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

    /// Whether it includes `tenancy`; `own` is the policy's.
    pub(crate) fn holds_in(&self, own: &Tenancy, tenancy: &Tenancy) -> bool {
        self.partitions.include(&own.partition, &tenancy.partition)
            && self.namespaces.include(&own.namespace, &tenancy.namespace)
    }

    /// Specificity, compared by partitions first.
    pub(crate) fn weight(&self) -> (usize, usize) {
        (self.partitions.weight(), self.namespaces.weight())
    }
}
