//! Intentions with permissions or JWT requirements need a destination with an HTTP protocol. Both are config
//! entries, so both writes are checked.

use legate_model::{ConfigEntry, ConfigKind, Protocol, ServiceIntentions, ServiceName, WILDCARD};
use legate_proxycfg::protocol;
use legate_store::ReadTxn;

use crate::api_error::ApiError;

/// Rejects an entry that would leave L7 intentions on a service without an HTTP protocol.
pub(crate) fn refuse_mismatch(state: &ReadTxn<'_>, entry: &ConfigEntry) -> Result<(), ApiError> {
    match entry {
        ConfigEntry::ServiceIntentions(entry) => {
            let tenancy = entry.destination().tenancy;
            let protocol = state.in_tenancy(&tenancy, |state| protocol::of(state, &entry.name));
            require_http(entry, protocol)
        }
        ConfigEntry::ServiceDefaults(entry) => {
            let protocol = entry.protocol().unwrap_or_else(|| protocol::default(state));
            refuse_downgrade(state, &entry.name, protocol)
        }
        ConfigEntry::ProxyDefaults(entry) => {
            refuse_default_downgrade(state, entry.protocol().unwrap_or_default())
        }
        _ => Ok(()),
    }
}

/// Rejects the removal of an entry that sets the protocol of such a service.
pub(super) fn refuse_removal(
    state: &ReadTxn<'_>,
    kind: ConfigKind,
    name: &str,
) -> Result<(), ApiError> {
    match kind {
        ConfigKind::ServiceDefaults => refuse_downgrade(state, name, protocol::default(state)),
        ConfigKind::ProxyDefaults => refuse_default_downgrade(state, Protocol::default()),
        _ => Ok(()),
    }
}

fn require_http(entry: &ServiceIntentions, protocol: Protocol) -> Result<(), ApiError> {
    match looks_into_requests(entry) {
        Some(field) if !protocol.is_http() => Err(ApiError::bad_request(format!(
            "Invalid request: service {:?} has protocol \"{protocol}\", which is \
             incompatible with L7 intentions {field}; set Protocol to http, http2 or grpc in its \
             service-defaults first",
            entry.name
        ))),
        _ => Ok(()),
    }
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
    match looks_into_requests(entry) {
        Some(field) if !protocol.is_http() => Err(ApiError::bad_request(format!(
            "Invalid request: Protocol: service {service:?} has protocol \"{protocol}\", which is \
             incompatible with L7 intentions {field}; change its service-intentions first"
        ))),
        _ => Ok(()),
    }
}

/// Applies to the services of the partition without a protocol of their own.
fn refuse_default_downgrade(state: &ReadTxn<'_>, default: Protocol) -> Result<(), ApiError> {
    for entry in state.config_entries_here(ConfigKind::ServiceIntentions) {
        let ServiceName { tenancy, name } = entry.full_name();
        state.in_tenancy(&tenancy, |state| match protocol::own(state, &name) {
            Some(_) => Ok(()),
            None => refuse_downgrade(state, &name, default),
        })?;
    }
    Ok(())
}

/// The field that makes the intentions L7. JWT requirements on the wildcard destination are exempt: they apply
/// to services of any protocol, and where there are no requests, connections are rejected.
fn looks_into_requests(entry: &ServiceIntentions) -> Option<&'static str> {
    let mut sources = entry.sources.iter();
    if sources.any(|source| !source.permissions.is_empty()) {
        return Some("permissions");
    }
    let asks = entry.jwt.is_some() && entry.name != WILDCARD;
    asks.then_some("JWT")
}
