//! Whose a row of access control is: the partition and the namespace that it shows.

use crate::acl::{AuthMethod, BindingRule, Policy, Role, Token};
use crate::tenancy::{Tenancy, TenancyName};

/// What is of a namespace and shows it.
pub trait Owned {
    /// The partition and the namespace that it names; a default one is not named in rows.
    fn names(&self) -> (&TenancyName, &TenancyName);

    /// The same as the one of a tenancy.
    #[must_use]
    fn within(self, tenancy: &Tenancy) -> Self;
}

macro_rules! owned {
    ($($row:ty),+) => {
        $(
            impl $row {
                /// Whose it is.
                pub fn tenancy(&self) -> Tenancy {
                    Tenancy::new(&self.partition, &self.namespace)
                }

                /// The same as the one of a tenancy.
                #[must_use]
                pub fn of(mut self, tenancy: &Tenancy) -> Self {
                    self.partition = tenancy.shown_partition();
                    self.namespace = tenancy.shown_namespace();
                    self
                }
            }

            impl Owned for $row {
                fn names(&self) -> (&TenancyName, &TenancyName) {
                    (&self.partition, &self.namespace)
                }

                fn within(self, tenancy: &Tenancy) -> Self {
                    self.of(tenancy)
                }
            }
        )+
    };
}

owned!(AuthMethod, BindingRule, Policy, Role, Token);
