//! Namespace lookups for access control.

use legate_model::Tenancy;
use legate_model::acl::{PolicyLink, RoleLink};
use legate_store::ReadTxn;

/// The default policies and roles of the namespace that is read.
pub(crate) fn namespace_defaults(txn: &ReadTxn<'_>) -> (Vec<PolicyLink>, Vec<RoleLink>) {
    txn.namespace_defaults()
}

/// Whether a namespace of a partition exists and is not being deleted.
pub(super) fn exists(txn: &ReadTxn<'_>, tenancy: &Tenancy) -> bool {
    txn.in_tenancy(tenancy, |txn| txn.require_tenancy().is_ok())
}
