//! Intentions that look into requests need a destination whose protocol is one of HTTP's. Both are
//! config entries, so each is checked against the other before it is written.

use legate_model::{
    ConfigEntry, ConfigKind, Intention, Protocol, ProxyDefaults, ServiceIntentions,
};
use legate_store::ReadTxn;

use super::error::ApiError;

/// Refuses an entry that would leave an intention with permissions on a service that is not HTTP.
pub(super) fn refuse_mismatch(state: &ReadTxn<'_>, entry: &ConfigEntry) -> Result<(), ApiError> {
    match entry {
        ConfigEntry::ServiceIntentions(entry) if has_permissions(entry) => {
            require_http(&entry.name, protocol_of(state, &entry.name))
        }
        ConfigEntry::ServiceDefaults(entry) => {
            let protocol = entry.protocol().unwrap_or_else(|| default_protocol(state));
            refuse_downgrade(state, &entry.name, protocol)
        }
        ConfigEntry::ProxyDefaults(entry) => {
            refuse_default_downgrade(state, entry.protocol().unwrap_or_default())
        }
        _ => Ok(()),
    }
}

/// Refuses to remove an entry that gives a protocol to such a service.
pub(super) fn refuse_removal(
    state: &ReadTxn<'_>,
    kind: ConfigKind,
    name: &str,
) -> Result<(), ApiError> {
    match kind {
        ConfigKind::ServiceDefaults => refuse_downgrade(state, name, default_protocol(state)),
        ConfigKind::ProxyDefaults => refuse_default_downgrade(state, Protocol::default()),
        _ => Ok(()),
    }
}

/// The same for a single intention.
pub(super) fn refuse_permissions(
    state: &ReadTxn<'_>,
    intention: &Intention,
) -> Result<(), ApiError> {
    if intention.permissions.is_empty() {
        return Ok(());
    }
    let name = &intention.destination_name;
    require_http(name, protocol_of(state, name))
}

fn require_http(service: &str, protocol: Protocol) -> Result<(), ApiError> {
    if protocol.is_http() {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "Invalid request: Permissions: the protocol of {service:?} is {protocol}, which has no \
         requests to look into; set Protocol to http, http2 or grpc in its service-defaults first, \
         or use Action"
    )))
}

fn refuse_downgrade(
    state: &ReadTxn<'_>,
    service: &str,
    protocol: Protocol,
) -> Result<(), ApiError> {
    let entry = state.config_entry(ConfigKind::ServiceIntentions, service);
    let Some(ConfigEntry::ServiceIntentions(entry)) = entry.as_deref() else {
        return Ok(());
    };
    if protocol.is_http() || !has_permissions(entry) {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "Invalid request: Protocol: {service:?} has intentions with Permissions, which need http, \
         http2 or grpc and not {protocol}; change its service-intentions first"
    )))
}

/// Services that have no protocol of their own take the default.
fn refuse_default_downgrade(state: &ReadTxn<'_>, default: Protocol) -> Result<(), ApiError> {
    for entry in state.config_entries(ConfigKind::ServiceIntentions) {
        if own_protocol(state, entry.name()).is_none() {
            refuse_downgrade(state, entry.name(), default)?;
        }
    }
    Ok(())
}

fn has_permissions(entry: &ServiceIntentions) -> bool {
    entry
        .sources
        .iter()
        .any(|source| !source.permissions.is_empty())
}

fn protocol_of(state: &ReadTxn<'_>, service: &str) -> Protocol {
    own_protocol(state, service).unwrap_or_else(|| default_protocol(state))
}

fn own_protocol(state: &ReadTxn<'_>, service: &str) -> Option<Protocol> {
    match state
        .config_entry(ConfigKind::ServiceDefaults, service)?
        .as_ref()
    {
        ConfigEntry::ServiceDefaults(entry) => entry.protocol(),
        _ => None,
    }
}

fn default_protocol(state: &ReadTxn<'_>) -> Protocol {
    let entry = state.config_entry(ConfigKind::ProxyDefaults, ProxyDefaults::NAME);
    match entry.as_deref() {
        Some(ConfigEntry::ProxyDefaults(entry)) => entry.protocol().unwrap_or_default(),
        _ => Protocol::default(),
    }
}
