//! Limits on user-defined metadata (key/value pairs).

use std::collections::BTreeMap;

use crate::invalid::Invalid;
use crate::service::ServiceKind;

const MAX_PAIRS: usize = 64;
const MAX_KEY: usize = 128;
const MAX_VALUE: usize = 512;
const RESERVED_PREFIX: &str = "consul-";
/// The only reserved key that users may set; used on mesh gateways.
pub(crate) const WAN_FEDERATION: &str = "consul-wan-federation";

/// For nodes. Agents set reserved keys themselves, and Consul's catalog accepts any characters in
/// keys.
pub(crate) fn validate_node(meta: &BTreeMap<String, String>) -> Result<(), Invalid> {
    validate_sizes("NodeMeta", meta)
}

/// For service instances.
pub(crate) fn validate_service(
    kind: ServiceKind,
    meta: &BTreeMap<String, String>,
) -> Result<(), Invalid> {
    validate("Meta", meta)?;
    let reserved = meta.keys().find(|key| {
        key.starts_with(RESERVED_PREFIX)
            && !(kind == ServiceKind::MeshGateway && key.as_str() == WAN_FEDERATION)
    });
    match reserved {
        None => Ok(()),
        Some(key) => Err(Invalid::new(
            "Meta",
            format!("the key {key:?} starts with {RESERVED_PREFIX:?}, which is reserved"),
        )),
    }
}

/// For config entries, whose keys may contain dots and slashes.
pub(crate) fn validate_entry(field: &str, meta: &BTreeMap<String, String>) -> Result<(), Invalid> {
    validate_sizes(field, meta)
}

fn validate(field: &str, meta: &BTreeMap<String, String>) -> Result<(), Invalid> {
    validate_sizes(field, meta)?;
    let plain = |key: &str| {
        key.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    match meta.keys().find(|key| !plain(key)) {
        None => Ok(()),
        Some(key) => Err(Invalid::new(
            field,
            format!("the key {key:?} may have letters, digits, - and _ only"),
        )),
    }
}

fn validate_sizes(field: &str, meta: &BTreeMap<String, String>) -> Result<(), Invalid> {
    let fail = |reason: String| Err(Invalid::new(field, reason));
    if meta.len() > MAX_PAIRS {
        return fail(format!(
            "at most {MAX_PAIRS} pairs are allowed, not {}",
            meta.len()
        ));
    }
    for (key, value) in meta {
        if key.is_empty() {
            return fail("a key is empty".to_owned());
        }
        if key.len() > MAX_KEY {
            return fail(format!(
                "a key has {} bytes, more than {MAX_KEY}",
                key.len()
            ));
        }
        if value.len() > MAX_VALUE {
            return fail(format!(
                "the value of {key:?} has {} bytes, more than {MAX_VALUE}",
                value.len()
            ));
        }
    }
    Ok(())
}
