//! The tenancy of an ACL row, from its partition and namespace fields.

use crate::acl::{AuthMethod, BindingRule, Policy, Role, Token};
use crate::tenancy::{Tenancy, TenancyName};

/// A row with partition and namespace fields.
pub trait Owned {
    /// Its partition and namespace; default names are empty in rows.
    fn names(&self) -> (&TenancyName, &TenancyName);

    /// Returns the row with its tenancy set.
    #[must_use]
    fn within(self, tenancy: &Tenancy) -> Self;
}

macro_rules! owned {
    ($($row:ty),+) => {
        $(
            impl $row {
                /// The row's tenancy.
                pub fn tenancy(&self) -> Tenancy {
                    Tenancy::new(&self.partition, &self.namespace)
                }

                /// Returns the row with its tenancy set.
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
