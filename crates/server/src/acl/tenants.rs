//! What access control needs to know of namespaces.

use legate_model::Tenancy;
use legate_model::acl::{PolicyLink, RoleLink};
use legate_store::ReadTxn;

/// The policies and roles that every token of the namespace has that is looked at.
pub(crate) fn namespace_defaults(txn: &ReadTxn<'_>) -> (Vec<PolicyLink>, Vec<RoleLink>) {
    txn.namespace_defaults()
}

/// Whether a namespace of a partition exists, and is to stay.
pub(super) fn exists(txn: &ReadTxn<'_>, tenancy: &Tenancy) -> bool {
    txn.in_tenancy(tenancy, |txn| txn.require_tenancy().is_ok())
}
