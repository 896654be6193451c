//! A write of one config entry, with the rules that span entries. A function of a state, used by writes and by
//! dry runs.

use std::sync::Arc;

use legate_model::{ConfigEntry, ConfigKind, Invalid, ServiceName, Tenancy};
use legate_store::{ReadTxn, Rejected, WriteTxn};
use sha2::{Digest, Sha256};

use super::graph::{self, Relevant};
use super::{exports, gateways, jwt_providers, permissive, protocol};
use crate::api_error::ApiError;

/// Validates an entry on its own.
pub(crate) fn acceptable_entry(entry: &ConfigEntry) -> Result<(), ApiError> {
    entry.validate()?;
    gateways::refuse_bad_pair(entry)?;
    refuse_patches(entry)?;
    Ok(())
}

/// Rejects patches of fields that Envoy's messages do not have.
fn refuse_patches(entry: &ConfigEntry) -> Result<(), Invalid> {
    let extensions = match entry {
        ConfigEntry::ProxyDefaults(entry) => &entry.envoy_extensions,
        ConfigEntry::ServiceDefaults(entry) => &entry.envoy_extensions,
        _ => return Ok(()),
    };
    for (i, extension) in extensions.iter().enumerate() {
        legate_resources::check_extension(extension)
            .map_err(|error| error.within(format!("EnvoyExtensions[{i}]")))?;
    }
    Ok(())
}

/// A write of one validated, normalised entry.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// Adds or replaces an entry. The entry contains its tenancy.
    Put {
        entry: Box<ConfigEntry>,
        cas: Option<u64>,
    },
    /// Removes an entry.
    Remove {
        tenancy: Tenancy,
        kind: ConfigKind,
        name: String,
        cas: Option<u64>,
    },
}

impl Change {
    /// The kind and name of the entry.
    pub(crate) fn target(&self) -> (ConfigKind, ServiceName) {
        match self {
            Self::Put { entry, .. } => (entry.kind(), entry.full_name()),
            Self::Remove {
                tenancy,
                kind,
                name,
                ..
            } => (*kind, ServiceName::new(&kind.tenancy(tenancy), name)),
        }
    }

    /// The index that the stored entry must have.
    pub(crate) fn cas(&self) -> Option<u64> {
        match self {
            Self::Put { cas, .. } | Self::Remove { cas, .. } => *cas,
        }
    }

    /// The stored entry.
    pub(crate) fn stored(&self, txn: &ReadTxn<'_>) -> Option<Arc<ConfigEntry>> {
        let (kind, ServiceName { tenancy, name }) = self.target();
        txn.in_tenancy(&tenancy, |txn| txn.config_entry(kind, &name))
    }

    /// Applies the change, unless it conflicts with other entries. As in Consul, an invalid entry is rejected
    /// before its index is compared, a conflict with other entries after.
    ///
    /// # Errors
    ///
    /// The conflict. An index mismatch returns `false` instead.
    pub(crate) fn apply(&self, txn: &mut WriteTxn, datacenter: &str) -> Result<bool, ApiError> {
        let (kind, ServiceName { tenancy, name }) = self.target();
        txn.in_tenancy(&tenancy, |txn| {
            self.apply_within(txn, (kind, &name), datacenter)
        })
    }

    /// [`Self::apply`] for a transaction in the entry's tenancy.
    fn apply_within(
        &self,
        txn: &mut WriteTxn,
        (kind, name): (ConfigKind, &str),
        datacenter: &str,
    ) -> Result<bool, ApiError> {
        let stored = txn.read().config_entry(kind, name);
        let before = Relevant::of(stored.as_deref());
        let led_to = exports::before(&txn.read(), (kind, name), datacenter);
        let written = match self {
            Self::Put { entry, cas } => {
                if cas.is_some() && is_the_same(entry, stored.as_deref()) {
                    return Ok(true);
                }
                let was_permissive = permissive::was(&txn.read(), entry);
                let written = txn.put_config_entry((**entry).clone(), *cas);
                if written.is_ok() {
                    permissive::refuse(&txn.read(), entry, was_permissive)?;
                    gateways::refuse_clash(&txn.read(), entry)?;
                    protocol::refuse_mismatch(&txn.read(), entry)?;
                    jwt_providers::refuse_unknown(&txn.read(), entry)?;
                }
                written
            }
            Self::Remove {
                kind, name, cas, ..
            } => {
                let removed = txn.remove_config_entry(*kind, name, *cas);
                if removed.is_ok() {
                    protocol::refuse_removal(&txn.read(), *kind, name)?;
                    jwt_providers::refuse_removal(&txn.read(), *kind, name)?;
                }
                removed
            }
        };
        match written {
            Ok(()) => {
                graph::refuse_broken(&txn.read(), &before, (kind, name), datacenter)?;
                exports::refuse_unsafe(&txn.read(), &led_to, (kind, name), datacenter)?;
                gateways::refuse_mismatch(&txn.read(), &before, (kind, name), datacenter)?;
                Ok(true)
            }
            Err(Rejected::CasMismatch { .. }) => Ok(false),
            Err(rejected) => Err(rejected.into()),
        }
    }
}

/// What an entry contains, whatever its indexes are, which differ between datacenters.
pub(crate) fn digest(entry: &ConfigEntry) -> String {
    let mut entry = entry.clone();
    entry.set_indexes(0, 0);
    // Every entry has a JSON form, in which it is stored.
    let text = serde_json::to_vec(&entry).unwrap_or_default();
    let digest = Sha256::digest(&text);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether the entry is stored already. Then the write is a no-op, and its index is not compared.
fn is_the_same(entry: &ConfigEntry, stored: Option<&ConfigEntry>) -> bool {
    stored.is_some_and(|stored| {
        let mut entry = entry.clone();
        entry.set_indexes(stored.create_index(), stored.modify_index());
        entry == *stored
    })
}
