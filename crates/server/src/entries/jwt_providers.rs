//! References from intentions to `jwt-provider` entries: providers must be written before and removed after the
//! intentions that name them. As in Consul, both writes are checked.

use legate_model::{ConfigEntry, ConfigKind, JwtRequirement, ServiceIntentions};
use legate_store::ReadTxn;

use crate::api_error::ApiError;

/// Rejects intentions that name a missing provider.
pub(crate) fn refuse_unknown(state: &ReadTxn<'_>, entry: &ConfigEntry) -> Result<(), ApiError> {
    let ConfigEntry::ServiceIntentions(entry) = entry else {
        return Ok(());
    };
    let exists = |name: &str| state.config_entry(ConfigKind::JwtProvider, name).is_some();
    let mut names = requirements(entry).flat_map(JwtRequirement::provider_names);
    match names.find(|name| !exists(name)) {
        None => Ok(()),
        Some(name) => Err(ApiError::bad_request(format!(
            "Referenced JWT Provider does not exist. Provider Name: {name}; write the jwt-provider \
             config entry first"
        ))),
    }
}

/// Rejects the removal of a provider that an intention names.
pub(super) fn refuse_removal(
    state: &ReadTxn<'_>,
    kind: ConfigKind,
    name: &str,
) -> Result<(), ApiError> {
    if kind != ConfigKind::JwtProvider {
        return Ok(());
    }
    let names = |jwt: &JwtRequirement| {
        let mut all = jwt.provider_names();
        all.any(|one| one.to_lowercase() == name.to_lowercase())
    };
    // Providers apply to the intentions of their partition.
    let entries = state.config_entries_here(ConfigKind::ServiceIntentions);
    let user = entries.iter().find_map(|entry| match &**entry {
        ConfigEntry::ServiceIntentions(entry) => {
            requirements(entry).any(names).then_some(&entry.name)
        }
        _ => None,
    });
    match user {
        None => Ok(()),
        Some(user) => Err(ApiError::bad_request(format!(
            "cannot delete jwt provider config entry referenced by an intention. Provider name: \
             {name}, intention name: {user}"
        ))),
    }
}

/// The JWT requirements of an intentions entry.
pub(super) fn requirements(entry: &ServiceIntentions) -> impl Iterator<Item = &JwtRequirement> {
    let sources = entry.sources.iter();
    let permissions = sources.flat_map(|source| &source.permissions);
    let of_permissions = permissions.filter_map(|permission| permission.jwt.as_ref());
    entry.jwt.iter().chain(of_permissions)
}
