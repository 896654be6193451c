//! `MutualTLSMode` permissive opens services to whoever reaches them: it can be set only while the `mesh`
//! entry says so. Consul's rule and message.

use legate_model::{ConfigEntry, ConfigKind, Mesh, MutualTlsMode};
use legate_store::ReadTxn;

use crate::api_error::ApiError;

/// Whether the entry of this kind and name that is there now is permissive.
pub(super) fn was(state: &ReadTxn<'_>, entry: &ConfigEntry) -> bool {
    let before = state.config_entry(entry.kind(), entry.name());
    before.is_some_and(|before| is(&before))
}

/// Refuses an entry that becomes permissive where it may not. `was`: it was before, and may stay so.
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
