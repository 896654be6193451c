//! The protocol of a service by its config entries: that of its `service-defaults`, or else that of
//! `proxy-defaults`.

use legate_model::{ConfigEntry, ConfigKind, Protocol, ProxyDefaults};
use legate_store::ReadTxn;

/// The protocol of a service in the current tenancy, tcp if nothing sets one.
pub fn of(txn: &ReadTxn<'_>, service: &str) -> Protocol {
    own(txn, service).unwrap_or_else(|| default(txn))
}

/// The protocol in the service's own `service-defaults`.
pub fn own(txn: &ReadTxn<'_>, service: &str) -> Option<Protocol> {
    match &*txn.config_entry(ConfigKind::ServiceDefaults, service)? {
        ConfigEntry::ServiceDefaults(entry) => entry.protocol(),
        _ => None,
    }
}

/// The protocol of services without one of their own.
pub fn default(txn: &ReadTxn<'_>) -> Protocol {
    let entry = txn.config_entry(ConfigKind::ProxyDefaults, ProxyDefaults::NAME);
    match entry.as_deref() {
        Some(ConfigEntry::ProxyDefaults(entry)) => entry.protocol().unwrap_or_default(),
        _ => Protocol::default(),
    }
}
