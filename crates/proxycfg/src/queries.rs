//! What many proxies read alike. Each is computed once for all of them, and stays the same `Arc`
//! until it says something else to a proxy.

use std::ops::Deref;
use std::sync::Arc;

use legate_model::{
    CaRoots, CheckServiceNode, ConfigEntry, ConfigKind, Intention, Mesh, TrustDomain,
};
use legate_store::ReadTxn;
use tracing::warn;

use crate::same;

/// The instances through which a service is reached in the mesh. Two of them are equal when they
/// make no difference to those who call them.
#[derive(Debug, Clone, Default)]
pub struct Instances(Vec<CheckServiceNode>);

impl Deref for Instances {
    type Target = [CheckServiceNode];

    fn deref(&self) -> &[CheckServiceNode] {
        &self.0
    }
}

impl From<Vec<CheckServiceNode>> for Instances {
    fn from(instances: Vec<CheckServiceNode>) -> Self {
        Self(instances)
    }
}

impl PartialEq for Instances {
    fn eq(&self, other: &Self) -> bool {
        same::instances(self, other)
    }
}

/// The instances of an upstream.
pub(crate) fn instances(txn: &ReadTxn<'_>, service: &str) -> Arc<Instances> {
    txn.shared("instances", service, |txn| Instances(txn.connect(service)))
}

/// The intentions that have the service as their destination, in order of precedence.
pub(crate) fn intentions(txn: &ReadTxn<'_>, destination: &str) -> Arc<Vec<Arc<Intention>>> {
    txn.shared("intentions", destination, |txn| {
        txn.intentions_for(destination)
    })
}

/// The `mesh` config entry, where there is one.
pub(crate) fn mesh(txn: &ReadTxn<'_>) -> Arc<Option<Mesh>> {
    txn.shared("mesh", "", |txn| {
        match &*txn.config_entry(ConfigKind::Mesh, Mesh::NAME)? {
            ConfigEntry::Mesh(mesh) => Some(mesh.clone()),
            _ => None,
        }
    })
}

/// The roots that peers are verified against, with the domain they stand for.
pub(crate) fn roots(txn: &ReadTxn<'_>) -> Arc<Option<(TrustDomain, Arc<CaRoots>)>> {
    txn.shared("roots", "", |txn| {
        let roots = txn.ca_roots()?;
        match roots.trust_domain.parse() {
            Ok(trust_domain) => Some((trust_domain, roots)),
            Err(error) => {
                warn!(%error, "the stored CA roots cannot be used; proxies keep the ones they have");
                None
            }
        }
    })
}
