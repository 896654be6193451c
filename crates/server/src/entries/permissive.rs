//! `MutualTLSMode: permissive` accepts connections without mTLS. It can be set only while the `mesh` entry
//! permits it. Consul's rule and text.

use legate_model::{ConfigEntry, ConfigKind, Mesh, MutualTlsMode};
use legate_store::ReadTxn;

use crate::api_error::ApiError;

/// Whether the stored entry of this kind and name is permissive.
pub(super) fn was(state: &ReadTxn<'_>, entry: &ConfigEntry) -> bool {
    let before = state.config_entry(entry.kind(), entry.name());
    before.is_some_and(|before| is(&before))
}

/// Rejects an entry that becomes permissive without permission. `was`: the previous version was permissive and
/// may stay so.
pub(super) fn refuse(state: &ReadTxn<'_>, entry: &ConfigEntry, was: bool) -> Result<(), ApiError> {
    if was || !is(entry) || is_allowed(state) {
        return Ok(());
    }
    Err(ApiError::bad_request(
        "cannot set MutualTLSMode=permissive because AllowEnablingPermissiveMutualTLS=false in the \
         mesh config entry",
    ))
}

fn is(entry: &ConfigEntry) -> bool {
    let mode = match entry {
        ConfigEntry::ProxyDefaults(entry) => entry.mutual_tls_mode,
        ConfigEntry::ServiceDefaults(entry) => entry.mutual_tls_mode,
        _ => return false,
    };
    mode == MutualTlsMode::Permissive
}

fn is_allowed(state: &ReadTxn<'_>) -> bool {
    let mesh = state.config_entry(ConfigKind::Mesh, Mesh::NAME);
    matches!(mesh.as_deref(), Some(ConfigEntry::Mesh(mesh)) if mesh.allow_enabling_permissive_mutual_tls)
}
